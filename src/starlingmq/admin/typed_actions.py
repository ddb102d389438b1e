"""Operator actions with a typed request and a typed reply.

On the control socket and between nodes a request is texts by name, and a reply is a JSON object. Here both are structs:
``typed`` makes an entry of the table of actions from a method that takes one and returns one, and ``ask`` calls such an
entry. Texts that a request does not know are ignored, so that a newer node can ask an older one.

A field of a request is a text, or one of these: ``bool`` ("yes" is true), ``int``, ``Limit`` (entries of a page) or
``After`` (the cursor of a page).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NewType, TypeVar

from msgspec import Struct, convert, to_builtins
from msgspec.structs import asdict, fields

from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.paging import limit_of, number_after
from starlingmq.net.control_socket import Action, Report

Limit = NewType("Limit", int)
After = NewType("After", int)

PAGE: Final = Limit(100)  # entries where nothing is asked for
FIRST: Final = After(0)
NUMBER_DIGITS_MAX: Final = 18

Q = TypeVar("Q", bound=Struct)
R = TypeVar("R", bound=Struct)


class NoArguments(Struct, frozen=True):
    """The request of an action that has nothing to choose."""


def typed(kind: type[Q], act: Callable[[Report, Q], Awaitable[Struct]]) -> Action:
    """The action that reads a request of this kind, has it done, and returns the reply as plain data."""
    readers = {field.name: READERS[field.type] for field in fields(kind)}

    async def asked(report: Report, arguments: dict[str, str]) -> dict[str, Any]:
        read = {name: reader(name, arguments[name]) for name, reader in readers.items() if name in arguments}
        reply: dict[str, Any] = to_builtins(await act(report, kind(**read)))
        return reply

    return asked


async def ask(action: Action, report: Report, request: Struct, reply: type[R]) -> R:
    """Call an action with a request, and return its reply. Raises what the action raises."""
    return convert(await action(report, texts(request)), reply)


def texts(request: Struct) -> dict[str, str]:
    """The arguments that a request is on the wire."""
    return {
        name: ("yes" if value else "") if isinstance(value, bool) else str(value)
        for name, value in asdict(request).items()
    }


def _number(name: str, text: str) -> int:
    """Raises AdminError."""
    if not text.isascii() or not text.isdigit() or len(text) > NUMBER_DIGITS_MAX:
        raise AdminError(400, f"{name}: must be a whole number, 0 or above")
    return int(text)


READERS: Final[dict[object, Callable[[str, str], Any]]] = {
    str: lambda _, text: text,
    bool: lambda _, text: text == "yes",
    int: _number,
    Limit: lambda _, text: limit_of({"limit": text}),
    After: lambda _, text: number_after(text),
}
