"""Latencies in buckets, so that millions cost a dictionary of a few hundred entries.

Each power of two is divided into 32 buckets: within 3 % of the true value, from a microsecond to hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

STEPS_BITS: Final = 5
STEPS: Final = 1 << STEPS_BITS


def bucket(value_us: int) -> int:
    """Return the bucket of a value of at least 0."""
    if value_us < STEPS:
        return value_us
    shift = value_us.bit_length() - STEPS_BITS - 1
    return (shift + 1) * STEPS + (value_us >> shift) - STEPS


def lower_bound(index: int) -> int:
    """Return the smallest value of a bucket."""
    if index < STEPS:
        return index
    shift = index // STEPS - 1
    return (index % STEPS + STEPS) << shift


def percentile_ms(buckets: Mapping[int, int], share: float) -> float:
    """Return the milliseconds below which ``share`` (0 to 1) of the values lie; 0.0 if there are none."""
    total = sum(buckets.values())
    if not total:
        return 0.0
    seen = 0
    for index in sorted(buckets):
        seen += buckets[index]
        if seen >= share * total:
            break
    return (lower_bound(index) + lower_bound(index + 1)) / 2000


def difference(later: Mapping[int, int], earlier: Mapping[int, int]) -> dict[int, int]:
    """Return the counts added between two copies of the buckets."""
    grown = {index: count - earlier.get(index, 0) for index, count in later.items()}
    return {index: count for index, count in grown.items() if count}
