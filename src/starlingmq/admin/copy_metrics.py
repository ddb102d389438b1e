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
    missing = GaugeMetricFamily(
        "starlingmq_copies_missing",
        "Nodes that cluster.copies asks for, and that are not in step or not there."
        " By the node whose data it is; of data served here.",
        labels=["origin"],
    )
    for origin, server in process.roles.servers.items():
        part, record = process.part_of(origin), server.record
        if part is None or part.source is None:
            continue
        in_step.add_metric([origin], len(record.in_step))
        present = sum(1 for name in record.in_step if name in process.roles.registry.nodes)
        missing.add_metric([origin], max(0, process.config.cluster.copies - present))
        for name in list(part.feeds):
            if (behind := part.source.behind(name)) is not None:
                behind_bytes.add_metric([origin, name], behind[0])
                behind_seconds.add_metric([origin, name], behind[1])
    yield from (in_step, missing, behind_bytes, behind_seconds)
