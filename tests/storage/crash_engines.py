"""A journal and a key-value store that know what of them survives, and fail when told to.

A step is anything that can be seen afterwards: an append, a batch, a sync, a segment given back. ``Machine`` counts
them; it stops the world at one of them, and lets calls fail while it is sick.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from random import Random

from tests.storage.memory_engine import MemoryKv

from starlingmq.storage.kv import Batch

NEVER = 1 << 60


class Crash(BaseException):
    """The machine or the process stops here. Nothing may catch it."""


class Machine:
    """``fuse``: steps until everything stops. ``sick``: what fails at the moment (append, sync, write, drop), as
    often as ``sickness`` says; ``trouble`` counts what did, and whom it was told."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.fuse = NEVER
        self.sick: tuple[str, ...] = ()
        self.sickness = 1.0
        self.trouble = 0

    def step(self) -> None:
        self.fuse -= 1
        if self.fuse < 0:
            raise Crash

    def meet(self, call: str) -> None:
        """A step that may fail. What fails has done nothing."""
        self.step()
        if call in self.sick and self.random.random() < self.sickness:
            self.trouble += 1
            error = errno.ENOSPC if call in ("append", "write") and self.random.random() < 0.5 else errno.EIO
            raise OSError(error, os.strerror(error))


class Span:
    def __init__(self, first: int, next: int) -> None:
        self.first = first
        self.next = next


class CrashJournal:
    """A journal in segments of a few records each."""

    def __init__(self, machine: Machine, span: int) -> None:
        self.machine = machine
        self.span = span  # records a segment; 0: it gives back by ``trim`` alone
        self.records: dict[int, bytes] = {}
        self.spans = [Span(0, 0)]
        self.next = 0
        self.trimmed = 0
        self.ends = [0]  # of the appends since the last sync: all of one is there or none

    @property
    def first(self) -> int:
        return min(self.records, default=self.next)

    @property
    def size(self) -> int:
        return sum(map(len, self.records.values()))

    def append(self, records: Sequence[bytes]) -> int:
        self.machine.meet("append")
        offset = self.next
        if self.span and self.next - self.spans[-1].first >= self.span:
            self.spans.append(Span(self.next, self.next))
        for record in records:
            self.records[self.next] = record
            self.next += 1
        self.spans[-1].next = self.next
        self.ends.append(self.next)
        self.machine.step()
        return offset

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[tuple[int, bytes]]:
        found = [(at, self.records[at]) for at in range(offset, self.next) if at in self.records]
        return found[:max_records]

    def read_at(self, offsets: Sequence[int]) -> list[bytes | None]:
        return [self.records.get(offset) for offset in offsets]

    def segments(self) -> Sequence[Span]:
        return [Span(span.first, span.next) for span in self.spans] if self.span else []

    def drop(self, first: int) -> None:
        self.machine.meet("drop")
        for span in self.spans:
            if span.first == first and span.next > first:
                self._forget(span.first, span.next)
                if span is self.spans[-1]:
                    self.spans.append(Span(self.next, self.next))
                self.spans.remove(span)
                break

    def trim(self, before: int) -> None:
        self.machine.meet("drop")
        if not self.span:
            self._forget(self.trimmed, before)
            self.trimmed = max(self.trimmed, before)
            return
        while len(self.spans) > 1 and self.spans[0].next <= before:
            span = self.spans.pop(0)
            self._forget(span.first, span.next)

    def _forget(self, first: int, end: int) -> None:
        for offset in range(first, end):
            self.records.pop(offset, None)

    def sync(self) -> None:
        self.machine.meet("sync")
        self.ends = [self.next]

    def close(self) -> None:
        pass

    def power_failure(self, random: Random) -> None:
        """Keeps a random prefix of the unsynced writes."""
        end = random.choice(self.ends)
        for offset in range(end, self.next):
            self.records.pop(offset, None)
        self.next = end
        self.ends = [end]
        self.spans = [span for span in self.spans if span.first <= end]
        for span in self.spans:
            span.next = min(span.next, end)
        if not self.spans:
            self.spans = [Span(end, end)]

    def skip_to(self, offset: int) -> None:
        self.go_on_from(offset)

    def cut_to(self, offset: int) -> None:
        self.machine.step()
        self._forget(offset, self.next)
        self.next = offset
        self.ends = [end for end in self.ends if end < offset] + [offset]
        self.spans = [span for span in self.spans if span.first < offset] or [Span(offset, offset)]
        self.spans[-1].next = offset

    def go_on_at(self, offset: int) -> None:
        self.machine.step()
        self.next = offset
        self.ends.append(offset)
        self.spans.append(Span(offset, offset))

    def thin(self, first: int, keeps: Callable[[int], bool]) -> bool:
        return False

    def roll(self) -> None:
        if self.span:
            self.spans.append(Span(self.next, self.next))

    def go_on_from(self, offset: int) -> None:
        """The owner has seen offsets up to this one given."""
        if offset > self.next:
            self.next = offset
            self.ends = [offset]
            self.spans.append(Span(offset, offset))


class CrashKv(MemoryKv):
    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine
        self.unsynced: list[Batch] = []
        self.solid = MemoryKv()

    def write(self, batch: Batch) -> None:
        self.machine.meet("write")
        super().write(batch)
        self.unsynced.append(batch)
        self.machine.step()

    def sync(self) -> None:
        self.machine.meet("sync")
        for batch in self.unsynced:
            self.solid.write(batch)
        self.unsynced.clear()
        self.machine.step()

    def power_failure(self, random: Random) -> None:
        for batch in self.unsynced[: random.randint(0, len(self.unsynced))]:
            self.solid.write(batch)
        self.unsynced.clear()
        self._values = dict(self.solid._values)
        self._keys = list(self.solid._keys)
