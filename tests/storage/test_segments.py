"""The segment journal engine: files, rolling, giving space back, syncing, failing disks."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tests.descriptors import left_open, open_descriptors
from tests.storage.segment_figures import figures
from tests.storage.simfs import SimFiles

from starlingmq.storage.file_calls import FileCalls
from starlingmq.storage.segment.segment_format import STRIDE, UnknownFormat
from starlingmq.storage.segment.segment_journal import SegmentJournal


def journal_of(
    files: FileCalls, segment_bytes: int = 1000, open_max: int = 4, directory: str = "journal", at_least: int = 0
) -> SegmentJournal:
    return SegmentJournal(directory, files, segment_bytes, open_max, at_least)


def numbered(first: int, count: int, size: int = 100) -> list[bytes]:
    return [number.to_bytes(8, "big") * (size // 8) for number in range(first, first + count)]


def spans(journal: SegmentJournal) -> list[tuple[int, int]]:
    return [(one.first, one.next) for one in journal.segments()]


def all_of(journal: SegmentJournal) -> list[int]:
    """Offsets of everything that can be read, every record being the one that ``numbered`` made."""
    found = journal.read(0, 1_000_000, 1 << 30)
    assert all(int.from_bytes(record[:8], "big") == offset for offset, record in found)
    return [offset for offset, _ in found]


def test_an_append_is_one_write() -> None:
    files = SimFiles()
    journal = journal_of(files, segment_bytes=1 << 20)
    journal.append([b"first"])
    before = files.calls
    journal.append(numbered(1, 1000))
    assert files.calls == before + 1


def test_twelve_bytes_a_record() -> None:
    files = SimFiles()
    journal = journal_of(files, segment_bytes=1 << 20)
    journal.append([b"x" * 100] * 1000)
    assert journal.size == files.used() == 64 + 1000 * 112


def test_rolled_by_size_and_an_append_stays_together() -> None:
    journal = journal_of(SimFiles())
    for first in range(0, 15, 5):
        journal.append(numbered(first, 5))
    journal.append(numbered(15, 20))  # more than fits into a segment
    journal.append(numbered(35, 1))
    assert spans(journal) == [(0, 5), (5, 10), (10, 15), (15, 35), (35, 36)]
    assert all_of(journal) == list(range(36))


def test_trimming_gives_the_space_back() -> None:
    files = SimFiles()
    journal = journal_of(files)
    for first in range(0, 100, 5):
        journal.append(numbered(first, 5))
    journal.sync()
    full = files.used()
    journal.trim(52)
    assert journal.first == 50
    assert spans(journal)[0] == (50, 55)
    assert journal.size < full * 0.55
    assert files.used() < full * 0.55
    assert all_of(journal) == list(range(50, 100))
    assert journal.read_at([10, 50, 99, 100, -1]) == [None, *numbered(50, 1), *numbered(99, 1), None, None]


def test_a_segment_dropped_between_others_is_not_taken_for_a_missing_one() -> None:
    files = SimFiles()
    journal = journal_of(files)
    for first in range(0, 30, 5):
        journal.append(numbered(first, 5))
    for first in (10, 15, 5):
        journal.drop(first)
    assert spans(journal) == [(0, 5), (20, 25), (25, 30)]
    assert all_of(journal) == [0, 1, 2, 3, 4, *range(20, 30)]
    assert journal.read(7, 1, 1000) == [(20, numbered(20, 1)[0])]
    files.process_death()
    journal = journal_of(files)
    assert all_of(journal) == [0, 1, 2, 3, 4, *range(20, 30)]
    assert journal.damage == []
    journal.trim(20)
    journal.sync()
    assert not [name for name in files.names("journal") if name.endswith(".gone")]


def test_dropping_the_segment_that_grows_keeps_the_offsets_going() -> None:
    files = SimFiles()
    journal = journal_of(files)
    journal.append(numbered(0, 3))
    journal.drop(0)
    journal.sync()
    files.power_failure(Random(1))
    journal = journal_of(files)
    assert (journal.first, journal.next, all_of(journal)) == (3, 3, [])
    assert journal.append(numbered(3, 1)) == 3


def test_segments_describe_their_records() -> None:
    files = SimFiles()
    journal = journal_of(files)
    journal.append(numbered(0, 5))
    journal.append(numbered(5, 6))
    journal.append(numbered(11, 1))
    old, new = journal.segments()
    assert (old.first, old.next, old.bytes, old.grows) == (0, 5, 64 + 5 * 108, False)
    assert (new.first, new.next, new.bytes, new.grows) == (5, 12, 64 + 7 * 108, True)
    assert old.created < old.last_written < new.created < new.last_written
    files.process_death()
    again = journal_of(files).segments()
    assert [one.created for one in again] == pytest.approx([old.created, new.created])


def test_the_owner_knows_of_later_offsets() -> None:
    files = SimFiles()
    journal = journal_of(files)
    journal.append(numbered(0, 3))
    journal.close()
    journal = journal_of(files, at_least=10)
    assert journal.next == 10
    assert [(one.offset_first, one.offset_last) for one in journal.damage] == [(3, 9)]
    assert journal.append(numbered(10, 1)) == 10
    assert all_of(journal) == [0, 1, 2, 10]


def test_offsets_beyond_four_bytes() -> None:
    files = SimFiles()
    start = (1 << 32) - 3
    journal = journal_of(files, segment_bytes=1 << 20, at_least=start)
    journal.append(numbered(start, 6))
    journal.append(numbered(start + 6, 2))
    for _ in range(2):
        assert all_of(journal) == list(range(start, start + 8))
        assert journal.read_at([start + 5, start + 1]) == [numbered(start + 5, 1)[0], numbered(start + 1, 1)[0]]
        files.process_death()
        journal = journal_of(files, segment_bytes=1 << 20)


@pytest.mark.parametrize("indexed", [True, False])
def test_scattered_reads_in_any_order(indexed: bool) -> None:
    files = SimFiles()
    journal = journal_of(files, segment_bytes=20 * STRIDE, open_max=2)
    random = Random(1)
    records = [random.randbytes(random.choice((0, 10, 100, 1000, 9000))) for _ in range(800)]
    at = 0
    while at < len(records):
        size = random.choice((1, 3, 100))
        journal.append(records[at : at + size])
        at += size
    if indexed:
        journal.close()
    else:
        files.process_death()
    journal = journal_of(files, segment_bytes=20 * STRIDE, open_max=2)
    for offsets in (
        list(range(800)),
        list(range(799, -1, -1)),
        sorted(random.sample(range(800), 200)),
        [random.randrange(900) for _ in range(300)],
        [5, 5, 5, 4, 6, 6, 700, 700],
    ):
        expected = [records[offset] if offset < 800 else None for offset in offsets]
        assert journal.read_at(offsets) == expected
    assert journal.read(0, 1000, 1 << 30) == list(enumerate(records))
    assert journal.damage == []


def test_few_segments_are_open(tmp_path: Path) -> None:
    before = open_descriptors()
    journal = journal_of(FileCalls(), open_max=5, directory=str(tmp_path / "journal"))
    for first in range(0, 1000, 5):
        journal.append(numbered(first, 5))
        assert len(os.listdir("/proc/self/fd")) < len(before) + 20
    journal.sync()
    assert all_of(journal) == list(range(1000))
    assert journal.read_at([7, 990, 500, 13]) == [numbered(offset, 1)[0] for offset in (7, 990, 500, 13)]
    assert len(os.listdir("/proc/self/fd")) <= len(before) + 7
    journal.trim(900)
    journal.close()
    journal.close()
    assert left_open(before, tmp_path) == set()
    assert len(list(tmp_path.glob("journal/*.log"))) == 20


def test_syncing_in_a_thread_while_appends_and_trims_go_on(tmp_path: Path) -> None:
    journal = journal_of(FileCalls(), segment_bytes=20_000, directory=str(tmp_path))
    stop = threading.Event()
    synced: list[int] = []

    def sync() -> None:
        while not stop.is_set():
            journal.sync()
            synced.append(journal.synced)

    thread = threading.Thread(target=sync)
    thread.start()
    try:
        for first in range(0, 20_000, 20):
            assert journal.append(numbered(first, 20)) == first
            if first % 2000 == 0:
                journal.trim(first - 5000)
                assert journal.read_at([first]) == numbered(first, 1)
    finally:
        stop.set()
        thread.join()
    assert synced == sorted(synced)
    journal.sync()
    assert journal.synced == 20_000
    journal.close()
    journal = journal_of(FileCalls(), segment_bytes=20_000, directory=str(tmp_path))
    assert journal.damage == []
    kept = all_of(journal)
    assert kept == list(range(kept[0], 20_000))
    assert kept[0] <= 13_000
    journal.close()


# A failed sync proves that what it should have written may be gone, and the next one, which succeeds, proves nothing.


@pytest.mark.parametrize("call", ["sync", "sync_directory"])
@pytest.mark.parametrize("dies", [True, False])
def test_after_a_failed_sync_records_are_written_again(call: str, dies: bool) -> None:
    files = SimFiles()
    journal = journal_of(files)
    journal.append(numbered(0, 2))
    journal.sync()
    journal.append(numbered(2, 1))
    journal.append(numbered(3, 6))
    files.fail(call)
    with pytest.raises(OSError):
        journal.sync()
    assert journal.synced in (2, 3)
    assert all_of(journal) == list(range(9))
    journal.append(numbered(9, 1))
    if dies:
        files.process_death()
        journal = journal_of(files)
    journal.sync()
    assert journal.synced == 10
    files.power_failure(Random(1))
    journal = journal_of(files)
    assert all_of(journal) == list(range(10))
    assert not [one for one in journal.damage if one.lost]


def test_sync_goes_on_failing_until_everything_is_written() -> None:
    files = SimFiles()
    journal = journal_of(files)
    journal.append(numbered(0, 2))
    files.fail("sync", times=3)
    for _ in range(3):
        with pytest.raises(OSError):
            journal.sync()
        assert journal.synced == 0
    journal.sync()
    files.power_failure(Random(1))
    assert all_of(journal_of(files)) == [0, 1]


# A full disk.


def test_a_full_disk_adds_nothing_and_is_over_when_there_is_space() -> None:
    files = SimFiles()
    journal = journal_of(files)
    journal.append(numbered(0, 5))
    journal.append(numbered(5, 3))
    files.capacity = files.used() + 50
    for _ in range(3):
        with pytest.raises(OSError) as failure:
            journal.append(numbered(8, 1))
        assert failure.value.errno == errno.ENOSPC
        assert journal.next == 8
        assert all_of(journal) == list(range(8))
        assert files.used() <= files.capacity - 50
    files.capacity += 1000
    assert journal.append(numbered(8, 1)) == 8
    files.process_death()
    journal = journal_of(files)
    assert all_of(journal) == list(range(9))
    assert journal.damage == []


def test_half_an_append_that_can_not_be_cut_off_is_never_read() -> None:
    files = SimFiles()
    journal = journal_of(files, segment_bytes=10_000)
    journal.append(numbered(0, 1))
    files.capacity = files.used() + 3 * 108
    files.fail("cut")
    with pytest.raises(OSError):
        journal.append([b"never"] * 100)
    files.heal()
    assert all_of(journal) == [0]
    assert journal.append(numbered(1, 5)) == 1
    assert all_of(journal) == list(range(6))
    files.process_death()
    assert all_of(journal_of(files)) == list(range(6))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(tmp_path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip(f"a small file system can not be mounted here: {done.stderr.strip()}")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_real_full_disk(small_disk: Path) -> None:
    directory = str(small_disk / "journal")
    journal = journal_of(FileCalls(), segment_bytes=100_000, directory=directory)
    count = 0
    with pytest.raises(OSError) as failure:
        while True:
            journal.append(numbered(count, 7, size=1000))
            count += 7
    assert failure.value.errno == errno.ENOSPC
    for _ in range(5):
        with pytest.raises(OSError):
            journal.append(numbered(count, 100, size=1000))
    assert journal.next == count > 300
    assert all_of(journal) == list(range(count))
    journal.trim(count // 2)
    for _ in range(10):
        journal.append(numbered(count, 7, size=1000))
        count += 7
    journal.sync()
    kept = all_of(journal)
    assert kept == list(range(journal.first, count))
    journal.close()
    journal = journal_of(FileCalls(), segment_bytes=100_000, directory=directory)
    assert all_of(journal) == kept
    assert not [one for one in journal.damage if one.lost]
    journal.close()


def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    from starlingmq.storage.segment import segment_format

    directory = tmp_path / "journal"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_format, "VERSION", 2)
        journal = journal_of(FileCalls(), directory=str(directory))
        journal.append(numbered(0, 3))
        journal.close()
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(UnknownFormat, match=r"00000\.log has version 2, but this program supports version 1"):
        journal_of(FileCalls(), directory=str(directory))
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_opening_on_a_failing_disk_leaves_nothing_open() -> None:
    files = SimFiles()
    journal = journal_of(files)
    for first in range(0, 20, 5):
        journal.append(numbered(first, 5))
    files.process_death()
    for call in ("open", "read", "cut", "create", "write", "rename", "remove"):
        for number in range(1, 12):
            files.fail(call, number, times=100)
            with suppress(OSError):
                journal_of(files).close()
            assert not files.descriptors, (call, number)
    files.heal()
    assert all_of(journal_of(files)) == list(range(20))


def test_the_figures_in_small(tmp_path: Path) -> None:
    found = figures(tmp_path, scale=0.01)
    assert len(found) == 23 and all(figure > 0 for figure in found.values())


def test_reading_takes_as_few_system_calls_as_it_can() -> None:
    files = SimFiles()
    journal = journal_of(files, segment_bytes=1 << 20)
    journal.append(numbered(0, 1000))
    for step, calls_max in ((1, 4), (10, 5), (100, 10)):
        before = files.calls
        assert None not in journal.read_at(list(range(0, 1000, step)))
        assert files.calls - before <= calls_max, f"every {step}th of 1000 records"


class SlowFiles(FileCalls):
    """A file that has no name any more is not closed until it may be."""

    def __init__(self) -> None:
        self.may_close, self.closed = threading.Event(), threading.Event()

    def close(self, fd: int) -> None:
        nameless = os.fstat(fd).st_nlink == 0
        if nameless:
            assert self.may_close.wait(60)
        super().close(fd)
        if nameless:
            self.closed.set()


def test_nobody_waits_for_the_pages_of_a_large_file_that_is_removed(tmp_path: Path) -> None:
    files = SlowFiles()
    journal = journal_of(files, 3 << 20, directory=str(tmp_path))
    for _ in range(4):
        journal.append([bytes(2 << 20)])
    journal.trim(1)
    assert spans(journal) == [(1, 2), (2, 3), (3, 4)] and journal.append([b"more"]) == 4
    assert not files.closed.is_set()
    files.may_close.set()
    assert files.closed.wait(60)
    journal.close()


def thinned(journal: SegmentJournal) -> dict[int, bytes]:
    """The segment of the first 8 records, of which every fourth one stays."""
    assert journal.thin(0, lambda offset: offset % 4 == 0)
    return {offset: record if offset % 4 == 0 or offset > 7 else b"" for offset, record in enumerate(numbered(0, 12))}


def test_records_in_the_middle_of_a_segment_are_given_back() -> None:
    files = SimFiles()
    journal = journal_of(files)
    for first in range(0, 12, 4):
        journal.append(numbered(first, 4))
    journal.sync()
    full = files.used()
    wanted = thinned(journal)
    for _ in range(2):
        assert dict(journal.read(0, 100, 1 << 20)) == wanted
        assert journal.read_at([5, 4, 9]) == [wanted[5], wanted[4], wanted[9]]
        assert full - files.used() > 500  # of the content of six records; an index was written
        assert journal.size == sum(one.bytes for one in journal.segments())
        assert not journal.check(0) and not journal.damage
        journal.close()
        journal = journal_of(files)


def test_a_segment_that_cannot_be_given_up_stays_as_it_is() -> None:
    """One that grows, is not synced, or is damaged."""
    files = SimFiles()
    journal = journal_of(files)
    for first in range(0, 12, 4):
        journal.append(numbered(first, 4))
    assert not journal.thin(8, lambda offset: False)
    assert not journal.thin(0, lambda offset: False)
    journal.sync()
    assert not journal.thin(8, lambda offset: False)
    assert not journal.thin(3, lambda offset: False)  # there is none
    files.fail("write")
    with pytest.raises(OSError, match="error"):
        journal.thin(0, lambda offset: False)
    assert all_of(journal) == list(range(12))
    files.cache["journal/00000000000000000000.log"].cache[300] ^= 1
    assert not journal.thin(0, lambda offset: False)
    assert len(all_of(journal)) == 11


def test_a_segment_is_read_while_another_takes_its_place() -> None:
    files = SimFiles()
    journal = journal_of(files)
    for first in range(0, 12, 4):
        journal.append(numbered(first, 4))
    journal.sync()
    seen: list[int] = []

    def keeps(offset: int) -> bool:
        seen.append(len(journal.read(0, 100, 1 << 20)))
        return offset != 3

    assert journal.thin(0, keeps)
    assert set(seen) == {12}
    assert dict(journal.read(0, 100, 1 << 20))[3] == b""
    journal.close()
    assert not files.descriptors
