"""Durations as Go writes and reads them."""

from __future__ import annotations

from typing import Final

BILLION: Final = 1_000_000_000
INT64_MAX: Final = (1 << 63) - 1
LONGEST: Final = INT64_MAX / BILLION  # seconds

_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration_of(text: str) -> float:
    """Seconds of a text like 1m30.5s, ``LONGEST`` at most; -1.0: it is none."""
    total = 0.0
    at = 0
    if text == "0":
        return 0.0
    while at < len(text):
        start = at
        while at < len(text) and text[at] in "0123456789.":
            at += 1
        digits = text[start:at]
        start = at
        while at < len(text) and text[at] not in "0123456789.":
            at += 1
        unit = _UNITS.get(text[start:at], 0.0)
        if unit == 0.0 or digits.count(".") > 1 or not digits.strip("."):
            return -1.0
        total += float(digits) * unit
    return min(total, LONGEST) if text else -1.0


def duration_text(seconds: float) -> str:
    """As Go prints it."""
    nanoseconds = round(seconds * BILLION)
    if nanoseconds == 0:
        return "0s"
    for unit, size in (("ns", 1), ("µs", 1000), ("ms", 1_000_000)):
        if nanoseconds < size * 1000:
            return f"{_short(nanoseconds, size)}{unit}"
    minutes, rest = divmod(nanoseconds, 60 * BILLION)
    hours, minutes = divmod(minutes, 60)
    text = f"{_short(rest, BILLION)}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def _short(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    if rest == 0:
        return f"{whole}"
    digits = len(f"{unit}") - 1
    return f"{whole}." + f"{rest:0{digits}d}".rstrip("0")
