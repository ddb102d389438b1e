"""The client addresses of the cluster's members, and which members accept clients, from their heartbeats.

Clients that should use another node are told these addresses: as Server Reference in MQTT 5, as ``connect_urls`` in
NATS.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlingmq.cluster.links.control_frames import Heartbeat
from starlingmq.cluster.view.subsystem import Subsystem
from starlingmq.core.broker import BrokerState
from starlingmq.core.context.connect_admission import kind_of

ROOM_SHARE: Final = 10  # a node has room if it has fewer clients than this one by one in so many


class NodeDirectory(Subsystem):
    """Keeps the core's part of it, ``ctx.connect_admission``, up to date."""

    own: tuple[str, ...]  # URLs of this node's listeners, as clients reach them from outside
    draining: bool  # this node serves no clients
    changed: bool  # the result of ``open`` has changed since NATS clients were last informed

    def __init__(self, broker: BrokerState) -> None:
        self.own = ()
        self.draining = False
        self.changed = False
        self._broker = broker
        self._connect_admission = broker.ctx.connect_admission
        self._connect_admission.with_room = self.with_room
        self._heartbeats: dict[int, Heartbeat] = {}  # by number: the last heartbeat of each connected node

    def open_own(self, urls: Iterable[str]) -> None:
        self.own = tuple(urls)
        self._look()

    def heartbeat_received(self, node: int, heartbeat: Heartbeat) -> None:
        """A heartbeat of a connected node."""
        before = self._heartbeats.get(node)
        self._heartbeats[node] = heartbeat
        if (
            before is None
            or _accepts_clients(before) != _accepts_clients(heartbeat)
            or before.listeners != heartbeat.listeners
        ):
            self._look()

    def lost(self, node: int) -> None:
        """The node is not connected any more."""
        if self._heartbeats.pop(node, None) is not None:
            self._look()

    def _look(self) -> None:
        self.changed = True
        elsewhere: dict[str, list[str]] = {}
        for urls in self.open().values():
            for url in urls:
                if url not in self.own:  # a node that shares this node's ports would be reached only by chance
                    elsewhere.setdefault(kind_of(url), []).append(_address(url))
        self._connect_admission.elsewhere = elsewhere

    def turn(self, now: float) -> None:
        """Informs NATS clients about the other nodes. An isolated node knows of no other node, and sends nothing."""
        if self.changed and not self._broker.ctx.isolated:
            self.changed = False
            own = () if self.draining else self.own
            self._broker.nats.reach(own, [url for urls in self.open().values() for url in urls])

    def has_input(self) -> bool:
        return self.changed

    def drains(self, node: int) -> bool:
        heartbeat = self._heartbeats.get(node)
        return heartbeat is not None and heartbeat.draining

    def clients(self, node: int) -> int:
        """The number of clients at that node, as of its last heartbeat."""
        heartbeat = self._heartbeats.get(node)
        return 0 if heartbeat is None else heartbeat.clients

    def welcoming(self) -> list[int]:
        """Numbers of the other connected nodes that serve and accept clients."""
        return [node for node in sorted(self._heartbeats) if _accepts_clients(self._heartbeats[node])]

    def undecided(self) -> bool:
        """Whether a connected node is not draining: even if it does not serve yet, it may do so soon."""
        return any(not heartbeat.draining for heartbeat in self._heartbeats.values())

    def open(self) -> dict[int, tuple[str, ...]]:
        """By number: the listeners of each node in ``welcoming``."""
        return {node: self._heartbeats[node].listeners for node in self.welcoming()}

    def reachable_at(self) -> dict[int, tuple[str, ...]]:
        """Where connected nodes are reached, by number: also those that drain, but not those that still start."""
        return {
            node: heartbeat.listeners
            for node, heartbeat in self._heartbeats.items()
            if heartbeat.serving or heartbeat.draining
        }

    def fitting(self, listener: str) -> dict[int, str]:
        """By node: ``host:port`` of a listener there with the same protocol as ``listener``, a URL of this node. Leaves
        out nodes that are reached under an address of this node because they share its ports."""
        found: dict[int, str] = {}
        kind = kind_of(listener)
        for node, urls in self.open().items():
            for url in urls:
                if kind_of(url) == kind and url not in self.own:
                    found.setdefault(node, _address(url))
        return found

    def with_room(self, listener: str) -> str:
        """``host:port`` of such a listener on the other node with the fewest clients by the last heartbeats; "" if that
        node does not have clearly fewer than this one."""
        fitting = self.fitting(listener)
        node = min(fitting, key=lambda node: (self.clients(node), node), default=0)
        if node == 0 or self.clients(node) * ROOM_SHARE >= self._broker.ctx.counters.clients_connected * (
            ROOM_SHARE - 1
        ):
            return ""
        return fitting[node]


def _accepts_clients(heartbeat: Heartbeat) -> bool:
    return heartbeat.serving and not heartbeat.draining


def _address(url: str) -> str:
    return url.partition("://")[2].partition("/")[0]
