"""Metrics of the shares of client ids."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from starlingmq.cluster.cluster_state import ClusterState
from starlingmq.cluster.shares.share_figures import figures_of


def share_metrics(state: ClusterState) -> Iterator[Metric]:
    found = figures_of(state.shares)
    led = found.led.get(state.number, 0) if state.number else 0  # 0 leads the shares that no node leads
    yield GaugeMetricFamily("starlingmq_shares_led", "Shares of client ids that this node leads.", value=led)
    yield GaugeMetricFamily(
        "starlingmq_shares_not_serving",
        "Shares that this node leads and that grant nothing yet, because keys are being collected or copied.",
        value=found.asking + found.copying,
    )
    yield GaugeMetricFamily(
        "starlingmq_share_requests_waiting", "Requests that wait for these shares.", value=found.waiting
    )
    yield GaugeMetricFamily(
        "starlingmq_share_client_ids",
        "Client ids with an owner, in the shares that this node leads.",
        value=found.client_ids,
    )
    yield CounterMetricFamily(
        "starlingmq_share_claims", "Claims of client ids that this node has granted.", value=found.granted
    )
    yield GaugeMetricFamily(
        "starlingmq_share_unknown_nodes",
        "Nodes that may have sessions of these shares and could not be asked: clients may be told session present 0.",
        value=len(found.unknown),
    )
    behind = GaugeMetricFamily(
        "starlingmq_share_behind", "Messages about owners that the node has not acknowledged yet.", labels=["peer"]
    )
    for number, count in sorted(found.behind.items()):
        behind.add_metric([state.view.name_of(number)], count)
    yield behind
