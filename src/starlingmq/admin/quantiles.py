"""Quantiles of the durations that a ``Histogram`` has counted."""

from __future__ import annotations

from collections.abc import Sequence

from starlingmq.core.observe.counters import BUCKETS


def quantile_ms(counts: Sequence[int], share: float) -> float:
    """An upper bound in milliseconds; 0 if nothing was counted."""
    total, seen, bucket = sum(counts), 0, 0
    while bucket < BUCKETS - 1 and seen + counts[bucket] < share * total:
        seen += counts[bucket]
        bucket += 1
    return round(1e-3 * 2**bucket, 3) if total else 0.0
