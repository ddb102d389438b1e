"""A follower's copy of another node's data directory: laid out as a data directory, so that it can be opened as one.

Besides what ``storage.data_dir`` describes there are

    COPY      whose copy it is, and how far it can be trusted (``copy_facts``)
    kv.next/  a key-value store that is being received; cleared away at the next opening
    kv.whole/ a key-value store that was received and replaces ``kv/``; the next opening completes that

The key-value store says itself which state it has (key ``META_COPY``), so a crash never leaves a store with a wrong
mark. A copy with damage, or without the mark, is received again.

Methods block for as long as a write into the page cache takes; ``sync``, and ``apply`` of what ``is_slow``, may wait
for the disk and may be called from another thread. Raises OSError when the disk fails; CopyFrameError for bytes that do
not continue what is there.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final, Protocol

import msgspec

from starlingmq.storage.copies.copy_facts import CopyFacts, Fenced, NotWhole, ends_after, read_facts, write_facts
from starlingmq.storage.copies.copy_frames import (
    APPEND,
    BOUNDARY,
    CONSUMERS,
    DEFINE,
    KEEP,
    KV,
    KV_BEGIN,
    KV_END,
    STREAM,
    CopyFrameError,
    Defined,
    Hello,
    Kept,
    Position,
    appended,
    changed,
    decode,
    operations,
    streamed,
)
from starlingmq.storage.data_dir import DataDir
from starlingmq.storage.journal import Journal
from starlingmq.storage.keys import META_AS_OF, META_COPY
from starlingmq.storage.kv import Batch
from starlingmq.storage.maintenance.file_copy import sync_directory
from starlingmq.storage.rocks.rocks_engines import RocksJournal, RocksKv
from starlingmq.storage.segment.segment_journal import SegmentJournal
from starlingmq.storage.streams.stream_files import StreamDirectory
from starlingmq.storage.streams.stream_logs import StreamLog

SLOW: Final = frozenset((KEEP, KV_BEGIN, KV_END, DEFINE, BOUNDARY))
NO_KV: Final = (0, 0)


class CopyJournal(Journal, Protocol):
    """A journal that can follow another one."""

    def go_on_at(self, offset: int) -> None: ...
    def cut_to(self, offset: int) -> None: ...


class CopyDirectory:
    """``owner``: the node that it is a copy of; ``engine`` of the owner's journal; ``segment_size`` in bytes. With
    ``careful`` (durability ``power``), the key-value store is never ahead of the journal after a power failure."""

    def __init__(self, path: Path, owner: str, engine: str, segment_size: int, careful: bool = False) -> None:
        self.path = path
        self.facts = CopyFacts(owner=owner)
        self._engine = engine
        self._segment_size = segment_size
        self._careful = careful
        self._next_kv: RocksKv | None = None
        self._data_dir = DataDir(path, {"journal": engine})
        try:
            found = read_facts(path)
            self._open()
            if found is not None and found.owner == owner and not self._is_damaged():
                self.facts = found
        except BaseException:
            self._data_dir.close()
            raise

    def _open(self) -> None:
        shutil.rmtree(self.path / "kv.next", ignore_errors=True)
        if (self.path / "kv.whole").exists():
            self._replace_kv()
        self.kv = RocksKv(self._data_dir.kv)
        self.journal: CopyJournal
        if self._engine == "rocksdb":
            self.journal = RocksJournal(self._data_dir.journal)
        else:
            self.journal = SegmentJournal(str(self._data_dir.journal), segment_bytes=self._segment_size)
        self._directory = StreamDirectory(self._data_dir.streams, self._segment_size)
        self.streams = {found.number: self._directory.open(found) for found in self._directory.find()}

    def _is_damaged(self) -> bool:
        journals = [self.journal, *(log.journal for log in self.streams.values())]
        return bool(self.kv.damage) or any(getattr(journal, "damage", None) for journal in journals)

    @property
    def position(self) -> Position:
        mark = self.kv.get(META_COPY) if self.is_whole else None
        kv = msgspec.msgpack.decode(mark, type=tuple[int, int]) if mark else NO_KV
        streams = {number: log.journal.next for number, log in self.streams.items()}
        return Position(self.facts.generation, self.journal.next, kv, streams)

    @property
    def is_whole(self) -> bool:
        """Whether it can be opened with all that its owner had when it was written."""
        boundary = self.facts.boundary
        end = self.journal.next if boundary is None else min(boundary, self.journal.next)
        at_least = int.from_bytes(self.kv.get(META_AS_OF) or b"\0", "big")
        return self.facts.whole and end >= at_least  # what the checkpoint rests on is there

    def begin(self, hello: Hello) -> None:
        """A life of the owner begins to bring this copy up to date. What the owner does not have is cut off. Raises
        Fenced."""
        facts = self.facts
        if hello.generation < max(facts.fenced, facts.generation):
            raise Fenced(f"{hello.owner}: generation {hello.generation} is over")
        ends = ends_after(hello.lives, facts.generation)
        if ends is None:
            self._clear()
            facts = self.facts
        else:
            self._cut(ends.journal_end, ends.stream_ends)
        whole = facts.whole and self.is_whole
        end = self.journal.next
        boundary = end if facts.boundary is None else min(facts.boundary, end)
        self._write_facts(
            msgspec.structs.replace(
                facts, generation=hello.generation, lives=hello.lives, whole=whole, boundary=boundary
            )
        )

    def fence(self, generation: int) -> None:
        """From now on, durably, nothing of an earlier generation is stored."""
        if generation > self.facts.fenced:
            self._write_facts(msgspec.structs.replace(self.facts, fenced=generation))

    def prepare(self) -> None:
        """Make it ready to be opened as a data directory, as it is after ``close``. Raises NotWhole."""
        if not self.is_whole:
            raise NotWhole(f"the copy of {self.facts.owner} is not whole")
        boundary = self.facts.boundary
        if boundary is not None:
            self._cut(boundary, {})
            self._write_facts(msgspec.structs.replace(self.facts, boundary=None))

    def is_slow(self, group: memoryview) -> bool:
        """Whether ``apply`` may wait for the disk."""
        return any(kind in SLOW or (self._careful and kind == KV) for kind, _ in operations(group))

    def apply(self, group: memoryview, live: bool = True) -> None:
        """Store what a group says. ``live``: it brings what has happened in one turn, and the copy is up to date
        afterwards."""
        for kind, payload in operations(group):
            if kind == APPEND:
                offset, records = appended(payload)
                self._append(offset, records, live)
            elif kind == STREAM:
                number, offset, records = streamed(payload)
                self._append_stream(number, offset, records)
            elif kind == KV:
                self._write(changed(payload))
            elif kind == KEEP:
                self._keep(decode(payload, Kept))
            elif kind == DEFINE:
                self._define(decode(payload, Defined))
            elif kind == CONSUMERS:
                number, content = decode(payload, tuple[int, bytes])
                self._write_consumers(number, content)
            elif kind == KV_BEGIN:
                self._begin_kv()
            elif kind == KV_END:
                self._end_kv()
            elif kind == BOUNDARY:
                self._write_facts(msgspec.structs.replace(self.facts, boundary=self.journal.next))
            else:
                raise CopyFrameError(f"operation of unknown kind {kind}")

    def caught_up(self) -> None:
        """From here on, each record comes with the whole turn that it belongs to."""
        if self.facts.boundary is not None:
            self._write_facts(msgspec.structs.replace(self.facts, boundary=None))

    def sync(self) -> None:
        """Make everything that was applied survive a power failure. Changes of the key-value store may be lost; what
        they rest on is not deleted before they are synced."""
        self.journal.sync()
        for log in list(self.streams.values()):
            log.journal.sync()

    def close(self) -> None:
        """Let go of everything; the directory may be opened as a data directory then. May be called again."""
        if self._next_kv is not None:
            self._next_kv.close()
            self._next_kv = None
        self._close_engines()
        self._data_dir.close()

    def _close_engines(self) -> None:
        for log in self.streams.values():
            log.close()
        self.streams.clear()
        self.journal.close()
        self.kv.close()

    # Operations

    def _append(self, offset: int, records: list[bytes], live: bool) -> None:
        journal = self.journal
        if offset < journal.next:
            raise CopyFrameError(f"record {offset} of the journal is here already, up to {journal.next - 1}")
        if offset > journal.next:
            if live:
                raise CopyFrameError(f"records {journal.next} to {offset - 1} of the journal are missing")
            if self.facts.whole:  # the checkpoint that is here may need what the owner has given back
                self._write_facts(msgspec.structs.replace(self.facts, whole=False))
            journal.go_on_at(offset)
        journal.append(records)

    def _append_stream(self, number: int, offset: int, records: list[bytes]) -> None:
        log = self.streams.get(number)
        if log is None:
            raise CopyFrameError(f"records of a stream with number {number}, which was not defined")
        journal = log.journal
        assert isinstance(journal, SegmentJournal)
        if offset < journal.next:
            raise CopyFrameError(f"record {offset} of stream {log.stream.name} is here already")
        if offset > journal.next:
            journal.go_on_at(offset)
        journal.append(records)

    def _write(self, changes: dict[bytes, bytes | None]) -> None:
        batch = Batch()
        batch.changes.update(changes)
        if self._next_kv is not None:
            self._next_kv.write(batch)
            return
        if self._careful:
            self.sync()
        self.kv.write(batch)

    def _keep(self, kept: Kept) -> None:
        """The checkpoint that allowed the owner to delete the rest is durable here before the rest is deleted."""
        self.kv.sync()
        journal = self.journal
        ranges = kept.journal
        journal.trim(ranges[0][0] if ranges else journal.next)
        for segment in journal.segments()[:-1]:
            if not any(first < segment.next and segment.first < next for first, next in ranges):
                journal.drop(segment.first)
        for number, first in kept.streams.items():
            if (log := self.streams.get(number)) is not None:
                log.give_up(first)

    def _define(self, wanted: Defined) -> None:
        """The streams are those of the list, and no others."""
        by_number = {definition.number: definition for definition in wanted.streams}
        for number, log in list(self.streams.items()):
            if number not in by_number:
                del self.streams[number]
                self._delete_stream(log)
        for number, definition in by_number.items():
            there = self.streams.get(number)
            if there is not None and there.definition == definition:
                continue
            self._directory.write(definition)
            if there is None:
                self.streams[number] = self._directory.open(definition)
            else:
                there.define(definition)
        if wanted.ends != self._directory.ends():
            self._directory.write_ends(wanted.ends)

    def _delete_stream(self, log: StreamLog) -> None:
        end = log.journal.next
        log.close()
        self._directory.delete(log.definition.name, end)

    def _write_consumers(self, number: int, content: bytes) -> None:
        log = self.streams.get(number)
        if log is not None and log.consumers.path is not None:
            new = log.consumers.path.with_suffix(".new")
            new.write_bytes(content)
            os.replace(new, log.consumers.path)

    def _begin_kv(self) -> None:
        if self._next_kv is not None:
            self._next_kv.close()
        path = self.path / "kv.next"
        shutil.rmtree(path, ignore_errors=True)
        self._next_kv = RocksKv(path)

    def _end_kv(self) -> None:
        """Replace the store. It rests on the journal up to the last boundary, which is synced before."""
        if self._next_kv is None:
            raise CopyFrameError("the end of a key-value store that was not begun")
        self._next_kv.sync()
        self._next_kv.close()
        self._next_kv = None
        self.sync()
        self.kv.close()
        os.rename(self.path / "kv.next", self.path / "kv.whole")
        sync_directory(self.path)
        self._replace_kv()
        self.kv = RocksKv(self._data_dir.kv)
        self._write_facts(msgspec.structs.replace(self.facts, whole=True))

    def _replace_kv(self) -> None:
        if self._data_dir.kv.exists():
            shutil.rmtree(self._data_dir.kv)
        os.rename(self.path / "kv.whole", self._data_dir.kv)
        sync_directory(self.path)

    # Cutting

    def _cut(self, journal_end: int, stream_ends: dict[int, int]) -> None:
        if self.journal.next > journal_end:
            self.journal.cut_to(journal_end)
            self.journal.sync()
        for number, log in self.streams.items():
            end = stream_ends.get(number, log.journal.next)
            if log.journal.next > end:
                log.cut_to(end)
                log.journal.sync()

    def _clear(self) -> None:
        """Begin with nothing."""
        self._write_facts(CopyFacts(owner=self.facts.owner, fenced=self.facts.fenced))
        self._close_engines()
        for path in (self._data_dir.kv, self._data_dir.journal, self._data_dir.streams):
            shutil.rmtree(path, ignore_errors=True)
        self._directory.write_ends({})
        sync_directory(self.path)
        self._open()

    def _write_facts(self, facts: CopyFacts) -> None:
        write_facts(self.path, facts)
        self.facts = facts
