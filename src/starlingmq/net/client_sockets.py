"""The plain TCP and Unix sockets of clients, served inside the event loop's ``select``. Those with TLS are served the
same way (``net/tls_client_socket.py``).

The selector of ``net/broker_loop.py`` calls ``ClientSockets.select``, which works in rounds:

1. Poll. Descriptors that are not client sockets are kept for asyncio.
2. Read each client socket that is ready, once, and give the bytes to the driver, which asks for a turn. If ``few``
   are ready, it writes what one of them has caused before the next one is read.
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
  meanwhile are read after the messages: in the same round, or, if it read little, after at most
  ``ROUNDS_WITHOUT_RECEIVERS`` such rounds. So they cost no wake-up and no turn, and delay no message. They are read at
  once after a turn in which a message was queued (``receivers_wanted``), and all of them first before what may be a
  client that comes back: one of them may be its earlier connection.
"""

from __future__ import annotations

import logging
import select
import time
from typing import Final

from mypy_extensions import i64

from starlingmq.net.client_owner import ClientOwner

log = logging.getLogger("starlingmq")

EVENTS: Final = 42  # in one poll; they fit into Python's pools of small objects
EVENTS_MANY: Final = 256  # after one that was full
EVENTS_FEW: Final = 8  # after a round that read more than ``BYTES_PER_ROUND``
BYTES_PER_ROUND: Final = 1024 * 1024
FOREVER: Final = -1.0
RECEIVERS_WAIT: Final = 0.005  # seconds
ROUNDS_WITHOUT_RECEIVERS: Final = 3  # in a row, while others are read ...
BYTES_WITHOUT_RECEIVERS: Final = 4 * 1024  # ... and each brings this much at most: few messages
FEW: Final = 8

_monotonic: Final = time.monotonic

IN: Final = 0x001  # of epoll(7): the same number on every Linux


class PolledSocket:
    """The methods of a client's socket that the rounds call (``net/client_socket.py``)."""

    def on_events(self, mask: int) -> None:
        raise NotImplementedError

    def is_new(self) -> bool:
        """Whether nothing was read from it yet."""
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError


class ClientSockets:
    """All client sockets of one event loop, and the poll object that the loop's other descriptors share."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.receivers_epoll = select.epoll()
        self.receivers = 0
        self.awaits_acknowledgements = False  # something was sent to a receiver since the last wait for other sockets
        self.crowded = False  # so many receivers are ready that this round reads no other sockets
        self.few = False  # several clients are ready in this round, but not many
        self.receivers_wanted = False  # a message was queued: an acknowledgement may make room for it
        self._queued = 0
        self._rounds_without_receivers: i64 = 0
        self._either = select.poll()
        self._either.register(self.epoll.fileno(), IN)
        self._either.register(self.receivers_epoll.fileno(), IN)
        self.by_descriptor: list[PolledSocket | None] = []
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

    def note_queued(self, messages: int) -> None:
        """The number of messages that were ever queued, after a turn."""
        if messages != self._queued:
            self._queued = messages
            self.receivers_wanted = True

    def add(self, descriptor: int, client: PolledSocket) -> None:
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
            self.few = 1 < len(events) <= FEW
            for descriptor, mask in events:
                client = self.by_descriptor[descriptor] if descriptor < len(self.by_descriptor) else None
                if client is None:
                    others.append((descriptor, mask))
                else:
                    self._serve(client, mask)
            if self._wanted is not None:
                self._give_turns(self._wanted)
            if self.receivers != 0 and self._receivers_are_due(len(events)):
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

    def _receivers_are_due(self, others: int) -> bool:
        """Whether receivers are read in this round, in which that many other descriptors were ready."""
        if (
            others != 0
            and not self.receivers_wanted
            and not self.crowded
            and self.bytes_read <= BYTES_WITHOUT_RECEIVERS
            and self._rounds_without_receivers < ROUNDS_WITHOUT_RECEIVERS
        ):
            self._rounds_without_receivers += 1
            return False
        self._rounds_without_receivers = 0
        return True

    def _serve_receivers(self) -> None:
        self.few = False
        events: list[tuple[int, int]] = self.receivers_epoll.poll(0.0, EVENTS)
        for descriptor, mask in events:
            client = self.by_descriptor[descriptor]
            if client is not None:
                self._serve(client, mask)
        if events:
            self.receivers_wanted = False
        wanted = self._wanted
        if wanted is not None:
            if not self._also_wanted and wanted.skip_turn():
                self._wanted = None
            else:
                self._give_turns(wanted)
        if len(events) == EVENTS:
            self.awaits_acknowledgements = False  # the others end the next wait
        self.crowded = False

    def _serve(self, client: PolledSocket, mask: int) -> None:
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
