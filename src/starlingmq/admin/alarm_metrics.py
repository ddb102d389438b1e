"""The metrics of the active alarms, and of everything with an end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily

from starlingmq.admin.alarms import Alarm
from starlingmq.admin.expirations import Expiration


def alarm_metric(active: Iterable[Alarm]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "starlingmq_alarms",
        "Active alarms of this node, by kind and severity; /api/v1/alarms and ctl alarms describe each of them.",
        labels=["kind", "severity"],
    )
    for labels, count in sorted(Counter((one.kind, one.severity) for one in active).items()):
        family.add_metric(list(labels), count)
    return family


def expiration_metric(found: Iterable[Expiration]) -> GaugeMetricFamily:
    """``found``: as of the last look of the alarms."""
    family = GaugeMetricFamily(
        "starlingmq_expires_timestamp_seconds",
        "Unix time at which a certificate, revocation list, key set or token that this node uses ends.",
        labels=["kind", "setting", "file"],
    )
    for one in found:
        if one.ends is not None:
            family.add_metric([one.kind, one.setting, one.file], one.ends)
    return family
