"""The plain TCP and Unix sockets of clients, served inside the event loop's ``select``.

The selector of ``net/broker_loop.py`` calls ``ClientSockets.select``, which works in rounds:

1. Poll. Descriptors that are not client sockets are kept for asyncio.
2. Read each client socket that is ready, once, and give the bytes to the driver, which asks for a turn.
3. Call the driver's ``turn``, which writes to the clients' sockets. Then do the same for receivers (below), if any.
4. Return to asyncio if another descriptor was ready, a callback or timer was added (``asked``), or the time-out is
   over. Else begin the next round.

A message from one client to another costs a poll, a read and a write, and no callback of asyncio.

The rules of a round:

- Fairness. A socket is read once per round. After a round that read more than ``BYTES_PER_ROUND``, the next one reads
  only ``EVENTS_FEW`` sockets; the kernel moves a reported descriptor to the end of its list, so these are other
  sockets. asyncio waits for one round at most.
- An event only means that a system call may succeed. A stale event ends in EAGAIN.
- The descriptor of a connection that ends stays open until a callback of asyncio has told the driver ``lost``. So its
  number is not used again within a round, and ``lost`` never interrupts the driver.
- epoll is level-triggered, and asked for what is needed: EPOLLIN while the driver reads, EPOLLOUT while bytes wait. A
  paused socket with nothing to write is not registered, because epoll would report its hang-up in every round. It is
  removed at its first event after the pause, so a pause that ends within a turn costs no system call.
- A receiver is a client that has sent only PUBACKs lately. Nothing waits for them: if its queue does, or anything else
  comes from it, it is not one any more, and does not become one again. While messages sent to receivers are
  unacknowledged, only the other sockets end the wait of a poll, for ``RECEIVERS_WAIT`` seconds; the PUBACKs that came
  meanwhile are read in the same round, after the messages. So they cost no wake-up and delay no message. Only before
  what may be a client that comes back, all receivers are read first: one of them may be its earlier connection.
- When the client has closed its half, the connection is closed after everything was written, as asyncio's transports
  do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import u8

from starlingmq.net.client_owner import ClientOwner
from starlingmq.net.listeners.sockets import BorrowedSocket

if TYPE_CHECKING:
    from starlingmq.net.listeners.listener_gate import ListenerGate

log = logging.getLogger("starlingmq")

# Sizes of a read: larger after a read that returned more. The buffer of the smallest size fits into Python's pools of #
# small objects, as do the events of a small poll; each larger one costs a malloc.
READ: Final = 479
READ_MORE: Final = 16 * 1024
READ_MOST: Final = 256 * 1024
EVENTS: Final = 42  # in one poll
EVENTS_MANY: Final = 256  # after one that was full
EVENTS_FEW: Final = 8  # after a round that read more than ``BYTES_PER_ROUND``
BYTES_PER_ROUND: Final = 1024 * 1024
FOREVER: Final = -1.0
RECEIVERS_WAIT: Final = 0.005  # seconds

# ``ClientSocket._role``: at first the number of reads in a row that brought PUBACKs.
RECEIVER: Final = 4
SENDER: Final = 5  # it was a receiver

PUBACK: Final = 0x40  # first bytes of packets
PINGREQ: Final = 0xC0

# Cheaper than the methods of a socket, which check its time-out and take flags.
_read: Final = os.read
_write: Final = os.write
_monotonic: Final = time.monotonic

# epoll(7): the same numbers on every Linux. Constants here are compared as machine integers.
IN: Final = 0x001
OUT: Final = 0x004
READABLE: Final = 0x2019  # EPOLLIN, EPOLLERR, EPOLLHUP, EPOLLRDHUP
WRITABLE: Final = 0x01C  # EPOLLOUT, EPOLLERR, EPOLLHUP


class ClientSockets:
    """All client sockets of one event loop, and the poll object that the loop's other descriptors share."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.receivers_epoll = select.epoll()
        self.receivers = 0
        self.awaits_acknowledgements = False  # something was sent to a receiver since the last wait for other sockets
        self.crowded = False  # so many receivers are ready that this round reads no other sockets
        self._either = select.poll()
        self._either.register(self.epoll.fileno(), IN)
        self._either.register(self.receivers_epoll.fileno(), IN)
        self.by_descriptor: list[ClientSocket | None] = []
        self.asked = False  # asyncio has something to do: end the select after this round
        self.bytes_read = 0  # in this round
        self.rounds = 0
        self._wanted: ClientOwner | None = None
        self._also_wanted: list[ClientOwner] = []  # more than one only in tests
        self._events = EVENTS

    def want(self, owner: ClientOwner) -> None:
        """Call its ``turn`` at the end of this round, or of the next one, which waits for nothing then."""
        if self._wanted is None:
            self._wanted = owner
        else:
            self._also_wanted.append(owner)

    def add(self, descriptor: int, client: ClientSocket) -> None:
        while len(self.by_descriptor) <= descriptor:
            self.by_descriptor.append(None)
        self.by_descriptor[descriptor] = client

    def remove(self, descriptor: int) -> None:
        self.by_descriptor[descriptor] = None

    def select(self, timeout: float | None) -> list[tuple[int, int]]:
        """Serve clients for ``timeout`` seconds (None: without limit) or until asyncio has something to do. Returns the
        descriptors, with their events, that are not client sockets."""
        self.asked = False
        others: list[tuple[int, int]] = []
        endless = timeout is None
        wait = FOREVER if timeout is None else max(timeout, 0.0)
        deadline = 0.0 if endless or wait == 0.0 else _monotonic() + wait
        while True:
            if self._wanted is not None:
                wait = 0.0
            events: list[tuple[int, int]] = (
                self.epoll.poll(wait, self._events) if self.receivers == 0 else self._poll_beside_receivers(wait)
            )
            self.bytes_read = 0
            self.rounds += 1
            for descriptor, mask in events:
                client = self.by_descriptor[descriptor] if descriptor < len(self.by_descriptor) else None
                if client is None:
                    others.append((descriptor, mask))
                else:
                    self._serve(client, mask)
            if self._wanted is not None:
                self._give_turns(self._wanted)
            if self.receivers != 0:
                self._serve_receivers()
            if self.bytes_read > BYTES_PER_ROUND:
                self._events = EVENTS_FEW
            else:
                self._events = EVENTS if len(events) < EVENTS else EVENTS_MANY
            if others or self.asked:
                return others
            if endless:
                wait = FOREVER
            else:
                wait = deadline - _monotonic()
                if wait <= 0.0:
                    return others

    def _poll_beside_receivers(self, wait: float) -> list[tuple[int, int]]:
        waits = wait != 0.0
        if waits and not self.awaits_acknowledgements:
            self._either.poll(None if wait == FOREVER else wait * 1000.0)
            wait = 0.0
        elif wait == FOREVER or wait > RECEIVERS_WAIT:
            wait = RECEIVERS_WAIT
        events: list[tuple[int, int]] = self.epoll.poll(wait, self._events)
        if not events:
            if waits:
                self.awaits_acknowledgements = False  # later ones end the wait
            return events
        for descriptor, _ in events:
            client = self.by_descriptor[descriptor] if descriptor < len(self.by_descriptor) else None
            if client is None or client.is_new():
                return self._receivers_first(events)
        return events

    def _receivers_first(self, events: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Add the receivers' events. If there are too many for one round, the others are left to a later one."""
        found: list[tuple[int, int]] = self.receivers_epoll.poll(0.0, EVENTS_MANY)
        if len(found) < EVENTS_MANY:
            return found + events
        self.crowded = True
        return found

    def _serve_receivers(self) -> None:
        events: list[tuple[int, int]] = self.receivers_epoll.poll(0.0, EVENTS)
        for descriptor, mask in events:
            client = self.by_descriptor[descriptor]
            if client is not None:
                self._serve(client, mask)
        if self._wanted is not None:
            self._give_turns(self._wanted)
        if len(events) == EVENTS:
            self.awaits_acknowledgements = False  # the others end the next wait
        self.crowded = False

    def _serve(self, client: ClientSocket, mask: int) -> None:
        try:
            client.on_events(mask)
        except Exception:
            log.exception("internal error in serving a connection; the connection is closed; please report it")
            client.abort()

    def _give_turns(self, wanted: ClientOwner) -> None:
        self._wanted = None
        if self._also_wanted:
            others = self._also_wanted
            self._also_wanted = []
            for other in others:
                self._give_turn(other)
        self._give_turn(wanted)

    def _give_turn(self, owner: ClientOwner) -> None:
        try:
            owner.turn()
        except Exception:
            log.exception("internal error in a turn of the event loop; please report it")

    def close(self) -> None:
        self.epoll.close()
        self.receivers_epoll.close()


class ClientSocket:
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
            if not self._gone:
                self._watch()
        except BaseException:
            self._forget()
            raise
        self.made = True

    # Calls of the driver

    def write(self, data: bytes) -> None:
        outgoing = self._outgoing
        if outgoing is None:
            if self._gone or self._ended:
                return
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
            if self._role == RECEIVER:
                self._change_role(SENDER)
            outgoing = self._outgoing = bytearray(data[sent:])
            self._watch()
        elif not self._ended:
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
            self.abort()
        else:
            self._watch()

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
        """Whether nothing was read from it yet."""
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
            sent = _write(self._descriptor, outgoing)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.abort()
            return
        del outgoing[:sent]
        left = len(outgoing)
        if left == 0:
            self._outgoing = None
            if self._closing:
                self.abort()
                return
            if self._ended:
                self._end_half()
                if self._gone:
                    return
            self._watch()
        if self._full and left <= self._gate.write_buffer // 4:
            self._full = False
            self._owner.drained(self.client)

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
            descriptor = self._descriptor
            self._descriptor = -1
            os.close(descriptor)
