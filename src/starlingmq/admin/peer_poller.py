"""Polls each connected node every few seconds: measures the round-trip time, and exchanges bans and stream definitions
with a node that has started or connected since the last exchange."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from starlingmq.admin.cluster_health import served_elsewhere
from starlingmq.admin.declared_actions import action
from starlingmq.admin.node_rpc import NodeRpc
from starlingmq.admin.operator_bans import BanActions, BansReceived, BanUpdate
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.peer_views import PeerInfo
from starlingmq.admin.periodic import Periodic
from starlingmq.admin.stream_gossip import StreamGossip
from starlingmq.core.observe.counters import Histogram

if TYPE_CHECKING:
    from starlingmq.cluster.cluster_state import PeerStatus
    from starlingmq.net.peers.cluster_shell import Cluster

log = logging.getLogger("starlingmq.admin")

INTERVAL: Final = 2.0  # seconds
ANSWER_SECONDS: Final = 5.0


class PeerPoller:
    """``round_trips``: durations of empty requests, by the name of the node."""

    def __init__(self, cluster: Cluster, rpc: NodeRpc, bans: BanActions, streams: StreamGossip | None) -> None:
        self.round_trips: dict[str, Histogram] = {}
        self._latest: dict[str, float] = {}  # seconds, of the nodes that answered the last request
        self._cluster = cluster
        self._rpc = rpc
        self._bans = bans
        self._streams = streams
        self._exchanged: dict[int, int] = {}  # node -> its incarnation at the last exchange
        self.periodic = Periodic("polling the nodes", INTERVAL, self._poll)

    async def _poll(self) -> None:
        state = self._cluster.state
        if state is None:
            return
        there = [status for status in state.status() if status.connected]
        connected = {status.member.number for status in there}
        self._exchanged = {number: life for number, life in self._exchanged.items() if number in connected}
        names = {status.member.name for status in state.status()}
        self.round_trips = {name: seen for name, seen in self.round_trips.items() if name in names}
        await asyncio.gather(*(self._visit(status) for status in there))

    async def _visit(self, status: PeerStatus) -> None:
        name, number = status.member.name, status.member.number
        try:
            loop = asyncio.get_running_loop()
            began = loop.time()
            _, problem = await self._cluster.ask(number, b"", ANSWER_SECONDS)
            if problem:
                self._latest.pop(name, None)
                return
            took = self._latest[name] = loop.time() - began
            self.round_trips.setdefault(name, Histogram()).add(took)
            if self._exchanged.get(number) != status.member.incarnation:
                await self._exchange(name)
                self._exchanged[number] = status.member.incarnation
        except AdminError as error:
            log.info("exchanging bans and stream definitions with node %s failed and is retried: %s", name, error)
        except Exception:
            log.exception("internal error while polling node %s", name)

    async def _exchange(self, name: str) -> None:
        """Afterwards both nodes have the newest entries of both."""
        request = BanUpdate(self._bans.all(), all=True)
        reply = await self._rpc.ask(name, "bans.hear", request, BansReceived, ANSWER_SECONDS)
        await self._bans.merge(reply.said)
        if self._streams is not None:
            await self._streams.exchange(self._rpc, name, ANSWER_SECONDS)

    @action("peers")
    async def peers(self) -> list[PeerInfo]:
        """How this node reaches each other node."""
        state = self._cluster.state
        assert state is not None
        now = self._cluster.clock()
        names = self._cluster.names()
        away = served_elsewhere(self._cluster)
        return [
            PeerInfo(
                peer=status.member.name,
                connected=status.connected,
                through=names.get(status.through, ""),
                queued=status.queued,
                queued_bytes=status.queued_bytes,
                unacknowledged=status.unacknowledged,
                round_trip_ms=self._milliseconds(status),
                heard_seconds=None if status.heard_at is None else round(max(now - status.heard_at, 0.0), 3),
                served_by=away.get(status.member.name, "") if status.connected else "",
            )
            for status in state.status()
        ]

    def _milliseconds(self, status: PeerStatus) -> float | None:
        seconds = self._latest.get(status.member.name)
        return None if seconds is None or not status.connected else round(seconds * 1000, 3)
