"""Operator actions with a typed request and a typed reply.

On the control socket and between nodes, a request is a map from names to texts and a reply is a JSON object. In the
code both are structs: ``typed`` turns a method that takes a request struct and returns a reply struct into an entry of
the table of actions, and ``ask`` calls such an entry. Texts that the request struct does not define are ignored, so
that a newer node can ask an older one.

| type of a field | its text |
|---|---|
| ``str`` | itself |
| ``bool`` | "yes" is true, anything else is false |
| ``int``, ``float`` | a number |
| ``int | None`` | a number, or "" for None |
| ``Limit``, ``After`` | the size of a page, and its cursor |
| any other | JSON |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NewType, TypeVar

from msgspec import MsgspecError, Struct, convert, json, to_builtins
from msgspec.structs import asdict, fields

from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.paging import limit_of, number_after
from starlingmq.net.control_socket import Action, Report

Limit = NewType("Limit", int)
After = NewType("After", int)

PAGE: Final = Limit(100)  # default number of entries of a page
FIRST: Final = After(0)
NUMBER_DIGITS_MAX: Final = 18

Q = TypeVar("Q", bound=Struct)
R = TypeVar("R", bound=Struct)


class NoArguments(Struct, frozen=True):
    """The request of an action without arguments."""


def typed(kind: type[Q], act: Callable[[Report, Q], Awaitable[Struct]]) -> Action:
    """Return the action that reads a request of this kind, calls ``act``, and returns the reply as plain data."""
    readers = {field.name: READERS.get(field.type) or partial(_from_json, field.type) for field in fields(kind)}

    async def asked(report: Report, arguments: dict[str, str]) -> dict[str, Any]:
        read = {name: reader(name, arguments[name]) for name, reader in readers.items() if name in arguments}
        reply: dict[str, Any] = to_builtins(await act(report, kind(**read)))
        return reply

    return asked


async def ask(action: Action, report: Report, request: Struct, reply: type[R]) -> R:
    """Call an action with a request, and return its reply. Raises what the action raises."""
    return convert(await action(report, texts(request)), reply)


def texts(request: Struct) -> dict[str, str]:
    """The arguments of a request on the wire."""
    return {name: _text(value) for name, value in asdict(request).items()}


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    return str(value) if isinstance(value, str | int | float) else json.encode(value).decode()


def _number(name: str, text: str) -> int:
    """Raises AdminError."""
    if not text.isascii() or not text.isdigit() or len(text) > NUMBER_DIGITS_MAX:
        raise AdminError(400, f"{name}: must be a whole number, 0 or above")
    return int(text)


def _decimal(name: str, text: str) -> float:
    """Raises AdminError."""
    try:
        return float(text)
    except ValueError:
        raise AdminError(400, f"{name}: must be a number") from None


def _from_json(kind: Any, name: str, text: str) -> Any:
    """Raises AdminError."""
    try:
        return json.decode(text, type=kind)
    except (MsgspecError, UnicodeError) as error:
        raise AdminError(400, f"{name}: is malformed: {error}") from None


READERS: Final[dict[object, Callable[[str, str], Any]]] = {
    str: lambda _, text: text,
    bool: lambda _, text: text == "yes",
    int: _number,
    float: _decimal,
    int | None: lambda name, text: _number(name, text) if text else None,
    Limit: lambda _, text: limit_of({"limit": text}),
    After: lambda _, text: number_after(text),
}
