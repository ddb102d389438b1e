"""NATS publishers and subscribers in the loop of ``bench.flow``, with its invariant: nothing is done per message."""

from __future__ import annotations

import socket

import numpy as np

from bench.flow import Group, Publisher, Subscriber, UnexpectedBytesError
from bench.frames import Bytes
from bench.loop import Loop
from bench.nats_frames import PING, PONG, NatsLayout

PONG_BYTES: Bytes = np.frombuffer(PONG, np.uint8)


class NatsSubscriber(Subscriber):
    """Counts MSG frames of one size."""

    def __init__(self, loop: Loop, sock: socket.socket, layout: NatsLayout, group: Group) -> None:
        super().__init__(loop, sock, layout, group)  # type: ignore[arg-type]
        self.received = layout.received
        self.first = int.from_bytes(b"MSG ", "little")

    def parse(self, buffer: Bytes, end: int) -> int:
        used = self.take(buffer, 0, end)
        if end - used >= len(PING) and bytes(buffer[used : used + len(PING)]) == PING:
            used += len(PING)
            self.write(PONG_BYTES)
            used += self.take(buffer, used, end)
        elif end - used >= self.received:
            raise UnexpectedBytesError(f"expected MSG only, found {bytes(buffer[used : used + 32])!r}")
        if self.group.window:
            self.group.refill()
        return used

    def take(self, buffer: Bytes, start: int, end: int) -> int:
        """Count the frames from ``start`` on, up to the first other bytes; return their size in bytes."""
        count = (end - start) // self.received
        rows = buffer[start : start + count * self.received].reshape(count, self.received)
        good = (rows[:, 0] == 0x4D) & (rows[:, 3] == 0x20) & (rows[:, -1] == 0x0A)  # M, a blank, the end of a line
        if not good.all():
            count = int(good.argmin())
        self.delivered += count
        return count * self.received


class NatsPublisher(Publisher):
    def __init__(self, loop: Loop, sock: socket.socket, layout: NatsLayout, subject: str, group: Group) -> None:
        super().__init__(loop, sock, layout, [subject], group)  # type: ignore[arg-type]

    def parse(self, buffer: Bytes, end: int) -> int:
        """The only input is PING; it is answered between two frames."""
        text = bytes(buffer[:end])
        if text.strip(PING):
            raise UnexpectedBytesError(f"expected nothing, found {text[:64]!r}")
        return 0 if self.position % self.layout.frame else self.pong(text)

    def pong(self, text: bytes) -> int:
        found = text.count(PING)
        for _ in range(found):
            self.write(PONG_BYTES)
        return found * len(PING)
