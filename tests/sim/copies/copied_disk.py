"""The disk of a simulated node that keeps copies: its own data directory, copies of others, and its COPY files.

``DiskFiles`` is what ``storage.copies.copy_files`` is for real directories.
"""

from __future__ import annotations

from random import Random

from tests.sim.disk import Disk
from tests.storage.crash_engines import CrashJournal, CrashKv, Machine, Span

from starlingmq.storage.copies.copy_facts import CopyFacts
from starlingmq.storage.copies.copy_frames import Defined
from starlingmq.storage.kv import Kv
from starlingmq.storage.streams.stream_logs import StreamLog


class CopiedDisk(Disk):
    """A data directory, or a copy of one. ``facts``: its COPY file, written durably."""

    def __init__(self, machine: Machine, span: int) -> None:
        super().__init__(machine, span)
        self.facts: CopyFacts | None = None

    def snapshot(self) -> CopiedDisk:
        """As it would be found after a backup of the whole machine."""
        other = CopiedDisk(self.machine, self.span)
        other.facts = self.facts
        _fill(other.kv, self.kv)
        journal, mine = other.journal, self.journal
        journal.records = dict(mine.records)
        journal.spans = [Span(span.first, span.next) for span in mine.spans]
        journal.next, journal.trimmed, journal.ends = mine.next, mine.trimmed, [mine.next]
        return other


def _fill(kv: CrashKv, other: CrashKv) -> None:
    for memory, source in ((kv, other), (kv.solid, other)):
        memory._values = dict(source._values)
        memory._keys = list(source._keys)


class DiskFiles:
    """The ``Files`` of a copy on such a disk. No streams are made in these worlds."""

    def __init__(self, disk: CopiedDisk, owner: str) -> None:
        self.disk = disk
        self.owner = owner
        self.next_kv: Kv | None = None
        self.streams: dict[int, StreamLog] = {}
        self.facts = CopyFacts(owner=owner)
        if disk.facts is not None and disk.facts.owner == owner:
            self.facts = disk.facts

    @property
    def kv(self) -> Kv:
        return self.disk.kv

    @property
    def journal(self) -> CrashJournal:
        return self.disk.journal

    def write_facts(self, facts: CopyFacts) -> None:
        self.disk.machine.step()
        self.facts = self.disk.facts = facts

    def begin_kv(self) -> None:
        self.next_kv = CrashKv(self.disk.machine)

    def drop_kv(self) -> None:
        self.next_kv = None

    def end_kv(self) -> None:
        received, self.next_kv = self.next_kv, None
        assert isinstance(received, CrashKv)
        received.sync()
        self.disk.kv = received

    def define(self, wanted: Defined) -> None:
        assert not wanted.streams

    def write_consumers(self, number: int, content: bytes) -> None:
        raise AssertionError("there are no streams")

    def clear(self) -> None:
        self.disk.machine.step()
        self.disk.wipe()

    def close(self) -> None:
        self.drop_kv()


class MachineDisk:
    """All that a machine stores. ``incarnations``: those of its processes since all records knew the last one."""

    def __init__(self, machine: Machine, span: int) -> None:
        self.machine = machine
        self.span = span
        self.own = CopiedDisk(machine, span)
        self.copies: dict[str, CopiedDisk] = {}
        self.incarnations: set[int] = set()

    def copy(self, origin: str) -> CopiedDisk:
        return self.copies.setdefault(origin, CopiedDisk(self.machine, self.span))

    def power_failure(self, random: Random) -> None:
        for disk in (self.own, *self.copies.values()):
            disk.power_failure(random)

    def snapshot(self) -> MachineDisk:
        other = MachineDisk(self.machine, self.span)
        other.own = self.own.snapshot()
        other.copies = {origin: disk.snapshot() for origin, disk in self.copies.items()}
        other.incarnations = set(self.incarnations)
        return other
