"""Where clients find the members of the cluster, and which of them want any: as their heartbeats tell.

It is what a client is told that is to go elsewhere: the Server Reference of MQTT 5, ``connect_urls`` of NATS.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlingmq.cluster.links.peer_frames import Heartbeat
from starlingmq.cluster.subsystem import Subsystem
from starlingmq.core.broker import BrokerState
from starlingmq.core.limits.connect_admission import kind_of


class NodeDirectory(Subsystem):
    """The core's part of it, ``ctx.doors``, is kept up to date here."""

    own: tuple[str, ...]  # URLs of this node's listeners, as clients elsewhere reach them
    draining: bool  # this node serves no clients
    changed: bool  # what ``open`` says, since NATS clients were told last

    def __init__(self, broker: BrokerState) -> None:
        self.own = ()
        self.draining = False
        self.changed = False
        self._broker = broker
        self._doors = broker.ctx.doors
        self._told: dict[int, Heartbeat] = {}  # of connected nodes, by number

    def open_own(self, urls: Iterable[str]) -> None:
        self.own = tuple(urls)
        self._look()

    def heard(self, node: int, heartbeat: Heartbeat) -> None:
        """A heartbeat of a connected node."""
        before = self._told.get(node)
        self._told[node] = heartbeat
        if before is None or _wants(before) != _wants(heartbeat) or before.listeners != heartbeat.listeners:
            self._look()

    def lost(self, node: int) -> None:
        """It is not connected any more."""
        if self._told.pop(node, None) is not None:
            self._look()

    def _look(self) -> None:
        self.changed = True
        elsewhere: dict[str, list[str]] = {}
        for urls in self.open().values():
            for url in urls:
                if url not in self.own:  # who shares our ports would be found by chance
                    elsewhere.setdefault(kind_of(url), []).append(_address(url))
        self._doors.elsewhere = elsewhere

    def turn(self, now: float) -> None:
        """Tell NATS clients where else they may go. A node that is cut off sees nobody, and says nothing new."""
        if self.changed and not self._broker.ctx.isolated:
            self.changed = False
            own = () if self.draining else self.own
            self._broker.nats.reach(own, [url for urls in self.open().values() for url in urls])

    def has_input(self) -> bool:
        return self.changed

    def drains(self, node: int) -> bool:
        told = self._told.get(node)
        return told is not None and told.draining

    def clients(self, node: int) -> int:
        """How many clients that node serves, as far as it has told."""
        told = self._told.get(node)
        return 0 if told is None else told.clients

    def welcoming(self) -> list[int]:
        """The numbers of the other nodes that are connected, serve, and want clients."""
        return [node for node in sorted(self._told) if _wants(self._told[node])]

    def undecided(self) -> bool:
        """Whether some connected node does not drain: if it does not serve, it may in a moment."""
        return any(not told.draining for told in self._told.values())

    def open(self) -> dict[int, tuple[str, ...]]:
        """The listeners of each of those, by its number."""
        return {node: self._told[node].listeners for node in self.welcoming()}

    def fitting(self, listener: str) -> dict[int, str]:
        """By node ``host:port`` of a listener there that speaks what ``listener`` does, a URL of one here; those that
        are reached under an address of this node's own, because they share its ports, are left out."""
        found: dict[int, str] = {}
        kind = kind_of(listener)
        for node, urls in self.open().items():
            for url in urls:
                if kind_of(url) == kind and url not in self.own:
                    found.setdefault(node, _address(url))
        return found


def _wants(heartbeat: Heartbeat) -> bool:
    return heartbeat.serving and not heartbeat.draining


def _address(url: str) -> str:
    return url.partition("://")[2].partition("/")[0]
