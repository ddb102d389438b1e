"""``starlingmq completion``: the script that lets a shell complete commands and options."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from starlingmq.cli.app import COMPLETION, PROGRAM


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def command(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="Shell that reads the script: bash, zsh or fish.")],
) -> None:
    """Print the script that completes commands and options in a shell: `source <(starlingmq completion bash)`."""
    print(get_completion_script(prog_name=PROGRAM, complete_var=COMPLETION, shell=shell.value))  # nosec B604: names a shell, runs none
