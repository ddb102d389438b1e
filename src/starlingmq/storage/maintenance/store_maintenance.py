"""What can be asked of a store while a broker serves from it: figures, a check, compaction, a backup.

Each is a coroutine on the broker's event loop that leaves to a thread what takes long. ``storage.maintenance.offline``
offers the same for a directory that no broker serves.
"""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from starlingmq.core.broker import BrokerState
from starlingmq.core.session.session import Session
from starlingmq.storage.data_dir import DataDir
from starlingmq.storage.directory_store import DirectoryStore
from starlingmq.storage.journal import Journal
from starlingmq.storage.keys import META_CHECKPOINT
from starlingmq.storage.kv import Kv
from starlingmq.storage.maintenance.data_dir_backup import backup as copy_all
from starlingmq.storage.maintenance.storage_check import Report, check
from starlingmq.storage.rocks.rocks_engines import RocksJournal, RocksKv
from starlingmq.storage.segment.segment_journal import SegmentInfo, SegmentJournal

SESSIONS_A_TURN: Final = 100
LONG_ACTIONS: Final = frozenset(["storage.check", "storage.compact", "backup"])
"""Those that read or write everything: one at a time."""

Result = dict[str, Any]
Action = Callable[[Report, dict[str, str]], Awaitable[Result]]
"""Something that can be asked for by name, with arguments."""


class MaintenanceError(Exception):
    """What was asked for can not be done; one line that says why."""


class StoreMaintenance:
    """Of one store and the broker that it stores."""

    def __init__(self, store: DirectoryStore, state: BrokerState, serving: bool = True) -> None:
        self.store = store
        self.state = state
        self.serving = serving

    def actions(self) -> dict[str, Action]:
        """By the names that the commands use."""
        return {
            "storage.check": lambda report, _: self.check(report),
            "storage.stats": lambda report, _: self.stats(),
            "storage.compact": lambda report, _: self.compact(report),
            "backup": lambda report, arguments: self.backup(report, target_of(arguments)),
        }

    async def stats(self) -> Result:
        """How much there is of everything. Sessions are counted some a turn, so that nobody is held up."""
        store, journal = self.store, self.store.journal
        counts = _Counts(journal)
        for _ in counts.count(list(self.state.ctx.sessions.values())):
            await asyncio.sleep(0)
        checkpoint = int.from_bytes(store.kv.get(META_CHECKPOINT) or b"\0", "big")
        unneeded = counts.unneeded()
        return {
            "state": str(store.health),
            "failures": store.health.failures,
            "serving": self.serving,
            "durability": store.durability if self.serving else None,
            "sessions": len(self.state.ctx.sessions),
            "subscriptions": counts.subscriptions,
            "retained": len(self.state.retained) - self._own_retained(),
            "queued": counts.queued,
            "inflight": counts.inflight,
            "journal": {
                "engine": store.data_dir.facts.get("journal"),
                "segments": len(journal.segments()),
                "bytes": journal.size,
                "first": journal.first,
                "next": journal.next,
                "unneeded_segments": len(unneeded),
                "unneeded_bytes": sum(unneeded),
            },
            "checkpoint": {
                "offset": checkpoint,
                "behind": journal.next - checkpoint,
                "age_seconds": store.checkpointer.age,
                "failure": store.checkpointer.failure,
            },
            "streams": [
                {"name": log.stream.name, "messages": log.journal.next - log.journal.first, "bytes": log.journal.size}
                for log in store.streams.by_number.values()
            ],
            **await asyncio.to_thread(disk_use, store.data_dir),
        }

    def _own_retained(self) -> int:
        """The retained messages that say how the broker is: nobody keeps them."""
        cursor = self.state.retained.cursor(b"$SYS/#")
        count = 0
        while not cursor.done:
            count += len(cursor.next(1000))
        return count

    async def check(self, report: Report) -> Result:
        """See ``storage.maintenance.storage_check``. The journal grows meanwhile, and nothing is given back."""
        await self.store.hold()
        try:
            streams = [log.journal for log in self.store.streams.by_number.values()]
            return await asyncio.to_thread(check_all, self.store.kv, self.store.journal, report, streams)
        finally:
            self.store.release()

    async def compact(self, report: Report) -> Result:
        """Write a checkpoint, give back what nobody needs of the journal, and what was deleted from the rest."""
        store = self.store
        before = await asyncio.to_thread(disk_use, store.data_dir)
        report("writing a checkpoint", 0, 3, "steps")
        if isinstance(store.journal, SegmentJournal):
            store.journal.roll()  # what is appended to now can not be given back
        await store.checkpoint()
        report("compacting the key-value store", 1, 3, "steps")
        if isinstance(store.kv, RocksKv):
            await asyncio.to_thread(store.kv.compact)
        report("compacting the journal", 2, 3, "steps")
        if isinstance(store.journal, RocksJournal):
            await asyncio.to_thread(store.journal.compact)
        report("compacting the journal", 3, 3, "steps")
        after = await asyncio.to_thread(disk_use, store.data_dir)
        return {"before": before, "after": after, "freed": before["used"] - after["used"]}

    async def backup(self, report: Report, target: Path) -> Result:
        """See ``storage.maintenance.data_dir_backup``. Nothing is given back until everything that is wanted has a
        second name."""
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


def check_all(kv: Kv, journal: Journal, report: Report, streams: Sequence[Journal]) -> Result:
    found: Result = msgspec.to_builtins(check(kv, journal, report, streams))
    return found


def back_up(data: DataDir, kv: Kv, journal: Journal, target: Path, progress: Callable[[int, int], None]) -> Result:
    began = time.monotonic()
    size = copy_all(data, kv, journal, target, progress)
    return {"target": str(target), "bytes": size, "seconds": time.monotonic() - began}


def target_of(arguments: dict[str, str]) -> Path:
    target = Path(arguments.get("target", ""))
    if not target.is_absolute():
        raise MaintenanceError("a backup needs a target: the absolute path of a directory")
    return target


def disk_use(data: DataDir) -> dict[str, int]:
    """Bytes on disk, of all and of the key-value store, and what is free there."""
    disk = os.statvfs(data.path)
    return {
        "used": _bytes_below(data.path),
        "kv_bytes": _bytes_below(data.kv),
        "free": disk.f_bavail * disk.f_frsize,
    }


def _bytes_below(path: Path) -> int:
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_blocks * 512
            except FileNotFoundError:  # given back while we looked
                continue
    return total


class _Counts:
    """What sessions have, and which segments they need."""

    def __init__(self, journal: Journal) -> None:
        self.subscriptions = self.queued = self.inflight = 0
        self._segments = journal.segments()
        self._firsts = [segment.first for segment in self._segments]
        self._needed: set[int] = set()

    def count(self, sessions: list[Session]) -> Iterator[None]:
        """In pieces; some of the sessions may end meanwhile."""
        for number, session in enumerate(sessions):
            if session.subscriptions is not None:
                self.subscriptions += len(session.subscriptions)
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
            place = bisect_right(self._firsts, offset) - 1
            if offset >= 0 and place >= 0:
                self._needed.add(self._firsts[place])

    def unneeded(self) -> list[int]:
        """The sizes of the segments that the next checkpoint would give back."""
        idle = [segment for segment in self._segments if segment.first not in self._needed]
        return [segment.bytes for segment in idle if isinstance(segment, SegmentInfo) and not segment.grows]
