"""Whether this node lets clients in, and where those go that it does not want: other nodes of its cluster."""

from __future__ import annotations

from starlingmq.wire.reasons import Reason


class ConnectAdmission:
    shut: bool  # no CONNECT is accepted, because this node is about to end or to serve no clients
    for_good: bool  # and it will not come back: clients should remember the other server
    elsewhere: dict[str, list[str]]  # by kind of listener ``host:port`` of such listeners elsewhere
    _turn: int

    def __init__(self) -> None:
        self.shut = False
        self.for_good = False
        self.elsewhere = {}
        self._turn = 0

    def reason(self) -> int:
        """Why clients are sent elsewhere, in the terms of MQTT 5."""
        return Reason.SERVER_MOVED if self.for_good else Reason.USE_ANOTHER_SERVER

    def reference(self, listener: str) -> str:
        """A Server Reference for a client of that listener, in the form that MQTT 5 recommends (4.11); "": none is
        known. Each of the other servers in turn."""
        found = self.elsewhere.get(kind_of(listener))
        if not found:
            return ""
        self._turn += 1
        return found[self._turn % len(found)]


def kind_of(url: str) -> str:
    """What is spoken there and under which path: who speaks it with one listener speaks it with all of that kind."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}/{rest.partition('/')[2]}"
