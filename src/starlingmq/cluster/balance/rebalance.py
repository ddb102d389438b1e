"""Spreads clients evenly over the nodes again after some nodes were away: MQTT 5 clients of a node with more than its
share are sent to nodes with less.

Each node computes this once at the start from the heartbeats of all nodes, so that the clients that all nodes together
send away are as many as the others lack. Only clients that can be told where to go are sent; others would reconnect to
any node, and stay.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from starlingmq.cluster.peers.node_directory import NodeDirectory
from starlingmq.cluster.view.subsystem import Subsystem
from starlingmq.core.broker import BrokerState
from starlingmq.core.session.connection import OPEN
from starlingmq.core.session.session import Client

TICK: Final = 0.05  # seconds between two batches


class Rebalancing(Subsystem):
    """``rate``: clients per second, unless ``begin`` sets another one."""

    active: bool
    moved: int  # clients sent to other nodes since it began
    surplus: int  # clients above this node's share that are still here

    def __init__(self, broker: BrokerState, node_directory: NodeDirectory, rate: int) -> None:
        self.active = False
        self.moved = self.surplus = 0
        self._broker = broker
        self._ctx = broker.ctx
        self._node_directory = node_directory
        self._usual_rate = self._rate = rate
        self._may = 0.0
        self._since = 0.0
        self._room: dict[int, int] = {}  # node -> clients that it can still get
        self._clients: deque[Client] = deque()

    def begin(self, now: float, rate: int = 0) -> None:
        self._rate = rate or self._usual_rate
        self._since = now
        self._may = 0.0
        self.moved = self.surplus = 0
        self._clients.clear()
        nodes = self._node_directory.welcoming()
        if not nodes or self._ctx.connect_admission.shut or self._ctx.isolated:
            self.active = False
            return
        here = self._ctx.counters.clients_connected
        counts = {node: self._node_directory.clients(node) for node in nodes}
        share = -(-(here + sum(counts.values())) // (len(nodes) + 1))
        self.surplus = max(here - share, 0)
        over = self.surplus + sum(max(count - share, 0) for count in counts.values())
        lacking = {node: share - count for node, count in counts.items() if count < share}
        # Other nodes with too many clients fill the same gaps: each of them fills a part of each gap.
        self._room = {node: -(-lack * self.surplus // over) for node, lack in lacking.items()} if over else {}
        sessions = self._ctx.sessions.values()
        self._clients.extend(
            [session.client for session in sessions if session.client is not None and session.client.version == 5]
        )
        self.active = self.surplus > 0

    def look(self, now: float) -> None:
        if not self.active:
            return
        self._may = min(self._may + self._rate * (now - self._since), 2 * self._rate * TICK + 1)
        self._since = now
        while self._clients and self.surplus and self._may >= 1:
            client = self._clients.popleft()
            if client.state != OPEN or client.version != 5:
                continue
            fitting = self._node_directory.fitting(client.listener)
            node = max(fitting, key=lambda node: (self._room.get(node, 0), -node), default=0)
            if self._room.get(node, 0) <= 0:
                continue
            self._may -= 1
            self._room[node] -= 1
            self.surplus -= 1
            self.moved += 1
            self._broker.ending.send_away(client, fitting[node])
        if not self._clients or not self.surplus or self._ctx.connect_admission.shut:
            self.active = False
            self._clients.clear()

    def is_busy(self) -> bool:
        return self.active

    def wake_at(self, now: float) -> float:
        return now + TICK if self.active else inf
