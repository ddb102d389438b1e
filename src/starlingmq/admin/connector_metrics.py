"""Requests to services outside the broker as a Prometheus metric."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily

from starlingmq.admin.connectors import Connector


def connector_metric(connectors: Iterable[Connector]) -> CounterMetricFamily:
    family = CounterMetricFamily(
        "starlingmq_connector_requests",
        "Requests to services outside the broker, by outcome; spans, for tracing.",
        labels=["connector", "outcome"],
    )
    for one in connectors:
        family.add_metric([one.name, "accepted"], one.counts.accepted)
        family.add_metric([one.name, "failed"], one.counts.failed)
    return family
