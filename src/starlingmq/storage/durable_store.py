"""The durable store: each turn is one append to the journal, and the key-value store is its checkpoint.

``commit`` encodes the writes of a turn and appends them (``journal_writer``). With ``power``, the returned awaitable
completes when a sync that began after the append has returned; several turns share one sync. No message is written to
the key-value store by itself: ``maintain`` writes changes as a checkpoint from time to time, one piece per turn
(``checkpointer``), and then frees journal segments (``journal_gc``). ``health`` has the state of the storage.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from starlingmq.core.broker import BrokerState
from starlingmq.core.context.ready import Write
from starlingmq.core.messages.message import Message
from starlingmq.core.observe.counters import Histogram
from starlingmq.core.session.session import Session
from starlingmq.storage.checkpointer import CHECKPOINT_BYTES, Checkpointer
from starlingmq.storage.copies.copied import Copies
from starlingmq.storage.journal import Journal
from starlingmq.storage.journal_gc import JournalGc
from starlingmq.storage.journal_writer import Durability, JournalWriter
from starlingmq.storage.kv import Batch, Kv
from starlingmq.storage.records import RecordError, decode_message
from starlingmq.storage.retention_sweep import FOR_EVER, RetentionSweep
from starlingmq.storage.segment.retention import Retention
from starlingmq.storage.storage_health import StorageHealth
from starlingmq.storage.storage_thread import StorageThread
from starlingmq.storage.streams.stream_logs import StreamLogs
from starlingmq.storage.streams.stream_tidying import StreamTidying
from starlingmq.storage.turn_operations import TurnEncoder

log = logging.getLogger("starlingmq.storage")

PIECE: Final = 200  # sessions or values per turn
FLUSH_SECONDS: Final = 2.0  # for followers to store the last checkpoint, which they would otherwise receive as a whole


@mypyc_attr(allow_interpreted_subclasses=True)
class DurableStore:
    keeps = True

    def __init__(
        self,
        kv: Kv,
        journal: Journal,
        durability: Durability,
        clock: Callable[[], float],
        checkpoint_bytes: int = CHECKPOINT_BYTES,
        retention: Retention = FOR_EVER,
        streams: StreamLogs | None = None,
        piece: int = PIECE,
        thread: StorageThread | None = None,
    ) -> None:
        self.kv = kv
        self.journal = journal
        self.streams = streams or StreamLogs()
        self.durability = durability
        self.clock = clock
        self.health = StorageHealth(clock)
        self.state: BrokerState | None = None
        self.copies: Copies | None = None
        self.thread = thread or StorageThread()
        careful = durability == "power"
        self.writer = JournalWriter(journal, self.streams, durability, self.health, self.thread, self._rewrite_all)
        self.gc = JournalGc(journal, self.thread, careful, piece)
        self.sweep = RetentionSweep(journal, retention, clock, piece)
        self.checkpointer = Checkpointer(
            kv,
            journal,
            self.streams,
            self.writer,
            self.gc,
            self.sweep,
            self.thread,
            clock,
            checkpoint_bytes,
            careful,
            piece,
        )
        self.changes = self.checkpointer.changes
        self.tidying = StreamTidying(self.streams, self.thread, clock)
        self._closing = False
        self._held = 0  # number of callers of ``hold``, during which there is no checkpoint

    def copy_to(self, copies: Copies) -> None:
        """From now on, before anything is committed, followers store everything, too."""
        self.copies = self.writer.copies = self.checkpointer.copies = self.streams.copies = copies
        copies.on_refusal = self.writer.copies_change

    async def copied(self) -> None:
        """Wait until the followers in step have everything up to here. Raises NotYetStored."""
        waiting = None if self.copies is None else self.copies.copied(None)
        if waiting is not None:
            await waiting

    def attach(self, state: BrokerState, wake: Callable[[], None]) -> None:
        self.state = state
        self.writer.state = state
        self.streams.attach(state.ctx)
        self.thread.wake = wake

    @property
    def failure(self) -> str:
        """Why nothing can be stored at the moment; normally ""."""
        return self.writer.failure

    @property
    def syncs(self) -> Histogram:
        return self.writer.syncs

    def readable(self) -> bool:
        return not self.failure

    def commit(self, writes: list[Write]) -> Awaitable[None] | None:
        encoder = TurnEncoder(self.writer.next, self.gc.keep, self.clock())
        records = encoder.encode(writes)
        self.changes.dirty.update(encoder.changed)
        for write in encoder.rare:
            self.changes.note(write)
        self.streams.take(encoder.streams)
        return self.writer.write(records, bool(encoder.streams))

    def load(self, offsets: Sequence[int]) -> dict[int, Message]:
        """The messages at these offsets, without those that are lost."""
        found: dict[int, Message] = {}
        missing: list[int] = []
        for offset, record in zip(offsets, self.journal.read_at(offsets), strict=True):
            if record is None:
                missing.append(offset)
                continue
            try:
                message = decode_message(record)
            except RecordError as error:
                log.error("journal offset %d: %s", offset, error)
                continue
            message.offset = offset
            found[offset] = message
        if missing:
            log.error(
                "%d messages are lost, because records %d to %d are damaged or missing; run `starlingmq "
                "ctl storage check` to find other damage",
                len(missing),
                min(missing),
                max(missing),
            )
        return found

    # Maintenance

    def maintain(self) -> bool:
        """Do one piece of maintenance. Returns whether the next piece should follow at once."""
        if self.streams.by_number and not self._held:
            self.tidying.look()
        if self.thread.waiting is not None or self.writer.stuck:
            return False  # the journal does not have the present state yet, so a checkpoint of it would be ahead
        if not self.checkpointer.running:
            if self._held or self.state is None:
                return False
            if self.checkpointer.may_give_back():
                self.checkpointer.begin_to_give_back(self.state)
            elif self.checkpointer.due():
                self.checkpointer.begin(self.state)
            else:
                return False
        return self.checkpointer.step()

    def replayed(self, changes: Batch, sessions: Sequence[Session]) -> None:
        """Changes that recovery found in the journal only. The next checkpoint writes them."""
        self.checkpointer.replayed(changes, sessions)

    def rewrite(self, sessions: Sequence[Session]) -> None:
        """Write these sessions again at once: the store's copy of them is ahead of the journal."""
        self.checkpointer.rewrite(sessions)

    def _rewrite_all(self) -> None:
        """Records were lost: begin a checkpoint of everything in memory at once."""
        self.checkpointer.failure = ""
        if self.state is not None:
            self.checkpointer.rewrite(list(self.state.ctx.sessions.values()))
        self.thread.wake()

    async def checkpoint(self) -> None:
        """Write a checkpoint now, and free journal segments. Raises OSError if that fails."""
        await self._finish()
        if self.failure or self.state is None:
            raise OSError(errno.EIO, f"cannot write a checkpoint: {self.failure or 'the store is closed'}")
        self.checkpointer.failure = ""
        self.checkpointer.begin(self.state)
        await self._finish()
        if self.checkpointer.failure:
            raise OSError(errno.EIO, f"the checkpoint failed: {self.checkpointer.failure}")

    async def hold(self) -> None:
        """Prevent checkpoints and the freeing of segments until ``release``."""
        self._held += 1
        await self._finish()

    def release(self) -> None:
        self._held -= 1
        self.thread.wake()

    async def close(self) -> None:
        """Write a last checkpoint, so that the next start has nothing to replay, and release all resources."""
        self._closing = True
        self.writer.stop_retrying()
        await self._finish()
        self.writer.last_try()
        if self.state is not None and not self.failure:
            self.checkpointer.begin(self.state)
            await self._finish()
        if self.copies is not None:
            await self.copies.flush(FLUSH_SECONDS)
            self.copies.close()
        try:
            await self.thread.start(self.journal.sync)
        except OSError as error:
            log.error("cannot sync the journal: %s", error)
        self.streams.close()
        self.journal.close()
        self.kv.close()
        self.thread.close()

    async def _finish(self) -> None:
        while (self.checkpointer.running and not self.writer.stuck) or self.thread.waiting is not None:
            if (waiting := self.thread.waiting) is not None:
                await asyncio.wait([waiting])
            if self.copies is not None and self.checkpointer.awaits_copies:
                await self.copies.flush(FLUSH_SECONDS)
                reached = self.copies.reaches_followers and not self._closing
                if self.checkpointer.awaits_copies and not reached:
                    self.checkpointer.abandon()  # a follower that begins waits for the end of this checkpoint
                    break
            self.maintain()
            await asyncio.sleep(0)
        if self.tidying.running is not None:
            await asyncio.wait([self.tidying.running])
