"""``starlingmq man``: manual pages in troff's macros for man(7), one for the program and one for each command with all
its subcommands. Usage, options and defaults are those that ``--help`` prints.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from starlingmq import __version__
from starlingmq.cli.app import COMMANDS, PROGRAM, build_app

END = rf""".SH EXIT STATUS
.TP
\fB0\fR
Success.
.TP
\fB1\fR
A negative result, such as a node that is not ready; or an error in the program.
.TP
\fB2\fR
Invalid input, or an error of the system.
.TP
\fB3\fR
A node of the cluster is gone (ctl cluster status, ctl health \-\-cluster).
.SH SEE ALSO
\fB{PROGRAM}\fR(1), and the pages in /usr/share/doc/{PROGRAM} if the Debian package is installed
"""


def command(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Where the pages are written.")],
) -> None:
    """Write manual pages of all commands into a directory, from their help texts."""
    from typer.main import get_command

    root: Any = get_command(build_app(COMMANDS))
    context = root.make_context(PROGRAM, [], resilient_parsing=True)
    pages = {PROGRAM: [*_page(root, context), *_list(root)]}
    for name, below in root.commands.items():
        context_below = _context(below, name, context)
        heading = [".SH COMMANDS"] if hasattr(below, "commands") else []
        subcommands = _subcommands(below, context_below)
        pages[f"{PROGRAM}-{name}"] = [*_page(below, context_below), *heading, *subcommands]
    directory.mkdir(parents=True, exist_ok=True)
    for title, lines in pages.items():
        (directory / f"{title}.1").write_text("\n".join([*lines, END]), encoding="utf-8")


def _context(command: Any, name: str, parent: Any) -> Any:
    return command.make_context(name, [], parent=parent, resilient_parsing=True)


def _page(command: Any, context: Any) -> Iterator[str]:
    title = context.command_path.replace(" ", "-")
    yield f'.TH "{title.upper()}" 1 "" "StarlingMQ {__version__}" "StarlingMQ"'
    yield from (".SH NAME", rf"{_escaped(title)} \- {_summary(command)}", ".SH SYNOPSIS")
    yield from _help(command, context, ".SH DESCRIPTION")


def _help(command: Any, context: Any, heading: str = ".PP") -> Iterator[str]:
    usage = " ".join(piece for piece in command.collect_usage_pieces(context) if piece != "[]")  # of a hidden argument
    yield rf"\fB{_escaped(context.command_path)}\fR {_escaped(usage)}"
    yield from (heading, _escaped(inspect.cleandoc(command.help or "")))
    records = [record for each in command.params if (record := each.get_help_record(context))]  # none of a hidden one
    if records and heading == ".SH DESCRIPTION":
        yield ".SH OPTIONS"
    for names, meaning in records:
        yield from (".TP", rf"\fB{_escaped(names)}\fR", _escaped(meaning))


def _list(root: Any) -> Iterator[str]:
    yield ".SH COMMANDS"
    for name, command in root.commands.items():
        yield from (".TP", rf"\fB{PROGRAM}\-{_escaped(name)}\fR(1)", _summary(command))


def _subcommands(command: Any, context: Any) -> Iterator[str]:
    for name, below in getattr(command, "commands", {}).items():
        context_below = _context(below, name, context)
        yield f'.SS "{_escaped(context_below.command_path)}"'
        yield from _help(below, context_below)
        yield from _subcommands(below, context_below)


def _summary(command: Any) -> str:
    """The first sentence of the help."""
    first = " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())
    return _escaped(re.split(r"(?<=\.) |: ", first)[0].rstrip("."))


def _escaped(text: str) -> str:
    """Text that troff prints as it is."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return "\n".join(rf"\&{line}" if line.startswith((".", "'")) else line for line in text.splitlines())
