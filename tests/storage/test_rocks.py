"""The RocksDB engines against the dumb twins, closed and opened again in between."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path
from timeit import timeit

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.few import live
from tests.storage.engines import DictKv, ListJournal
from tests.storage.figures import figures

from starlingmq.storage.kv import Batch, after, prefix_end
from starlingmq.storage.rocks.rocks_engines import (
    JOURNAL_TUNING,
    KV_TUNING,
    MARK_RECORDS,
    MEMORY_BYTES_MAX,
    RocksJournal,
    RocksKv,
)

# Opening costs 20 ms: few and long runs.
few = settings(max_examples=15, stateful_step_count=40, deadline=None)
keys = st.text("\x00\x01ab\xfe\xff", max_size=3).map(lambda text: text.encode("latin-1"))
changes = st.lists(st.tuples(keys, st.none() | st.binary(max_size=3)), max_size=8)
# Around and beyond a mark of 64 bytes; a trim of 128.
records = st.lists(st.binary(max_size=40), max_size=9)


def batch(wanted: list[tuple[bytes, bytes | None]]) -> Batch:
    made = Batch()
    made.changes.update(wanted)
    return made


def journal_at(path: Path) -> RocksJournal:
    return RocksJournal(path, mark_bytes=64, trim_bytes=128)


def test_the_kv_is_a_sorted_dict_that_survives(tmp_path: Path) -> None:
    numbers = itertools.count()

    class AsTheDictSays(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.path = tmp_path / str(next(numbers))
            self.kv = RocksKv(self.path)
            self.twin = DictKv()

        @rule(changes=changes)
        def write(self, changes: list[tuple[bytes, bytes | None]]) -> None:
            self.kv.write(batch(changes))
            self.twin.write(batch(changes))

        @rule(key=keys)
        def get(self, key: bytes) -> None:
            assert self.kv.get(key) == self.twin.values.get(key)

        @rule(start=keys, end=st.none() | keys, limit=st.integers(0, 6), reverse=st.booleans())
        def scan(self, start: bytes, end: bytes | None, limit: int, reverse: bool) -> None:
            assert self.kv.scan(start, end, limit, reverse) == self.twin.scan(start, end, limit, reverse)

        @rule(prefix=keys)
        def everything_below_a_prefix_a_piece_at_a_time(self, prefix: bytes) -> None:
            found: list[tuple[bytes, bytes]] = []
            start = prefix
            while piece := self.kv.scan(start, prefix_end(prefix), 2):
                found += piece
                start = after(piece[-1][0])
            assert found == sorted(item for item in self.twin.values.items() if item[0].startswith(prefix))

        @rule()
        def reopen(self) -> None:
            self.kv.close()
            self.kv = RocksKv(self.path)

        @rule()
        def compact(self) -> None:
            self.kv.compact()

        def teardown(self) -> None:
            assert self.kv.scan(b"", None, 10_000) == self.twin.scan(b"", None, 10_000, False)
            assert self.kv.damage == ""
            self.kv.close()
            self.kv.close()

    live(AsTheDictSays, 15, stateful_step_count=40)


def test_the_journal_is_a_list_that_survives(tmp_path: Path) -> None:
    """Long because the rules are methods of one machine."""
    numbers = itertools.count()

    class AsTheListSays(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.path = tmp_path / str(next(numbers))
            self.journal = journal_at(self.path)
            self.twin = ListJournal()

        @rule(records=records)
        def append(self, records: list[bytes]) -> None:
            assert self.journal.append(records) == len(self.twin.records)
            self.twin.append(records)

        @rule(back=st.integers(-2, 30), count=st.integers(1, 20), size=st.integers(0, 200))
        def read(self, back: int, count: int, size: int) -> None:
            offset = max(0, self.journal.next - back)
            begin = max(offset, self.journal.first)
            assert self.journal.read(offset, count, size) == self.twin.read(begin, count, size)

        @rule(offsets=st.lists(st.integers(0, 60)))
        def read_at(self, offsets: list[int]) -> None:
            kept = range(self.journal.first, self.journal.next)
            wanted = [self.twin.records[offset] if offset in kept else None for offset in offsets]
            assert self.journal.read_at(offsets) == wanted

        @rule(back=st.integers(-2, 30))
        def trim(self, back: int) -> None:
            before = max(0, self.journal.next - back)
            self.journal.trim(before)
            self.twin.trimmed = max(self.twin.trimmed, min(before, len(self.twin.records)))

        @rule()
        def reopen(self) -> None:
            before = (self.journal.first, self.journal.next, self.journal.size)
            self.journal.close()
            self.journal = journal_at(self.path)
            assert (self.journal.first, self.journal.next, self.journal.size) == before

        @rule()
        def compact(self) -> None:
            self.journal.compact()

        @invariant()
        def nothing_is_gone_that_was_not_trimmed(self) -> None:
            assert self.journal.next == len(self.twin.records)
            assert self.journal.first <= self.twin.trimmed
            kept = self.twin.records[self.journal.first :]
            assert self.journal.size >= sum(map(len, kept))
            needed = self.twin.records[self.twin.trimmed :]
            # A mark every 64 bytes or batch, a trim every 128, 16 bytes a record besides.
            assert self.journal.size <= sum(len(record) + 16 for record in needed) + 128 + 9 * 56 + 64

        def teardown(self) -> None:
            everything = self.journal.read(0, 10_000, 1_000_000)
            assert everything == list(enumerate(self.twin.records))[self.journal.first :]
            self.journal.close()
            self.journal.close()

    live(AsTheListSays, 15, stateful_step_count=40)


def test_offsets_are_not_given_again_after_everything_was_trimmed(tmp_path: Path) -> None:
    journal = journal_at(tmp_path / "journal")
    journal.append([b"x" * 100] * 10)
    journal.trim(10)
    assert (journal.first, journal.next, journal.size) == (10, 10, 0)
    journal.close()
    journal = journal_at(tmp_path / "journal")
    assert journal.append([b"new"]) == 10
    assert journal.read(0, 5, 1000) == [(10, b"new")]
    journal.close()


def test_offsets_that_the_owner_has_seen_are_not_given_again(tmp_path: Path) -> None:
    journal = journal_at(tmp_path / "journal")
    journal.append([b"a", b"b"])
    journal.close()
    journal = RocksJournal(tmp_path / "journal", mark_bytes=64, trim_bytes=128, at_least=10)
    assert journal.damage.endswith("records 2 to 9 are lost: they were written, but are missing")
    assert journal.append([b"c" * 100, b"d" * 100]) == 10
    assert [offset for offset, _ in journal.read(0, 10, 1000)] == [0, 1, 10, 11]
    assert journal.read_at([1, 5, 9, 11]) == [b"b", None, None, b"d" * 100]
    journal.trim(12)
    assert (journal.first, journal.next, journal.size) == (12, 12, 0)
    journal.close()
    journal = RocksJournal(tmp_path / "journal", at_least=10)
    assert (journal.next, journal.damage) == (12, "")
    journal.close()


@pytest.mark.long(kept="tests/storage/test_rocks.py::test_many_small_records_are_marked_too")
def test_disk_space_returns(tmp_path: Path) -> None:
    """Far more goes through the journal than is ever kept: so much may lie on disk, and not more."""
    path = tmp_path / "journal"
    journal = RocksJournal(path)
    payload = [
        number.to_bytes(4, "big") * 256 + Path(__file__).read_bytes()[number : number + 64] for number in range(50)
    ]
    at_most = 0
    for number in range(4000):  # 200 MB before compression
        journal.append(payload)
        if number % 100 == 99:
            journal.trim(journal.next - 1000)
            at_most = max(at_most, sum(file.stat().st_size for file in path.iterdir() if file.exists()))
    assert journal.size < 16 * 1024 * 1024
    journal.compact()
    kept = sum(file.stat().st_size for file in path.iterdir())
    assert at_most < 150 * 1024 * 1024
    assert kept < 60 * 1024 * 1024
    journal.close()


def test_many_small_records_are_marked_too(tmp_path: Path) -> None:
    """Opening walks back to the last mark: not through a million empty records."""
    journal = RocksJournal(tmp_path / "journal", trim_bytes=1)
    for _ in range(30):
        journal.append([b""] * 100)
    journal.trim(2990)
    assert 2990 - MARK_RECORDS - 100 <= journal.first <= 2990
    journal.close()


def test_a_second_opening_is_refused(tmp_path: Path) -> None:
    kv = RocksKv(tmp_path / "kv")
    with pytest.raises(OSError, match="another process has this database open") as refused:
        RocksKv(tmp_path / "kv")
    assert refused.value.errno == errno.EBUSY
    assert refused.value.filename == str(tmp_path / "kv")
    kv.close()


def test_memory_is_bounded() -> None:
    assert KV_TUNING.memory_bytes + JOURNAL_TUNING.memory_bytes == MEMORY_BYTES_MAX


def test_the_figures_in_small(tmp_path: Path) -> None:
    found = figures(tmp_path, scale=0.02)
    assert len(found) == 13 and all(figure > 0 for figure in found.values())


def queue_key(number: int) -> bytes:
    return b"q" + number.to_bytes(8, "big")


def test_the_head_of_a_queue_is_found_behind_what_was_deleted(tmp_path: Path) -> None:
    """Looking for it from the beginning would step over every deleted key, again and again."""
    kv = RocksKv(tmp_path / "kv")
    for number in range(100_000):
        changed = Batch()
        changed.put(queue_key(number), b"")
        if number:
            changed.delete(queue_key(number - 1))
        kv.write(changed)
    end = prefix_end(b"q")
    from_start = min(timeit(lambda: kv.scan(queue_key(0), end, 1), number=1) for _ in range(5))
    from_head = min(timeit(lambda: kv.scan(queue_key(99_999), end, 1), number=1) for _ in range(5))
    assert kv.scan(queue_key(99_999), end, 1) == [(queue_key(99_999), b"")]
    assert from_head < from_start
    kv.close()
