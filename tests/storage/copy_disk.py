"""A follower's copy in memory, with the engines that fail when told to: ``CopyFiles`` without files."""

from __future__ import annotations

from random import Random

from tests.storage.crash_engines import CrashJournal, CrashKv, Machine

from starlingmq.storage.copies.copy_facts import CopyFacts
from starlingmq.storage.copies.copy_frames import Defined
from starlingmq.storage.kv import Batch, Kv
from starlingmq.storage.streams.stream_definition import Definition
from starlingmq.storage.streams.stream_logs import StreamLog


class Disk:
    """The part of a node's data directory that outlives its process. ``intact``: nothing of it was lost for good."""

    def __init__(self, machine: Machine, span: int) -> None:
        self.machine = machine
        self.span = span
        self.facts = CopyFacts(owner="n0")
        self.kv = CrashKv(machine)
        self.journal = CrashJournal(machine, span)
        self.definitions: dict[int, Definition] = {}
        self.streams: dict[int, CrashJournal] = {}
        self.ends: dict[str, int] = {}
        self.intact = True

    def use(self, machine: Machine) -> None:
        self.machine = machine
        self.kv.machine = self.journal.machine = machine
        for journal in self.streams.values():
            journal.machine = machine

    def power_failure(self, random: Random) -> None:
        self.kv.power_failure(random)
        self.journal.power_failure(random)
        for journal in self.streams.values():
            journal.power_failure(random)


class DiskFiles:
    """See ``CopyFiles``: a disk while a process has it open."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.next_kv: Kv | None = None
        self.streams = {number: self._open(number) for number in disk.definitions}

    def _open(self, number: int) -> StreamLog:
        return StreamLog(self.disk.definitions[number], self.disk.streams[number])

    @property
    def facts(self) -> CopyFacts:
        return self.disk.facts

    @property
    def kv(self) -> Kv:
        return self.disk.kv

    @property
    def journal(self) -> CrashJournal:
        return self.disk.journal

    def write_facts(self, facts: CopyFacts) -> None:
        self.disk.machine.meet("sync")
        self.disk.facts = facts
        self.disk.machine.step()

    def begin_kv(self) -> None:
        self.next_kv = CrashKv(self.disk.machine)

    def drop_kv(self) -> None:
        self.next_kv = None

    def end_kv(self) -> None:
        assert isinstance(self.next_kv, CrashKv)
        self.next_kv.sync()
        self.disk.kv, self.next_kv = self.next_kv, None
        self.disk.machine.step()

    def define(self, wanted: Defined) -> None:
        disk = self.disk
        disk.machine.meet("sync")
        known = {definition.number: definition for definition in wanted.streams}
        for number in [number for number in self.streams if number not in known]:
            del self.streams[number], disk.definitions[number], disk.streams[number]
        for number, definition in known.items():
            disk.definitions[number] = definition
            if number not in self.streams:
                disk.streams[number] = CrashJournal(disk.machine, disk.span)
                self.streams[number] = self._open(number)
        disk.ends = dict(wanted.ends)

    def write_consumers(self, number: int, content: bytes) -> None:
        pass

    def clear(self) -> None:
        disk = self.disk
        disk.machine.step()
        disk.kv, disk.journal = CrashKv(disk.machine), CrashJournal(disk.machine, disk.span)
        disk.definitions, disk.streams, disk.ends = {}, {}, {}
        self.streams = {}
        self.next_kv = None

    def close(self) -> None:
        self.streams = {}


def mark(kv: CrashKv, key: bytes, value: bytes) -> None:
    batch = Batch()
    batch.put(key, value)
    kv.write(batch)
