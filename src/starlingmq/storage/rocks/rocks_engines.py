"""The engines on RocksDB: ordered keys, and a journal whose keys are offsets.

A write that has returned is in RocksDB's log, and so survives the death of the process; ``sync`` writes the log to
disk. Both engines together use at most ``MEMORY_BYTES_MAX`` of memory for buffers and caches.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from rocksdict import WriteBatch

from starlingmq.storage.journal import JournalSegment
from starlingmq.storage.kv import Batch
from starlingmq.storage.rocks.rocks_database import MIB, Database, Tuning, is_damage

KV_TUNING: Final = Tuning(memtable_bytes=8 * MIB, memtables=2, cache_bytes=12 * MIB, file_bytes=16 * MIB, bloom=True)
# All offsets that are read exist, so a bloom filter would only cost.
JOURNAL_TUNING: Final = Tuning(8 * MIB, memtables=3, cache_bytes=12 * MIB, file_bytes=64 * MIB, bloom=False)
MEMORY_BYTES_MAX: Final = 64 * MIB

MARK_BYTES: Final = 1 * MIB
MARK_RECORDS: Final = 1024
TRIM_BYTES: Final = 8 * MIB
"""Bytes that are trimmed at once: one range deletion for many records, because many range deletions slow down reads."""

COMPACT_BYTES: Final = 64 * MIB
"""Bytes that are trimmed before a compaction frees their disk space."""

RECORD_OVERHEAD: Final = 16
"""Approximate overhead of a record in bytes: its key, lengths, and share of the index."""

_META: Final = b""
_FIRST: Final = (0).to_bytes(8, "big")


class RocksKv:
    """``Kv`` in a directory. ``damage`` says what was lost from the log at opening; normally ""."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, KV_TUNING)
        self.damage = self._database.damage

    @property
    def failed(self) -> bool:
        """Whether writes fail. Each write, even an empty one, tries to recover."""
        return self._database.failed

    def get(self, key: bytes) -> bytes | None:
        return self._database.get(key)

    def scan(self, start: bytes, end: bytes | None, limit: int, reverse: bool = False) -> list[tuple[bytes, bytes]]:
        items = self._database.items_backwards if reverse else self._database.items
        return list(islice(items(start, end), limit))

    def write(self, batch: Batch) -> None:
        made = WriteBatch(raw_mode=True)
        put, delete = made.put, made.delete
        for key, value in batch.changes.items():
            if value is None:
                delete(key)
            else:
                put(key, value)
        self._database.write(made)

    def sync(self) -> None:
        self._database.sync()

    def checkpoint(self, path: Path) -> None:
        """Copy the present state to a new directory, by hard links. May be called from any thread while serving."""
        self._database.checkpoint(path)

    def compact(self) -> None:
        """Free the space of deleted entries. Blocks; may be called from any thread while serving."""
        self._database.compact(None, None)

    def close(self) -> None:
        self._database.close()


class RocksJournal:
    """``Journal`` in a directory.

    Keys, in order:

    - empty: the first offset that is kept, and the bytes appended before it (two u64), written at each trim. So no
      offset is used twice, even when all records before it are deleted.
    - offset (u64): a record.
    - offset and a zero byte: a **mark**, the bytes appended up to and including that record (u64); one about every
      ``MARK_BYTES``. So ``size`` is known without reading everything, and a trim ends at a mark.
    """

    def __init__(
        self, path: Path, mark_bytes: int = MARK_BYTES, trim_bytes: int = TRIM_BYTES, at_least: int = 0
    ) -> None:
        """Open or create the journal. ``at_least``: the next offset is not below this, because the owner knows offsets
        below it; ``damage`` reports records that are missing for that reason."""
        self._database = Database(path, JOURNAL_TUNING)
        self.damage = self._database.damage
        self._mark_bytes = mark_bytes
        self._trim_bytes = trim_bytes
        self._compacting: threading.Thread | None = None
        self._freed = 0  # bytes trimmed since the last compaction
        meta = self._database.get(_META) or bytes(16)
        self._first = int.from_bytes(meta[:8], "big")
        self._bytes_before = int.from_bytes(meta[8:], "big")  # appended before first
        self._cut = self._looked = self._first  # the last mark below the trim offset, and the end of the search for it
        self._cut_bytes = self._bytes_before
        self._next, self._bytes, self._mark, self._mark_total = self._find_end()
        if self._next < at_least:
            lost = f"{path}: records {self._next} to {at_least - 1} are lost: they were written, but are missing"
            self.damage = f"{self.damage}; {lost}" if self.damage else lost
            self._next = at_least
        self._begin = self._next  # records of this process begin here
        # The marks of this process: the offset after each, and the bytes up to it; 120 bytes of memory per MiB that is
        # kept.
        self._marks: deque[tuple[int, int]] = deque()

    @property
    def failed(self) -> bool:
        """Whether appends fail. Each append, even an empty one, tries to recover."""
        return self._database.failed

    @property
    def first(self) -> int:
        return self._first

    @property
    def next(self) -> int:
        return self._next

    @property
    def size(self) -> int:
        return self._bytes - self._bytes_before

    def append(self, records: Sequence[bytes]) -> int:
        offset, total = self._next, self._bytes
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        for record in records:
            put(offset.to_bytes(8, "big"), record)
            total += len(record) + RECORD_OVERHEAD
            offset += 1
        marked = total - self._mark_total >= self._mark_bytes or offset - self._mark >= MARK_RECORDS
        if marked and records:
            put(_mark_key(offset - 1), total.to_bytes(8, "big"))
        self._database.write(batch)
        begin, self._next, self._bytes = self._next, offset, total
        if marked:
            self._mark, self._mark_total = offset, total
            self._marks.append((offset, total))
        return begin

    def go_on_at(self, offset: int) -> None:
        """Continue at this offset, which is above ``next``. The journal that this one is a copy of has given back what
        lies between. Raises OSError."""
        batch = WriteBatch(raw_mode=True)
        batch.put(_mark_key(offset - 1), self._bytes.to_bytes(8, "big"))
        self._database.write(batch)
        self._next = self._mark = offset
        self._mark_total = self._bytes

    def cut_to(self, offset: int) -> None:
        """Remove the records from this offset on, which is not above ``next``. The offset will be used again. Raises
        OSError."""
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(_key(offset), _key(self._next) + b"\0")
        self._database.write(batch)
        self._first = min(self._first, offset)
        self._cut = self._looked = self._first
        self._cut_bytes = self._bytes_before
        self._marks.clear()
        self._next, self._bytes, self._mark, self._mark_total = self._find_end()
        self._next = max(self._next, offset)
        self._begin = self._next

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        left = max_bytes
        for key, record in self._database.items(_key(max(offset, self._first)), None):
            if len(key) != 8:  # a mark
                continue
            left -= len(record)
            if found and (left < 0 or len(found) >= max_records):
                break
            found.append((int.from_bytes(key, "big"), record))
        return found

    def read_at(self, offsets: Sequence[int]) -> list[bytes | None]:
        """The records at these offsets, in this order; None for those that are deleted, damaged, or never existed."""
        get, first = self._database.get, self._first
        try:
            return [get(offset.to_bytes(8, "big")) if offset >= first else None for offset in offsets]
        except OSError as error:
            if not is_damage(error):
                raise
        return [self._whole(offset) for offset in offsets]

    def _whole(self, offset: int) -> bytes | None:
        try:
            return self._database.get(offset.to_bytes(8, "big")) if offset >= self._first else None
        except OSError as error:
            if is_damage(error):
                return None
            raise

    def segments(self) -> Sequence[JournalSegment]:
        return []

    def drop(self, first: int) -> None:
        pass  # there are no segments

    def trim(self, before: int) -> None:
        before = min(before, self._next)
        self._look_for_mark(before)
        if self._cut_bytes - self._bytes_before < self._trim_bytes or self._cut <= self._first:
            return
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(_key(self._first), _key(self._cut))
        batch.put(_META, _key(self._cut) + self._cut_bytes.to_bytes(8, "big"))
        self._database.write(batch)
        self._freed += self._cut_bytes - self._bytes_before
        self._first, self._bytes_before = self._cut, self._cut_bytes
        self._give_back()

    def sync(self) -> None:
        self._database.sync()

    def checkpoint(self, path: Path) -> None:
        """Copy the present state to a new directory, by hard links. May be called from any thread while serving."""
        self._database.checkpoint(path)

    def compact(self) -> None:
        """Free the space of trimmed records. Blocks; may be called from any thread while serving."""
        self._database.compact(_FIRST, _key(self._first))

    def close(self) -> None:
        if self._compacting is not None:
            self._compacting.join()
        self._database.close()

    def _find_end(self) -> tuple[int, int, int, int]:
        """The next offset, the bytes appended, and the last mark: the offset after it and its bytes."""
        end, since = 0, 0
        for key, value in self._database.items_backwards(_key(self._first), None):
            offset = int.from_bytes(key[:8], "big") + 1
            end = end or offset
            if len(key) != 8:
                total = int.from_bytes(value, "big")
                return end, total + since, offset, total
            since += len(value) + RECORD_OVERHEAD
        return end or self._first, self._bytes_before + since, self._first, self._bytes_before

    def _look_for_mark(self, before: int) -> None:
        """Find the last mark below ``before``. Marks of this process are in memory; others are searched among the keys.
        No key is searched twice."""
        if before == self._next:
            self._cut, self._cut_bytes = before, self._bytes
        elif before > self._looked and self._looked < self._begin:
            for key in self._database.keys_backwards(_key(self._looked), _key(min(before, self._begin))):
                if len(key) != 8:
                    self._cut = int.from_bytes(key[:8], "big") + 1
                    self._cut_bytes = int.from_bytes(self._database.get(key) or b"", "big")
                    break
        self._looked = max(self._looked, before)
        while self._marks and self._marks[0][0] <= before:
            mark = self._marks.popleft()
            if mark[0] > self._cut:
                self._cut, self._cut_bytes = mark

    def _give_back(self) -> None:
        if self._freed < COMPACT_BYTES or (self._compacting is not None and self._compacting.is_alive()):
            return
        self._freed = 0
        self._compacting = threading.Thread(target=self._compact_quietly, name="journal-compaction", daemon=True)
        self._compacting.start()

    def _compact_quietly(self) -> None:
        with suppress(OSError):  # the next trim tries again; writers learn of a failing disk
            self.compact()


def _key(offset: int) -> bytes:
    return offset.to_bytes(8, "big")


def _mark_key(offset: int) -> bytes:
    return offset.to_bytes(8, "big") + b"\0"
