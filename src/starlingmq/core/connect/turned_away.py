"""The limits of connections. A few connections beyond each limit get a reply to their CONNECT that names it."""

from __future__ import annotations

from typing import Final

from starlingmq.wire.reasons import Reason

OF_ALL: Final = 1
OF_ADDRESS: Final = 2
OF_LISTENER: Final = 3

REASONS: Final[dict[int, int]] = {
    OF_ALL: Reason.SERVER_BUSY,
    OF_ADDRESS: Reason.QUOTA_EXCEEDED,
    OF_LISTENER: Reason.SERVER_BUSY,
}
WORDS: Final[dict[int, str]] = {
    OF_ALL: "max_connections",
    OF_ADDRESS: "connections_per_address",
    OF_LISTENER: "listener_max_connections",
}
"""Reasons in counters and the log."""

DETAILS: Final[dict[int, str]] = {
    OF_ALL: "connection limit reached (limits.max_connections)",
    OF_ADDRESS: "connection limit of its address reached (limits.connections_per_address)",
    OF_LISTENER: "connection limit of the listener reached (listeners[].max_connections)",
}

CLIENT_PACKET_LIMIT: Final = "client_packet_limit"  # a reply is larger than the client's Maximum Packet Size
