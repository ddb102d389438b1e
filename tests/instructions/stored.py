"""Cells whose messages or events are stored."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from tests.instructions.cell import Cell, Paced
from tests.storage.memory_engine import MemoryKv

from starlingmq.storage.durable_store import DurableStore
from starlingmq.storage.segment.segment_journal import SegmentJournal
from starlingmq.storage.store import Store
from starlingmq.storage.streams.stream_definition import Definition
from starlingmq.storage.streams.stream_logs import StreamLog, StreamLogs


class Stored(Cell):
    """With a journal in files, as ``process``."""

    def _make_store(self) -> Store:
        self.directory = tempfile.TemporaryDirectory(prefix="cell-")
        place = Path(self.directory.name)
        journal = SegmentJournal(str(place / "journal"))
        streams = self._make_streams(place)
        self.store = DurableStore(MemoryKv(), journal, "process", lambda: self.state.ctx.now, streams=streams)
        return self.store

    def _make_streams(self, place: Path) -> StreamLogs:
        return StreamLogs()

    def _serve(self) -> None:
        asyncio.events._set_running_loop(cast(Any, self.loop))
        try:
            super()._serve()
        finally:
            asyncio.events._set_running_loop(None)

    def run(self, toggle: Callable[[], None]) -> None:
        before = self._stored()
        asyncio.events._set_running_loop(cast(Any, self.loop))
        try:
            super().run(toggle)
            assert self._stored() >= before + self.counted, "a turn has stored nothing"
        finally:
            asyncio.events._set_running_loop(None)
            self.store.streams.close()
            self.store.journal.close()
            self.store.thread.close()
            self.directory.cleanup()

    def _stored(self) -> int:
        return self.store.journal.next


class StoredPaced(Paced, Stored):
    """As ``Stored``, but each read has a turn of its own."""


class Audited(Stored):
    """The events of all messages are kept in a stream, whose log is in files, too."""

    def _make_streams(self, place: Path) -> StreamLogs:
        definition = Definition(name="events", number=1, topics=("$events/#",))
        log = StreamLog(definition, SegmentJournal(str(place / "stream")))
        streams = super()._make_streams(place)
        streams.add(log)
        self.state.router.add_stream(log.stream)
        self.state.audit.node = "n1"
        return streams

    def _stored(self) -> int:
        return self.store.streams.by_number[1].journal.next


class AuditedPaced(Paced, Audited):
    """As ``Audited``, but each read has a turn of its own."""
