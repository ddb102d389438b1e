"""Manual pages in troff's macros for man(7): one for the program, and one for each command with all its subcommands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

from starlingmq import __version__

SECTION: Final = 1
EXIT_CODES: Final = (
    ("0", "Success."),
    ("1", "A negative result, such as a node that is not ready; or an error in the program."),
    ("2", "Invalid input, or an error of the system."),
    ("3", "A node of the cluster is gone (ctl cluster status, ctl health --cluster)."),
)


def pages(root: Any, program: str) -> dict[str, str]:
    """The text of each page by its file name. ``root`` is the group of all commands that typer makes."""
    written = {program: _text([*_program(root, program), *_exit_codes(), *_more(program)])}
    for name, command in root.commands.items():
        path = f"{program} {name}"
        body = [*_described(command, path), *_subcommands(command, path), *_exit_codes(), *_more(program)]
        written[f"{program}-{name}"] = _text([_title(path.replace(" ", "-"), command), *body])
    return {f"{name}.{SECTION}": text for name, text in written.items()}


def _program(root: Any, program: str) -> Iterator[str]:
    yield _title(program, root)
    yield from _described(root, program)
    yield ".SH COMMANDS"
    for name, command in root.commands.items():
        yield from (".TP", rf"\fB{program}\-{_escaped(name)}\fR(1)", _escaped(_summary(command)))


def _title(name: str, command: Any) -> str:
    summary = _summary(command).rstrip(".")
    return (
        f'.TH "{name.upper()}" "{SECTION}" "" "StarlingMQ {__version__}" "StarlingMQ"\n'
        f".SH NAME\n{_escaped(name)} \\- {_escaped(summary)}"
    )


def _described(command: Any, path: str, heading: str = ".SH") -> Iterator[str]:
    options = [each for each in command.params if each.opts[0].startswith("-") and not each.hidden]
    arguments = [each for each in command.params if not each.opts[0].startswith("-") and not each.hidden]
    words = [path, *(["[OPTIONS]"] if options else []), *map(_argument, arguments)]
    if hasattr(command, "commands"):
        words.append("COMMAND ...")
    yield f"{heading} SYNOPSIS" if heading == ".SH" else ".PP"
    yield rf"\fB{_escaped(words[0])}\fR {_escaped(' '.join(words[1:]))}"
    if heading == ".SH":
        yield ".SH DESCRIPTION"
    else:
        yield ".PP"
    yield _escaped(inspect.cleandoc(command.help or ""))
    if arguments or options:
        yield ".SH OPTIONS" if heading == ".SH" else ".PP"
    for each in arguments:
        yield from (".TP", rf"\fI{_escaped(_metavar(each))}\fR", _escaped(each.help or ""))
    for each in options:
        yield from (".TP", _option(each), _escaped(_with_default(each)))


def _subcommands(command: Any, path: str) -> Iterator[str]:
    commands = getattr(command, "commands", {})
    if commands:
        yield ".SH COMMANDS"
    for name, child in commands.items():
        yield f'.SS "{_escaped(path)} {_escaped(name)}"'
        yield from _described(child, f"{path} {name}", ".SS")
        for below, grandchild in getattr(child, "commands", {}).items():
            yield f'.SS "{_escaped(path)} {_escaped(name)} {_escaped(below)}"'
            yield from _described(grandchild, f"{path} {name} {below}", ".SS")


def _exit_codes() -> Iterator[str]:
    yield ".SH EXIT STATUS"
    for code, meaning in EXIT_CODES:
        yield from (".TP", rf"\fB{code}\fR", _escaped(meaning))


def _more(program: str) -> Iterator[str]:
    yield ".SH SEE ALSO"
    yield rf"\fB{program}\fR(1), and the pages in /usr/share/doc/{program} if the Debian package is installed"


def _summary(command: Any) -> str:
    """The first sentence of the help."""
    first = " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) |: ", first)[0]


def _option(option: Any) -> str:
    names = ", ".join(rf"\fB{_escaped(name)}\fR" for name in (*option.opts, *option.secondary_opts))
    return names if option.is_flag else rf"{names} \fI{_escaped(_metavar(option))}\fR"


def _with_default(option: Any) -> str:
    default = option.default
    shown = not option.is_flag and isinstance(default, str | int | float) and default not in ("", False)
    return (option.help or "") + (f" [default: {default}]" if shown else "")


def _argument(argument: Any) -> str:
    word = _metavar(argument) + ("..." if argument.nargs == -1 else "")
    return word if argument.required else f"[{word}]"


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.rstrip("_").replace("_", "-").upper())


def _escaped(text: str) -> str:
    """Text that troff prints as it is."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return "\n".join(rf"\&{line}" if line.startswith((".", "'")) else line for line in text.splitlines())


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"
