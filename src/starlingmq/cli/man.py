"""``starlingmq man``: manual pages, written from the help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Where the pages are written.")],
) -> None:
    """Write manual pages of all commands into a directory, from their help texts."""
    from typer.main import get_command

    from starlingmq.cli.app import COMMANDS, PROGRAM, build_app
    from starlingmq.cli.man_pages import pages

    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages(get_command(build_app(COMMANDS)), PROGRAM).items():
        (directory / name).write_text(text, encoding="utf-8")
