"""The far connection of a bridge in the rounds of the clients' sockets (``net/client_sockets.py``).

Many brokers write each acknowledgement alone, and reading each alone would cost more than its message. So while
messages are in flight, the system is told to report the connection when three quarters of their acknowledgements have
come (SO_RCVLOWAT). That delays a message that comes meanwhile by ``STALE_SECONDS`` twice at most: after that time the
connection is read at once again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from starlingmq.client.endpoint import Endpoint
from starlingmq.client.link import Link, Owner
from starlingmq.net.broker_loop import client_sockets
from starlingmq.net.client_sockets import ClientSockets
from starlingmq.net.peers.peer_socket import PeerSocket, SocketUser

ROOM: Final = 64 * 1024  # bytes that wait for the system before the near session is told to keep what comes
ACK: Final = 4  # bytes
GATHER_FROM: Final = 8  # messages in flight
GATHER_MOST: Final = 512  # bytes: more at once save little
STALE_SECONDS: Final = 0.002


class Gathering:
    """Decides how many bytes end the wait for ``sock``."""

    def __init__(self, sock: Any) -> None:
        self.low = 1
        self._sock = sock
        self._came = False  # something, since the timer was started
        self._timer: asyncio.TimerHandle | None = None

    def came(self, size: int, in_flight: int) -> None:
        """So many bytes were read, while so many messages waited for acknowledgements."""
        self._came = True
        expected = in_flight * ACK
        if self.low == 1:
            if in_flight >= GATHER_FROM and size < expected // 2:
                self._set(min(expected * 3 // 4, GATHER_MOST))
        elif in_flight < GATHER_FROM:
            self._set(1)
        elif self.low > expected * 7 // 8 or (self.low < expected // 2 and self.low < GATHER_MOST):
            self._set(min(expected * 3 // 4, GATHER_MOST))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._sock = None

    def _set(self, low: int) -> None:
        if self._sock is None:
            return
        with suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low)
            self.low = low
        if low != 1 and self._timer is None:
            self._start()

    def _start(self) -> None:
        self._came = False
        self._timer = asyncio.get_running_loop().call_later(STALE_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        if self.low != 1:
            if self._came:
                self._start()
            else:
                self._set(1)


class FarLine(SocketUser):
    """Has the methods of ``client.link.Link``, whose transport is one of asyncio. It owns ``sock``."""

    def __init__(self, owner: Owner, sockets: ClientSockets, sock: socket.socket) -> None:
        self.on_writable: Callable[[], None] | None = None
        self.writable = True
        self.heard = False  # the other side has answered
        self.problem = ""
        self._owner = owner
        self._socket = PeerSocket(sockets, self, sock, ROOM)

    def socket(self) -> Any:
        return self._socket.get_extra_info("socket")

    def write(self, data: bytes) -> None:
        self._socket.write(data)

    def set_reading(self, reading: bool) -> None:
        if reading:
            self._socket.resume_reading()
        else:
            self._socket.pause_reading()

    def close(self) -> None:
        """Close once everything written has been sent."""
        self._socket.close()

    def abort(self) -> None:
        self._socket.abort()

    # Calls of the socket

    def connection_made(self, transport: Any) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        self.heard = True
        self._owner.link_received(data)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self.on_writable is not None:
            self.on_writable()

    def connection_lost(self, error: Exception | None) -> None:
        self.writable = False
        self._owner.link_lost(self, error)


def in_rounds(link: Link, endpoint: Endpoint, owner: Owner) -> Link | FarLine:
    """The connection of ``link``, served in the rounds of the event loop if that has any; the same ``link`` with TLS,
    a WebSocket or zstd. Nothing was read or written yet."""
    sockets = client_sockets(asyncio.get_running_loop())
    sock = link.socket()
    if sockets is None or sock is None or endpoint.secure or endpoint.web or link.compressed:
        return link
    try:
        taken = sock.dup()
    finally:
        link.abort()  # closes its own descriptor only
    return FarLine(owner, sockets, taken)


def gathering_of(link: Link | FarLine) -> Gathering | None:
    """None where the system has no such bound, at Unix sockets, or its bytes are not those of acknowledgements."""
    if isinstance(link, Link) and link.compressed:
        return None
    sock = link.socket()
    return None if sock is None or sock.family == socket.AF_UNIX else Gathering(sock)
