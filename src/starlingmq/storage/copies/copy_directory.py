"""A follower's copy of another node's data directory: laid out as a data directory, so that it can be opened as one.

Besides what ``storage.data_dir`` describes there are

    COPY      JSON ``CopyFacts``: whose it is, and which life of the owner it was copied from last
    kv.next/  a key-value store that is being received; cleared away when the copy is opened

The key-value store says itself which state it has (key ``META_COPY``), so a crash never leaves a store with a wrong
mark. A store without the mark is received again.

Methods block for as long as a write into the page cache takes; ``sync``, and ``apply`` of what ``is_slow``, may wait
for the disk and may be called from another thread. Raises OSError when the disk fails; CopyFrameError for bytes that do
not continue what is there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

from starlingmq.storage.copies.copy_frames import (
    APPEND,
    CONSUMERS,
    DEFINE,
    KEEP,
    KV,
    KV_BEGIN,
    KV_END,
    STREAM,
    CopyFrameError,
    Kept,
    Position,
    appended,
    changed,
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
from starlingmq.storage.streams.stream_logs import Definition

T = TypeVar("T")

SLOW: Final = frozenset((KEEP, KV_BEGIN, KV_END, DEFINE))


class CopyJournal(Journal, Protocol):
    """A journal that can follow another one."""

    def go_on_at(self, offset: int) -> None: ...
    def cut_to(self, offset: int) -> None: ...


class CopyFacts(msgspec.Struct, frozen=True):
    owner: str
    generation: int
    incarnation: int


class CopyDirectory:
    """``owner``: the node that it is a copy of; ``engine`` of the owner's journal; ``segment_size`` in bytes."""

    def __init__(self, path: Path, owner: str, engine: str, segment_size: int) -> None:
        self.path = path
        self._data_dir = DataDir(path, {"journal": engine})
        self._segment_size = segment_size
        self._next_kv: RocksKv | None = None
        try:
            shutil.rmtree(path / "kv.next", ignore_errors=True)
            self.facts = self._read_facts(owner)
            self.kv = RocksKv(self._data_dir.kv)
            at_least = int.from_bytes(self.kv.get(META_AS_OF) or b"\0", "big")
            self.journal: CopyJournal = _open_journal(engine, self._data_dir.journal, segment_size)
            self._is_whole = self.journal.next >= at_least  # what the checkpoint rests on is there
            self._directory = StreamDirectory(self._data_dir.streams, segment_size)
            self.streams = {found.number: self._directory.open(found) for found in self._directory.find()}
        except BaseException:
            self._data_dir.close()
            raise

    @property
    def position(self) -> Position:
        mark = self.kv.get(META_COPY) if self._is_whole else None
        incarnation, count = msgspec.msgpack.decode(mark, type=tuple[int, int]) if mark else (0, 0)
        streams = {number: log.journal.next for number, log in self.streams.items()}
        facts = self.facts
        return Position(facts.generation, facts.incarnation, self.journal.next, (incarnation, count), streams)

    def begin(self, generation: int, incarnation: int, journal_end: int, stream_ends: Mapping[int, int]) -> None:
        """A life of the owner begins to send. ``journal_end``, ``stream_ends``: where its journal and its streams ended
        when that life began. What an earlier life had sent beyond is not the owner's any more, and is cut off."""
        facts = CopyFacts(self.facts.owner, generation, incarnation)
        if facts == self.facts:
            return
        if self.journal.next > journal_end:
            self.journal.cut_to(journal_end)
        for number, log in self.streams.items():
            end = stream_ends.get(number, 0)
            if log.journal.next > end:
                log.journal.cut_to(end)
        self._write_facts(facts)

    def is_slow(self, group: memoryview) -> bool:
        """Whether ``apply`` may wait for the disk."""
        return any(kind in SLOW for kind, _ in operations(group))

    def apply(self, group: memoryview) -> None:
        """Store what a group says."""
        for kind, payload in operations(group):
            if kind == APPEND:
                offset, records = appended(payload)
                self._append(offset, records)
            elif kind == STREAM:
                number, offset, records = streamed(payload)
                self._append_stream(number, offset, records)
            elif kind == KV:
                batch = Batch()
                batch.changes.update(changed(payload))
                (self._next_kv or self.kv).write(batch)
            elif kind == KEEP:
                self._keep(_decode(payload, Kept))
            elif kind == DEFINE:
                self._define(_decode(payload, list[Definition]))
            elif kind == CONSUMERS:
                number, content = _decode(payload, tuple[int, bytes])
                self._write_consumers(number, content)
            elif kind == KV_BEGIN:
                self._begin_kv()
            elif kind == KV_END:
                self._end_kv()
            else:
                raise CopyFrameError(f"operation of unknown kind {kind}")

    def sync(self) -> None:
        """Make everything that was applied survive a power failure."""
        self.journal.sync()
        for log in self.streams.values():
            log.journal.sync()

    def close(self) -> None:
        """Let go of everything; the directory may be opened as a data directory then. May be called again."""
        if self._next_kv is not None:
            self._next_kv.close()
            self._next_kv = None
        for log in self.streams.values():
            log.close()
        self.streams.clear()
        self.journal.close()
        self.kv.close()
        self._data_dir.close()

    # Operations

    def _append(self, offset: int, records: list[bytes]) -> None:
        journal = self.journal
        if offset < journal.next:
            raise CopyFrameError(f"record {offset} of the journal is here already, up to {journal.next - 1}")
        if offset > journal.next:
            journal.go_on_at(offset)
        journal.append(records)

    def _append_stream(self, number: int, offset: int, records: list[bytes]) -> None:
        log = self.streams.get(number)
        if log is None:
            raise CopyFrameError(f"records of a stream with number {number}, which was not defined")
        if offset < log.journal.next:
            raise CopyFrameError(f"record {offset} of stream {log.stream.name} is here already")
        journal = log.journal
        assert isinstance(journal, SegmentJournal)
        if offset > journal.next:
            journal.go_on_at(offset)
        journal.append(records)

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

    def _define(self, wanted: list[Definition]) -> None:
        """The streams are those of the list, and no others."""
        by_number = {definition.number: definition for definition in wanted}
        for number, log in list(self.streams.items()):
            if number not in by_number:
                log.close()
                del self.streams[number]
                self._directory.delete(log.definition.name)
        for number, definition in by_number.items():
            there = self.streams.get(number)
            if there is not None and there.definition == definition:
                continue
            self._directory.write(definition)
            if there is None:
                self.streams[number] = self._directory.open(definition)
            else:
                there.define(definition)

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
        """Replace the store. A crash in between leaves none, or a whole one: either is marked as what it is."""
        if self._next_kv is None:
            raise CopyFrameError("the end of a key-value store that was not begun")
        self._next_kv.sync()
        self._next_kv.close()
        self._next_kv = None
        self.kv.close()
        shutil.rmtree(self._data_dir.kv)
        os.rename(self.path / "kv.next", self._data_dir.kv)
        sync_directory(self.path)
        self.kv = RocksKv(self._data_dir.kv)
        self._is_whole = True

    # COPY

    def _read_facts(self, owner: str) -> CopyFacts:
        try:
            found = msgspec.json.decode((self.path / "COPY").read_bytes(), type=CopyFacts)
        except (FileNotFoundError, msgspec.MsgspecError):
            return CopyFacts(owner, 0, 0)
        return found

    def _write_facts(self, facts: CopyFacts) -> None:
        new = self.path / "COPY.new"
        with open(new, "wb") as file:
            file.write(msgspec.json.encode(facts) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.path / "COPY")
        sync_directory(self.path)
        self.facts = facts


def _open_journal(engine: str, path: Path, segment_size: int) -> CopyJournal:
    if engine == "rocksdb":
        return RocksJournal(path)
    return SegmentJournal(str(path), segment_bytes=segment_size)


def _decode(payload: memoryview, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except msgspec.MsgspecError as error:
        raise CopyFrameError(str(error)) from None
