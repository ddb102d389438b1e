"""A follower's copy: what its owner sends is there afterwards, and opens as a data directory."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import msgspec
import pytest
from tests.storage.copy_disk import Disk, DiskFiles
from tests.storage.crash_engines import Machine

from starlingmq.storage.copies import copy_files
from starlingmq.storage.copies import copy_frames as frames
from starlingmq.storage.copies.copy_directory import CopyDirectory
from starlingmq.storage.copies.copy_facts import (
    CopyFacts,
    Fenced,
    Life,
    NotWhole,
    begin_life,
    ends_after,
    read_facts,
    refuse_data_of_another,
    write_facts,
)
from starlingmq.storage.copies.copy_files import CopyFiles
from starlingmq.storage.copies.copy_frames import CopyPosition, Defined, Hello, Kept
from starlingmq.storage.copies.copy_receiver import CopyReceiver, begin_empty, prepare
from starlingmq.storage.copies.copy_records import CopyFrameError
from starlingmq.storage.data_dir import DataDirError
from starlingmq.storage.keys import META_AS_OF, META_COPY
from starlingmq.storage.rocks.rocks_engines import RocksKv
from starlingmq.storage.segment.segment_journal import SegmentJournal
from starlingmq.storage.streams.stream_definition import Definition

SEGMENT = 4096


def opened(path: Path, engine: str) -> CopyDirectory:
    return CopyDirectory(CopyFiles(path, "n1", engine, SEGMENT))


@pytest.fixture(params=["segment", "rocksdb"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def copy(tmp_path: Path, engine: str) -> Iterator[CopyDirectory]:
    directory = opened(tmp_path / "copy", engine)
    yield directory
    directory.close()


def apply(copy: CopyDirectory, *operations: bytes, live: bool = False) -> None:
    for lsn, group in frames.groups(frames.encode_group(7, operations)):
        assert lsn == 7
        copy.apply(group, live)


def hello(*lives: Life) -> Hello:
    return Hello("n1", lives[-1].generation, "segment", SEGMENT, lives)


def records(copy: CopyDirectory) -> list[tuple[int, bytes]]:
    return copy.files.journal.read(0, 1000, 1 << 20)


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
    assert not getattr(again.files.journal, "damage", "")
    again.close()


def test_records_that_are_here_already_are_refused(copy: CopyDirectory) -> None:
    apply(copy, frames.append(0, [b"a", b"b"]))
    with pytest.raises(CopyFrameError, match="here already"):
        apply(copy, frames.append(1, [b"x"]))
    assert records(copy) == [(0, b"a"), (1, b"b")]


def test_a_new_life_cuts_off_what_its_owner_does_not_have(tmp_path: Path, engine: str) -> None:
    copy = opened(tmp_path / "copy", engine)
    first = Life(1, 0, {})
    copy.begin(hello(first))
    apply(copy, frames.append(0, [b"a", b"b", b"c"]), frames.append(9, [b"j"]))
    copy.begin(hello(first))  # the same life: nothing is cut off
    assert copy.position.journal == 10
    copy.begin(hello(first, Life(2, 2, {})))
    apply(copy, frames.append(2, [b"C"]))
    for number in range(3, 30):  # segments that begin where the skipped offsets were
        apply(copy, frames.append(number, [b"%d" % number * 500]))
    copy.close()
    again = opened(tmp_path / "copy", engine)
    assert [record[:2] for _, record in records(again)] == [b"a", b"b", b"C"] + [
        b"%d" % n * 2 for n in range(3, 10)
    ] + [b"%d" % n for n in range(10, 30)]
    assert again.facts.generation == 2
    again.close()


def test_a_copy_that_missed_a_life_is_cut_to_where_that_life_began(copy: CopyDirectory) -> None:
    first, second = Life(1, 0, {}), Life(2, 3, {})
    copy.begin(hello(first))
    apply(copy, frames.append(0, [b"a", b"b", b"c", b"lost by the owner"]))
    copy.begin(hello(first, second, Life(3, 50, {})))
    assert copy.position.journal == 3


def test_the_ends_are_the_lowest_of_all_lives_after_the_last_common_one() -> None:
    lives = (Life(4, 10, {1: 5}), Life(7, 30, {1: 9, 2: 4}), Life(8, 20, {2: 6}))
    assert ends_after(lives[:1], lives) == Life(4, 20, {1: 9, 2: 4})
    assert ends_after(lives[:2], lives) == Life(7, 20, {2: 6})
    assert ends_after(lives, lives) == Life(8, 1 << 63, {})
    assert ends_after((lives[0], Life(5, 15, {1: 7})), lives) == Life(4, 15, {1: 7, 2: 4})
    assert ends_after((Life(5, 15, {}),), lives) is None


def test_a_copy_whose_life_is_forgotten_begins_with_nothing(copy: CopyDirectory) -> None:
    copy.begin(hello(Life(1, 0, {})))
    apply(copy, frames.append(0, [b"a"]), frames.kv({b"sx": b"1", META_COPY: mark(1, 1)}))
    copy.begin(hello(Life(5, 0, {})))
    assert copy.position == CopyPosition(5, 0, (0, 0), {})
    assert copy.files.kv.get(b"sx") is None


def test_an_earlier_generation_is_refused(tmp_path: Path, engine: str) -> None:
    copy = opened(tmp_path / "copy", engine)
    copy.begin(hello(Life(3, 0, {})))
    with pytest.raises(Fenced):
        copy.begin(hello(Life(2, 0, {})))
    copy.fence(6)
    copy.close()
    again = opened(tmp_path / "copy", engine)
    with pytest.raises(Fenced):
        again.begin(hello(Life(3, 0, {}), Life(5, 0, {})))
    again.begin(hello(Life(3, 0, {}), Life(6, 0, {})))
    again.close()


def test_a_life_begins_once_and_on_a_whole_copy_only(tmp_path: Path) -> None:
    path = tmp_path / "copy"
    path.mkdir()
    begin_life(path, "n1", Life(4, 0, {}))
    with pytest.raises(Fenced):
        begin_life(path, "n1", Life(4, 0, {}))
    facts = begin_life(path, "n1", Life(6, 9, {1: 2}))
    assert facts == read_facts(path)
    assert [life.generation for life in facts.lives] == [4, 6]
    write_facts(path, CopyFacts(owner="n1", generation=6, lives=facts.lives, whole=False))
    with pytest.raises(NotWhole):
        begin_life(path, "n1", Life(7, 9, {}))


def received(copy: CopyDirectory, *operations: bytes) -> None:
    """Bring a copy up to date with these operations."""
    apply(copy, frames.plain(frames.KV_BEGIN), frames.kv({META_COPY: mark(1, 0)}), frames.plain(frames.KV_END))
    apply(copy, *operations)
    copy.caught_up()


def test_a_takeover_in_the_middle_of_a_turn_finds_the_turn_before(copy: CopyDirectory) -> None:
    copy.begin(hello(Life(1, 0, {})))
    received(copy, frames.append(0, [b"a", b"b"]))
    apply(copy, frames.append(2, [b"c"]), live=True)
    copy.begin(hello(Life(1, 0, {})))
    apply(copy, frames.append(3, [b"first of two"]))
    copy.prepare()
    assert records(copy) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert copy.position.journal == 3


def test_a_copy_that_lacks_what_its_store_may_need_is_not_opened(copy: CopyDirectory) -> None:
    copy.begin(hello(Life(1, 0, {})))
    received(copy, frames.append(0, [b"a", b"b"]))
    copy.prepare()
    copy.begin(hello(Life(1, 0, {})))
    apply(copy, frames.append(9, [b"c"]))
    with pytest.raises(NotWhole):
        copy.prepare()
    assert copy.position.kv == (0, 0)
    apply(copy, frames.plain(frames.BOUNDARY))
    received(copy)
    copy.prepare()


def test_with_power_a_checkpoint_is_never_ahead_of_the_journal() -> None:
    disk = Disk(Machine(Random(0)), span=5)
    copy = CopyDirectory(DiskFiles(disk), careful=True)
    copy.begin(hello(Life(1, 0, {})))
    received(copy, frames.append(0, [b"a"]))
    apply(copy, frames.append(1, [b"b", b"c"]), live=True)
    assert disk.journal.ends[-1] == 3
    apply(copy, frames.kv({META_AS_OF: (3).to_bytes(8, "big")}), live=True)
    assert disk.journal.ends == [3], "a power failure may take what the checkpoint rests on"


def test_a_copy_that_was_cut_at_any_byte_has_whole_turns_and_goes_on(tmp_path: Path) -> None:
    turns = [[b"%d-%d" % (turn, record) for record in range(1 + turn % 3)] for turn in range(4)]
    ends = [sum(map(len, turns[:count])) for count in range(len(turns) + 1)]
    copy = opened(tmp_path / "whole", "segment")
    copy.begin(hello(Life(1, 0, {})))
    received(copy)
    for turn, end in zip(turns, ends, strict=False):
        apply(copy, frames.append(end, turn), live=True)
    whole = records(copy)
    copy.close()
    path = next((tmp_path / "whole" / "journal").glob("*.log"))
    for size in range(path.stat().st_size - 1, 63, -1):
        cut = tmp_path / "cut"
        shutil.copytree(tmp_path / "whole", cut)
        for index in (cut / "journal").glob("*.idx"):
            index.unlink()
        os.truncate(cut / "journal" / path.name, size)
        again = opened(cut, "segment")
        count = ends.index(again.position.journal)  # between two turns
        assert again.is_whole
        assert records(again) == whole[: ends[count]]
        again.begin(hello(Life(1, 0, {})))
        apply(again, frames.append(ends[count], [record for turn in turns[count:] for record in turn]))
        again.caught_up()
        assert records(again) == whole
        again.close()
        shutil.rmtree(cut)


def test_a_copy_that_has_lost_records_in_the_middle_is_not_whole(tmp_path: Path) -> None:
    copy = opened(tmp_path / "copy", "segment")
    copy.begin(hello(Life(1, 0, {})))
    received(copy, frames.append(0, [b"first" * 50]))
    apply(copy, frames.append(1, [b"second" * 50]), live=True)
    assert copy.is_whole
    copy.close()
    path = next((tmp_path / "copy" / "journal").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    next((tmp_path / "copy" / "journal").glob("*.idx")).unlink()
    again = opened(tmp_path / "copy", "segment")
    assert not again.is_whole
    assert again.position.generation == 0
    again.close()


def test_a_copy_that_has_more_than_its_owner_says_so_and_keeps_it(copy: CopyDirectory) -> None:
    first, second = Life(1, 0, {}), Life(2, 1, {})
    copy.begin(hello(first))
    received(copy, frames.append(0, [b"a", b"b", b"c"]))
    receiver = CopyReceiver(copy, hello(first, second), "process", ThreadPoolExecutor(1))
    assert receiver.look().excess == 2
    assert CopyReceiver(copy, hello(first), "process", ThreadPoolExecutor(1)).look().excess == 0
    assert copy.position.journal == 3


def test_a_gap_between_turns_is_refused(copy: CopyDirectory) -> None:
    copy.begin(hello(Life(1, 0, {})))
    received(copy, frames.append(0, [b"a"]))
    with pytest.raises(CopyFrameError, match="missing"):
        apply(copy, frames.append(2, [b"c"]), live=True)


def test_a_store_that_was_received_replaces_the_old_one_also_after_a_crash(tmp_path: Path) -> None:
    copy = opened(tmp_path / "copy", "segment")
    copy.begin(hello(Life(1, 0, {})))
    apply(copy, frames.kv({b"sold": b"1"}), frames.plain(frames.KV_BEGIN), frames.kv({b"snew": b"2"}))
    assert copy.files.next_kv is not None
    copy.close()
    (tmp_path / "copy" / "kv.next").rename(tmp_path / "copy" / "kv.whole")  # as far as it got
    again = opened(tmp_path / "copy", "segment")
    assert again.files.kv.get(b"sold") is None
    assert again.files.kv.get(b"snew") == b"2"
    again.close()


def test_a_store_that_is_received_replaces_the_old_one_as_a_whole(copy: CopyDirectory) -> None:
    apply(copy, frames.kv({b"sold": b"1", b"sboth": b"1"}))
    assert copy.position.kv == (0, 0)
    apply(copy, frames.plain(frames.KV_BEGIN), frames.kv({b"sboth": b"2"}))
    assert copy.files.kv.get(b"sold") == b"1"
    apply(copy, frames.kv({META_COPY: mark(5, 3)}), frames.plain(frames.KV_END))
    assert copy.files.kv.get(b"sold") is None
    assert copy.files.kv.get(b"sboth") == b"2"
    assert copy.position.kv == (5, 3)
    apply(copy, frames.kv({b"sboth": None, META_COPY: mark(5, 4)}))
    assert copy.files.kv.get(b"sboth") is None
    assert copy.position.kv == (5, 4)


@pytest.mark.parametrize("closed", [RocksKv, SegmentJournal])
def test_a_copy_that_cannot_be_closed_in_order_can_be_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: type
) -> None:
    """As on a full disk: otherwise it is locked for as long as the process lives."""
    really_close = closed.close  # type: ignore[attr-defined]

    def close(engine: object) -> None:
        really_close(engine)
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(closed, "close", close)
        copy = opened(tmp_path / "copy", "segment")
        apply(copy, frames.kv({b"sa": b"1"}))
        with pytest.raises(OSError, match="no space"):
            copy.close()
    again = opened(tmp_path / "copy", "segment")
    assert again.files.kv.get(b"sa") == b"1"
    again.close()


def test_a_copy_of_which_a_part_cannot_be_opened_can_be_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path / "copy", "segment").close()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(copy_files, "SegmentJournal", fail)
        with pytest.raises(OSError, match="no space"):
            opened(tmp_path / "copy", "segment")
    opened(tmp_path / "copy", "segment").close()


def test_a_store_that_was_half_received_is_cleared_away(tmp_path: Path, engine: str) -> None:
    copy = opened(tmp_path / "copy", engine)
    copy.begin(hello(Life(1, 0, {})))
    apply(copy, frames.plain(frames.KV_BEGIN), frames.kv({b"sold": b"1", META_COPY: mark(5, 3)}))
    apply(copy, frames.plain(frames.KV_END))
    apply(copy, frames.plain(frames.KV_BEGIN), frames.kv({b"snew": b"2", META_COPY: mark(6, 1)}))
    copy.close()
    again = opened(tmp_path / "copy", engine)
    assert again.files.kv.get(b"sold") == b"1"
    assert again.position.kv == (5, 3)
    assert not (tmp_path / "copy" / "kv.next").exists()
    with pytest.raises(CopyFrameError, match="not begun"):
        apply(again, frames.plain(frames.KV_END))
    again.close()


def test_a_follower_deletes_what_its_owner_has_deleted(tmp_path: Path) -> None:
    copy = opened(tmp_path / "copy", "segment")
    for number in range(20):
        apply(copy, frames.append(number, [b"%02d" % number * 600]))
    firsts = [segment.first for segment in copy.files.journal.segments()]
    kept = Kept(((firsts[2], firsts[3]), (firsts[-1], 20)), {})
    apply(copy, frames.plain(frames.KEEP, msgspec.msgpack.encode(kept)))
    assert [segment.first for segment in copy.files.journal.segments()] == [firsts[2], firsts[-1]]
    copy.close()


def path_of(copy: CopyDirectory) -> Path:
    assert isinstance(copy.files, CopyFiles)
    return copy.files.path


def test_streams_follow_their_definitions_and_offsets(copy: CopyDirectory) -> None:
    definition = Definition(name="all", number=4, topics=("#",))
    with pytest.raises(CopyFrameError, match="not defined"):
        apply(copy, frames.stream(4, 0, [b"x"]))
    defined = frames.packed(frames.DEFINE, Defined([definition], {}))
    apply(copy, defined, frames.stream(4, 5, [b"x", b"y"]))
    assert copy.files.streams[4].journal.read(0, 10, 100) == [(5, b"x"), (6, b"y")]
    assert copy.position == CopyPosition(0, 0, (0, 0), {4: 7})
    apply(copy, frames.plain(frames.CONSUMERS, msgspec.msgpack.encode((4, b"[]"))))
    assert (path_of(copy) / "streams" / "all" / "CONSUMERS").read_bytes() == b"[]"
    apply(copy, frames.plain(frames.DEFINE, msgspec.msgpack.encode(Defined([], {"all": 7}))))
    assert not (path_of(copy) / "streams" / "all").exists()


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


def test_a_copy_that_is_not_whole_and_was_given_up_is_opened_without_data(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "given up"
    copy = opened(path, engine)
    copy.files.journal.append([b"1", b"2"])
    copy.files.write_facts(CopyFacts(owner="n1", generation=3, lives=(Life(3, 0, {}),), whole=False))
    copy.close()
    with pytest.raises(NotWhole):
        prepare(path, "n1", engine, SEGMENT)
    begin_empty(path, "n1", engine, SEGMENT)
    assert begin_life(path, "n1", Life(4, 0, {})).lives == (Life(4, 0, {}),)  # it has no life in common with others
    copy = opened(path, engine)
    assert copy.is_whole and copy.files.journal.next == 0
    copy.close()


def test_a_directory_with_the_data_of_another_node_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    refuse_data_of_another(tmp_path, "n2")
    write_facts(tmp_path, CopyFacts(owner="n3", generation=1))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(DataDirError, match="has the data of n3, and this node is n2"):
        refuse_data_of_another(tmp_path, "n2")
    refuse_data_of_another(tmp_path, "n3")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
