"""Whether this node accepts clients, and the servers to which it redirects clients: other nodes of its cluster."""

from __future__ import annotations

from collections.abc import Callable

from starlingmq.wire.reasons import Reason


class ConnectAdmission:
    shut: bool  # no CONNECT is accepted, because this node is stopping or draining
    for_good: bool  # permanently: clients should remember the other server
    elsewhere: dict[str, list[str]]  # by kind of listener, ``host:port`` of such listeners on other nodes
    with_room: Callable[[str], str]  # the same for one listener: the other node with the fewest clients, or ""
    _turn: int

    def __init__(self) -> None:
        self.shut = False
        self.for_good = False
        self.elsewhere = {}
        self.with_room = lambda listener: ""
        self._turn = 0

    def reason(self) -> int:
        """The reason code of MQTT 5 for the redirection."""
        return Reason.SERVER_MOVED if self.for_good else Reason.USE_ANOTHER_SERVER

    def reference(self, listener: str) -> str:
        """A Server Reference for a client of that listener, in the form that MQTT 5 recommends (4.11); "" if there is
        none. The other servers take turns."""
        found = self.elsewhere.get(kind_of(listener))
        if not found:
            return ""
        self._turn += 1
        return found[self._turn % len(found)]


def kind_of(url: str) -> str:
    """Protocol and path of a listener: a client of one such listener can use all others of that kind."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}/{rest.partition('/')[2]}"
