"""A full disk, a failing one, damaged files: said clearly, reads go on, nothing written is lost, and it comes back."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from starlingmq.storage.kv import Batch
from starlingmq.storage.rocks.rocks_database import FREE_BYTES_MIN, MIB, RETRY_SECONDS, Database, os_error
from starlingmq.storage.rocks.rocks_engines import KV_TUNING, RocksJournal, RocksKv


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB, where the machine lets us make one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("can not mount a file system here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """A file that leaves so many bytes free."""
    free = os.statvfs(disk)
    with open(disk / "filler", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - leave)
    return disk / "filler"


def one(key: bytes, value: bytes) -> Batch:
    batch = Batch()
    batch.put(key, value)
    return batch


def write_until_full(kv: RocksKv, count: int = 0) -> int:
    with pytest.raises(OSError, match="No space left on device") as full:
        while True:
            kv.write(one(b"%08d" % count, os.urandom(1000)))
            count += 1
    assert full.value.errno == errno.ENOSPC
    assert str(full.value).count("\n") == 0
    return count


def test_a_full_disk_and_back(small_disk: Path) -> None:
    kv = RocksKv(small_disk / "kv")
    filler = fill(small_disk, 2 * MIB)
    written = write_until_full(kv)
    assert kv.failed
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            kv.write(Batch())
        with pytest.raises(OSError, match="No space left"):
            kv.sync()
    assert kv.get(b"%08d" % (written - 1)) is not None  # reads go on
    assert kv.get(b"%08d" % written) is None  # the failed write is not there
    assert len(kv.scan(b"", None, 1_000_000)) == written

    filler.unlink()
    kv._database._clock = lambda: 1e12  # the next attempt is due
    kv.write(Batch())
    assert not kv.failed
    kv.write(one(b"more", b"value"))
    kv.sync()
    kv.close()
    kv = RocksKv(small_disk / "kv")
    assert len(kv.scan(b"", None, 1_000_000)) == written + 1
    assert kv.get(b"%08d" % written) is None
    kv.close()


def test_a_journal_on_a_full_disk_and_back(small_disk: Path) -> None:
    journal = RocksJournal(small_disk / "journal")
    filler = fill(small_disk, 2 * MIB)
    with pytest.raises(OSError, match="No space left"):
        while True:
            journal.append([os.urandom(500)] * 2)
    assert journal.failed
    appended, size = journal.next, journal.size
    assert len(journal.read(0, 1_000_000, 1 << 30)) == appended
    filler.unlink()
    journal._database._clock = lambda: 1e12
    assert journal.append([b"again"]) == appended
    assert journal.size == size + 5 + 16
    journal.close()
    journal = RocksJournal(small_disk / "journal")
    assert journal.read(appended, 10, 1000) == [(appended, b"again")]
    assert journal.size == size + 5 + 16
    journal.close()


def test_a_database_that_can_not_be_opened_anew_is_still_read(small_disk: Path) -> None:
    kv = RocksKv(small_disk / "kv")
    filler = fill(small_disk, 2 * MIB)
    written = write_until_full(kv)
    database = kv._database
    database._free_bytes = lambda: FREE_BYTES_MIN  # type: ignore[method-assign]  # there is none: opening fails
    now = [1e12]
    database._clock = lambda: now[0]
    for _ in range(3):
        now[0] += RETRY_SECONDS
        with pytest.raises(OSError, match="No space left"):
            kv.write(Batch())
        assert len(kv.scan(b"", None, 1_000_000)) == written
    filler.unlink()
    now[0] += RETRY_SECONDS
    kv.write(one(b"more", b""))
    assert len(kv.scan(b"", None, 1_000_000)) == written + 1
    kv.close()


class Failing:
    """A RocksDB whose disk fails at sync, and that refuses writes afterwards, as the real one does."""

    def __init__(self, db: object, sequence: int = 0) -> None:
        self._db = db
        self._sequence = sequence

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)

    def flush_wal(self, sync: bool) -> None:
        raise Exception("IO error: While fsync: 000004.log: Input/output error")

    def latest_sequence_number(self) -> int:
        number: int = self._db.latest_sequence_number()  # type: ignore[attr-defined]
        return number + self._sequence


def test_a_failed_sync_is_an_error_until_it_was_opened_anew(tmp_path: Path) -> None:
    now = [0.0]
    kv = RocksKv(tmp_path / "kv")
    kv._database._clock = lambda: now[0]
    kv.write(one(b"a", b"1"))
    kv._database._db = Failing(kv._database._db)  # type: ignore[assignment]
    with pytest.raises(OSError, match="Input/output error") as failed:
        kv.sync()
    assert failed.value.errno == errno.EIO
    assert kv.failed
    kv.write(one(b"b", b"2"))  # reopens it
    kv.sync()
    assert kv.scan(b"", None, 10) == [(b"a", b"1"), (b"b", b"2")]
    kv.close()


def test_writes_that_the_disk_lost_are_not_hidden(tmp_path: Path) -> None:
    kv = RocksKv(tmp_path / "kv")
    kv.write(one(b"a", b"1"))
    kv._database._db = Failing(kv._database._db, sequence=1)  # type: ignore[assignment]  # one more than on disk
    with pytest.raises(OSError, match="Input/output error"):
        kv.sync()
    for _ in range(2):
        with pytest.raises(OSError, match="writes were lost after an I/O error; restart the broker"):
            kv.write(Batch())
    assert kv.get(b"a") == b"1"
    kv.close()


def test_attempts_are_not_made_at_every_write(tmp_path: Path) -> None:
    opened: list[float] = []
    now = [0.0]

    class Counted(Database):
        def _open_anew(self) -> None:
            opened.append(now[0])
            raise OSError(errno.EIO, "still broken")

    database = Counted(tmp_path / "kv", KV_TUNING, clock=lambda: now[0])
    database._failure = OSError(errno.EIO, "broken")
    for step in range(100):
        now[0] = step / 10
        with pytest.raises(OSError, match="broken"):
            database.write(RocksKv.__new__(RocksKv))  # type: ignore[arg-type]  # never looked at
    assert len(opened) == pytest.approx(10 / RETRY_SECONDS, abs=1)
    database.close()


def crashed(kv: RocksKv, path: Path) -> Path:
    """A copy of the files as a dying process leaves them: closing would write the log's contents into a table."""
    copy = path.with_name("crashed")
    copy.mkdir()
    # CURRENT first: the manifest it names is not thrown away before the copy is done, older ones may be meanwhile.
    for file in sorted(path.iterdir(), key=lambda file: file.name != "CURRENT"):
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(file, copy)
    kv.close()
    return copy


def largest(directory: Path, pattern: str) -> Path:
    return max(directory.glob(pattern), key=lambda path: path.stat().st_size)


def test_a_damaged_log_is_read_as_far_as_it_goes_and_said(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    kv = RocksKv(path)
    for number in range(1000):
        kv.write(one(b"%04d" % number, b"x" * 200))
    path = crashed(kv, path)
    log = largest(path, "*.log")
    with open(log, "r+b") as file:
        file.seek(log.stat().st_size // 2)
        file.write(b"\xff" * 8)
    kv = RocksKv(path)
    assert "the last writes were damaged and are lost" in kv.damage
    assert "\n" not in kv.damage
    left = kv.scan(b"", None, 10_000)
    assert 400 < len(left) < 600
    assert [key for key, _ in left] == [b"%04d" % number for number in range(len(left))]
    kv.close()
    kv = RocksKv(path)  # once is enough
    assert kv.damage == ""
    assert kv.scan(b"", None, 10_000) == left
    kv.close()


def test_a_torn_tail_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    kv = RocksKv(path)
    for number in range(100):
        kv.write(one(b"%04d" % number, b"x" * 200))
    path = crashed(kv, path)
    log = largest(path, "*.log")
    os.truncate(log, log.stat().st_size - 50)
    kv = RocksKv(path)
    assert kv.damage == ""
    assert len(kv.scan(b"", None, 1000)) == 99
    kv.close()


def test_a_damaged_table_is_an_error_and_not_the_end_of_a_scan(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    kv = RocksKv(path)
    for number in range(1000):
        kv.write(one(b"%04d" % number, os.urandom(200)))
    kv.compact()
    kv.close()
    table = largest(path, "*.sst")
    with open(table, "r+b") as file:
        file.seek(table.stat().st_size // 2)
        file.write(b"\xff" * 5000)
    kv = RocksKv(path)
    with pytest.raises(OSError, match="Corruption"):
        kv.scan(b"", None, 10_000)
    with pytest.raises(OSError, match="Corruption") as found:
        for number in range(1000):
            kv.get(b"%04d" % number)
    assert found.value.errno == errno.EIO
    kv.close()


def test_damaged_records_are_missing_and_the_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = RocksJournal(path, mark_bytes=10_000)
    records = [os.urandom(200) for _ in range(1000)]
    for start in range(0, 1000, 10):
        journal.append(records[start : start + 10])
    journal.close()
    journal = RocksJournal(path)  # the records of the log are in a table now
    journal.close()
    table = largest(path, "*.sst")
    with open(table, "r+b") as file:
        file.seek(table.stat().st_size // 2)
        file.write(b"\xff" * 5000)
    journal = RocksJournal(path)
    found = journal.read_at(range(1000))
    whole = [offset for offset in range(1000) if found[offset] is not None]
    assert 500 < len(whole) < 1000
    assert all(found[offset] == records[offset] for offset in whole)
    journal.close()


def test_a_directory_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        RocksKv(tmp_path / "file" / "kv")
    RocksKv(tmp_path / "kv").close()
    largest(tmp_path / "kv", "CURRENT").write_text("")
    with pytest.raises(OSError, match="Corruption") as found:
        RocksKv(tmp_path / "kv")
    assert found.value.errno == errno.EIO


def test_mistakes_of_ours_are_not_taken_for_the_disk(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        os_error(TypeError("put() takes bytes"), tmp_path)
