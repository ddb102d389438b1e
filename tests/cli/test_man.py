"""Manual pages and completion scripts, read by the programs that they are for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from starlingmq.cli.app import COMMANDS
from tests.cli.commands import run

SHELLS = {"bash": "-n", "zsh": "-n", "fish": "--no-execute"}


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("man")
    assert run("man", str(directory)) == (0, b"", "")
    return directory


def test_every_command_has_a_page(manual: Path) -> None:
    assert {path.name for path in manual.iterdir()} == {"starlingmq.1"} | {f"starlingmq-{name}.1" for name in COMMANDS}
    first = (manual / "starlingmq.1").read_text()
    assert all(rf"starlingmq\-{name}" in first for name in COMMANDS)


def test_pages_have_the_options_and_the_subcommands(manual: Path) -> None:
    text = (manual / "starlingmq-ctl.1").read_text()
    assert r'.SS "starlingmq ctl storage check"' in text and r'.SS "starlingmq ctl cluster forget"' in text
    text = (manual / "starlingmq-sub.1").read_text()
    assert r"\fB\-q, \-\-qos" in text


def test_pages_have_the_sections_of_manual_pages_and_no_stray_line(manual: Path) -> None:
    commands = [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH COMMANDS", ".SH EXIT STATUS", ".SH SEE ALSO"]
    options = [".SH OPTIONS" if each == ".SH COMMANDS" else each for each in commands]
    for name, sections in {"starlingmq-ctl.1": commands, "starlingmq-sub.1": options}.items():
        lines = (manual / name).read_text().splitlines()
        assert [line for line in lines if line.startswith(".SH")] == sections
        assert "\\" not in lines


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_formats_every_page_without_a_warning(manual: Path) -> None:
    for path in sorted(manual.iterdir()):
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", "-P-cbou", path], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, ""), path.name
        assert "NAME" in done.stdout and "EXIT STATUS" in done.stdout, path.name


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_read_the_completion(shell: str, tmp_path: Path) -> None:
    code, script, errors = run("completion", shell)
    assert (code, errors) == (0, "") and b"_STARLINGMQ_COMPLETE" in script
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_bytes(script)
    done = subprocess.run([program, SHELLS[shell], tmp_path / "script"], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
