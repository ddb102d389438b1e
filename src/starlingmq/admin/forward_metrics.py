"""Metrics of messages and bytes between the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from starlingmq.core.observe.counters import Counters

if TYPE_CHECKING:
    from starlingmq.net.peers.peer_stream import PeerTraffic


def forward_metrics(counters: Counters, traffic: PeerTraffic) -> Iterator[Metric]:
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
        "starlingmq_forwards_unwanted",
        "Messages received from other nodes because of a summary of filters, and wanted by no subscriber here.",
        value=counters.forwards_unwanted,
    )
    yield CounterMetricFamily("starlingmq_peer_sent_bytes", "Bytes sent to other nodes.", value=traffic.bytes_out)
    yield CounterMetricFamily(
        "starlingmq_peer_received_bytes", "Bytes received from other nodes.", value=traffic.bytes_in
    )
