"""The socket of a connection between two nodes, without TLS, read and written in the rounds of the clients' sockets
(``net/client_sockets.py``). So a message that goes to another node, or comes from one, needs no callback of asyncio.

It replaces a transport of asyncio after the handshake, and behaves like one.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import Any, Final

from starlingmq.net.client_sockets import IN, ClientSockets, PolledSocket
from starlingmq.net.listeners.sockets import BorrowedSocket

READ: Final = 4 * 1024  # bytes of a read; larger after one that returned as many
READ_MOST: Final = 256 * 1024

_read: Final = os.read
_write: Final = os.write

# epoll(7), as in ``net/client_socket.py``
OUT: Final = 0x004
READABLE: Final = 0x2019  # EPOLLIN, EPOLLERR, EPOLLHUP, EPOLLRDHUP
WRITABLE: Final = 0x01C  # EPOLLOUT, EPOLLERR, EPOLLHUP


class SocketUser:
    """The calls of a protocol of asyncio."""

    def connection_made(self, transport: Any) -> None:
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError

    def pause_writing(self) -> None:
        raise NotImplementedError

    def resume_writing(self) -> None:
        raise NotImplementedError

    def connection_lost(self, error: Exception | None) -> None:
        raise NotImplementedError


class PeerSocket(PolledSocket):
    """``room``: bytes that may wait for the kernel before the user is told to pause writing. It owns ``sock``."""

    def __init__(self, sockets: ClientSockets, user: SocketUser, sock: socket.socket, room: int) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets = sockets
        self._user: SocketUser | None = user
        self._descriptor: int = sock.detach()
        self._room = room
        self._watched = 0  # the events registered with epoll
        self._reading = True
        self._size = READ
        self._closing = False
        self._gone = False
        self._full = False  # the user was told to pause writing
        self._outgoing: bytearray | None = None  # bytes that the kernel has not accepted yet
        sockets.add(self._descriptor, self)
        self._watch()

    # Calls of the connection

    def write(self, data: bytes) -> None:
        if self._gone or self._closing:
            return
        if self._outgoing is None:
            try:
                sent = _write(self._descriptor, data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._end(error)
                return
            if sent == len(data):
                return
            self._outgoing = bytearray(data[sent:])
            self._watch()
        else:
            self._outgoing += data
        if not self._full and len(self._outgoing) > self._room and self._user is not None:
            self._full = True
            self._user.pause_writing()

    def close(self) -> None:
        """Close it when everything is written."""
        if self._gone or self._closing:
            return
        self._closing = True
        self._reading = False
        if self._outgoing is None:
            self._end(None)
        else:
            self._watch()

    def abort(self) -> None:
        self._end(None)

    def pause_reading(self) -> None:
        self._reading = False  # no longer watched when the next event comes

    def resume_reading(self) -> None:
        if not (self._gone or self._closing):
            self._reading = True
            self._watch()

    def is_closing(self) -> bool:
        return self._gone or self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """``name`` is "socket": it is borrowed, and must not be closed."""
        return default if self._descriptor < 0 else BorrowedSocket(fileno=self._descriptor)

    # Calls of the rounds

    def on_events(self, mask: int) -> None:
        if self._outgoing is not None and mask & WRITABLE != 0:
            self._flush()
        if mask & READABLE == 0 or self._gone:
            return
        if not self._reading:
            self._watch()
            return
        try:
            data = _read(self._descriptor, self._size)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        size = len(data)
        if size == 0:
            self._end(None)
            return
        self._sockets.bytes_read += size
        self._size = READ_MOST if size == self._size else READ
        if self._user is not None:
            self._user.data_received(data)

    def is_new(self) -> bool:
        return False

    def _flush(self) -> None:
        outgoing = self._outgoing
        assert outgoing is not None
        try:
            sent = _write(self._descriptor, outgoing)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        del outgoing[:sent]
        left = len(outgoing)
        if left == 0:
            self._outgoing = None
            if self._closing:
                self._end(None)
                return
            self._watch()
        if self._full and left <= self._room // 4 and self._user is not None:
            self._full = False
            self._user.resume_writing()

    def _watch(self) -> None:
        """Ask epoll for what is needed now."""
        wanted = IN if self._reading else 0
        if self._outgoing is not None:
            wanted |= OUT
        if wanted == self._watched:
            return
        epoll = self._sockets.epoll
        if self._watched == 0:
            epoll.register(self._descriptor, wanted)
        elif wanted == 0:
            epoll.unregister(self._descriptor)
        else:
            epoll.modify(self._descriptor, wanted)
        self._watched = wanted

    def _end(self, error: Exception | None) -> None:
        """Tell the user in a callback of the event loop. The descriptor stays open until then, so that its number is
        not used again within the round."""
        if self._gone:
            return
        self._gone = True
        self._reading = False
        self._outgoing = None
        self._sockets.remove(self._descriptor)
        if self._watched != 0:
            self._watched = 0
            with suppress(OSError):
                self._sockets.epoll.unregister(self._descriptor)
        asyncio.get_running_loop().call_soon(self._tell_end, error)

    def _tell_end(self, error: Exception | None) -> None:
        user, self._user = self._user, None
        try:
            if user is not None:
                user.connection_lost(error)
        finally:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
