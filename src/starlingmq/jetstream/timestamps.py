"""Times as JetStream's JSON has them: RFC 3339 with up to nine decimals, durations in nanoseconds.

The broker's times are seconds in a float. A time that is formatted and parsed again is the same float.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from starlingmq.core.streams.stream_filters import moment_of

NEVER: Final = "0001-01-01T00:00:00Z"  # the zero time, for "none"
SECOND: Final = 1_000_000_000

_LAYOUT: Final = "2006-01-02T15:04:05Z07:00"  # in Go's words
_LAST: Final = 253_402_300_800  # the year 10000


def nanoseconds(seconds: float) -> int:
    """Nanoseconds since 1970, or in a duration. The whole seconds are kept apart: their product is inexact."""
    whole = int(seconds)
    return whole * SECOND + round((seconds - whole) * SECOND)


def time_text(seconds: float) -> str:
    """0.0: the zero time."""
    if not 0.0 < seconds < _LAST:
        return NEVER
    whole, fraction = divmod(nanoseconds(seconds), SECOND)
    text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{fraction:09d}".rstrip("0").rstrip(".") + "Z"


def time_of(text: str) -> float:
    """Seconds since 1970; 0.0 for the zero time and all others before. Raises ValueError."""
    try:
        whole, decimals = moment_of(text)
        if text[10] != "T" or text[17:19] == "60" or text.endswith("z") or len(decimals) > 9:  # which Go refuses
            raise ValueError
    except ValueError:
        raise ValueError(f'parsing time "{text}" as "{_LAYOUT}": cannot parse "{text}" as "2006"') from None
    return 0.0 if whole < 0 else whole + int(decimals.ljust(9, "0")) / SECOND


def duration_text(nanoseconds: int) -> str:
    """As Go writes it: 1h2m3.5s, 250ms."""
    if 0 < nanoseconds < SECOND:
        return f"{nanoseconds / 1_000_000:.6f}".rstrip("0").rstrip(".") + "ms"
    minutes, rest = divmod(nanoseconds, 60 * SECOND)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest / SECOND:.9f}".rstrip("0").rstrip(".")
    return f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
