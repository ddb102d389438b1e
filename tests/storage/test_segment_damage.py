"""Whatever happens to the bytes of a segment journal, it never returns a wrong record and says what is lost."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.few import few
from tests.storage.simfs import SimFiles

from starlingmq.storage.segment.segment_encoding import encode
from starlingmq.storage.segment.segment_format import HEADER_SIZE
from starlingmq.storage.segment.segment_journal import SegmentJournal

RECORDS = [
    Random(number).randbytes(size) for number, size in enumerate([20, 0, 60, 7, 33, 90, 1, 15, 50, 3, 70, 28, 44])
]
APPENDS = ((0, 4), (4, 6), (6, 10), (10, 13))
LOGS = [f"journal/{first:020d}.log" for first in (0, 6, 10)]


def open_journal(files: SimFiles) -> SegmentJournal:
    return SegmentJournal("journal", files, segment_bytes=350)


def written(indexed: bool) -> SimFiles:
    """Three segments: two appends, one, one."""
    files = SimFiles()
    journal = open_journal(files)
    for first, end in APPENDS:
        journal.append(RECORDS[first:end])
    assert [one.first for one in journal.segments()] == [0, 6, 10]
    if indexed:
        journal.close()
    else:
        files.process_death()
    return files


def lost_of(journal: SegmentJournal) -> set[int]:
    return {offset for one in journal.damage for offset in range(one.offset_first, one.offset_last + 1)}


def check(journal: SegmentJournal) -> set[int]:
    """No record is wrong; those that are missing, all of them reported or cut off at the end."""
    found = dict(journal.read(0, 1000, 1 << 20))
    assert all(RECORDS[offset] == record for offset, record in found.items())
    assert journal.read_at(range(13)) == [found.get(offset) for offset in range(13)]
    for offset in range(13):
        assert journal.read_at([offset]) == [found.get(offset)]
        assert journal.read(offset, 1, 100)[:1] == [item for item in found.items() if item[0] >= offset][:1]
    missing = set(range(13)) - found.keys()
    assert {offset for offset in missing if offset < journal.next} == lost_of(journal)
    return missing


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("flip", few([0x01, 0x80, 0xFF], 0x80))
def test_any_damaged_byte_is_found(indexed: bool, flip: int) -> None:
    names = list(written(indexed).cache)
    assert len(names) == (6 if indexed else 3)
    for name in names:
        for at in range(len(written(indexed).cache[name].cache)):
            files = written(indexed)
            files.cache[name].cache[at] ^= flip
            journal = open_journal(files)
            missing = check(journal)
            assert journal.damage, (name, at)
            if name.endswith(".idx") or at < HEADER_SIZE:
                assert not missing
            elif name == LOGS[-1] and not indexed and journal.next == 10:
                assert missing == {10, 11, 12}  # taken for an append that was not completed
            else:
                assert len(missing) == 1
            assert all(str(one).startswith("journal/") and str(one).endswith(".") for one in journal.damage)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_checking_finds_what_has_not_been_read(place: int) -> None:
    files = written(indexed=True)
    files.cache[LOGS[place]].cache[-1] ^= 1
    journal = open_journal(files)
    assert journal.damage == []
    found = [one for info in journal.segments() for one in journal.check(info.first)]
    last = (5, 9, 12)[place]
    assert [(one.path, one.offset_first, one.offset_last) for one in found] == [(LOGS[place], last, last)]
    assert journal.damage == found


def test_every_length_of_the_last_segment() -> None:
    """Half an append is no append."""
    whole = bytes(written(indexed=False).cache[LOGS[-1]].cache)
    for length in range(len(whole)):
        files = written(indexed=False)
        files.cache[LOGS[-1]].cache = bytearray(whole[:length])
        journal = open_journal(files)
        assert journal.next == 10
        assert check(journal) == {10, 11, 12}
        assert (length <= HEADER_SIZE) or [one.bytes for one in journal.damage][-1:] == [length - HEADER_SIZE]
        assert journal.append(RECORDS[10:]) == 10
        assert check(journal) == set()
        files.process_death()
        assert check(open_journal(files)) == set()


def test_every_length_of_an_earlier_segment() -> None:
    whole = bytes(written(indexed=False).cache[LOGS[0]].cache)
    for length in range(len(whole)):
        files = written(indexed=False)
        files.cache[LOGS[0]].cache = bytearray(whole[:length])
        journal = open_journal(files)
        missing = check(journal)
        assert missing == set(range(6 - len(missing), 6))


def test_a_missing_segment_is_reported_every_time() -> None:
    files = written(indexed=True)
    del files.cache[LOGS[1]]
    for _ in range(3):
        journal = open_journal(files)
        assert check(journal) == {6, 7, 8, 9}
        assert [one.what for one in journal.damage] == [
            "Records 6 to 9 are lost: it was truncated, or a file after it is missing."
        ]
        journal.close()


def test_a_misnamed_file_is_set_aside() -> None:
    files = written(indexed=False)
    files.cache[f"journal/{99:020d}.log"] = files.cache.pop(LOGS[1])
    journal = open_journal(files)
    assert journal.next == 13
    assert check(journal) == {6, 7, 8, 9}
    assert f"{99:020d}.bad" in files.names("journal")


def test_nothing_to_check_by() -> None:
    files = written(indexed=False)
    for log in LOGS:
        files.cache[log].cache[:HEADER_SIZE] = bytes(HEADER_SIZE)
    journal = open_journal(files)
    assert journal.read(0, 100, 10_000) == []
    assert journal.next == 11  # at least 10 had been given, that much the names tell
    assert len(journal.damage) == 3
    assert journal.append([b"new"]) == 11
    files.process_death()
    assert open_journal(files).read(0, 1, 1) == [(11, b"new")]


def test_a_header_can_be_lost_and_is_written_again() -> None:
    files = written(indexed=False)
    files.cache[LOGS[1]].cache[:HEADER_SIZE] = bytes(HEADER_SIZE)
    assert check(open_journal(files)) == set()
    files.process_death()
    journal = open_journal(files)
    assert journal.damage == []


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    sizes=st.lists(st.integers(0, 300), min_size=5, max_size=60),
    begin=st.floats(0, 1),
    length=st.integers(1, 2000),
    zeros=st.booleans(),
)
def test_behind_a_damaged_stretch_everything_is_found_with_its_offset(
    seed: int, sizes: list[int], begin: float, length: int, zeros: bool
) -> None:
    random = Random(seed)
    records = [random.randbytes(size) for size in sizes]
    files = SimFiles()
    journal = SegmentJournal("journal", files)
    positions = []
    for record in records:
        positions.append(journal.size or HEADER_SIZE)
        journal.append([record])
    content = files.cache[LOGS[0]].cache
    at = HEADER_SIZE + int((len(content) - HEADER_SIZE - 1) * begin)
    end = min(len(content), at + length)
    ends = [*positions[1:], len(content)]
    content[at:end] = bytes(end - at) if zeros else random.randbytes(end - at)
    files.process_death()
    journal = SegmentJournal("journal", files)
    found = dict(journal.read(0, 1000, 1 << 30))
    assert all(records[offset] == record for offset, record in found.items())
    for offset, (first, last) in enumerate(zip(positions, ends, strict=True)):
        if last <= at or first >= end:
            assert offset in found
    assert {offset for offset in range(journal.next) if offset not in found} == lost_of(journal)


def test_a_payload_that_looks_like_records_is_not_taken_for_some() -> None:
    """A client sends a payload that looks like the next records, and the power fails while it is written."""
    forged = encode([b"forged"] * 3, 1, salt=12345, marks=[])
    files = SimFiles()
    journal = SegmentJournal("journal", files)
    journal.append([b"x" + forged])
    journal.append([b"last"])
    files.cache[LOGS[0]].cache[HEADER_SIZE : HEADER_SIZE + 12] = bytes(12)
    files.process_death()
    journal = SegmentJournal("journal", files)
    assert journal.read(0, 10, 1000) == [(1, b"last")]
    assert lost_of(journal) == {0}


def test_rubbish_of_a_whole_segment_is_searched_in_bearable_time() -> None:
    random = Random(1)
    for rubbish in (bytes(4 << 20), b"\x01" * (4 << 20), random.randbytes(4 << 20)):
        files = SimFiles()
        journal = SegmentJournal("journal", files)
        journal.append([b"first"])
        journal.append([rubbish])
        journal.append([b"last"])
        files.cache[LOGS[0]].cache[HEADER_SIZE + 17 : HEADER_SIZE + 29] = bytes(12)
        files.process_death()
        assert SegmentJournal("journal", files).read(0, 10, 1000) == [(0, b"first"), (2, b"last")]
