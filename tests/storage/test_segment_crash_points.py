"""A small script of everything the segment journal does, interrupted before each of its file system calls."""

from __future__ import annotations

from random import Random

import pytest
from tests.storage.simfs import SimFiles

from starlingmq.storage.segment.segment_journal import SegmentJournal


class Crash(BaseException):
    """The machine stops."""


class CrashingFiles(SimFiles):
    """Stops before call number ``stop``; a write is stopped half way."""

    def __init__(self) -> None:
        super().__init__()
        self.stop = -1

    def _meet(self, call: str, path: str) -> None:
        if self.calls == self.stop and call != "write":
            raise Crash
        super()._meet(call, path)

    def write(self, fd: int, data: bytes | memoryview, at: int) -> int:
        if self.calls == self.stop:
            super().write(fd, data[: len(data) // 2], at)
            raise Crash
        return super().write(fd, data, at)


def numbered(first: int, count: int) -> list[bytes]:
    return [number.to_bytes(8, "big") * 10 for number in range(first, first + count)]


class Run:
    """The script, and what it had reached when it stopped."""

    def __init__(self, files: CrashingFiles) -> None:
        self.files = files
        self.appended = 0  # calls that returned
        self.appending = 0  # and the one that did not
        self.synced = 0
        self.unneeded: set[int] = set()
        self.thinned: set[int] = set()  # of these, records may be empty

    def go(self) -> None:
        journal = SegmentJournal("journal", self.files, segment_bytes=400)
        self._append(journal, 2)
        self._sync(journal)
        for _ in range(4):
            self._append(journal, 3)
        self._drop(journal, 2)
        self._sync(journal)
        self._append(journal, 3)
        self._drop(journal, 5)
        self._append(journal, 1)
        self._trim(journal, 9)
        self._append(journal, 3)
        self._sync(journal)
        self._thin(journal, 11)
        self._trim(journal, 14)
        self._drop(journal, journal.segments()[-1].first)
        self._append(journal, 2)
        journal.close()
        journal = SegmentJournal("journal", self.files, segment_bytes=400)
        self._append(journal, 2)
        self._sync(journal)
        for one in journal.segments():
            self._thin(journal, one.first)
        journal.close()

    def _append(self, journal: SegmentJournal, count: int) -> None:
        self.appending = self.appended + count
        assert journal.append(numbered(self.appended, count)) == self.appended
        self.appended += count

    def _sync(self, journal: SegmentJournal) -> None:
        journal.sync()
        self.synced = self.appended

    def _drop(self, journal: SegmentJournal, first: int) -> None:
        self.unneeded |= {
            offset for one in journal.segments() if one.first == first for offset in range(first, one.next)
        }
        journal.drop(first)

    def _thin(self, journal: SegmentJournal, first: int) -> None:
        """Every second record goes."""
        self.thinned |= {
            offset
            for one in journal.segments()
            if one.first == first
            for offset in range(first, one.next)
            if offset % 2
        }
        journal.thin(first, lambda offset: offset % 2 == 0)

    def _trim(self, journal: SegmentJournal, before: int) -> None:
        self.unneeded |= set(range(before))
        journal.trim(before)


def stopped(stop: int) -> Run:
    files = CrashingFiles()
    files.stop = stop
    run = Run(files)
    with pytest.raises(Crash):
        run.go()
    files.stop = -1
    return run


def check(run: Run, promised: int) -> None:
    """Promised records are there, or were trimmed or emptied; no record is wrong; no promised record is reported lost;
    the journal works.
    """
    journal = SegmentJournal("journal", run.files, segment_bytes=400)
    assert promised <= journal.next <= run.appending
    found = dict(journal.read(0, 1000, 1 << 20))
    for offset, record in found.items():
        assert record == numbered(offset, 1)[0] or (record == b"" and offset in run.thinned)
    assert set(range(promised)) - run.unneeded <= found.keys()
    assert not [one for one in journal.damage if one.lost and one.offset_first < promised]
    first = journal.next
    journal.append(numbered(first, 3))
    journal.sync()
    journal.close()
    run.files.power_failure(Random(0))
    journal = SegmentJournal("journal", run.files, segment_bytes=400)
    assert journal.read(first, 10, 1 << 20) == list(enumerate(numbered(first, 3), first))
    journal.close()
    assert not run.files.descriptors


def calls_of_the_script() -> int:
    files = CrashingFiles()
    Run(files).go()
    return files.calls


def test_the_process_dies_at_any_moment() -> None:
    for stop in range(calls_of_the_script()):
        run = stopped(stop)
        run.files.process_death()
        check(run, promised=run.appended)


@pytest.mark.parametrize("seeds", [3, pytest.param(12, marks=pytest.mark.long)])
def test_the_power_fails_at_any_moment(seeds: int) -> None:
    for stop in range(calls_of_the_script()):
        for seed in range(seeds):
            run = stopped(stop)
            run.files.power_failure(Random(seed))
            check(run, promised=run.synced)
