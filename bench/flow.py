"""Publishers that keep a pipeline full and subscribers that count and acknowledge, a block of frames at a time.

Invariant: nothing is done per message. A publisher sends slices of a ring of frames that was encoded once; a
subscriber finds packet identifiers with strided or fancy numpy indexing and writes acknowledgements the same way.
Every check below is vectorised too: identifiers are never reused before they are free, and each received byte belongs
to an expected frame, otherwise the run fails.
"""

from __future__ import annotations

import contextlib
import select
import socket
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.frames import ACK_SIZE, PUBACK, PUBCOMP, PUBREC, PUBREL, Bytes, Layout, blank_acks
from bench.loop import Connection, Loop

RING_FRAMES = 2_048
FLOOD_BYTES = 128 * 1024
SEND_BUFFER_BYTES = 256 * 1024  # bounds the bytes in flight when a flood stops
REFILL_PART = 4  # a publisher sends again when a quarter of its window is free

ACKS = {first: blank_acks(first, Loop().buffer.size // ACK_SIZE) for first in (PUBACK, PUBREC, PUBREL, PUBCOMP)}


class UnexpectedBytesError(Exception):
    """A broker sent unexpected bytes."""


def acks(first: int, identifiers: Bytes) -> Bytes:
    """Acknowledgements of these identifiers, shape (n, 2), in a buffer that the next call for ``first`` reuses."""
    block = ACKS[first][: len(identifiers)]
    block[:, 2:4] = identifiers
    return block


def identifiers_at(buffer: Bytes, offsets: NDArray[Any]) -> Bytes:
    """The two identifier bytes at each of these byte offsets, shape (n, 2)."""
    found = np.empty((len(offsets), 2), np.uint8)
    found[:, 0] = buffer[offsets]
    found[:, 1] = buffer[offsets + 1]
    return found


def split(buffer: Bytes, end: int, layout: Layout) -> tuple[NDArray[Any], NDArray[Any], int]:
    """Byte offsets of the whole PUBLISH frames and of the PUBRELs in a mixed stream, and the bytes they take.

    Every frame starts on a 4-byte word and no word inside a frame looks like a start, so starts are found by
    comparing words; the sizes must add up to the bytes taken.
    """
    words = buffer[: end // 4 * 4].view("<u4")
    publishes = np.flatnonzero(words == layout.head) * 4
    releases = np.flatnonzero(words.view("<u2")[::2] == (2 << 8 | PUBREL)) * 4
    used = words.size * 4
    if publishes.size and publishes[-1] + layout.frame > end:
        used = int(publishes[-1])
        publishes = publishes[:-1]
    if publishes.size * layout.frame + releases.size * ACK_SIZE != used:
        raise UnexpectedBytesError(f"expected PUBLISH and PUBREL only, found {bytes(buffer[:32])!r}")
    return publishes, releases, used


class Group:
    """Publishers and the subscribers that receive everything they send, with one bound on what is under way.

    The bound makes a closed loop: at most ``window`` messages per publisher are in flight to the slowest subscriber.
    Without it, a broker that acknowledges before it delivers would only be measured at dropping. Window 0 is the flood,
    for QoS 0 only: as fast as the socket accepts it.
    """

    def __init__(self, window: int, shared: bool = False) -> None:
        self.window = window
        self.shared = shared  # each message goes to one subscriber instead of all
        self.publishers: list[Publisher] = []
        self.subscribers: list[Subscriber] = []
        self.released = 0
        self.forgiven = 0
        self.seen = 0

    @property
    def limit(self) -> int:
        return self.window * len(self.publishers)

    def delivered(self) -> int:
        """Messages delivered to the slowest subscriber, or to all together if they share."""
        counts = [item.delivered for item in self.subscribers]
        return sum(counts) if self.shared else min(counts)

    def room(self) -> int:
        return self.limit - (self.released - self.forgiven - self.delivered())

    def refill(self) -> None:
        """A delivery made room: wake the publishers when a quarter of the window is free."""
        if self.room() * REFILL_PART >= self.limit:
            for publisher in self.publishers:
                publisher.refill()

    def forgive_lost(self) -> None:
        """Called at intervals: messages in flight while nothing arrived are lost, and must not block the loop."""
        delivered = self.delivered()
        if self.window and delivered == self.seen:
            self.forgiven = self.released - delivered
            self.refill()
        self.seen = delivered


class Subscriber(Connection):
    """Counts received messages and completes the QoS flow. ``delivered`` counts PUBLISH packets."""

    def __init__(self, loop: Loop, sock: socket.socket, layout: Layout, group: Group) -> None:
        super().__init__(loop, sock)
        self.layout = layout
        self.group = group
        self.delivered = 0
        group.subscribers.append(self)

    def parse(self, buffer: Bytes, end: int) -> int:
        used = self.parse_mixed(buffer, end) if self.layout.qos == 2 else self.parse_equal(buffer, end)
        if self.group.window:
            self.group.refill()
        return used

    def parse_equal(self, buffer: Bytes, end: int) -> int:
        layout = self.layout
        count = end // layout.frame
        used = count * layout.frame
        rows = buffer[:used].reshape(count, layout.frame)
        if not ((rows[:, 0] == 0x30 | layout.qos << 1) & (rows[:, 1] == layout.body_size)).all():
            raise UnexpectedBytesError(f"expected PUBLISH only, found {bytes(buffer[:32])!r}")
        self.delivered += count
        if layout.qos and count:
            self.write(acks(PUBACK, rows[:, layout.packet_id : layout.packet_id + 2]))
        return used

    def parse_mixed(self, buffer: Bytes, end: int) -> int:
        publishes, releases, used = split(buffer, end, self.layout)
        self.delivered += publishes.size
        if publishes.size:
            self.write(acks(PUBREC, identifiers_at(buffer, publishes + self.layout.packet_id)))
        if releases.size:
            self.write(acks(PUBCOMP, identifiers_at(buffer, releases + 2)))
        return used


class Publisher(Connection):
    """Sends the ring round and round: a flood, or a window ahead of the broker's acknowledgements and deliveries.

    ``goal`` is the absolute count of bytes that may be sent by now, ``position`` the count of bytes sent.
    """

    def __init__(self, loop: Loop, sock: socket.socket, layout: Layout, topics: list[str], group: Group) -> None:
        super().__init__(loop, sock)
        self.layout = layout
        self.group = group
        group.publishers.append(self)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        if layout.qos and not group.window:
            raise ValueError("only QoS 0 can be a flood")
        frames = RING_FRAMES if layout.qos else max(len(topics), FLOOD_BYTES // layout.frame)
        self.ring = layout.publishes(topics, frames).reshape(-1).data
        self.state = np.zeros(RING_FRAMES + 1, np.uint8)  # by identifier: 0 free, 1 published, 2 released
        self.unfinished = 0
        self.next = 0
        self.goal = 0
        self.position = 0
        self.stopped = True

    @property
    def published(self) -> int:
        return -(-self.position // self.layout.frame)

    def start(self) -> None:
        self.stopped = False
        if self.group.window:
            self.refill()
        else:
            self.wait_for(select.EPOLLIN | select.EPOLLOUT)

    def stop(self) -> None:
        """Send no further frame; a partly sent one is completed."""
        self.stopped = True
        self.goal = self.published * self.layout.frame

    def flush(self) -> None:
        if self.out:
            super().flush()
        if not self.out:
            self.push()

    def push(self) -> None:
        """Send ring bytes up to the goal, or without limit in a flood."""
        size = len(self.ring)
        flood = not self.group.window and not self.stopped
        at = self.position % size
        end = size if flood else min(size, at + self.goal - self.position)
        if end > at:
            with contextlib.suppress(BlockingIOError):
                self.position += self.sock.send(self.ring[at:end])
        more = flood or self.position < self.goal or bool(self.out)
        self.wait_for(select.EPOLLIN | select.EPOLLOUT if more else select.EPOLLIN)

    def refill(self) -> None:
        """Releases new frames when a quarter of the window is free: a pipeline, not a trickle."""
        group = self.group
        room = min(group.window - self.unfinished, group.room())
        if self.stopped or room * REFILL_PART < group.window:
            return
        if self.layout.qos and not self.take_identifiers(room):
            return
        group.released += room
        self.goal += room * self.layout.frame
        if not self.out:
            self.push()

    def take_identifiers(self, count: int) -> bool:
        """The next in the ring; False while an old one among them is still in use."""
        numbers = (np.arange(self.next, self.next + count) % RING_FRAMES) + 1
        if self.state[numbers].any():
            return False
        self.state[numbers] = 1
        self.next = (self.next + count) % RING_FRAMES
        self.unfinished += count
        return True

    def parse(self, buffer: Bytes, end: int) -> int:
        used = end // ACK_SIZE * ACK_SIZE
        rows = buffer[:used].reshape(-1, ACK_SIZE)
        if not (rows[:, 1] == 2).all():
            raise UnexpectedBytesError(f"expected acknowledgements, found {bytes(buffer[:32])!r}")
        if self.layout.qos == 1:
            self.finish(rows, PUBACK, 1)
        else:
            received = rows[:, 0] == PUBREC
            self.release(rows[received])
            self.finish(rows[~received], PUBCOMP, 2)
        self.refill()
        return used

    def release(self, rows: Bytes) -> None:
        if len(rows):
            self.advance(rows, 1, 2)
            self.write(acks(PUBREL, rows[:, 2:4]))

    def finish(self, rows: Bytes, first: int, state: int) -> None:
        if not (rows[:, 0] == first).all():
            raise UnexpectedBytesError(f"expected packets of type {first:#x}, found {bytes(rows[:8]).hex()}")
        self.advance(rows, state, 0)
        self.unfinished -= len(rows)

    def advance(self, rows: Bytes, before: int, after: int) -> None:
        numbers = rows[:, 2].astype(np.uint16) << 8 | rows[:, 3]
        if not (self.state[numbers] == before).all():
            raise UnexpectedBytesError("an identifier was acknowledged that did not wait for it")
        self.state[numbers] = after
