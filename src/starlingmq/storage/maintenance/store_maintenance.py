"""Maintenance of a store while the broker serves from it: statistics, a check, compaction, a backup.

Each operation is a coroutine on the broker's event loop that runs slow work in a thread.
``storage.maintenance.offline`` offers the same operations for a directory that no broker has open.
"""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, to_builtins

from starlingmq.core.broker import BrokerState
from starlingmq.core.reports.session_totals import of_clients
from starlingmq.core.reports.sys_topics import count_own_retained
from starlingmq.core.session.session import Session
from starlingmq.storage.data_dir import DataDir
from starlingmq.storage.directory_store import DirectoryStore
from starlingmq.storage.journal import Journal
from starlingmq.storage.keys import META_CHECKPOINT
from starlingmq.storage.kv import Kv
from starlingmq.storage.maintenance.data_dir_backup import backup as copy_all
from starlingmq.storage.maintenance.storage_check import Found, Report, check
from starlingmq.storage.rocks.rocks_engines import RocksJournal, RocksKv
from starlingmq.storage.segment.segment_journal import SegmentInfo, SegmentJournal

SESSIONS_A_TURN: Final = 100
LONG_ACTIONS: Final = frozenset(["storage.check", "storage.compact", "backup"])
"""Actions that read or write everything; only one of them runs at a time."""

Result = dict[str, Any]
Action = Callable[[Report, dict[str, str]], Awaitable[Result]]
"""An operation that is requested by name, with arguments."""


class MaintenanceError(Exception):
    """The operation is impossible; one line says why."""


class DiskUse(Struct, frozen=True):
    """Bytes on disk of the whole directory and of the key-value store, and bytes that are free there."""

    used: int
    kv_bytes: int
    free: int


class JournalStats(Struct, frozen=True):
    engine: str | None
    segments: int
    bytes: int
    first: int
    next: int
    unneeded_segments: int
    unneeded_bytes: int


class CheckpointStats(Struct, frozen=True):
    """``behind``: journal records after the checkpoint, which a start replays."""

    offset: int
    behind: int
    age_seconds: float | None
    failure: str


class StreamStats(Struct, frozen=True):
    name: str
    messages: int
    bytes: int


class StorageStats(Struct, frozen=True):
    """``durability`` is None where no broker serves."""

    state: str
    failures: int
    serving: bool
    durability: str | None
    sessions: int
    subscriptions: int
    retained: int
    queued: int
    inflight: int
    journal: JournalStats
    checkpoint: CheckpointStats
    streams: list[StreamStats]
    used: int
    kv_bytes: int
    free: int


class Compacted(Struct, frozen=True):
    before: DiskUse
    after: DiskUse
    freed: int


class BackedUp(Struct, frozen=True):
    target: str
    bytes: int
    seconds: float


class StoreMaintenance:
    """The operations on one store, and on the broker whose state it stores. One of ``LONG_ACTIONS`` at a time."""

    def __init__(self, store: DirectoryStore, state: BrokerState, serving: bool = True) -> None:
        self.store = store
        self.state = state
        self.serving = serving
        self._running = ""

    @contextmanager
    def _alone(self, action: str) -> Iterator[None]:
        if self._running:
            raise MaintenanceError(f"{self._running} is running on this data directory; wait until it is done")
        self._running = action
        try:
            yield
        finally:
            self._running = ""

    def actions(self) -> dict[str, Action]:
        """By the names that the commands use."""

        async def check(report: Report, _: dict[str, str]) -> Result:
            with self._alone("storage.check"):
                return plain_data(await self.check(report))

        async def stats(report: Report, _: dict[str, str]) -> Result:
            return plain_data(await self.stats())

        async def compact(report: Report, _: dict[str, str]) -> Result:
            with self._alone("storage.compact"):
                return plain_data(await self.compact(report))

        async def backup(report: Report, arguments: dict[str, str]) -> Result:
            with self._alone("backup"):
                return plain_data(await self.backup(report, target_of(arguments)))

        return {"storage.check": check, "storage.stats": stats, "storage.compact": compact, "backup": backup}

    async def stats(self) -> StorageStats:
        """Count everything that is stored. Sessions are counted some per turn, so that other work is not held up."""
        store, journal = self.store, self.store.journal
        counts = _Counts(journal)
        for _ in counts.count(list(self.state.ctx.sessions.values())):
            await asyncio.sleep(0)
        checkpoint = int.from_bytes(store.kv.get(META_CHECKPOINT) or b"\0", "big")
        unneeded = counts.unneeded()
        disk = await asyncio.to_thread(disk_use, store.data_dir)
        return StorageStats(
            state=str(store.health),
            failures=store.health.failures,
            serving=self.serving,
            durability=store.durability if self.serving else None,
            sessions=counts.sessions,
            subscriptions=counts.subscriptions,
            retained=len(self.state.retained) - count_own_retained(self.state.retained),
            queued=counts.queued,
            inflight=counts.inflight,
            journal=JournalStats(
                engine=store.data_dir.facts.get("journal"),
                segments=len(journal.segments()),
                bytes=journal.size,
                first=journal.first,
                next=journal.next,
                unneeded_segments=len(unneeded),
                unneeded_bytes=sum(unneeded),
            ),
            checkpoint=CheckpointStats(
                offset=checkpoint,
                behind=journal.next - checkpoint,
                age_seconds=store.checkpointer.age,
                failure=store.checkpointer.failure,
            ),
            streams=[
                StreamStats(log.stream.name, log.journal.next - log.journal.first, log.journal.size)
                for log in store.streams.by_number.values()
            ],
            used=disk.used,
            kv_bytes=disk.kv_bytes,
            free=disk.free,
        )

    async def check(self, report: Report) -> Found:
        """See ``storage.maintenance.storage_check``. Meanwhile the journal may grow, and no segment is freed."""
        await self.store.hold()
        try:
            streams = [log.journal for log in self.store.streams.by_number.values()]
            return await asyncio.to_thread(check, self.store.kv, self.store.journal, report, streams)
        finally:
            self.store.release()

    async def compact(self, report: Report) -> Compacted:
        """Write a checkpoint, free the journal segments that are no longer needed, and the space of deleted values."""
        store = self.store
        before = await asyncio.to_thread(disk_use, store.data_dir)
        report("writing a checkpoint", 0, 3, "steps")
        if isinstance(store.journal, SegmentJournal):
            store.journal.roll()  # the segment that is being appended to cannot be freed
        await store.checkpoint()
        report("compacting the key-value store", 1, 3, "steps")
        if isinstance(store.kv, RocksKv):
            await asyncio.to_thread(store.kv.compact)
        report("compacting the journal", 2, 3, "steps")
        if isinstance(store.journal, RocksJournal):
            await asyncio.to_thread(store.journal.compact)
        report("compacting the journal", 3, 3, "steps")
        after = await asyncio.to_thread(disk_use, store.data_dir)
        return Compacted(before, after, before.used - after.used)

    async def backup(self, report: Report, target: Path) -> BackedUp:
        """See ``storage.maintenance.data_dir_backup``. No file is freed until each file of the backup has a second
        link."""
        loop = asyncio.get_running_loop()
        held = True

        def let_go() -> None:
            nonlocal held
            if held:
                held = False
                self.store.release()

        def progress(done: int, total: int) -> None:
            loop.call_soon_threadsafe(let_go)
            report("copying", done, total, "bytes")

        await self.store.hold()
        try:
            store = self.store
            return await asyncio.to_thread(back_up, store.data_dir, store.kv, store.journal, target, progress)
        finally:
            let_go()


def plain_data(result: Struct) -> Result:
    found: Result = to_builtins(result)
    return found


def back_up(data: DataDir, kv: Kv, journal: Journal, target: Path, progress: Callable[[int, int], None]) -> BackedUp:
    began = time.monotonic()
    size = copy_all(data, kv, journal, target, progress)
    return BackedUp(str(target), size, time.monotonic() - began)


def target_of(arguments: dict[str, str]) -> Path:
    target = Path(arguments.get("target", ""))
    if not target.is_absolute():
        raise MaintenanceError("a backup needs a target: the absolute path of a directory")
    return target


def disk_use(data: DataDir) -> DiskUse:
    disk = os.statvfs(data.path)
    return DiskUse(_bytes_below(data.path), _bytes_below(data.kv), disk.f_bavail * disk.f_frsize)


def _bytes_below(path: Path) -> int:
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_blocks * 512
            except FileNotFoundError:  # freed meanwhile
                continue
    return total


class _Counts:
    """Counts of what sessions have, and the segments that they need."""

    def __init__(self, journal: Journal) -> None:
        self.sessions = self.subscriptions = self.queued = self.inflight = 0
        self._segments = journal.segments()
        self._firsts = [segment.first for segment in self._segments]
        self._needed: set[int] = set()

    def count(self, sessions: list[Session]) -> Iterator[None]:
        """In pieces; some of the sessions may end meanwhile."""
        for number, session in enumerate(sessions):
            self.sessions += of_clients(session)
            self.subscriptions += session.subscription_count()
            if session.inbound is not None:
                entries = session.inbound.entries.values()
                self._need([entry.message.offset for entry in entries if entry.message is not None])
            if session.window is not None:
                self.inflight += len(session.window.entries)
                self._need([outgoing.message.offset for outgoing in session.window.entries.values()])
            if session.moving is not None:
                self.queued += len(session.moving.held)
                self._need([held.outgoing.message.offset for held in session.moving.held])
            if session.queue is not None:
                self.queued += len(session.queue)
                session.queue.mark(self._firsts, self._needed)
            if number % SESSIONS_A_TURN == SESSIONS_A_TURN - 1:
                yield

    def _need(self, offsets: list[int]) -> None:
        for offset in offsets:
            index = bisect_right(self._firsts, offset) - 1
            if offset >= 0 and index >= 0:
                self._needed.add(self._firsts[index])

    def unneeded(self) -> list[int]:
        """The sizes of the segments that the next checkpoint would free."""
        idle = [segment for segment in self._segments if segment.first not in self._needed]
        return [segment.bytes for segment in idle if isinstance(segment, SegmentInfo) and not segment.grows]
