"""Operator actions with a typed request and a typed reply.

On the control socket and between nodes, a request is a map from names to texts and a reply is a JSON object. In the
code both are structs: ``typed`` turns a method that takes a request struct and returns a reply struct into an entry of
the table of actions, and ``ask`` calls such an entry. Texts that the request struct does not define are ignored, so
that a newer node can ask an older one.

| type of a field | its text |
|---|---|
| ``str``, ``Literal`` | itself |
| ``bool`` | "yes" is true, anything else is false |
| ``int``, ``float`` | a number |
| ``X | None`` | that of X, or "" for None |
| ``Limit``, ``After`` | the size of a page, and its cursor |
| ``Annotated`` with ``Meta`` | that of its type; a value outside of the limits is refused |
| any other | JSON |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache, partial, reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NewType, TypeVar, Union, get_args, get_origin

from msgspec import NODEFAULT, Meta, MsgspecError, Struct, convert, json, to_builtins
from msgspec.structs import FieldInfo, asdict, fields

from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.paging import limit_of, number_after
from starlingmq.net.control_socket import Action, Report

Limit = NewType("Limit", int)
After = NewType("After", int)

Cursor = Annotated[
    str, Meta(max_length=200_000, description="Position to continue from: ``next`` of the previous page.")
]

PAGE: Final = Limit(100)  # default number of entries of a page
FIRST: Final = After(0)
NUMBER_DIGITS_MAX: Final = 18

Q = TypeVar("Q", bound=Struct)
R = TypeVar("R", bound=Struct)


class NoArguments(Struct, frozen=True):
    """The request of an action without arguments."""


def typed(kind: type[Q], act: Callable[[Report, Q], Awaitable[Any]]) -> Action:
    """Return the action that reads a request of this kind, calls ``act``, and returns the reply as plain data."""
    read = reader_of(kind)

    async def asked(report: Report, arguments: dict[str, str]) -> dict[str, Any]:
        reply: dict[str, Any] = to_builtins(await act(report, read(arguments)))
        return reply

    return asked


@cache
def reader_of(kind: type[Q]) -> Callable[[dict[str, str]], Q]:
    """The function that makes a request of its texts. It raises AdminError."""
    readers = {field.name: _reader(field.type) for field in fields(kind)}
    chosen = {field.name for field in fields(kind) if get_origin(taken_apart(field.type)[0]) is Literal}
    required = [field.name for field in fields(kind) if is_required(field)]

    def read(arguments: dict[str, str]) -> Q:
        for name in required:
            if name not in arguments:
                raise AdminError(400, f"{name}: is missing")
        given = {name: text for name, text in arguments.items() if text or name not in chosen}  # "": the default
        return kind(**{name: reader(name, given[name]) for name, reader in readers.items() if name in given})

    return read


def is_required(field: FieldInfo) -> bool:
    return field.default is NODEFAULT and field.default_factory is NODEFAULT


def taken_apart(kind: Any) -> tuple[Any, Meta | None]:
    """The type without its limits, and those with its description."""
    if get_origin(kind) is Annotated:
        plain, meta = get_args(kind)
        return plain, meta
    if get_origin(kind) is UnionType or get_origin(kind) is Union:
        found = [taken_apart(one) for one in get_args(kind)]
        return reduce(or_, (plain for plain, _ in found)), next((meta for _, meta in found if meta), None)
    return kind, None


def _reader(kind: Any) -> Callable[[str, str], Any]:
    plain, meta = taken_apart(kind)
    if NoneType in get_args(plain):
        union = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        (some,) = (one for one in get_args(union) if one is not NoneType)
        read_some = _reader(some)
        return lambda name, text: read_some(name, text) if text else None
    if get_origin(plain) is Literal:
        return partial(_one_of, get_args(plain))
    read = READERS.get(plain) or partial(_from_json, plain)
    return read if meta is None else lambda name, text: _within(kind, name, read(name, text))


async def ask(action: Action, report: Report, request: Struct, reply: type[R]) -> R:
    """Call an action with a request, and return its reply. Raises what the action raises."""
    return convert(await action(report, texts(request)), reply)


def texts(request: Struct) -> dict[str, str]:
    """The arguments of a request on the wire."""
    return {name: as_text(value) for name, value in asdict(request).items()}


def as_text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
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


def _one_of(words: tuple[str, ...], name: str, text: str) -> str:
    """Raises AdminError."""
    if text not in words:
        raise AdminError(400, f"{name}: must be one of {', '.join(words)}")
    return text


def _within(kind: Any, name: str, value: Any) -> Any:
    """Raises AdminError."""
    try:
        return convert(value, kind)
    except MsgspecError as error:
        raise AdminError(400, f"{name}: {str(error)[:1].lower()}{str(error)[1:]}") from None


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
    Limit: lambda _, text: limit_of({"limit": text}),
    After: lambda _, text: number_after(text),
}
