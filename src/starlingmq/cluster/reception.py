"""Where clients find the members of the cluster, and which of them want any: as their heartbeats tell.

It is what a client is told that is to go elsewhere: the Server Reference of MQTT 5, ``connect_urls`` of NATS.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlingmq.cluster.frames import Heartbeat


class Reception:
    own: tuple[str, ...]  # URLs of this node's listeners, as clients elsewhere reach them
    draining: bool  # this node serves no clients
    changed: bool  # what ``open`` says, since somebody looked last

    def __init__(self) -> None:
        self.own = ()
        self.draining = False
        self.changed = False
        self._told: dict[int, tuple[str, ...]] = {}  # of nodes that serve and want clients
        self._draining: dict[int, None] = {}

    def open_own(self, urls: Iterable[str]) -> None:
        self.own = tuple(urls)
        self.changed = True

    def heard(self, node: int, heartbeat: Heartbeat) -> None:
        """A heartbeat of a connected node."""
        if heartbeat.draining:
            self._draining[node] = None
        else:
            self._draining.pop(node, None)
        self._set(node, heartbeat.listeners if heartbeat.serving and not heartbeat.draining else ())

    def lost(self, node: int) -> None:
        """It is not connected any more."""
        self._draining.pop(node, None)
        self._set(node, ())

    def _set(self, node: int, urls: tuple[str, ...]) -> None:
        if self._told.get(node, ()) == urls:
            return
        self.changed = True
        if urls:
            self._told[node] = urls
        else:
            del self._told[node]

    def drains(self, node: int) -> bool:
        return node in self._draining

    def open(self) -> dict[int, tuple[str, ...]]:
        """The listeners of each other node that is connected, serves, and wants clients, by its number."""
        return {node: self._told[node] for node in sorted(self._told)}

    def fitting(self, listener: str) -> dict[int, str]:
        """By node ``host:port`` of a listener there that speaks what ``listener`` does, a URL of one here; those that
        are reached under an address of this node's own, because they share its ports, are left out."""
        found: dict[int, str] = {}
        kind = _kind(listener)
        for node, urls in self.open().items():
            for url in urls:
                if _kind(url) == kind and url not in self.own:
                    found.setdefault(node, url.partition("://")[2].partition("/")[0])
        return found


def _kind(url: str) -> tuple[str, str]:
    """Scheme, and path if there is one."""
    scheme, _, rest = url.partition("://")
    return scheme, rest.partition("/")[2]
