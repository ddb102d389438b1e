"""JSON of requests and configurations, read and written as nats-server does.

Requests: null is the zero value, nothing at all is an empty object, and an unknown field is an error (nats-server's
strict mode, which is its default). Configurations: fields with their zero value are left out, except some.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, TypeVar

import msgspec

from starlingmq.core.nats.jetstream_port import API_LEVEL
from starlingmq.jetstream.api_errors import INVALID_JSON, NOT_EMPTY_REQUEST, PEDANTIC, ApiError

REQUEST_MAX: Final = 1 << 18
"""Bytes of a request: a configuration with the largest metadata and description fits."""
NAME_MAX: Final = 255
DESCRIPTION_MAX: Final = 4 * 1024
METADATA_MAX: Final = 128 * 1024  # bytes of all keys and values

REQUIRED_LEVEL: Final = "_nats.req.level"
SERVER_VERSION: Final = "_nats.ver"
SERVER_LEVEL: Final = "_nats.level"

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Of sequences, which are 64 bits without a sign in nats-server."""

T = TypeVar("T")

_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*?)`")
_CHOICE: Final = re.compile(r"Invalid enum value '(.*?)'")
_FORBIDDEN: Final = frozenset(" \t\r\n\f.*>\\/")


def parsed(payload: bytes, form: type[T]) -> T:
    """Raises ApiError with INVALID_JSON."""
    if len(payload) > REQUEST_MAX:
        raise ApiError(INVALID_JSON, f"the request has more than {REQUEST_MAX} bytes")
    try:
        return msgspec.convert(_without_nulls(msgspec.json.decode(payload)) if payload.strip() else {}, form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = str(error)
        if unknown := _UNKNOWN.search(text):
            text = f'json: unknown field "{unknown[1]}"'
        elif "truncated" in text:
            text = "unexpected EOF"
        elif choice := _CHOICE.search(text):
            text = f'can not unmarshal "\\"{choice[1]}\\""'
        raise ApiError(INVALID_JSON, text) from None


def optional(payload: bytes, form: type[T]) -> T:
    """Of a request that is read only if it looks like an object or an array."""
    return parsed(payload if payload.lstrip()[:1] in (b"{", b"[") else b"", form)


def is_empty(payload: bytes) -> bool:
    """Whether a request has no content: nothing, or an object without fields."""
    return payload.translate(None, b" \t\r\n") in (b"", b"{}")


def require_empty(payload: bytes) -> None:
    if not is_empty(payload):
        raise ApiError(NOT_EMPTY_REQUEST)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return value


def shown(struct: msgspec.Struct, fields: tuple[str, ...], always: frozenset[str]) -> dict[str, Any]:
    """The given fields; those with their zero value only if they are in ``always``."""
    values = ((name, getattr(struct, name)) for name in fields)
    return {name: value for name, value in values if value or name in always}


def require_unchanged(before: msgspec.Struct, after: msgspec.Struct) -> None:
    """Pedantic requests want no value replaced by a default. Raises ApiError."""
    for name in before.__struct_fields__:
        if getattr(before, name) and getattr(before, name) != getattr(after, name):
            raise ApiError(PEDANTIC, f"{name} must be set to {getattr(after, name)}")


def is_name(text: str) -> bool:
    """Whether a stream or a consumer can have this name."""
    return bool(text) and _FORBIDDEN.isdisjoint(text)


def is_too_long(description: str) -> bool:
    return len(description.encode()) > DESCRIPTION_MAX


def size_of(metadata: dict[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())


def with_required_level(metadata: dict[str, str], level: int) -> dict[str, str]:
    """As it is stored: without what answers add, and with the API level that the configuration requires."""
    return {
        **{key: value for key, value in metadata.items() if key not in (SERVER_VERSION, SERVER_LEVEL)},
        REQUIRED_LEVEL: str(level),
    }


def with_server_version(config: dict[str, Any], version: str) -> dict[str, Any]:
    """A stored configuration as most answers show it."""
    added = {SERVER_VERSION: version, SERVER_LEVEL: str(API_LEVEL)}
    return {**config, "metadata": dict(sorted({**config.get("metadata", {}), **added}.items()))}
