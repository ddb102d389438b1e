"""Metrics of copies: absent with ``cluster.copies: 1``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

if TYPE_CHECKING:
    from starlingmq.net.copies.copy_process import CopyProcess


def copy_metrics(process: CopyProcess | None) -> Iterator[Metric]:
    if process is None:
        return
    records = process.roles.registry.records
    in_step = GaugeMetricFamily(
        "starlingmq_copies_in_step",
        "Nodes whose disks have everything that was acknowledged, by the node whose data it is; of data served here.",
        labels=["origin"],
    )
    behind_bytes = GaugeMetricFamily(
        "starlingmq_copy_behind_bytes", "Bytes that a connected follower has not stored yet.", labels=["origin", "peer"]
    )
    behind_seconds = GaugeMetricFamily(
        "starlingmq_copy_behind_seconds", "Age of the oldest of these bytes.", labels=["origin", "peer"]
    )
    for origin in process.roles.servers:
        part = process.part_of(origin)
        if part is None or part.source is None or origin not in records:
            continue
        in_step.add_metric([origin], len(records[origin].in_step))
        for name in list(part.feeds):
            if (behind := part.source.behind(name)) is not None:
                behind_bytes.add_metric([origin, name], behind[0])
                behind_seconds.add_metric([origin, name], behind[1])
    yield from (in_step, behind_bytes, behind_seconds)
