"""One client's plain TCP or Unix socket, read and written in the rounds of ``net/client_sockets.py``, which has their
rules.

When the client has closed its half, the connection is closed after everything was written, as asyncio's transports do.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import u8

from starlingmq.net.client_owner import ClientOwner
from starlingmq.net.client_sockets import IN, ClientSockets, PolledSocket
from starlingmq.net.listeners.sockets import BorrowedSocket

if TYPE_CHECKING:
    from starlingmq.net.listeners.listener_gate import ListenerGate

# Sizes of a read: larger after a read that returned more. The buffer of the smallest size fits into Python's pools of
# small objects; each larger one costs a malloc.
READ: Final = 479
READ_MORE: Final = 16 * 1024
READ_MOST: Final = 256 * 1024

# ``ClientSocket._role``: at first the number of reads in a row that brought PUBACKs.
RECEIVER: Final = 4
SENDER: Final = 5  # it was a receiver

PUBACK: Final = 0x40  # first bytes of packets
PINGREQ: Final = 0xC0

# Cheaper than the methods of a socket, which check its time-out and take flags.
_read: Final = os.read
_write: Final = os.write

# epoll(7): the same numbers on every Linux. Constants here are compared as machine integers.
OUT: Final = 0x004
READABLE: Final = 0x2019  # EPOLLIN, EPOLLERR, EPOLLHUP, EPOLLRDHUP
WRITABLE: Final = 0x01C  # EPOLLOUT, EPOLLERR, EPOLLHUP


class ClientSocket(PolledSocket):
    """One connection: a ``Handle`` of the driver, and what ``SocketConnection`` is for a transport of asyncio.

    The gate has counted it for ``peer``. It keeps the descriptor only: a socket of Python takes 100 bytes more. The
    caller of ``open`` detaches ``sock`` after it, and closes ``sock`` if it raises.
    """

    def __init__(
        self, sockets: ClientSockets, owner: ClientOwner, gate: ListenerGate, sock: socket.socket, peer: str
    ) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.made = False
        self.client: Any = None
        self._sockets = sockets
        self._owner = owner
        self._gate = gate
        self._descriptor: int = sock.fileno()
        self._peer = peer
        self._watched = 0  # the events registered with epoll
        self._reading = True
        self._last = 0  # bytes that its last read brought
        self._closing = False
        self._ended = False  # the sending half is closed, or will be after pending writes
        self._gone = False
        self._full = False  # the driver was told ``blocked``
        self._role: u8 = 0
        self._outgoing: bytearray | None = None  # bytes that the kernel has not accepted yet

    def open(self, driver: Any, full: int) -> None:
        """Tell the driver, and serve it from the next round on. ``full`` as in ``ConnectionDriver.opened``."""
        self._sockets.add(self._descriptor, self)
        try:
            self.client = driver.opened(self, self._gate.name, self._peer, full)
            if self._gate.identity:
                driver.identified(self.client)
            if not self._gone:
                self._watch()
        except BaseException:
            self._gone = True  # the caller closes the descriptor, whose number may soon be another connection's
            self._reading = False
            self._outgoing = None
            self._forget()
            if self.client is not None:
                self._owner.lost(self.client)
            raise
        self.made = True

    def pass_to(self, owner: ClientOwner) -> None:
        """From now on, bytes and events go there."""
        self._owner = owner

    # Calls of the driver

    def write(self, data: bytes) -> None:
        if self._gone or self._ended:
            return
        if self._outgoing is None:
            try:
                sent = _write(self._descriptor, data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                self.abort()
                return
            if self._role == RECEIVER:
                self._sockets.awaits_acknowledgements = True
            if sent == len(data):
                return
            data = data[sent:]
        self._keep(data)

    def _keep(self, data: bytes) -> None:
        """Write it as soon as the kernel has room again."""
        outgoing = self._outgoing
        if outgoing is None:
            if self._role == RECEIVER:
                self._change_role(SENDER)
            outgoing = self._outgoing = bytearray(data)
            self._watch()
        else:
            outgoing += data
        if not self._full and len(outgoing) > self._gate.write_buffer:
            self._full = True
            self._owner.blocked(self.client)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._gone or self._ended:
            return
        self._ended = True
        if self._outgoing is None:
            self._end_half()

    def close(self) -> None:
        if self._gone or self._closing:
            return
        self._closing = True
        self._reading = False
        if self._outgoing is None:
            self._finish()
        else:
            self._watch()

    def _finish(self) -> None:
        """Close: everything is written."""
        self.abort()

    def abort(self) -> None:
        """Close immediately; ``lost`` follows in a callback of the event loop."""
        if self._gone:
            return
        self._gone = True
        self._reading = False
        self._outgoing = None
        self._forget()
        asyncio.get_running_loop().call_soon(self._tell_lost)

    def pause_reading(self) -> None:
        self._reading = False  # no longer watched when the next event comes

    def resume_reading(self) -> None:
        if self._gone or self._closing or self._reading:
            return
        self._reading = True
        if self._watched & IN == 0:
            self._watch()

    def get_write_buffer_size(self) -> int:
        return 0 if self._outgoing is None else len(self._outgoing)

    def is_closing(self) -> bool:
        return self._gone or self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name not in ("socket", "peername", "sockname"):
            return default
        try:
            sock = BorrowedSocket(fileno=self._descriptor)
            if name == "peername":
                return sock.getpeername()
            return sock.getsockname() if name == "sockname" else sock
        except OSError:
            return default

    # Calls of the rounds

    def on_events(self, mask: int) -> None:
        if self._outgoing is not None and mask & WRITABLE != 0:
            self._flush()
        if mask & READABLE == 0:
            return
        if not self._reading:
            if not self._gone:
                self._watch()
            return
        try:
            if self._last < READ:
                data = _read(self._descriptor, READ)
            elif self._last < READ_MORE:
                data = _read(self._descriptor, READ_MORE)
            else:
                data = _read(self._descriptor, READ_MOST)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.abort()
            return
        size = len(data)
        if size == 0:
            self.close()
            return
        self._sockets.bytes_read += size
        self._last = size
        self._owner.received(self.client, data)
        if data[0] == PUBACK or self._role != 0:
            self._note(data[0])

    def is_new(self) -> bool:
        return self._last == 0

    def _note(self, first: int) -> None:
        """Find out whether it is a receiver; ``first`` is the first byte of what it has just sent."""
        role = self._role
        if role == SENDER or self._gone or first == PINGREQ:
            return
        if role == RECEIVER:
            if first != PUBACK or not self._owner.may_wait(self.client):
                self._change_role(SENDER)
            elif self._sockets.crowded:
                self._change_role(0)
        elif first != PUBACK:
            self._role = 0
        elif role != RECEIVER - 1:
            self._role = role + 1
        elif self._outgoing is None and self._owner.may_wait(self.client):
            self._change_role(RECEIVER)

    def _change_role(self, role: u8) -> None:
        watched = self._watched
        self._unwatch()
        self._sockets.receivers += 1 if role == RECEIVER else -1
        self._role = role
        if watched != 0:
            self._watch()

    def _flush(self) -> None:
        outgoing = self._outgoing
        assert outgoing is not None
        try:
            sent = self._send(outgoing)
        except OSError:
            self.abort()
            return
        if sent == 0:
            return
        del outgoing[:sent]
        left = len(outgoing)
        if left == 0:
            self._outgoing = None
            if self._closing:
                self._finish()
                return
            if self._ended:
                self._end_half()
                if self._gone:
                    return
            self._watch()
        if self._full and left <= self._gate.write_buffer // 4:
            self._full = False
            self._owner.drained(self.client)

    def _send(self, outgoing: bytearray) -> int:
        """Write what the kernel has room for; returns the number of bytes. Raises OSError."""
        try:
            return _write(self._descriptor, outgoing)
        except (BlockingIOError, InterruptedError):
            return 0

    def _end_half(self) -> None:
        try:
            BorrowedSocket(fileno=self._descriptor).shutdown(socket.SHUT_WR)
        except OSError:
            self.abort()

    def _watch(self) -> None:
        """Ask epoll for what is needed now."""
        wanted = 0
        if self._reading:
            wanted = IN
        if self._outgoing is not None:
            wanted |= OUT
        if wanted == self._watched:
            return
        epoll = self._epoll()
        if self._watched == 0:
            epoll.register(self._descriptor, wanted)
        elif wanted == 0:
            epoll.unregister(self._descriptor)
        else:
            epoll.modify(self._descriptor, wanted)
        self._watched = wanted

    def _epoll(self) -> Any:
        return self._sockets.receivers_epoll if self._role == RECEIVER else self._sockets.epoll

    def _unwatch(self) -> None:
        if self._watched != 0:
            self._watched = 0
            with suppress(OSError):
                self._epoll().unregister(self._descriptor)

    def _forget(self) -> None:
        self._sockets.remove(self._descriptor)
        self._unwatch()
        if self._role == RECEIVER:
            self._role = SENDER
            self._sockets.receivers -= 1

    def _tell_lost(self) -> None:
        if not self.made:
            return  # ``open`` has raised
        client = self.client
        self.client = None
        try:
            self._gate.leave(self._peer)
            if client is not None:
                self._owner.lost(client)
        finally:
            self._release()
            self._descriptor = -1

    def _release(self) -> None:
        os.close(self._descriptor)
