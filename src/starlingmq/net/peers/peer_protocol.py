"""The classes of a connection between two nodes that cannot be compiled, because their bases are not."""

from __future__ import annotations

import asyncio

from starlingmq.net.peers.peer_socket import SocketUser


class PeerConnectionLost(OSError):
    """The connection has ended; one line."""


class PeerProtocol(asyncio.Protocol):
    """The protocol of a transport of asyncio. ``user`` becomes None when the transport has ended, or has been left."""

    def __init__(self, user: SocketUser) -> None:
        self.user: SocketUser | None = user

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.user is not None:
            self.user.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.user is not None:
            self.user.data_received(data)

    def pause_writing(self) -> None:
        if self.user is not None:
            self.user.pause_writing()

    def resume_writing(self) -> None:
        if self.user is not None:
            self.user.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self.user is not None:
            self.user.connection_lost(error)
