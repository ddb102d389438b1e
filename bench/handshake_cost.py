"""The CPU cost of a QoS 2 handshake on one node: without a cluster, in a cluster of three, and after the session came
from another node. The broker is measured with the cluster's part of each turn, without sockets and storage, which are
equal for all and cost far more.
"""

from __future__ import annotations

import time

import msgspec
from tests.cluster.fleet import Fleet

from bench.frames import PUBREL, connect, publish
from starlingmq.cluster.cluster_state import ClusterState
from starlingmq.config.settings import LimitsConfig, MqttConfig
from starlingmq.core.broker import BrokerState
from starlingmq.core.session.session import Client
from starlingmq.core.session.trail import Trail

VERSION = 4
BATCH = 100  # handshakes per read, as with a busy publisher
SLICE = 5_000  # handshakes between two readings of the clock; the variants alternate after each
NOW = 1_000.0
NODES = 3
REST = 3.0  # seconds for a cluster to become quiet


class Local(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds of CPU per handshake, by round."""

    alone_us: list[float]
    clustered_us: list[float]
    moved_us: list[float]

    def ratios(self, moved: bool) -> list[float]:
        ours = self.moved_us if moved else self.clustered_us
        return [one / other for one, other in zip(ours, self.alone_us, strict=True)]


class Broker:
    def __init__(self, clustered: bool, moved: bool) -> None:
        self.cluster: ClusterState | None = None
        if clustered:
            fleet = Fleet(NODES)
            fleet.advance(REST)
            self.now = fleet.now
            self.state = fleet[0].state
            self.cluster = fleet[0].cluster
            self.state.ctx.cluster.claims = None  # this client id needs no etcd
        else:
            self.now = NOW
            self.state = BrokerState(MqttConfig(), LimitsConfig(), NOW, b"0123456789abcdef")
        self.client: Client = self.state.open("mqtt://bench", "bench", self.now)
        self.feed(connect("bench", VERSION, persistent=True))
        session = self.client.session
        assert session is not None
        if moved:
            session.trail = Trail(2, 1, True)
        publishes = [publish("bench/topic", b"x" * 64, 2, number, VERSION) for number in range(1, BATCH + 1)]
        self.publishes = b"".join(publishes)
        self.releases = b"".join(bytes((PUBREL, 2, number >> 8, number & 255)) for number in range(1, BATCH + 1))

    def feed(self, data: bytes) -> int:
        """Run one read and its turn; return the bytes for the client."""
        state = self.state
        state.receive(self.client, data, self.now)
        state.turn(self.now)
        if self.cluster is not None:
            self.cluster.turn(self.now)
        ready = state.take_ready()
        size = 0
        for client in ready.dirty:
            client.dirty = False
            client.stored_from = -1
            size += sum(map(len, client.frames))
            client.frames.clear()
            state.sent(client)
        ready.renew()
        if self.cluster is not None:
            self.cluster.take_ready()
            self.cluster.pending()
            self.cluster.wake_at()
        return size

    def slice(self) -> float:
        """Return microseconds of CPU per handshake."""
        began = time.process_time_ns()
        for _ in range(SLICE // BATCH):
            answered = self.feed(self.publishes) + self.feed(self.releases)
            assert answered == 2 * 4 * BATCH, "a handshake was not answered"
        return (time.process_time_ns() - began) / 1e3 / SLICE


def local(rounds: int) -> Local:
    brokers = [Broker(False, False), Broker(True, False), Broker(True, True)]
    costs: list[list[float]] = [[] for _ in brokers]
    for number in range(rounds + 2):
        order = range(3) if number % 2 == 0 else range(2, -1, -1)
        for which in order:
            cost = brokers[which].slice()
            if number >= 2:  # the earlier ones are the warm-up
                costs[which].append(cost)
    return Local(alone_us=costs[0], clustered_us=costs[1], moved_us=costs[2])
