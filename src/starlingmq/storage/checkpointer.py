"""Writes checkpoints into the key-value store, one piece per turn. Afterwards the journal frees what is no longer
needed. With copies on other nodes it does so once they have the checkpoint, so that a follower in step always finds
here what it lacks.

No message is written to the key-value store by itself: a checkpoint has what changed since the last one, as of a
journal offset. A start replays the journal from that offset.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final

from starlingmq.core.broker import BrokerState
from starlingmq.core.session.session import Session
from starlingmq.storage.copies.copied import Copies
from starlingmq.storage.journal import Journal
from starlingmq.storage.journal_gc import JournalGc
from starlingmq.storage.journal_writer import JournalWriter
from starlingmq.storage.keys import (
    META_AS_OF,
    META_CHECKPOINT,
    META_HIGHEST,
    META_NEXT_SESSION,
    META_STREAMS,
    SESSION,
    SUBSCRIPTION,
    all_of_session,
    holdings_key,
    session_key,
    session_of,
)
from starlingmq.storage.kv import Batch, Kv, after
from starlingmq.storage.retention_sweep import RetentionSweep
from starlingmq.storage.session_values import encode_highest, encode_holdings
from starlingmq.storage.storage_thread import StorageThread
from starlingmq.storage.streams.stream_logs import StreamLogs
from starlingmq.storage.unsaved_changes import UnsavedChanges

CHECKPOINT_BYTES: Final = 64 << 20  # bytes of journal between two checkpoints, which a start has to replay
CHECKPOINT_SECONDS: Final = 300.0
CHECKPOINT_AGAIN = 5.0  # seconds after a failed checkpoint


class Checkpointer:
    """``careful``: a checkpoint must not be ahead of the journal after a power failure. ``piece``: sessions or values
    per turn. ``count``: checkpoints written since the start. ``failure``: why the last one failed."""

    def __init__(
        self,
        kv: Kv,
        journal: Journal,
        streams: StreamLogs,
        writer: JournalWriter,
        gc: JournalGc,
        sweep: RetentionSweep,
        thread: StorageThread,
        clock: Callable[[], float],
        checkpoint_bytes: int,
        careful: bool,
        piece: int,
    ) -> None:
        self.kv = kv
        self.journal = journal
        self.streams = streams
        self.writer = writer
        self.gc = gc
        self.sweep = sweep
        self.thread = thread
        self.clock = clock
        self.checkpoint_bytes = checkpoint_bytes
        self.careful = careful
        self.piece = piece
        self.changes = UnsavedChanges()
        self.copies: Copies | None = None
        self.count = 0
        self.failure = ""
        self._work: Generator[None, None, None] | None = None
        self._awaited = 0  # the group that followers must have before the next piece is written; 0: none
        self._keeping: tuple[int, int] | None = None  # copies that need this group; then the journal before this offset
        self._at = clock()
        self._next = journal.next
        self._size = journal.size

    @property
    def running(self) -> bool:
        return self._work is not None

    @property
    def age(self) -> float | None:
        """Seconds since the last checkpoint; None if there has been none since the start."""
        return self.clock() - self._at if self.count else None

    def due(self) -> bool:
        if self.writer.health.refusing and not self.writer.lost:
            return False
        if not self.failure and self.sweep.due():
            return True
        if self.writer.next == self._next:
            return False
        if self.failure:
            return self.clock() - self._at >= CHECKPOINT_AGAIN
        grown = self.journal.size - self._size
        return grown >= self.checkpoint_bytes or self.clock() - self._at >= CHECKPOINT_SECONDS

    def begin(self, state: BrokerState) -> None:
        self._work = self._checkpoint(state)

    def may_give_back(self) -> bool:
        """Whether followers have the last checkpoint now, and the journal before it can be freed."""
        return self._keeping is not None and self.copies is not None and self.copies.is_copied(self._keeping[0])

    def begin_to_give_back(self, state: BrokerState) -> None:
        assert self._keeping is not None
        self._work = self._give_back(state, self._keeping[1])
        self._keeping = None

    def step(self) -> bool:
        """Write one piece of the current checkpoint. Returns whether the next piece should follow at once."""
        assert self._work is not None
        if self.awaits_copies:
            return False
        self._awaited = 0
        try:
            next(self._work)
        except StopIteration:
            self._work = None
            return False
        except OSError as error:
            self._work = None
            self._at = self.clock()  # do not begin another one at once
            self.failure = str(error)
            self.writer.checkpoint_failed(error)
            return False
        return self.thread.waiting is None and not self.awaits_copies

    @property
    def awaits_copies(self) -> bool:
        """Whether the next piece rests on records that a follower in step lacks."""
        return self._awaited > 0 and self.copies is not None and not self.copies.is_copied(self._awaited)

    def abandon(self) -> None:
        """Give up the current checkpoint; the next one has its changes."""
        if self._work is not None:
            self._work.close()
        self._work = None
        self._awaited = 0
        self._at = self.clock()
        self.failure = "followers have not stored the records that it rests on"

    def replayed(self, changes: Batch, sessions: Sequence[Session]) -> None:
        """Changes that only the journal has. The next checkpoint writes all of them, since the journal before it is not
        replayed again."""
        self.changes.values.changes.update(changes.changes)
        for session in sessions:
            self.changes.dirty[session] = None
        if sessions or changes:
            self._next = -1

    def rewrite(self, sessions: Sequence[Session]) -> None:
        """Write these sessions again at once: the store's copy of them is ahead of the journal."""
        for session in sessions:
            self.changes.dirty[session] = None
        if sessions:
            self._size = -self.checkpoint_bytes
            self._next = -1

    def _checkpoint(self, state: BrokerState) -> Generator[None, None, None]:
        yield from self.sweep.run(state)
        begin = self.writer.next
        changes = self.changes.take()
        highest = encode_highest(state.peers.last_sequences())
        positions = self.streams.positions()
        try:
            yield from self.thread.run(self.journal.sync)
            # the journal before this checkpoint will not be replayed into the streams
            yield from self.thread.run(self.streams.sync)
            yield from self._write_values(changes)
            yield from self._write_holdings(list(changes.dirty))
            batch = Batch()
            batch.put(META_NEXT_SESSION, state.ctx.next_number.to_bytes(8, "big"))
            batch.put(META_HIGHEST, highest)
            batch.put(META_STREAMS, positions)
            batch.put(META_CHECKPOINT, begin.to_bytes(8, "big"))
            yield from self._write(batch)
            yield from self.thread.run(self.kv.sync)
        except BaseException:
            self.changes.put_back(changes)
            raise
        self._at = self.clock()
        self._next = begin
        self.count += 1
        self.failure = ""
        self.writer.checkpoint_written()
        if self.copies is None:
            yield from self._give_back(state, begin)
        else:
            self._size = self.journal.size
            self._keeping = self.copies.lsn, begin
            if not self.may_give_back():
                self.copies.when_copied(self.copies.lsn, self.thread.wake)

    def _give_back(self, state: BrokerState, checkpoint: int) -> Generator[None, None, None]:
        yield from self.gc.give_back(state, checkpoint)
        self._size = self.journal.size
        if self.copies is not None:
            self.copies.gave_back()

    def _write(self, batch: Batch) -> Iterator[None]:
        """With copies, once all followers in step have the records that the batch rests on. If this node returns after
        another one has served its data, records that were not acknowledged are cut off: its checkpoint stays valid."""
        copies = self.copies
        if copies is None:
            self.kv.write(batch)
            return
        if not copies.is_copied(copies.lsn):
            self._awaited = copies.lsn
            copies.when_copied(copies.lsn, self.thread.wake)
            yield
        copies.mark(batch)
        self.kv.write(batch)
        copies.wrote(batch)

    def _write_values(self, unsaved: UnsavedChanges) -> Iterator[None]:
        """Write all values but the deletions of ended sessions, which follow later. If a deletion came first and the
        rest failed after the checkpoint was valid, a start would restore the session without its values."""
        ended = {session.number for session in unsaved.dirty if session.ended}
        changes = list(unsaved.values.changes.items())
        if ended:
            changes = [
                (key, value)
                for key, value in changes
                if key[:1] not in (SESSION, SUBSCRIPTION) or session_of(key) not in ended
            ]
        for start in range(0, len(changes), self.piece):
            batch = Batch()
            batch.changes.update(changes[start : start + self.piece])
            yield from self._write(batch)
            yield

    def _write_holdings(self, dirty: list[Session]) -> Iterator[None]:
        for start in range(0, len(dirty), self.piece):
            batch = Batch()
            for session in dirty[start : start + self.piece]:
                if session.ended:
                    self._delete(session, batch)
                else:
                    batch.put(holdings_key(session.number), encode_holdings(session, self.writer.next))
            batch.put(META_AS_OF, self.writer.next.to_bytes(8, "big"))
            if self.careful:
                # A change in one session (a completed handshake) has a counterpart in another session (the message it
                # received), which only the journal has. A power failure must not lose the counterpart and keep the
                # change.
                yield from self.thread.run(self.journal.sync)
            yield from self._write(batch)
            yield

    def _delete(self, session: Session, batch: Batch) -> None:
        batch.delete(session_key(session.number))
        batch.delete(holdings_key(session.number))
        begin, end = all_of_session(SUBSCRIPTION, session.number)
        while found := self.kv.scan(begin, end, 1000):
            for key, _ in found:
                batch.delete(key)
            begin = after(found[-1][0])
