"""Turns an exception into one line for the user and an exit code that tells user errors from bugs."""

from __future__ import annotations

from typing import Any, Final

USER_ERROR: Final = 2
"""Exit code for invalid input and for errors of the system."""

OUR_ERROR: Final = 1


def explain(error: Exception) -> tuple[str, int]:
    """Return one line about the error ("" if there is nothing to add) and the exit code."""
    format_message = getattr(error, "format_message", None)
    if format_message is not None:  # of typer: a wrong option, a missing argument
        there = _what_there_is(error)
        return _one_line(format_message().rstrip(".") + there if there else format_message()), USER_ERROR
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return _one_line(f"{error.filename}: {reason}" if error.filename else reason), USER_ERROR
    if type(error).__module__.partition(".")[0] == __name__.partition(".")[0]:
        return _one_line(str(error)), USER_ERROR  # the exceptions of this package are written for users
    if isinstance(error, ModuleNotFoundError) and str(error.name).startswith("starlingmq."):  # of a checkout
        return f"{error.name} is missing: compiled modules are older than the sources; run make setup", USER_ERROR
    return _one_line(f"unexpected {type(error).__name__}: {error} (--debug shows where)"), OUR_ERROR


def _what_there_is(error: Any) -> str:
    """Return where to find the right command or option after an unknown one; "" if the message already says so."""
    if getattr(error, "option_name", None) == "-h":
        return "; -h is the host of the broker, --help prints the help"
    context = getattr(error, "ctx", None)
    if context is None or getattr(error, "possibilities", None):
        return ""
    path = context.command_path
    commands = getattr(context.command, "commands", None)
    option = getattr(error, "option_name", None)
    if option is not None:
        return (
            f"; options follow the command: {path} COMMAND {option}"
            if commands
            else f"; {path} --help lists all options"
        )
    if commands and error.message.startswith("No such command") and "Did you mean" not in error.message:
        return f"; the commands are {', '.join(commands)}"
    return f"; {path} --help lists the arguments" if "unexpected extra argument" in error.message else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())
