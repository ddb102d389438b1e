"""One RocksDB directory: opening it, the meaning of its errors, and recovery from them.

RocksDB describes errors in words, and after a failed write it refuses all further ones until it is reopened. So the
rule here: a failed write or sync marks the database as failed; reads continue; the next write (even an empty batch)
reopens it, at most once per ``RETRY_SECONDS`` and, if the disk was full, only once there is free space. It serves again
only if all writes that ever succeeded are still present.

Threads: ``write``, ``get`` and the iterators belong to one thread. ``sync``, ``checkpoint`` and ``compact`` release the
GIL for their long part and may be called from other threads; closing and reopening wait for them.
"""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
)

MIB: Final = 1 << 20

RETRY_SECONDS: Final = 1.0
"""Between two attempts to reopen a failed database. Each attempt stops the event loop for some 10 to 100 ms."""

FREE_BYTES_MIN: Final = 32 * MIB
"""Free space that a full disk must have again: for the memtables, the log, and the files that opening writes."""

OPEN_FILES_MAX: Final = 256
BACKGROUND_JOBS_MAX: Final = 2
INFO_LOG_BYTES_MAX: Final = 1 * MIB
INFO_LOGS_MAX: Final = 2

# Errors of the operating system in RocksDB's words. EIO stands for all others.
_SAID: Final = tuple(
    (os.strerror(code), code)
    for code in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENOMEM,
    )
)


class Tuning:
    """Resources of a database. Memory is bounded by ``memtables * memtable_bytes + cache_bytes``, and the write-ahead
    log on disk by the product."""

    __slots__ = ("bloom", "cache_bytes", "file_bytes", "memtable_bytes", "memtables")

    def __init__(self, memtable_bytes: int, memtables: int, cache_bytes: int, file_bytes: int, bloom: bool) -> None:
        self.memtable_bytes = memtable_bytes
        self.memtables = memtables
        self.cache_bytes = cache_bytes
        self.file_bytes = file_bytes
        self.bloom = bloom

    @property
    def memory_bytes(self) -> int:
        return self.memtables * self.memtable_bytes + self.cache_bytes


class Database:
    """Raises OSError with the errno of the operating system, or EIO; EBUSY if another process has it open.

    ``damage`` is a sentence about writes that were damaged in the log at opening and discarded with all later ones;
    normally "". A tail that a dying process or machine left half-written is no damage.
    """

    def __init__(self, path: Path, tuning: Tuning, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.damage = ""
        self._tuning = tuning
        self._clock = clock
        self._users = _Users()
        self._failure: OSError | None = None
        self._sequence = 0  # of the last successful write, set after a failure
        self._retry_at = 0.0
        self._db: Rdict | None = self._open()

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def write(self, batch: WriteBatch) -> None:
        if self._failure is not None:
            self._heal(self._failure)
        try:
            self._open_db().write(batch)
        except Exception as error:
            raise self._failed_with(error) from None

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._open_db().get(key)
        except Exception as error:
            raise os_error(error, self.path) from None
        return value

    def items(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Items with start <= key < end. Do not keep the iterator: it pins files, and prevents closing the database."""
        options = ReadOptions()
        if end is not None:
            if end <= start:
                return
            options.set_iterate_upper_bound(end)  # otherwise it scans deleted keys after the end
        try:
            cursor = self._open_db().iter(options)
            cursor.seek(start)
            valid, key, value, step = cursor.valid, cursor.key, cursor.value, cursor.next
            while valid():
                yield key(), value()
                step()
            cursor.status()  # without this, a broken file looks like the end
        except Exception as error:
            raise os_error(error, self.path) from None

    def items_backwards(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The same, from the last item down."""
        for cursor, key in self._backwards(start, end):
            yield key, cursor.value()

    def keys_backwards(self, start: bytes, end: bytes | None) -> Iterator[bytes]:
        return (key for _, key in self._backwards(start, end))

    def _backwards(self, start: bytes, end: bytes | None) -> Iterator[tuple[RdictIter, bytes]]:
        """Compares with ``start`` itself, because up to rocksdict 0.3.29 the setter of a lower bound sets the upper
        one."""
        try:
            cursor = self._open_db().iter()
            if end is None:
                cursor.seek_to_last()
            else:
                cursor.seek_for_prev(end)
            valid, key, step = cursor.valid, cursor.key, cursor.prev
            if valid() and key() == end:
                step()
            while valid() and (found := key()) >= start:
                yield cursor, found
                step()
            cursor.status()
        except Exception as error:
            raise os_error(error, self.path) from None

    def sync(self) -> None:
        with self._users.one_more():
            try:
                self._open_db().flush_wal(True)
            except Exception as error:
                raise self._failed_with(error) from None

    def checkpoint(self, path: Path) -> None:
        """Copy the present state of the database to ``path``, which must not exist; by hard links if it is on the same
        file system."""
        with self._users.one_more():
            db = self._open_db()
            try:
                db.flush()  # releases the GIL, which the checkpoint holds, so little is left to do
                Checkpoint(db).create_checkpoint(str(path))
            except Exception as error:
                raise os_error(error, path) from None

    def compact(self, start: bytes | None, end: bytes | None) -> None:
        """Free the space of deleted entries between the keys. Writes are not held up."""
        with self._users.one_more():
            db = self._open_db()
            try:
                db.flush()
                db.compact_range(start, end)
            except Exception as error:
                raise os_error(error, self.path) from None

    def close(self) -> None:
        with self._users.none(wait=True):
            self._let_go()

    def _open_db(self) -> Rdict:
        if self._db is None:
            raise self._failure or OSError(errno.EBADF, "the database is closed", str(self.path))
        return self._db

    def _let_go(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            try:
                db.close()
            except Exception as error:  # repeats the earlier failure, and is closed nevertheless
                if self._failure is None:
                    raise os_error(error, self.path) from None

    def _failed_with(self, error: Exception) -> OSError:
        found = os_error(error, self.path)
        with self._users.lock:
            if self._failure is None and self._db is not None:
                self._sequence = max(self._sequence, self._db.latest_sequence_number())
                self._failure = found
            first = self._failure or found
        # later errors only say that there was an earlier one
        return OSError(first.errno, first.strerror, str(self.path))

    def _heal(self, failure: OSError) -> None:
        now = self._clock()
        if now < self._retry_at:
            raise OSError(failure.errno, failure.strerror, str(self.path))
        self._retry_at = now + RETRY_SECONDS
        if failure.errno == errno.ENOSPC and self._free_bytes() < FREE_BYTES_MIN:
            raise OSError(failure.errno, failure.strerror, str(self.path))
        with self._users.none(wait=False) as alone:
            if not alone:  # a sync hangs in the same disk, and the event loop must not wait for it
                raise OSError(failure.errno, failure.strerror, str(self.path))
            self._open_anew()

    def _free_bytes(self) -> int:
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    def _open_anew(self) -> None:
        self._let_go()
        try:
            self._db = self._open()
        except OSError as failure:
            self._failure = failure
            self._db = self._open_to_read()
            raise OSError(failure.errno, failure.strerror, str(self.path)) from None
        if self._db.latest_sequence_number() < self._sequence:
            # The memory of the caller has writes that the disk has lost. Only a restart makes both agree again.
            self._failure = OSError(
                errno.EIO, "writes were lost after an I/O error; restart the broker", str(self.path)
            )
            self._retry_at = math.inf
            raise self._failure
        self._failure = None

    def _open_to_read(self) -> Rdict | None:
        try:
            return Rdict(str(self.path), _options(self._tuning), access_type=AccessType.read_only(False))
        except Exception:
            return None

    def _open(self) -> Rdict:
        """Open strictly at first, so that damage before the tail of the log is reported."""
        options = _options(self._tuning)
        options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
        try:
            return self._open_with(options)
        except OSError as error:
            if not is_damage(error):
                raise
            damage = error.strerror
        options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
        opened = self._open_with(options)
        self.damage = f"{self.path}: the last writes were damaged and are lost ({damage})"
        return opened

    def _open_with(self, options: Options) -> Rdict:
        try:
            return Rdict(str(self.path), options)
        except Exception as error:
            if "not linked" not in str(error):
                raise os_error(error, self.path) from None
        options.set_compression_type(DBCompressionType.none())  # this build of RocksDB has no lz4
        try:
            return Rdict(str(self.path), options)
        except Exception as error:
            raise os_error(error, self.path) from None


class _Users:
    """Counts calls inside the database from other threads. RocksDB's binding fails, or waits forever, if it is closed
    during a call that has released the GIL."""

    def __init__(self) -> None:
        self.lock = threading.Condition(threading.RLock())
        self._inside = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        with self.lock:
            self._inside += 1
        try:
            yield
        finally:
            with self.lock:
                self._inside -= 1
                self.lock.notify_all()

    @contextmanager
    def none(self, wait: bool) -> Iterator[bool]:
        """Keep other threads out. False: one is inside, and ``wait`` is False."""
        with self.lock:
            while wait and self._inside:
                self.lock.wait()
            yield not self._inside


def os_error(error: Exception, path: Path) -> OSError:
    """Translate an error of RocksDB, which raises plain Exceptions. Other exceptions are bugs and are raised again."""
    if isinstance(error, OSError):
        return error
    if type(error) not in (Exception, DbClosedError):
        raise error
    text = str(error).removeprefix("IO error: ")
    if "lock hold by current process" in text or "While lock file" in text:
        return OSError(
            errno.EBUSY, "another process has this database open, or this process has opened it twice", str(path)
        )
    code = next((code for said, code in _SAID if said in text), errno.EIO)
    return OSError(code, text, str(path))


def is_damage(error: OSError) -> bool:
    """Whether the error reports damage on disk, where trying again does not help."""
    return error.strerror is not None and error.strerror.startswith("Corruption")


def _options(tuning: Tuning) -> Options:
    options = Options(raw_mode=True)  # keys are ordered by their bytes
    options.set_write_buffer_size(tuning.memtable_bytes)
    options.set_max_write_buffer_number(tuning.memtables)
    options.set_target_file_size_base(tuning.file_bytes)
    options.set_max_bytes_for_level_base(4 * tuning.file_bytes)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_max_background_jobs(BACKGROUND_JOBS_MAX)
    options.set_max_open_files(OPEN_FILES_MAX)
    options.set_max_log_file_size(INFO_LOG_BYTES_MAX)
    options.set_keep_log_file_num(INFO_LOGS_MAX)
    options.set_max_manifest_file_size(4 * MIB)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_bytes_per_sync(MIB)  # flushed files are synced in small steps
    options.set_avoid_unnecessary_blocking_io(True)  # RocksDB's threads delete files, not the end of a scan
    # A write that waits for compaction blocks the event loop, so reads may have to look into more files.
    options.set_level_zero_slowdown_writes_trigger(40)
    options.set_level_zero_stop_writes_trigger(60)
    # Files with mostly deleted keys are compacted soon, since scans have to walk through them.
    options.add_compact_on_deletion_collector_factory(10_000, 5_000, 0.5)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(tuning.cache_bytes))
    table.set_cache_index_and_filter_blocks(True)  # so that the cache size bounds them, too
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    if tuning.bloom:
        table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options
