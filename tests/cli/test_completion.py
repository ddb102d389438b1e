"""The completion scripts in real shells, installed where the Debian package puts them: they work at the first key."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import run

PATIENCE = 60.0

BASH = """
source {directory}/starlingmq
COMP_WORDS=(starlingmq ctl cluster forg); COMP_CWORD=3; _starlingmq_completion starlingmq; echo "${{COMPREPLY[@]}}"
"""

FISH = "source {directory}/starlingmq.fish; complete -C 'starlingmq ctl cluster forg'"

ZSH = """
zmodload zsh/zpty
zpty shell "TERM=dumb PS1='> ' zsh -f -i"
zpty -w shell 'fpath=({directory} $fpath); autoload -U compinit; compinit -D -u; echo READ''Y'
zpty -r -m shell line '*READY*'
zpty -w -n shell $'starlingmq ctl cluster forg\\t'
zpty -r -m shell line '*forget*' && print forget
zpty -d shell
"""

SHELLS = {"bash": ("starlingmq", BASH), "zsh": ("_starlingmq", ZSH), "fish": ("starlingmq.fish", FISH)}


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_a_command_at_the_first_key(shell: str, tmp_path: Path) -> None:
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed")
    name, script = SHELLS[shell]
    (tmp_path / name).write_bytes(run("completion", shell)[1])
    command = tmp_path / "bin" / "starlingmq"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m starlingmq "$@"\n')
    command.chmod(0o755)
    done = subprocess.run(
        [program, "-c", script.format(directory=tmp_path)],
        env={**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout.split()[0] == "forget", (done.stdout, done.stderr)
