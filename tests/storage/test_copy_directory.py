"""A follower's copy: what its owner sends is there afterwards, and opens as a data directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from starlingmq.storage.copies import copy_frames as frames
from starlingmq.storage.copies.copy_directory import CopyDirectory
from starlingmq.storage.copies.copy_frames import CopyFrameError, Kept, Position
from starlingmq.storage.keys import META_COPY
from starlingmq.storage.streams.stream_logs import Definition

SEGMENT = 4096


def opened(path: Path, engine: str) -> CopyDirectory:
    return CopyDirectory(path, "n1", engine, SEGMENT)


@pytest.fixture(params=["segment", "rocksdb"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def copy(tmp_path: Path, engine: str) -> Iterator[CopyDirectory]:
    directory = opened(tmp_path / "copy", engine)
    yield directory
    directory.close()


def apply(copy: CopyDirectory, *operations: bytes) -> None:
    for lsn, group in frames.groups(frames.encode_group(7, operations)):
        assert lsn == 7
        copy.apply(group)


def records(copy: CopyDirectory) -> list[tuple[int, bytes]]:
    return copy.journal.read(0, 1000, 1 << 20)


def mark(incarnation: int, count: int) -> bytes:
    return msgspec.msgpack.encode((incarnation, count))


def test_appended_records_are_there_after_the_copy_was_closed(tmp_path: Path, engine: str) -> None:
    copy = opened(tmp_path / "copy", engine)
    apply(copy, frames.append(0, [b"a", b""]), frames.append(2, [b"c" * 5000]))
    copy.close()
    again = opened(tmp_path / "copy", engine)
    assert records(again) == [(0, b"a"), (1, b""), (2, b"c" * 5000)]
    assert again.position.journal == 3
    again.close()


def test_offsets_that_the_owner_has_given_back_are_skipped_without_damage(tmp_path: Path, engine: str) -> None:
    copy = opened(tmp_path / "copy", engine)
    apply(copy, frames.append(3, [b"d"]), frames.append(10, [b"k"]))
    copy.close()
    again = opened(tmp_path / "copy", engine)
    assert records(again) == [(3, b"d"), (10, b"k")]
    assert not getattr(again.journal, "damage", "")
    again.close()


def test_records_that_are_here_already_are_refused(copy: CopyDirectory) -> None:
    apply(copy, frames.append(0, [b"a", b"b"]))
    with pytest.raises(CopyFrameError, match="here already"):
        apply(copy, frames.append(1, [b"x"]))
    assert records(copy) == [(0, b"a"), (1, b"b")]


def test_a_new_life_cuts_off_what_its_owner_does_not_have(tmp_path: Path, engine: str) -> None:
    copy = opened(tmp_path / "copy", engine)
    copy.begin(1, 5, 0, {})
    apply(copy, frames.append(0, [b"a", b"b", b"c"]), frames.append(9, [b"j"]))
    copy.begin(1, 5, 1, {})  # the same life: nothing is cut off
    assert copy.position.journal == 10
    copy.begin(1, 6, 2, {})
    apply(copy, frames.append(2, [b"C"]))
    for number in range(3, 30):  # segments that begin where the skipped offsets were
        apply(copy, frames.append(number, [b"%d" % number * 500]))
    copy.close()
    again = opened(tmp_path / "copy", engine)
    assert [record[:2] for _, record in records(again)] == [b"a", b"b", b"C"] + [
        b"%d" % n * 2 for n in range(3, 10)
    ] + [b"%d" % n for n in range(10, 30)]
    assert (again.position.generation, again.position.incarnation) == (1, 6)
    again.close()


def test_a_store_that_is_received_replaces_the_old_one_as_a_whole(copy: CopyDirectory) -> None:
    apply(copy, frames.kv({b"sold": b"1", b"sboth": b"1"}))
    assert copy.position.kv == (0, 0)
    apply(copy, frames.plain(frames.KV_BEGIN), frames.kv({b"sboth": b"2"}))
    assert copy.kv.get(b"sold") == b"1"
    apply(copy, frames.kv({META_COPY: mark(5, 3)}), frames.plain(frames.KV_END))
    assert copy.kv.get(b"sold") is None
    assert copy.kv.get(b"sboth") == b"2"
    assert copy.position.kv == (5, 3)
    apply(copy, frames.kv({b"sboth": None, META_COPY: mark(5, 4)}))
    assert copy.kv.get(b"sboth") is None
    assert copy.position.kv == (5, 4)


def test_a_store_that_was_half_received_is_cleared_away(tmp_path: Path, engine: str) -> None:
    copy = opened(tmp_path / "copy", engine)
    apply(copy, frames.kv({b"sold": b"1", META_COPY: mark(5, 3)}))
    apply(copy, frames.plain(frames.KV_BEGIN), frames.kv({b"snew": b"2", META_COPY: mark(6, 1)}))
    copy.close()
    again = opened(tmp_path / "copy", engine)
    assert again.kv.get(b"sold") == b"1"
    assert again.position.kv == (5, 3)
    assert not (tmp_path / "copy" / "kv.next").exists()
    with pytest.raises(CopyFrameError, match="not begun"):
        apply(again, frames.plain(frames.KV_END))
    again.close()


def test_a_follower_deletes_what_its_owner_has_deleted(tmp_path: Path) -> None:
    copy = opened(tmp_path / "copy", "segment")
    for number in range(20):
        apply(copy, frames.append(number, [b"%02d" % number * 600]))
    firsts = [segment.first for segment in copy.journal.segments()]
    kept = Kept(((firsts[2], firsts[3]), (firsts[-1], 20)), {})
    apply(copy, frames.plain(frames.KEEP, msgspec.msgpack.encode(kept)))
    assert [segment.first for segment in copy.journal.segments()] == [firsts[2], firsts[-1]]
    copy.close()


def test_streams_follow_their_definitions_and_offsets(copy: CopyDirectory) -> None:
    definition = Definition(name="all", number=4, topics=("#",))
    with pytest.raises(CopyFrameError, match="not defined"):
        apply(copy, frames.stream(4, 0, [b"x"]))
    apply(copy, frames.plain(frames.DEFINE, msgspec.msgpack.encode([definition])), frames.stream(4, 5, [b"x", b"y"]))
    assert copy.streams[4].journal.read(0, 10, 100) == [(5, b"x"), (6, b"y")]
    assert copy.position == Position(0, 0, 0, (0, 0), {4: 7})
    apply(copy, frames.plain(frames.CONSUMERS, msgspec.msgpack.encode((4, b"[]"))))
    assert (copy.path / "streams" / "all" / "CONSUMERS").read_bytes() == b"[]"
    apply(copy, frames.plain(frames.DEFINE, msgspec.msgpack.encode([])))
    assert not (copy.path / "streams" / "all").exists()


@pytest.mark.parametrize(
    "data",
    [
        frames.encode_group(1, [frames.append(0, [b"abc"])])[:-1],
        frames.encode_group(1, [b"\x01\xff\xff\xff\xff"]),
        frames.encode_group(1, [b"\x63\0\0\0\0"]),
        frames.encode_group(1, [frames.plain(frames.APPEND, b"123")]),
        frames.encode_group(1, [frames.plain(frames.APPEND, bytes(8) + b"\xff\xff\0\0")]),
        frames.encode_group(1, [frames.plain(frames.KV, b"\1\0\0\0\xff\0\0\0k")]),
        frames.encode_group(1, [frames.plain(frames.KEEP, b"\xc1")]),
        b"\1\2",
    ],
)
def test_bytes_that_are_no_group_are_refused(copy: CopyDirectory, data: bytes) -> None:
    with pytest.raises(CopyFrameError):
        for _, group in frames.groups(data):
            copy.apply(group)
    assert records(copy) == []
