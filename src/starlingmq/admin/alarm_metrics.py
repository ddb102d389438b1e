"""The metric of the active alarms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily

from starlingmq.admin.alarms import Alarm


def alarm_metric(active: Iterable[Alarm]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "starlingmq_alarms",
        "Active alarms of this node, by kind and severity; /api/v1/alarms and ctl alarms describe each of them.",
        labels=["kind", "severity"],
    )
    for labels, count in sorted(Counter((one.kind, one.severity) for one in active).items()):
        family.add_metric(list(labels), count)
    return family
