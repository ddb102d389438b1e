"""Which settings are secret, and how the tree of settings is shown without them.

A setting is marked where it is defined: ``Meta(..., extra=SECRET)`` hides all of it, ``extra=SECRET_URL`` hides the
secrets that a URL or an address may contain: user, password, query and fragment. ``masked`` returns the tree without
secrets. Everything that shows settings shows that, including ``repr`` of a section.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

from msgspec import Struct, structs

HIDDEN: Final = "***"
SECRET: Final = {"secret": "all"}
SECRET_URL: Final = {"secret": "url"}

S = TypeVar("S", bound=Struct)


def masked(section: S) -> S:
    """The same section, and all below it, with ``***`` in place of secrets."""
    names = (name for name, (kind, is_section) in _fields(type(section)).items() if kind or is_section)
    return structs.replace(section, **{name: masked_setting(section, name) for name in names})


def masked_setting(section: Struct, name: str) -> Any:
    """The value of one setting of a section, with ``***`` in place of secrets."""
    return _masked(getattr(section, name), _fields(type(section))[name][0])


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
    return {
        field.name: (extra_of(field.type).get("secret", ""), _holds_sections(field.type))
        for field in structs.fields(section)
    }


def extra_of(kind: Any) -> dict[str, Any]:
    """The entries of ``Meta(extra=...)`` of a type."""
    if get_origin(kind) is not Annotated:
        return {}
    return {key: value for meta in kind.__metadata__ for key, value in (meta.extra or {}).items()}


def _holds_sections(kind: Any) -> bool:
    return (isinstance(kind, type) and issubclass(kind, Struct)) or any(map(_holds_sections, get_args(kind)))
