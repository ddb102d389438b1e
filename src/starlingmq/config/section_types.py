"""Types of settings beyond those of YAML: durations and sizes; and the error that an invalid setting raises.

Settings are stored as plain numbers (seconds, bytes), so that no other package knows these spellings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from msgspec import Meta, Struct

from starlingmq.config.secret_masking import masked


class ConfigError(Exception):
    """A setting cannot be used. The message is one line that starts with the path of the setting at fault."""


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section of the tree: immutable, keyword-only, strict about its keys, and silent about secrets."""

    REMOVED: ClassVar[Mapping[str, str]] = {}
    """Settings that earlier versions had, each with the reason why there is none any more."""

    def __repr__(self) -> str:
        return Struct.__repr__(masked(self))

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = masked(self)
        return [(name, getattr(shown, name)) for name in self.__struct_fields__]


MAX_SECONDS: Final = 1_000_000_000
"""Thirty years: a bound that keeps ``.inf`` out of arithmetic with time."""

Duration = Annotated[float, Meta(ge=0, le=MAX_SECONDS, extra={"unit": "duration"})]
"""Seconds as a float; written ``500ms``, ``30s``, ``5m``, ``1h``, ``7d`` or as a number of seconds."""

PositiveDuration = Annotated[float, Meta(gt=0, le=MAX_SECONDS, extra={"unit": "duration"})]

Seconds = Annotated[int, Meta(ge=0, extra={"unit": "seconds"})]
"""Whole seconds, for values that the protocol carries as whole seconds; written like a Duration."""

Size = Annotated[int, Meta(ge=0, extra={"unit": "size"})]
"""Bytes; written ``512``, ``64KiB``, ``1MiB``, ``2GiB`` or, in powers of ten, ``64kB``, ``1MB``, ``2GB``."""

PositiveSize = Annotated[int, Meta(ge=1, extra={"unit": "size"})]

Count = Annotated[int, Meta(ge=0)]

DURATION_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SIZE_UNITS: Final = {
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
}
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)")


def parse_duration(text: str) -> float:
    """Seconds from ``500ms``, ``30s``, ``5m``, ``1h``, ``7d`` or a bare number; ValueError says what was expected."""
    number, unit = _quantity(text, "a duration such as 500ms, 30s, 5m or 1h")
    factor = DURATION_UNITS.get(unit or "s")
    if factor is None:
        raise ValueError(f"{unit!r} is not a unit of time (use {', '.join(DURATION_UNITS)})")
    # Milliseconds are divided, not multiplied by 0.001: 300ms is then exactly the 0.3 that a person would write.
    return number / 1000 if unit == "ms" else number * factor


def parse_seconds(text: str) -> int:
    """Whole seconds from the spellings of a duration."""
    seconds = parse_duration(text)
    if seconds != int(seconds):
        raise ValueError(f"{text!r} is not a whole number of seconds")
    return int(seconds)


def parse_size(text: str) -> int:
    """Bytes from ``64KiB``, ``1MiB``, ``2GB`` or a bare number; ValueError says what was expected."""
    number, unit = _quantity(text, "a size such as 512, 64KiB or 1MiB")
    factor = SIZE_UNITS.get(unit.lower() or "b")
    if factor is None:
        raise ValueError(f"{unit!r} is not a unit of size (use KiB, MiB, GiB, kB, MB or GB)")
    return int(number * factor)


def _quantity(text: str, expected: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected {expected}, got {text!r}")
    return float(match[1]), match[2]


def format_duration(seconds: float) -> str:
    """The shortest spelling that ``parse_duration`` reads back to the same value."""
    for unit, factor in (("h", 3600), ("m", 60)):
        if seconds and seconds % factor == 0:
            return f"{int(seconds) // factor}{unit}"
    if seconds == int(seconds):
        return f"{int(seconds)}s"
    in_milliseconds = f"{seconds * 1000:g}ms"
    return in_milliseconds if parse_duration(in_milliseconds) == seconds else f"{seconds!r}s"


def format_size(size: int) -> str:
    """The shortest spelling that ``parse_size`` reads back to the same value."""
    for unit in ("GiB", "MiB", "KiB"):
        factor = SIZE_UNITS[unit.lower()]
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
