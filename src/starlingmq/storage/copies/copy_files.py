"""The files of a follower's copy: laid out as a data directory, so that it can be opened as one.

Besides what ``storage.data_dir`` describes there are

    COPY      whose copy it is, and how far it can be trusted (``copy_facts``)
    kv.next/  a key-value store that is being received; cleared away at the next opening
    kv.whole/ a key-value store that was received and replaces ``kv/``; the next opening completes that

The key-value store says itself which state it has (key ``META_COPY``), so a crash never leaves a store with a wrong
mark.
"""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

from starlingmq.storage.copies.copy_facts import CopyFacts, read_facts, write_facts
from starlingmq.storage.copies.copy_frames import Defined
from starlingmq.storage.data_dir import DataDir
from starlingmq.storage.journal import Journal
from starlingmq.storage.kv import Kv
from starlingmq.storage.maintenance.file_copy import sync_directory
from starlingmq.storage.rocks.rocks_engines import RocksJournal, RocksKv
from starlingmq.storage.segment.segment_journal import SegmentJournal
from starlingmq.storage.streams.stream_files import StreamDirectory
from starlingmq.storage.streams.stream_logs import StreamLog


class CopyJournal(Journal, Protocol):
    """A journal that can follow another one."""

    def go_on_at(self, offset: int) -> None:
        """Continue at this offset, which is above ``next``. The journal that this one is a copy of has given back what
        lies between."""
        ...

    def cut_to(self, offset: int) -> None:
        """Remove the records from this offset on, which is not above ``next``. The offset will be used again."""
        ...


class CopyFiles:
    """Open until ``close``. ``next_kv``: the store that is being received. Raises OSError, DataDirError."""

    def __init__(self, path: Path, owner: str, engine: str, segment_size: int) -> None:
        self.path = path
        self.owner = owner
        self._engine = engine
        self._segment_size = segment_size
        self.next_kv: Kv | None = None
        self._engines = ExitStack()
        self._data_dir = DataDir(path, {"journal": engine})
        try:
            self._open()
            facts = read_facts(path)
            self.facts = CopyFacts(owner=owner)
            if facts is not None and facts.owner == owner and not self._is_damaged():
                self.facts = facts
        except BaseException:
            with suppress(OSError):
                self.close()
            raise

    def _open(self) -> None:
        shutil.rmtree(self.path / "kv.next", ignore_errors=True)
        if (self.path / "kv.whole").exists():
            self._replace_kv()
        with ExitStack() as opened:
            self._rocks = RocksKv(self._data_dir.kv)
            self.kv: Kv = self._rocks
            opened.callback(lambda: self.kv.close())  # which may be another one by then
            self.journal: CopyJournal
            if self._engine == "rocksdb":
                self.journal = RocksJournal(self._data_dir.journal)
            else:
                self.journal = SegmentJournal(str(self._data_dir.journal), segment_bytes=self._segment_size)
            opened.callback(self.journal.close)
            self._directory = StreamDirectory(self._data_dir.streams, self._segment_size)
            self.streams: dict[int, StreamLog] = {}
            opened.callback(self._close_streams)
            for found in self._directory.find():
                self.streams[found.number] = self._directory.open(found)
            self._engines = opened.pop_all()

    def _is_damaged(self) -> bool:
        """Whether records are missing that were there. An append that was not completed is no damage."""
        journals = [self.journal, *(log.journal for log in self.streams.values())]
        segments = [journal for journal in journals if isinstance(journal, SegmentJournal)]
        lost = any(damage.lost > 0 for journal in segments for damage in journal.damage)
        return lost or bool(self._rocks.damage) or bool(isinstance(self.journal, RocksJournal) and self.journal.damage)

    def write_facts(self, facts: CopyFacts) -> None:
        write_facts(self.path, facts)
        self.facts = facts

    # The key-value store

    def begin_kv(self) -> None:
        """Begin to receive a store, in place of one that was not completed."""
        self.drop_kv()
        path = self.path / "kv.next"
        shutil.rmtree(path, ignore_errors=True)
        self.next_kv = RocksKv(path)

    def drop_kv(self) -> None:
        """Forget the store that was being received."""
        kv, self.next_kv = self.next_kv, None
        if kv is not None:
            kv.close()

    def end_kv(self) -> None:
        """The store that was received replaces the present one."""
        assert self.next_kv is not None
        self.next_kv.sync()
        self.drop_kv()
        self.kv.close()
        os.rename(self.path / "kv.next", self.path / "kv.whole")
        sync_directory(self.path)
        self._replace_kv()
        self.kv = self._rocks = RocksKv(self._data_dir.kv)

    def _replace_kv(self) -> None:
        if self._data_dir.kv.exists():
            shutil.rmtree(self._data_dir.kv)
        os.rename(self.path / "kv.whole", self._data_dir.kv)
        sync_directory(self.path)

    # Streams

    def define(self, wanted: Defined) -> None:
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

    def write_consumers(self, number: int, content: bytes) -> None:
        log = self.streams.get(number)
        if log is not None and log.consumers.path is not None:
            new = log.consumers.path.with_suffix(".new")
            new.write_bytes(content)
            os.replace(new, log.consumers.path)

    # The end

    def clear(self) -> None:
        """Delete everything but the facts."""
        self._close_engines()
        for path in (self._data_dir.kv, self._data_dir.journal, self._data_dir.streams):
            shutil.rmtree(path, ignore_errors=True)
        self._directory.write_ends({})
        self._open()

    def close(self) -> None:
        """Everything is closed then, also if a part of it cannot be written: on a full disk RocksDB says so. May be
        called again. Raises OSError."""
        try:
            self._close_engines()
        finally:
            self._data_dir.close()

    def _close_engines(self) -> None:
        with self._engines:
            self._engines.callback(self.drop_kv)

    def _close_streams(self) -> None:
        with ExitStack() as closing:
            for log in self.streams.values():
                closing.callback(log.close)
            self.streams.clear()
