"""The numbers of connections of the process and of each address, counted from the moment of acceptance.

| limit | up to it | beyond it |
|---|---|---|
| ``listeners[].max_connections`` | accepted | ``ADDRESS_TURNED_AWAY`` get a reply, further ones are closed |
| ``limits.max_connections`` | accepted | ``TURNED_AWAY`` get a reply, further ones are closed immediately |
| ``limits.connections_per_address`` | accepted | ``ADDRESS_TURNED_AWAY`` get a reply, further ones are closed |
| an address that is banned | | ``ADDRESS_TURNED_AWAY`` get a reply, further ones are closed |

A connection that gets a reply may complete its TLS handshake, its WebSocket request and its CONNECT within
``mqtt.connect_timeout``, and is answered by CONNECT's reason code, or -ERR. Further ones are closed before any byte is
read. So handshakes that never end cost only the limit and these few descriptors more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from starlingmq.config.settings import LimitsConfig
from starlingmq.core.broker import TURNED_AWAY
from starlingmq.core.connect.turned_away import OF_ADDRESS, OF_ALL, WORDS
from starlingmq.core.context.ready import Notice
from starlingmq.core.limits.address_key import peer_host, peer_key
from starlingmq.net.listeners.descriptors import Descriptors
from starlingmq.net.listeners.handshake_queue import HandshakeQueue

ADDRESS_TURNED_AWAY: Final = 32


class ConnectionCounts:
    """One per process. ``is_banned`` checks an address; ``report`` gets refusals, for the log. ``anonymous``: clients
    need no login; ``hosts`` are further names of this machine (``auth.api.hosts``), in lower case."""

    def __init__(self, limits: LimitsConfig | None = None, descriptors: Descriptors | None = None) -> None:
        self.limits = limits or LimitsConfig()
        self.descriptors = descriptors or Descriptors()
        self.handshakes = HandshakeQueue(self.limits.handshake_time)
        self.connections = 0
        self.addresses: dict[str, int] = {}
        self.is_banned: Callable[[str], bool] = _nobody
        self.report: Callable[[Notice], None] = _to_nobody
        self.anonymous = False
        self.hosts: frozenset[str] = frozenset()

    def use(self, limits: LimitsConfig) -> None:
        self.limits = limits
        self.handshakes.seconds_per_turn = limits.handshake_time

    def use_pages(self, anonymous: bool, hosts: Iterable[str]) -> None:
        """Which web pages may open a WebSocket on a loopback listener depends on these."""
        self.anonymous = anonymous
        self.hosts = frozenset(host.lower() for host in hosts)

    def enter(self, peer: str, exempt: bool, any_ban: bool) -> str:
        """Count a connection. Returns "", or why it is refused and not counted.

        ``peer``: ``host:port``. ``exempt``: it is a proxy, whose address does not count. ``any_ban``: whether a ban of
        the address applies already; not if a certificate may outweigh it.
        """
        limit = self.limits.max_connections
        if limit and self.connections >= limit + TURNED_AWAY:
            return WORDS[OF_ALL]
        reason = "" if exempt else self._enter_address(peer, any_ban)
        if not reason:
            self.connections += 1
        return reason

    def leave(self, peer: str, exempt: bool) -> None:
        self.connections -= 1
        if not exempt:
            self._leave_address(peer)

    def reveal(self, peer: str, any_ban: bool) -> str:
        """Count an exempt connection by the address of its client, which is known now. Returns "", or why it is
        refused; then it is still exempt."""
        return self._enter_address(peer, any_ban)

    def full(self, peer: str) -> int:
        """The limit (``core.connect.turned_away``) by which a connection that was just counted is refused; 0 if it is
        not."""
        limit = self.limits.connections_per_address
        return OF_ADDRESS if limit and self.addresses.get(peer_key(peer), 0) > limit else 0

    def _enter_address(self, peer: str, any_ban: bool) -> str:
        key = peer_key(peer)
        if not key:
            return ""
        count = self.addresses.get(key, 0)
        limit = self.limits.connections_per_address
        if limit and count >= limit + ADDRESS_TURNED_AWAY:
            return WORDS[OF_ADDRESS]
        if any_ban and count >= ADDRESS_TURNED_AWAY and self.is_banned(peer_host(peer)):
            return "banned"
        self.addresses[key] = count + 1
        return ""

    def _leave_address(self, peer: str) -> None:
        key = peer_key(peer)
        count = self.addresses.get(key, 0) - 1
        if count > 0:
            self.addresses[key] = count
        else:
            self.addresses.pop(key, None)


def _nobody(address: str) -> bool:
    return False


def _to_nobody(notice: Notice) -> None:
    """Ignore the notice."""
