"""Latencies in buckets, so that millions cost a dictionary of a few hundred entries.

A bucket is named by its lowest value and holds all with the same six leading bits: within 3 % of the true value, from a
microsecond to hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BITS: Final = 6


def width(value_us: int) -> int:
    """Return the width of the bucket that holds a value of at least 0."""
    return 1 << max(0, value_us.bit_length() - BITS)


def bucket(value_us: int) -> int:
    shift = value_us.bit_length() - BITS  # not by ``width``: this is called for each message
    return value_us >> shift << shift if shift > 0 else value_us


def percentile_ms(buckets: Mapping[int, int], share: float) -> float:
    """Return the milliseconds below which ``share`` (0 to 1) of the values lie; 0.0 if there are none."""
    left = share * sum(buckets.values())
    lowest = 0
    for lowest in sorted(buckets):
        left -= buckets[lowest]
        if left <= 0:
            break
    return (lowest + width(lowest) / 2) / 1000 if buckets else 0.0
