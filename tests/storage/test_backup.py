"""Backups: taken while the broker writes, restored as they were, refused when damaged."""

from __future__ import annotations

import os
import shutil
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.few import few
from tests.storage.memory_engine import MemoryJournal

from starlingmq.admin import operator_bans, stream_gossip
from starlingmq.net.bulk_process import TOKEN_FILE
from starlingmq.storage.data_dir import STATE_FILES, DataDir, DataDirError
from starlingmq.storage.kv import Batch
from starlingmq.storage.maintenance.data_dir_backup import MANIFEST, BackupError, backup, read_manifest, restore
from starlingmq.storage.rocks.rocks_engines import RocksJournal, RocksKv
from starlingmq.storage.segment.segment_journal import SegmentJournal

SEGMENT_BYTES = 800


def segments_at(path: Path) -> SegmentJournal:
    return SegmentJournal(str(path), segment_bytes=SEGMENT_BYTES)


JOURNALS: dict[str, Callable[[Path], SegmentJournal | RocksJournal]] = {
    "segment": segments_at,
    "rocksdb": lambda path: RocksJournal(path, mark_bytes=64, trim_bytes=512),
}


class Broker:
    """A writer: a journal and, now and then, a checkpoint of the position in the journal."""

    def __init__(self, path: Path, engine: str) -> None:
        self.data = DataDir(path, {"journal": engine})
        self.kv = RocksKv(self.data.kv)
        self.journal = JOURNALS[engine](self.data.journal)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.turns = 0
        self.held = False  # the journal is not trimmed

    def turn(self) -> None:
        self.journal.append([b"%d" % (self.journal.next + index) for index in range(3)])
        self.turns += 1
        if self.turns % 7 == 0:
            batch = Batch()
            batch.put(b"checkpoint", b"%d" % self.journal.next)
            self.kv.write(batch)
        if self.turns % 100 == 0 and not self.held:
            self.journal.trim(int(self.kv.get(b"checkpoint") or b"0") - 200)

    def _work(self) -> None:
        while not self._stopping.is_set():
            self.turn()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.kv.close()
        self.journal.close()
        self.data.close()


@pytest.fixture(params=JOURNALS)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def broker(tmp_path: Path, engine: str) -> Iterator[Broker]:
    made = Broker(tmp_path / "data", engine)
    yield made
    made.stop()


def contents(path: Path, engine: str) -> tuple[int, dict[int, bytes]]:
    """The checkpoint and the records of a data directory that no process has open."""
    data = DataDir(path, {"journal": engine})
    kv = RocksKv(data.kv)
    checkpoint = int(kv.get(b"checkpoint") or b"0")
    kv.close()
    journal = JOURNALS[engine](data.journal)
    records = dict(journal.read(0, 1_000_000, 1 << 30))
    assert not journal.damage
    journal.close()
    data.close()
    return checkpoint, records


@pytest.mark.parametrize("engine", few(JOURNALS, "segment"), indirect=True)
def test_a_backup_while_serving_is_of_one_moment(tmp_path: Path, engine: str, broker: Broker) -> None:
    broker.start()
    for number in range(6):
        turns = broker.turns
        done: list[tuple[int, int]] = []

        def progress(at: int, of: int, done: list[tuple[int, int]] = done) -> None:
            broker.held = False
            done.append((at, of))

        broker.held = True
        copied = backup(broker.data, broker.kv, broker.journal, tmp_path / f"copy{number}", progress)
        assert done == sorted(done)
        assert done[0] == (0, copied)
        assert done[-1] == (copied, copied)
        assert restore(tmp_path / f"copy{number}", tmp_path / f"back{number}") == copied
        checkpoint, records = contents(tmp_path / f"back{number}", engine)
        # From the checkpoint on the journal is there without a gap, and no older than when the backup began.
        assert list(records) == list(range(min(records), max(records) + 1))
        assert all(record == b"%d" % offset for offset, record in records.items())
        assert min(records) <= checkpoint <= max(records) + 1
        assert max(records) + 1 >= turns * 3
    broker.stop()
    assert sorted(os.listdir(tmp_path / "data")) == ["LAYOUT", "LOCK", "journal", "kv"]


def test_a_restored_backup_equals_the_original(tmp_path: Path, engine: str, broker: Broker) -> None:
    for _ in range(500):
        broker.turn()
    backup(broker.data, broker.kv, broker.journal, tmp_path / "copy")
    first = broker.journal.first
    for _ in range(500):
        broker.turn()
    broker.stop()
    shutil.rmtree(tmp_path / "data")  # the linked files live on
    target = tmp_path / "new" / "data"
    restore(tmp_path / "copy", target)
    assert contents(target, engine) == (497 * 3, {offset: b"%d" % offset for offset in range(first, 1500)})
    assert target.stat().st_mode & 0o777 == 0o700
    assert not list(tmp_path.rglob("*.partial"))
    with pytest.raises(DataDirError, match=r"was created with storage\.journal"):
        DataDir(target, {"journal": "another"})


@pytest.mark.parametrize("engine", ["segment"], indirect=True)
def test_passwords_bans_and_stream_definitions_are_backed_up_for_their_owner_alone(
    tmp_path: Path, broker: Broker
) -> None:
    for name in ("passwords", "bans.json", "streams.json"):
        (tmp_path / "data" / name).write_text(f"text of {name}")
        (tmp_path / "data" / name).chmod(0o640)
    backup(broker.data, broker.kv, broker.journal, tmp_path / "copy")
    with open(tmp_path / "data" / "passwords", "w", encoding="utf-8") as edited:  # in place, as some editors do
        edited.write("later")
    restore(tmp_path / "copy", tmp_path / "back")
    for place in (tmp_path / "copy", tmp_path / "back"):
        for name in ("passwords", "bans.json", "streams.json"):
            assert (place / name).read_text() == f"text of {name}"
            assert (place / name).stat().st_mode & 0o777 == 0o600
    flip(tmp_path / "copy" / "passwords")
    with pytest.raises(BackupError, match="passwords is damaged"):
        restore(tmp_path / "copy", tmp_path / "again")


def test_the_state_files_that_a_backup_contains_are_those_that_the_broker_writes() -> None:
    assert {operator_bans.FILE, stream_gossip.FILE, TOKEN_FILE} < {*STATE_FILES}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize("engine", ["segment"], indirect=True)
@pytest.mark.parametrize("exists", [True, False])
def test_what_root_restores_belongs_to_the_owner_of_the_place(tmp_path: Path, broker: Broker, exists: bool) -> None:
    (tmp_path / "data" / "passwords").touch()
    backup(broker.data, broker.kv, broker.journal, tmp_path / "copy")
    place = tmp_path / "place"
    (place / "back" if exists else place).mkdir(parents=True)
    os.chown(place / "back" if exists else place, 4321, 4322)
    restore(tmp_path / "copy", place / "back")
    restored = [place / "back", *(place / "back").rglob("*")]
    assert len(restored) > 4
    assert {(path.stat().st_uid, path.stat().st_gid) for path in restored} == {(4321, 4322)}


def test_an_empty_broker_can_be_backed_up(tmp_path: Path, engine: str, broker: Broker) -> None:
    backup(broker.data, broker.kv, broker.journal, tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "back")
    data = DataDir(tmp_path / "back", {"journal": engine})
    assert data.facts == {"journal": engine}
    data.close()


def test_nothing_is_overwritten(tmp_path: Path, broker: Broker) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(BackupError, match="exists and is not empty"):
        backup(broker.data, broker.kv, broker.journal, tmp_path / "full")
    backup(broker.data, broker.kv, broker.journal, tmp_path / "empty")
    with pytest.raises(BackupError, match="exists and is not empty"):
        restore(tmp_path / "empty", tmp_path / "full")
    assert os.listdir(tmp_path / "full") == ["something"]


def test_work_that_is_given_up_leaves_nothing(tmp_path: Path, broker: Broker) -> None:
    def give_up(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backup(broker.data, broker.kv, broker.journal, tmp_path / "copy", give_up)
    assert os.listdir(tmp_path) == ["data"]
    assert not list((tmp_path / "data").glob("stage-*"))
    backup(broker.data, broker.kv, broker.journal, tmp_path / "copy")
    with pytest.raises(KeyboardInterrupt):
        restore(tmp_path / "copy", tmp_path / "back", give_up)
    assert sorted(os.listdir(tmp_path)) == ["copy", "data"]


def test_a_journal_in_memory_is_none_to_back_up(tmp_path: Path, broker: Broker) -> None:
    with pytest.raises(BackupError, match="cannot be backed up"):
        backup(broker.data, broker.kv, MemoryJournal(), tmp_path / "copy")


class TrimmedMeanwhile(RocksKv):
    """After its checkpoint, the journal is trimmed for a newer one; so many times."""

    def __init__(self, broker: Broker, times: int) -> None:
        self.broker = broker
        self.times = times
        broker.held = True  # except for the calls of the test itself

    def checkpoint(self, path: Path) -> None:
        broker = self.broker
        broker.kv.checkpoint(path)
        if self.times:
            self.times -= 1
            for _ in range(50):
                broker.turn()
            first = broker.journal.first
            broker.journal.trim(int(broker.kv.get(b"checkpoint") or b"0"))
            assert broker.journal.first > first


def test_a_backup_whose_journal_is_trimmed_meanwhile_begins_anew(tmp_path: Path, engine: str, broker: Broker) -> None:
    backup(broker.data, TrimmedMeanwhile(broker, 3), broker.journal, tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "back")
    checkpoint, records = contents(tmp_path / "back", engine)
    assert checkpoint == 147 * 3
    assert set(range(checkpoint, broker.journal.next)) <= records.keys()


def test_a_backup_that_begins_anew_for_ever_is_given_up(tmp_path: Path, broker: Broker) -> None:
    with pytest.raises(BackupError, match="trimmed too fast to start a backup"):
        backup(broker.data, TrimmedMeanwhile(broker, 1000), broker.journal, tmp_path / "copy")
    assert os.listdir(tmp_path) == ["data"]


@pytest.mark.parametrize("engine", ["segment"], indirect=True)
def test_a_backup_does_not_grow_with_the_journal(tmp_path: Path, broker: Broker) -> None:
    assert isinstance(broker.journal, SegmentJournal)
    for _ in range(10):
        broker.turn()
    broker.journal.close()  # the last segment is finished, and goes on after a restart
    broker.journal = segments_at(broker.data.journal)
    broker.journal.roll()
    backup(broker.data, broker.kv, broker.journal, tmp_path / "copy")
    broker.journal.close()
    broker.journal = segments_at(broker.data.journal)
    for _ in range(100):
        broker.turn()
    restore(tmp_path / "copy", tmp_path / "back")
    assert contents(tmp_path / "back", "segment")[1].keys() == set(range(30))


def test_directories_that_may_be_file_systems_of_their_own(tmp_path: Path, engine: str, broker: Broker) -> None:
    """No rename crosses their boundary, and leftovers of an interrupted attempt do no harm."""
    broker.turn()
    for name in ("copy", "back"):
        (tmp_path / name / "lost+found").mkdir(parents=True)
        (tmp_path / name / ".partial" / "kv").mkdir(parents=True)
    places = (tmp_path / "copy").stat().st_ino, (tmp_path / "back").stat().st_ino
    backup(broker.data, broker.kv, broker.journal, tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "back")
    assert ((tmp_path / "copy").stat().st_ino, (tmp_path / "back").stat().st_ino) == places
    assert sorted(os.listdir(tmp_path / "back")) == ["LAYOUT", "journal", "kv", "lost+found"]
    assert contents(tmp_path / "back", engine)[1].keys() == {0, 1, 2}


@pytest.mark.parametrize("engine", ["segment"], indirect=True)
def test_deleted_segments_are_not_reported_as_lost(tmp_path: Path, broker: Broker) -> None:
    for _ in range(100):
        broker.turn()
    assert isinstance(broker.journal, SegmentJournal)
    dropped = broker.journal.segments()[3]
    broker.journal.drop(dropped.first)
    backup(broker.data, broker.kv, broker.journal, tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "back")
    left = {*range(broker.journal.first, 300)} - {*range(dropped.first, dropped.next)}
    assert contents(tmp_path / "back", "segment")[1].keys() == left


def test_a_target_on_another_file_system(
    tmp_path: Path, engine: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def link(source: Path, target: Path) -> None:
        if Path(target).is_relative_to(tmp_path / "copy.partial"):
            raise OSError(18, "Invalid cross-device link")
        real(source, target)

    for _ in range(100):
        broker.turn()
    monkeypatch.setattr(os, "link", link)
    backup(broker.data, broker.kv, broker.journal, tmp_path / "copy")
    assert all(path.stat().st_nlink == 1 for path in (tmp_path / "copy").rglob("*") if path.is_file())
    restore(tmp_path / "copy", tmp_path / "back")
    assert contents(tmp_path / "back", engine)[1].keys() == set(range(broker.journal.first, 300))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()  # it may be a link to the data itself
    path.write_bytes(data)


def rewrite_manifest(path: Path, old: bytes, new: bytes) -> None:
    text = path.read_bytes().partition(b"\n")[0].replace(old, new)
    path.write_bytes(b"%b\n%08x\n" % (text, zlib.crc32(text)))


DAMAGES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "no manifest": (MANIFEST, Path.unlink, "has no MANIFEST, so it is not a complete backup"),
    "manifest cut": (MANIFEST, lambda path: os.truncate(path, 40), "MANIFEST is damaged; use another backup"),
    "manifest flipped": (MANIFEST, flip, "MANIFEST is damaged; use another backup"),
    "manifest empty": (MANIFEST, lambda path: os.truncate(path, 0), "MANIFEST is damaged; use another backup"),
    "newer": (
        MANIFEST,
        lambda path: rewrite_manifest(path, b'"format":1', b'"format":2'),
        "backup format 2, but this version of starlingmq supports 1 only",
    ),
    "outside": (
        MANIFEST,
        lambda path: rewrite_manifest(path, b"LAYOUT", b"../../x"),
        "names a file outside the backup",
    ),
    "file missing": ("kv/CURRENT", Path.unlink, "kv/CURRENT is missing; use another backup"),
    "file cut": ("journal/*.log", cut, " bytes instead of "),
    "file flipped": ("journal/*.log", flip, ".log is damaged: its checksum is wrong; use another backup"),
}


@pytest.mark.parametrize("engine", ["segment"], indirect=True)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_backup_is_refused(tmp_path: Path, broker: Broker, damage: str) -> None:
    for _ in range(130):
        broker.turn()
    backup(broker.data, broker.kv, broker.journal, tmp_path / "copy")
    name, spoil, line = DAMAGES[damage]
    spoil(sorted((tmp_path / "copy").glob(name))[-1])
    with pytest.raises(BackupError) as refused:
        restore(tmp_path / "copy", tmp_path / "back")
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)
    assert sorted(os.listdir(tmp_path)) == ["copy", "data"]


def test_the_manifest_names_every_file(tmp_path: Path, broker: Broker) -> None:
    backup(broker.data, broker.kv, broker.journal, tmp_path / "copy")
    named = {file.path: file.size for file in read_manifest(tmp_path / "copy").files}
    there = {path.relative_to(tmp_path / "copy"): path for path in (tmp_path / "copy").rglob("*") if path.is_file()}
    assert {str(name): path.stat().st_size for name, path in there.items() if str(name) != MANIFEST} == named
