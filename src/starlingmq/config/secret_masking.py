"""Which settings are secret, and how the tree of settings is shown without them.

A setting is marked where it is defined: ``Meta(..., extra=SECRET)`` hides all of it, ``extra=SECRET_URL`` hides the
secrets that a URL or an address may contain: user, password, query and fragment. ``masked`` returns the tree without
secrets. Everything that shows settings shows that, including ``repr`` of a section.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, TypeVar

from msgspec import Struct, inspect, structs

HIDDEN: Final = "***"
SECRET: Final = {"secret": "all"}
SECRET_URL: Final = {"secret": "url"}

S = TypeVar("S", bound=Struct)


def masked(section: S) -> S:
    """The same section, and all below it, with ``***`` in place of secrets."""
    changed = {
        name: _masked(getattr(section, name), kind)
        for name, (kind, is_section) in _fields(type(section)).items()
        if kind or is_section
    }
    return structs.replace(section, **changed)


def without_login(url: str) -> str:
    """A URL or an address with ``***`` in place of user and password, query and fragment.

    A password may contain any character, including / and ?, and then it is not a URL; so everything before the last @
    is hidden.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    _, at, shown = rest.rpartition("@")
    parted = re.search(r"[?#]", shown)
    if parted:
        shown = shown[: parted.end()] + HIDDEN
    return f"{scheme}{separator}{HIDDEN if at else ''}{at}{shown}"


def _masked(value: Any, kind: str) -> Any:
    if isinstance(value, Struct):
        return masked(value)
    if isinstance(value, tuple):
        return tuple(_masked(one, kind) for one in value)
    if isinstance(value, str) and value and kind:
        return HIDDEN if kind == "all" else without_login(value)
    return value


@cache
def _fields(section: type[Struct]) -> dict[str, tuple[str, bool]]:
    """For each field its mark, and whether it contains sections."""
    kind = inspect.type_info(section)
    assert isinstance(kind, inspect.StructType)
    found = {}
    for field in kind.fields:
        mark, below = "", field.type
        if isinstance(below, inspect.Metadata):
            mark, below = (below.extra or {}).get("secret", ""), below.type
        found[field.name] = mark, _holds_sections(below)
    return found


def _holds_sections(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.Metadata):
        return _holds_sections(kind.type)
    if isinstance(kind, inspect.UnionType):
        return any(_holds_sections(one) for one in kind.types)
    return isinstance(kind, inspect.StructType) or (
        isinstance(kind, inspect.VarTupleType) and _holds_sections(kind.item_type)
    )
