"""Appends the records of each turn to the journal, and syncs them with ``power``.

If the journal cannot be written (a full disk) or synced, the records wait in memory, in order. Waiting turns are told
at once (``NotYetStored``), the core accepts nothing new that has to be stored, and a retry every second ends this
without an operator. ``journal_faults`` has the states.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal

from starlingmq.core.broker import BrokerState
from starlingmq.core.observe.counters import Histogram
from starlingmq.storage.copies.copied import Copies
from starlingmq.storage.journal import Journal
from starlingmq.storage.journal_faults import NO_FAULT, JournalEvent, JournalFault, SyncState, after_event
from starlingmq.storage.segment.segment_sync import RecordsLost
from starlingmq.storage.storage_health import StorageHealth
from starlingmq.storage.storage_thread import StorageThread
from starlingmq.storage.store import NotYetStored, TooFewCopies
from starlingmq.storage.streams.stream_logs import StreamLog, StreamLogs

log = logging.getLogger("starlingmq.storage")

RETRY_SECONDS = 1.0

Durability = Literal["memory", "process", "power"]


class JournalWriter:
    """``next``: the offset of the next record, after those that wait in memory. ``stuck``: the journal accepts no
    records. ``lost``: records were lost, and no checkpoint has replaced them yet. ``rewrite`` begins a checkpoint of
    everything in memory. ``copies``: the followers that store everything, too; None: there are none."""

    def __init__(
        self,
        journal: Journal,
        streams: StreamLogs,
        durability: Durability,
        health: StorageHealth,
        thread: StorageThread,
        rewrite: Callable[[], None],
    ) -> None:
        self.journal = journal
        self.streams = streams
        self.durability = durability
        self.health = health
        self.thread = thread
        self.rewrite = rewrite
        self.state: BrokerState | None = None
        self.copies: Copies | None = None
        self.next = journal.next
        self.syncs = Histogram()
        self.faults = NO_FAULT
        self.stuck = False
        self.lost = False
        self._backlog: list[bytes] = []
        self._retry: asyncio.TimerHandle | None = None
        self._sync_state = SyncState.IDLE
        self._resync: asyncio.TimerHandle | None = None  # set while RETRYING
        self._unsynced: list[asyncio.Future[None]] = []  # these wait for the next sync
        self._syncing_for: list[asyncio.Future[None]] = []
        self._safe = journal.next  # with ``power``, records below this offset are synced

    @property
    def failure(self) -> str:
        """Why nothing can be stored at the moment; normally ""."""
        return self.health.reason if self.health.refusing else ""

    # Appending

    def write(self, records: list[bytes], to_streams: bool) -> Awaitable[None] | None:
        """Append the records of one turn. With ``to_streams``, some belong to streams too, which have already recorded
        them as pending.

        Returns None if they are stored, else an awaitable for when they are. Raises NotYetStored.
        """
        self.next += len(records)
        if self.stuck:
            self._backlog += records
            raise NotYetStored(self.failure)
        try:
            offset = self.journal.append(records)
        except OSError as error:
            self._backlog = records
            self._fail(error)
            raise NotYetStored(self.failure) from None
        if to_streams:
            self._follow()
        if self.copies is not None:
            return self._copy(self.copies, offset, records)
        if self.health.refusing:
            raise NotYetStored(self.failure)
        return self._sync() if self.durability == "power" else None

    def _copy(self, copies: Copies, offset: int, records: list[bytes]) -> Awaitable[None] | None:
        """The same for records that followers store, too."""
        copies.commit(offset, records)
        if self.durability != "power":
            copies.show(self.streams.mark())
        if self.health.refusing:
            raise NotYetStored(self.failure)
        return copies.copied(self._sync() if self.durability == "power" else None)

    def _follow(self) -> bool:
        """Append pending records to the logs of streams, up to what the journal has. Returns whether that worked."""
        try:
            self.streams.append()
        except OSError as error:
            self._fail(error)
            return False
        if self.durability != "power" and self.copies is None:
            self.streams.show(self.streams.mark())
        return True

    def _fail(self, error: OSError) -> None:
        self._note(JournalEvent.APPEND_FAILED)
        self._refuse(error)
        if self._retry is not None:
            self._retry.cancel()
        self._retry = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._try_again)

    def _try_again(self) -> None:
        try:
            offset = self.journal.append(self._backlog)
        except OSError as error:
            self._fail(error)
            return
        records, self._backlog = self._backlog, []
        followed = self._follow()
        if self.copies is not None:
            self.copies.commit(offset, records)
            if self.durability != "power":
                self.copies.show(self.streams.mark())
        if not followed:
            return
        self._note(JournalEvent.BACKLOG_APPENDED)
        if self.durability == "power":
            self._note(JournalEvent.SYNC_IN_DOUBT)  # the backlog is safe only after a sync
            self._sync_again()
        else:
            self._recover()

    # Faults

    def _note(self, event: JournalEvent) -> None:
        self.faults = after_event(self.faults, event)
        self.stuck = JournalFault.UNWRITTEN in self.faults
        self.lost = JournalFault.LOST in self.faults

    def _refuse(self, error: OSError) -> None:
        """From now on the broker accepts nothing that has to be stored."""
        self.health.fails(error, True)
        if self.state is not None:
            written = self.journal.next
            stored = self._safe if self.durability == "power" else written
            if self.copies is not None:
                stored = min(stored, self.copies.stored_before)
            self.state.ctx.storage_failed(stored, written)
        self._report_state()

    def _report_state(self) -> None:
        """Have the core publish the state of the storage, if it publishes such figures."""
        if self.state is not None:
            self.state.ctx.storage.set_state(str(self.health), self.health.failures)

    def records_lost(self, error: RecordsLost) -> None:
        """A waiting turn may depend on the lost records. The state in memory is right, so a checkpoint writes all of
        it, and until then the broker accepts nothing that has to be stored."""
        if self.durability == "power":
            log.error("%s; they had not been acknowledged", error)
        else:
            log.error(
                "%s; messages among them are lost, although they were acknowledged; run `starlingmq ctl storage check`",
                error,
            )
        self._note(JournalEvent.RECORDS_LOST)
        self._refuse(error)
        self._fail_waiting()
        if self.state is not None:
            self.state.ctx.storage.lose(sum(last - first + 1 for first, last in error.ranges))
        self.rewrite()

    def copies_change(self, refusal: str) -> None:
        """``refusal``: why too few nodes store copies; "": enough do."""
        if refusal:
            self._note(JournalEvent.COPIES_MISSING)
            self._refuse(TooFewCopies(refusal))
        else:
            self._note(JournalEvent.COPIES_COMPLETE)
            self._recover()

    def checkpoint_failed(self, error: OSError) -> None:
        if isinstance(error, RecordsLost):
            self.records_lost(error)
        self.health.fails(error, False)
        self._report_state()

    def checkpoint_written(self) -> None:
        self._note(JournalEvent.CHECKPOINT_WRITTEN)
        if self.health.refusing:
            self._recover()
        else:
            self.health.works()
            self._report_state()

    def _recover(self) -> None:
        """A fault has ended. If it was the last one, storing works again."""
        if self.faults == JournalFault.UNCOPIED and self.copies is not None:
            self._refuse(TooFewCopies(self.copies.refusal))  # the disk works again
        if self.faults or not self.health.refusing:
            return
        self.health.works()
        self._report_state()
        if self.state is not None:
            self.state.ctx.storage_works()
            # postponed frames may need records that came after the last sync began, or that are not copied yet
            stored = self._sync() if self.durability == "power" else None
            waiting = stored if self.copies is None else self.copies.copied(stored)
            if waiting is None:
                self.state.refusal.over()
            else:
                asyncio.ensure_future(waiting).add_done_callback(self._go_on_after)
            self.thread.wake()

    def _go_on_after(self, stored: asyncio.Future[None]) -> None:
        if self.state is not None and not stored.cancelled() and stored.exception() is None:
            self.state.refusal.over()
            self.thread.wake()

    # Syncing

    def _sync(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsynced.append(future)
        self._begin_sync()
        return future

    def _begin_sync(self) -> None:
        """Only one sync runs at a time. Turns that come meanwhile share the next one."""
        if self._sync_state is not SyncState.IDLE or not self._unsynced:
            return
        self._sync_state = SyncState.RUNNING
        waiting, self._unsynced = self._unsynced, []
        self._syncing_for = waiting
        until = self.journal.next
        marks = self.streams.mark()
        loop = asyncio.get_running_loop()
        began = loop.time()
        task = self.thread.start(self.journal.sync)
        task.add_done_callback(lambda _: self.syncs.add(loop.time() - began))
        task.add_done_callback(lambda done: self._synced(done, waiting, until, marks))

    def _synced(
        self,
        done: asyncio.Future[None],
        waiting: list[asyncio.Future[None]],
        until: int,
        marks: list[tuple[StreamLog, int]],
    ) -> None:
        """After a failed sync, the records that it covered are in doubt until a later sync has returned."""
        self._sync_state = SyncState.IDLE
        error = done.exception()
        if isinstance(error, RecordsLost):
            self.records_lost(error)
        elif isinstance(error, OSError):
            self._doubt(error)
            return
        self._syncing_for = []
        for future in waiting:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
        self._safe = until
        if self.copies is None:
            self.streams.show(marks)
        else:
            self.copies.show(marks)
        if JournalFault.UNSYNCED in self.faults:
            self._note(JournalEvent.SYNC_RETURNED)
            self._recover()
        self._begin_sync()

    def _doubt(self, error: OSError) -> None:
        self._note(JournalEvent.SYNC_IN_DOUBT)
        self._refuse(error)
        self._fail_waiting()
        self._sync_state = SyncState.RETRYING
        self._resync = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._sync_again)

    def _fail_waiting(self) -> None:
        """Fail all turns that wait for records in doubt."""
        waiting = self._syncing_for + self._unsynced
        self._syncing_for, self._unsynced = [], []
        for future in waiting:
            if not future.done():
                future.set_exception(NotYetStored(self.failure))
                future.exception()  # for some of them no caller reads the exception

    def _sync_again(self) -> None:
        """No turn waits for this sync, but until it returns the broker accepts nothing that has to be stored."""
        if self._resync is not None:
            self._resync.cancel()
            self._resync = None
            self._sync_state = SyncState.IDLE
        try:
            self.journal.append([])  # an engine that has to be reopened does that on a write
        except OSError as error:
            self._fail(error)
            return
        self._sync()

    # The end

    def stop_retrying(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        if self._resync is not None:
            self._resync.cancel()

    def last_try(self) -> None:
        """Append the records that wait in memory, if that is possible by now. No client was promised any of them."""
        if self.stuck:
            with suppress(OSError):
                self.journal.append(self._backlog)
