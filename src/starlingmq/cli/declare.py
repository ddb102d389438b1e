"""A command from a dataclass: each field is an option, defined by its annotation.

``pub``, ``sub`` and ``bench`` share some thirty options. A dataclass can be inherited; a signature cannot.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

Args = TypeVar("Args")


class CommandError(Exception):
    """An error that the user can correct; shown as one line, exit code 2."""

    def format_message(self) -> str:
        return str(self)


def parameter(name: str, default: object, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def shaped(command: Callable[..., Any], parameters: list[inspect.Parameter]) -> Callable[..., Any]:
    """The function, with these parameters for typer."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def command_of(args: type[Args], run: Callable[[Args], int]) -> Callable[..., int]:
    """Return a command for typer: a function with one keyword parameter per field of ``args``.

    The fields are annotated with ``Annotated[type, typer.Option(...)]``; the help text is the docstring of ``run``.
    """
    hints = get_type_hints(args, include_extras=True)

    def command(**given: Any) -> int:
        return run(args(**given))

    command.__doc__ = run.__doc__
    found = dataclasses.fields(args)  # type: ignore[arg-type]
    return shaped(command, [parameter(one.name, _default(one), hints[one.name]) for one in found])


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
