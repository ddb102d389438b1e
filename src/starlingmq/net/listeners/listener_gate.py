"""State that the connections of one listener share: name, limits, number of connections, and refusals."""

from __future__ import annotations

from typing import Final

from starlingmq.config.networks import Network, is_among, parse_address
from starlingmq.core.connect.turned_away import OF_ADDRESS, OF_ALL, OF_LISTENER, WORDS
from starlingmq.core.context.ready import Notice
from starlingmq.core.limits.address_key import peer_host
from starlingmq.net.listeners.connection_counts import ADDRESS_TURNED_AWAY, ConnectionCounts

WRITE_BUFFER = 1024 * 1024
_DETAILS: Final = {
    WORDS[OF_ALL]: "far too many connections (limits.max_connections)",
    WORDS[OF_ADDRESS]: "far too many connections from its address (limits.connections_per_address)",
    WORDS[OF_LISTENER]: "far too many connections of the listener (listeners[].max_connections)",
    "banned": "its address is banned and has too many open connections",
}


class ListenerGate:
    """Counts the connections of one listener, and those that it refused.

    ``name`` is the bound URL; ``max_connections`` 0 means no limit; ``write_buffer`` is in bytes: above it the driver
    gets ``blocked``; ``paths`` are the URL paths that a WebSocket request may name, with ``*`` at the end for any rest;
    ``refused`` counts by reason, and has only the few reasons in this package; with ``identity`` the name in the
    certificate is the user name; ``subprotocol`` is the WebSocket subprotocol ("" for NATS, which has none), required
    unless ``subprotocol_optional``; ``origins`` are the origins whose pages may open one; ``local``: only this machine
    can reach the listener; ``admission`` counts over all listeners; ``keys``: clients may
    authenticate by a certificate or an NKey, which outweighs a ban of their address; ``trusted_proxies`` name the
    client of a WebSocket; ``proxies`` have to begin with a PROXY header, and only they may connect, if there are any.
    """

    __slots__ = (
        "admission",
        "connections",
        "identity",
        "keys",
        "local",
        "max_connections",
        "name",
        "origins",
        "paths",
        "proxies",
        "refused",
        "subprotocol",
        "subprotocol_optional",
        "trusted_proxies",
        "write_buffer",
    )

    def __init__(
        self,
        name: str,
        max_connections: int = 0,
        write_buffer: int = WRITE_BUFFER,
        paths: tuple[str, ...] = (),
        identity: bool = False,
        subprotocol: str = "mqtt",
        origins: frozenset[str] = frozenset(),
        admission: ConnectionCounts | None = None,
        keys: bool = False,
        trusted_proxies: tuple[Network, ...] = (),
        proxies: tuple[Network, ...] = (),
        subprotocol_optional: bool = False,
        local: bool = False,
    ) -> None:
        self.name = name
        self.max_connections = max_connections
        self.write_buffer = write_buffer
        self.paths = paths
        self.identity = identity
        self.subprotocol = subprotocol
        self.origins = origins
        self.admission = admission or ConnectionCounts()
        self.keys = keys
        self.trusted_proxies = trusted_proxies
        self.proxies = proxies
        self.subprotocol_optional = subprotocol_optional
        self.local = local
        self.connections = 0
        self.refused: dict[str, int] = {}

    def serves(self, path: str) -> bool:
        """Whether a WebSocket request may name this path."""
        return any(path.startswith(each[:-1]) if each.endswith("*") else path == each for each in self.paths)

    def exempts(self, peer: str) -> bool:
        """Whether the connection comes from a proxy whose WebSocket request names the address of the client."""
        return bool(self.trusted_proxies) and is_among(parse_address(peer_host(peer)), self.trusted_proxies)

    def is_proxy(self, peer: str) -> bool:
        return is_among(parse_address(peer_host(peer)), self.proxies)

    def enter(self, peer: str, exempt: bool = False) -> bool:
        """Count an accepted connection; False if it is refused. One that entered must leave exactly once."""
        if self.max_connections and self.connections >= self.max_connections + ADDRESS_TURNED_AWAY:
            reason = WORDS[OF_LISTENER]
        else:
            reason = self.admission.enter(peer, exempt, not self.keys)
        if reason:
            self.refuse(reason, peer, _DETAILS[reason])
            return False
        self.connections += 1
        return True

    def full(self, peer: str, exempt: bool = False) -> int:
        """The limit (``core.connect.turned_away``) by which a connection that was just counted is refused; 0 if it is
        not."""
        if self.max_connections and self.connections > self.max_connections:
            return OF_LISTENER
        return 0 if exempt else self.admission.full(peer)

    def reveal(self, peer: str) -> bool:
        """Count an ``exempt`` connection by the address of its client; False if it is refused, and still exempt."""
        reason = self.admission.reveal(peer, not self.keys)
        if reason:
            self.refuse(reason, peer, _DETAILS[reason])
        return not reason

    def leave(self, peer: str, exempt: bool = False) -> None:
        self.connections -= 1
        self.admission.leave(peer, exempt)

    def refuse(self, reason: str, peer: str = "", detail: str = "") -> None:
        """Count a refusal; with a ``peer`` it is logged."""
        self.refused[reason] = self.refused.get(reason, 0) + 1
        if peer:
            self.admission.report(Notice(reason, "", peer, detail))
