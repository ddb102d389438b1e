"""Metrics of messages and bytes between the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from starlingmq.core.observe.counters import Counters

if TYPE_CHECKING:
    from starlingmq.cluster.cluster_state import ClusterState
    from starlingmq.net.peers.peer_stream import PeerTraffic


PEERS_MAX: Final = 200  # nodes with values of their own


def forward_metrics(counters: Counters, cluster: ClusterState, traffic: PeerTraffic) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "starlingmq_forwards_sent", "Messages forwarded to other nodes.", value=counters.forwards_sent
    )
    yield CounterMetricFamily(
        "starlingmq_forwards_received", "Messages received from other nodes.", value=counters.forwards_received
    )
    yield CounterMetricFamily(
        "starlingmq_forwards_doubled",
        "Messages received from other nodes more than once; the duplicates were ignored.",
        value=counters.forwards_doubled,
    )
    yield CounterMetricFamily(
        "starlingmq_forwards_kept",
        "Messages received from other nodes that had waited there for this node. Limits of queues do not drop them.",
        value=counters.forwards_kept,
    )
    yield CounterMetricFamily(
        "starlingmq_forwards_unwanted",
        "Messages received from other nodes because of a summary of filters, and wanted by no subscriber here.",
        value=counters.forwards_unwanted,
    )
    yield from _backlog_metrics(cluster)
    yield CounterMetricFamily("starlingmq_peer_sent_bytes", "Bytes sent to other nodes.", value=traffic.bytes_out)
    yield CounterMetricFamily(
        "starlingmq_peer_received_bytes", "Bytes received from other nodes.", value=traffic.bytes_in
    )


def _backlog_metrics(cluster: ClusterState) -> Iterator[Metric]:
    """Messages that waited for nodes when those were connected again."""
    waiting = GaugeMetricFamily(
        "starlingmq_peer_backlog_waiting",
        "Messages that waited for that node when it was connected again, and still wait here.",
        labels=["peer"],
    )
    passed_on = CounterMetricFamily(
        "starlingmq_peer_backlog_passed_on",
        "Messages that waited for that node when it was connected again, and that it has stored since.",
        labels=["peer"],
    )
    dropped = CounterMetricFamily(
        "starlingmq_peer_backlog_dropped",
        "Messages that waited for that node when it was connected again, and were dropped here: they had expired, or "
        "were beyond the retention of the journal.",
        labels=["peer"],
    )
    for number, transport in list(cluster.transports.items())[:PEERS_MAX]:
        name, backlog = cluster.view.name_of(number), transport.backlog()
        waiting.add_metric([name], backlog.left)
        passed_on.add_metric([name], backlog.all_passed_on)
        dropped.add_metric([name], backlog.all_dropped)
    yield from (waiting, passed_on, dropped)
