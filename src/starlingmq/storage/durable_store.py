"""The store that keeps: a turn is one append to the journal, the key-value store is its checkpoint.

``commit`` encodes a turn's writes and appends them; with ``power`` the returned awaitable is done when a sync that
began after the append has come back, which several turns share. Nothing per message goes to the key-value store: from
time to time ``maintain`` writes down, a piece a turn, what has changed, and then gives back what nobody needs.

When the journal can not be written (a full disk) or not be synced, the records of the turn wait in memory, in order.
Whoever waits for them is told at once (``NotYetStored``), the core takes nothing new that has to be stored, and a retry
each second ends that by itself. ``health`` says how it is.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, Literal

from starlingmq.core.broker import BrokerState
from starlingmq.core.message import Message
from starlingmq.core.observe.counters import Histogram
from starlingmq.core.ready import (
    FACT_DELETE,
    FACT_PUT,
    PRODUCER_PUT,
    RETAINED_DELETE,
    RETAINED_PUT,
    SESSION_DELETE,
    SESSION_PUT,
    SUBSCRIPTION_DELETE,
    SUBSCRIPTION_PUT,
    Write,
)
from starlingmq.core.session.producers import PRODUCER_FACT
from starlingmq.core.session.session import Session
from starlingmq.storage.journal import Journal
from starlingmq.storage.keys import (
    META_AS_OF,
    META_CHECKPOINT,
    META_HIGHEST,
    META_NEXT_SESSION,
    META_STREAMS,
    SESSION,
    SUBSCRIPTION,
    all_of_session,
    fact_key,
    holdings_key,
    retained_key,
    session_key,
    session_of,
    subscription_key,
)
from starlingmq.storage.kv import Batch, Kv, after
from starlingmq.storage.records import RecordError, decode_message, encode_retained
from starlingmq.storage.segment.retention import Retention
from starlingmq.storage.segment.segment_sync import RecordsLost
from starlingmq.storage.session_values import encode_highest, encode_holdings, encode_session, encode_subscription
from starlingmq.storage.storage_health import StorageHealth
from starlingmq.storage.store import NotYetStored
from starlingmq.storage.streams.stream_logs import StreamLog, StreamLogs
from starlingmq.storage.turn_operations import TurnEncoder

log = logging.getLogger("starlingmq.storage")

CHECKPOINT_BYTES: Final = 64 << 20  # of journal between two checkpoints: what a start has to read again
CHECKPOINT_SECONDS: Final = 300.0
CHECKPOINT_AGAIN: Final = 5.0  # seconds after one that failed
PIECE: Final = 200  # sessions or values a turn
RETIRE_SECONDS: Final = 10.0  # between two looks at what has waited for too long
RETIRE_PIECE: Final = 1000  # messages of one session a turn
FOR_EVER: Final = Retention(0.0, 0)
RETRY_SECONDS: Final = 1.0
TIDY_SECONDS: Final = 1.0  # between two looks at what streams keep for too long

Durability = Literal["memory", "process", "power"]


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
    ) -> None:
        self.kv = kv
        self.journal = journal
        self.streams = streams or StreamLogs()
        self.durability = durability
        self.clock = clock
        self.checkpoint_bytes = checkpoint_bytes
        self.retention = retention
        self._retired = 0  # offset below which nothing waits any longer
        self._retired_at = clock()
        self.piece = PIECE
        self.careful = durability == "power"  # a checkpoint knows no more than the journal after a power failure
        self.health = StorageHealth(clock)
        self.state: BrokerState | None = None
        self._wake: Callable[[], None] = lambda: None
        self._next = journal.next
        self._values = Batch()  # sessions, subscriptions and retained messages since the last checkpoint
        self._dirty: dict[Session, None] = {}  # whose queue, window or handshakes changed since then
        self._backlog: list[bytes] = []
        self._unsynced: list[asyncio.Future[None]] = []
        self.syncs = Histogram()
        self._syncing = False
        self._syncing_for: list[asyncio.Future[None]] = []
        self._stuck = False  # the journal takes no records: they wait in ``_backlog``
        self._doubtful = False  # the last sync failed
        self._rewriting = False  # records were lost: the next checkpoint makes up for that
        self._safe = journal.next  # with ``power``: records below this offset are synced
        self._resync: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._threads = ThreadPoolExecutor(1, "starlingmq-storage")
        self._work: Iterator[None] | None = None
        self._held = 0  # how many want no checkpoint now
        self.checkpoints = 0  # written since start
        self.checkpoint_failure = ""  # why the last one failed
        self._checkpointed_at = clock()
        self._checkpointed_next = self._next
        self._checkpointed_size = journal.size
        self._marked: set[int] | None = None  # first offsets of the segments that are needed, while that is found out
        self._oldest = 0  # offset that is needed, as far as it was found out
        self._firsts: list[int] = []
        self._given = [0, journal.first]  # where what was given back begins and ends, in turn; rising
        self._waiting: asyncio.Future[None] | None = None  # what ``_work`` waits for
        self._tidy_at = 0.0  # when streams are looked at next
        self._tidying: asyncio.Future[list[None]] | None = None

    def attach(self, state: BrokerState, wake: Callable[[], None]) -> None:
        self.state = state
        self.streams.attach(state.ctx)
        self._wake = wake

    @property
    def failure(self) -> str:
        """Why nothing can be stored at the moment; "" as a rule."""
        return self.health.reason if self.health.refusing else ""

    def readable(self) -> bool:
        return not self.failure

    # Committing

    def commit(self, writes: list[Write]) -> Awaitable[None] | None:
        encoder = TurnEncoder(self._next, self._kept, self.clock())
        records = encoder.encode(writes)
        self._dirty.update(encoder.changed)
        for write in encoder.rare:
            self._note(write)
        self._next += len(records)
        self.streams.take(encoder.streams)
        if self._stuck:
            self._backlog += records
            raise NotYetStored(self.failure)
        try:
            self.journal.append(records)
        except OSError as error:
            self._backlog = records
            self._fail(error)
            raise NotYetStored(self.failure) from None
        if encoder.streams:
            self._follow()
        if self.health.refusing:
            raise NotYetStored(self.failure)
        return self._sync() if self.durability == "power" else None

    def _follow(self) -> bool:
        """Have the logs of streams take what the journal has; whether they did."""
        try:
            self.streams.append()
        except OSError as error:
            self._fail(error)
            return False
        if self.durability != "power":
            self.streams.show(self.streams.mark())
        return True

    def _note(self, write: Write) -> None:
        """Remember what the next checkpoint has to write down."""
        kind = write.kind
        session = write.session
        if kind == RETAINED_PUT:
            assert write.message is not None
            self._values.put(retained_key(write.message.topic), encode_retained(write.message))
        elif kind == RETAINED_DELETE:
            self._values.delete(retained_key(write.topic))
        elif kind == FACT_PUT:
            self._values.put(fact_key(write.topic), write.value)
        elif kind == PRODUCER_PUT:
            self._values.put(fact_key(PRODUCER_FACT + write.topic), write.value)
        elif kind == FACT_DELETE:
            self._values.delete(fact_key(write.topic))
        elif session is None:
            return
        elif kind == SESSION_PUT:
            self._values.put(session_key(session.number), encode_session(session))
        elif kind == SESSION_DELETE:
            self._values.delete(session_key(session.number))
            self._dirty[session] = None
        elif kind == SUBSCRIPTION_PUT:
            assert write.subscription is not None
            key = subscription_key(session.number, write.topic)
            self._values.put(key, encode_subscription(write.topic, write.subscription))
        elif kind == SUBSCRIPTION_DELETE:
            self._values.delete(subscription_key(session.number, write.topic))

    def _fail(self, error: OSError) -> None:
        self._stuck = True
        self._refuse(error)
        if self._retry is not None:
            self._retry.cancel()
        self._retry = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._try_again)

    def _refuse(self, error: OSError) -> None:
        """From here on nothing is accepted that has to be stored."""
        self.health.fails(error, True)
        if self.state is not None:
            written = self.journal.next
            self.state.ctx.storage_failed(self._safe if self.durability == "power" else written, written)
        self._tell()

    def _tell(self) -> None:
        """Have the core say how it is, where it says such things."""
        if self.state is not None:
            self.state.ctx.storage.tell(str(self.health), self.health.failures)

    def _try_again(self) -> None:
        try:
            self.journal.append(self._backlog)
        except OSError as error:
            self._fail(error)
            return
        self._backlog = []
        if not self._follow():
            return
        self._stuck = False
        if self.durability == "power":
            self._doubtful = True  # what waited is only safe once it is synced
            self._sync_again()
        else:
            self._recover()

    def _recover(self) -> None:
        """Something works again; all of it does when nothing is left that waits for another try."""
        if self._stuck or self._doubtful or self._rewriting:
            return
        refusing = self.health.refusing
        if self.checkpoint_failure and not refusing:
            return
        self.health.works()
        self._tell()
        if self.state is not None and refusing:
            self.state.ctx.storage_works()
            if self.durability == "power":  # what was put off may stand for records that came after the last sync began
                self._sync().add_done_callback(self._go_on_after)
            else:
                self.state.refusal.over()
            self._wake()

    def _go_on_after(self, synced: asyncio.Future[None]) -> None:
        if self.state is not None and not synced.cancelled() and synced.exception() is None:
            self.state.refusal.over()
            self._wake()

    # Syncing

    def _sync(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsynced.append(future)
        self._begin_sync()
        return future

    def _begin_sync(self) -> None:
        """One sync at a time; whoever comes meanwhile waits for the next one, with everybody else."""
        if self._syncing or self._resync is not None or not self._unsynced:
            return
        self._syncing = True
        waiting, self._unsynced = self._unsynced, []
        self._syncing_for = waiting
        until = self.journal.next
        marks = self.streams.mark()
        loop = asyncio.get_running_loop()
        began = loop.time()
        task = loop.run_in_executor(self._threads, self.journal.sync)
        task.add_done_callback(lambda _: self.syncs.add(loop.time() - began))
        task.add_done_callback(lambda done: self._synced(done, waiting, until, marks))

    def _synced(
        self,
        done: asyncio.Future[None],
        waiting: list[asyncio.Future[None]],
        until: int,
        marks: list[tuple[StreamLog, int]],
    ) -> None:
        """What a failed sync was to make safe is in doubt until a later one has returned."""
        self._syncing = False
        error = done.exception()
        if isinstance(error, RecordsLost):
            self._records_lost(error)
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
        self.streams.show(marks)
        if self._doubtful:
            self._doubtful = False
            self._recover()
        self._begin_sync()

    def _doubt(self, error: OSError) -> None:
        self._doubtful = True
        self._refuse(error)
        self._let_down()
        self._resync = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._sync_again)

    def _let_down(self) -> None:
        """Nobody waits for what is in doubt."""
        waiting = self._syncing_for + self._unsynced
        self._syncing_for, self._unsynced = [], []
        for future in waiting:
            if not future.done():
                future.set_exception(NotYetStored(self.failure))
                future.exception()  # of some of them nobody wants to know

    def _sync_again(self) -> None:
        """Nobody waits for it, but until it returns nothing is accepted."""
        if self._resync is not None:
            self._resync.cancel()
            self._resync = None
        try:
            self.journal.append([])  # an engine that has to be opened anew does that when it is written to
        except OSError as error:
            self._fail(error)
            return
        self._sync()

    def _records_lost(self, error: RecordsLost) -> None:
        """Whoever waits may wait for one of these records. What we have in memory is right, so it is written down as it
        is, and until then nothing is accepted."""
        if self.durability == "power":
            log.error("%s; nobody was told that they were stored", error)
        else:
            log.error("%s; messages among them are lost, although they were acknowledged", error)
        self._rewriting = True
        self._refuse(error)
        self._let_down()
        self.checkpoint_failure = ""
        if self.state is not None:
            self.state.ctx.storage.lose(sum(last - first + 1 for first, last in error.ranges))
            self.rewrite(list(self.state.ctx.sessions.values()))
        self._wake()

    # Reading back

    def load(self, offsets: Sequence[int]) -> dict[int, Message]:
        """The messages at these offsets; those that are lost are missing."""
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
                "%d messages are lost: their records (%d to %d) are damaged or gone; `starlingmq ctl storage check` "
                "says what else is",
                len(missing),
                min(missing),
                max(missing),
            )
        return found

    def _kept(self, offset: int) -> bool:
        """Whether a record is still there, and stays: a new reference to it keeps it from being given back."""
        if offset < self._given[-1] and bisect_right(self._given, offset) % 2:
            return False
        if self._marked is not None:
            self._mark(offset)
            self._oldest = min(self._oldest, offset)
        return True

    # Checkpoints

    def maintain(self) -> bool:
        """Do a piece of what is to be done besides; whether there is more to do right away."""
        if self.streams.by_number and not self._held:
            self._tidy_streams()
        if self._waiting is not None or self._stuck:  # what a checkpoint would say of now is not in the journal yet
            return False
        if self._work is None:
            if (self.failure and not self._rewriting) or self._held or self.state is None or not self._due():
                return False
            self._work = self._checkpoint(self.state)
        try:
            next(self._work)
        except StopIteration:
            self._work = None
            return False
        except OSError as error:
            self._work = None
            self._marked = None
            self._checkpointed_at = self.clock()  # not again at once
            self.checkpoint_failure = str(error)
            if isinstance(error, RecordsLost):
                self._records_lost(error)
            self.health.fails(error, False)
            self._tell()
            return False
        return self._waiting is None

    def _tidy_streams(self) -> None:
        """Now and then: give up what streams do not keep any longer, beside the event loop."""
        now = self.clock()
        if now < self._tidy_at or self._tidying is not None:
            return
        self._tidy_at = now + TIDY_SECONDS
        self.streams.weigh()
        loop = asyncio.get_running_loop()
        loop.call_later(TIDY_SECONDS, self._wake)
        if work := self.streams.tidy(now):
            self._tidying = loop.run_in_executor(self._threads, lambda: [step() for step in work])
            self._tidying.add_done_callback(self._tidied)

    def _tidied(self, done: asyncio.Future[list[None]]) -> None:
        self._tidying = None
        error = done.exception()
        if error is not None:
            log.error("a stream keeps more than it should: %s; it is tried again", error)
        self.streams.weigh()

    def _due(self) -> bool:
        if self._overdue():
            return True
        if self._next == self._checkpointed_next:
            return False
        if self.checkpoint_failure:
            return self.clock() - self._checkpointed_at >= CHECKPOINT_AGAIN
        grown = self.journal.size - self._checkpointed_size
        return grown >= self.checkpoint_bytes or self.clock() - self._checkpointed_at >= CHECKPOINT_SECONDS

    def _overdue(self) -> bool:
        """Whether something has waited for longer than it may, or too much waits."""
        now = self.clock()
        if self.retention == FOR_EVER or now - self._retired_at < RETIRE_SECONDS or self.checkpoint_failure:
            return False
        self._retired_at = now
        return self.retention.cutoff(self.journal.segments(), now) > self._retired

    def _retire(self, state: BrokerState) -> Iterator[None]:
        """Give up what has waited for too long. The checkpoint after it begins when that is in the journal."""
        cutoff = self.retention.cutoff(self.journal.segments(), self.clock())
        if cutoff <= self._retired:
            return
        self._retired = cutoff
        for number, session in enumerate(list(state.ctx.sessions.values())):
            while state.delivery.retire(session, cutoff, RETIRE_PIECE):
                yield
            if number % self.piece == self.piece - 1:
                yield
        yield

    def _checkpoint(self, state: BrokerState) -> Iterator[None]:
        if self.retention != FOR_EVER:
            yield from self._retire(state)
        begin = self._next
        values, self._values = self._values, Batch()
        dirty, self._dirty = self._dirty, {}
        highest = encode_highest(state.peers.heard())
        positions = self.streams.positions()
        try:
            yield from self._in_thread(self.journal.sync)
            yield from self._in_thread(self.streams.sync)  # what is replayed from now on does not bring it back
            yield from self._write_values(values, dirty)
            yield from self._write_holdings(list(dirty))
            batch = Batch()
            batch.put(META_NEXT_SESSION, state.ctx.next_number.to_bytes(8, "big"))
            batch.put(META_HIGHEST, highest)
            batch.put(META_STREAMS, positions)
            batch.put(META_CHECKPOINT, begin.to_bytes(8, "big"))
            self.kv.write(batch)
            yield from self._in_thread(self.kv.sync)
        except BaseException:
            values.changes.update(self._values.changes)
            self._values = values
            self._dirty.update(dirty)
            raise
        self._checkpointed_at = self.clock()
        self._checkpointed_next = begin
        self.checkpoints += 1
        self.checkpoint_failure = ""
        self._rewriting = False
        self._recover()
        yield from self._give_back(state, begin)
        self._checkpointed_size = self.journal.size

    def _write_values(self, values: Batch, dirty: dict[Session, None]) -> Iterator[None]:
        """All but those of sessions that have ended, which are deleted later: if that failed after the checkpoint is
        what a start begins with, they would be there again."""
        ended = {session.number for session in dirty if session.ended}
        changes = list(values.changes.items())
        if ended:
            changes = [
                (key, value)
                for key, value in changes
                if key[:1] not in (SESSION, SUBSCRIPTION) or session_of(key) not in ended
            ]
        for start in range(0, len(changes), self.piece):
            batch = Batch()
            batch.changes.update(changes[start : start + self.piece])
            self.kv.write(batch)
            yield

    def _write_holdings(self, dirty: list[Session]) -> Iterator[None]:
        for start in range(0, len(dirty), self.piece):
            batch = Batch()
            for session in dirty[start : start + self.piece]:
                if session.ended:
                    self._delete(session, batch)
                else:
                    batch.put(holdings_key(session.number), encode_holdings(session, self._next))
            batch.put(META_AS_OF, self._next.to_bytes(8, "big"))
            if self.careful:
                # What one session did since (a handshake completed) has another side in another one (the message it
                # got), which only the journal has: a power failure must not take that and leave this.
                yield from self._in_thread(self.journal.sync)
            self.kv.write(batch)
            yield

    def _delete(self, session: Session, batch: Batch) -> None:
        batch.delete(session_key(session.number))
        batch.delete(holdings_key(session.number))
        begin, end = all_of_session(SUBSCRIPTION, session.number)
        while found := self.kv.scan(begin, end, 1000):
            for key, _ in found:
                batch.delete(key)
            begin = after(found[-1][0])

    def _in_thread(self, call: Callable[[], None]) -> Iterator[None]:
        """Let a blocking call be done beside the event loop, and go on in the turn after it."""
        waiting = asyncio.get_running_loop().run_in_executor(self._threads, call)
        self._waiting = waiting
        waiting.add_done_callback(self._go_on)
        yield
        error = waiting.exception()
        if error is not None:
            raise error

    def _go_on(self, done: asyncio.Future[None]) -> None:
        done.exception()
        self._waiting = None
        self._wake()

    def replayed(self, changes: Batch, sessions: Sequence[Session]) -> None:
        """What was found in the journal only: the next checkpoint ends its being replayed, so it writes all this."""
        self._values.changes.update(changes.changes)
        for session in sessions:
            self._dirty[session] = None
        if sessions or changes:
            self._checkpointed_next = -1

    def rewrite(self, sessions: Sequence[Session]) -> None:
        """Have these sessions written down anew at once: what the store says of them is ahead of the journal."""
        for session in sessions:
            self._dirty[session] = None
        if sessions:
            self._checkpointed_size = -self.checkpoint_bytes
            self._checkpointed_next = -1

    @property
    def checkpoint_age(self) -> float | None:
        """Seconds since the last checkpoint; None when none was written since start."""
        return self.clock() - self._checkpointed_at if self.checkpoints else None

    async def checkpoint(self) -> None:
        """Write a checkpoint now, and give back what nobody needs. Raises OSError when that fails."""
        await self._finish()
        if self.failure or self.state is None:
            raise OSError(errno.EIO, f"no checkpoint can be written: {self.failure or 'nothing is served'}")
        self.checkpoint_failure = ""
        self._work = self._checkpoint(self.state)
        await self._finish()
        if self.checkpoint_failure:
            raise OSError(errno.EIO, f"the checkpoint failed: {self.checkpoint_failure}")

    async def hold(self) -> None:
        """Have no checkpoint written and nothing given back from here on, until ``release``."""
        self._held += 1
        await self._finish()

    def release(self) -> None:
        self._held -= 1
        self._wake()

    async def _finish(self) -> None:
        while (self._work is not None and not self._stuck) or self._waiting is not None:
            await self._piece()
        if self._tidying is not None:
            await asyncio.wait([self._tidying])

    # Giving back

    def _give_back(self, state: BrokerState, checkpoint: int) -> Iterator[None]:
        """Find out which segments hold a message that a session still wants, and give back the others.

        What is referred to while we look is marked by ``_kept``; what is appended meanwhile is behind ``checkpoint``.
        """
        segments = self.journal.segments()
        end = self.journal.next
        self._firsts = [segment.first for segment in segments]
        self._marked = set()
        self._oldest = checkpoint
        try:
            sessions = list(state.ctx.sessions.values())
            for number, session in enumerate(sessions):
                self._oldest = min(self._oldest, self._mark_session(session))
                if number % self.piece == self.piece - 1:
                    yield
            if self.careful:  # a power failure must not bring back the want of what is given back now
                yield from self._in_thread(self.journal.sync)
            needed = self._marked
        finally:
            self._marked = None
        oldest = self._oldest
        doomed = [segment for segment in segments if segment.next <= checkpoint and segment.first not in needed]
        self._forgo(0, oldest)
        for segment in doomed:
            self._forgo(segment.first, segment.next)
        self.journal.trim(oldest)
        for segment in doomed:
            grown = (
                segment is segments[-1] and self.journal.next != end
            )  # while we looked: it holds what nobody looked at
            if segment.first >= oldest and not grown:
                self.journal.drop(segment.first)
                yield

    def _forgo(self, first: int, next: int) -> None:
        """From here on no message may refer to these offsets: a retained one that is in memory may know one of them."""
        begin, end = bisect_left(self._given, first), bisect_right(self._given, next)
        self._given[begin:end] = [first] * (begin % 2 == 0) + [next] * (end % 2 == 0)

    def _mark(self, offset: int) -> None:
        assert self._marked is not None
        place = bisect_right(self._firsts, offset) - 1
        if place >= 0:
            self._marked.add(self._firsts[place])

    def _mark_session(self, session: Session) -> int:
        """Mark what a session refers to; the oldest offset."""
        offsets: list[int] = []
        if session.expiry == 0:
            return self._next  # nothing of it is kept
        oldest = self._next
        if session.queue is not None:
            assert self._marked is not None
            kept = session.queue.mark(self._firsts, self._marked)
            oldest = kept if kept >= 0 else oldest
        if session.window is not None:
            offsets += [outgoing.message.offset for outgoing in session.window.entries.values()]
        if session.inbound is not None:
            offsets += [entry.message.offset for entry in session.inbound.entries.values() if entry.message is not None]
        if session.moving is not None:
            offsets += [held.outgoing.message.offset for held in session.moving.held]
        for offset in offsets:
            if offset >= 0:
                self._mark(offset)
                oldest = min(oldest, offset)
        return oldest

    # The end

    async def close(self) -> None:
        """Write a last checkpoint, so that the next start has nothing to replay, and let go of everything."""
        loop = asyncio.get_running_loop()
        if self._retry is not None:
            self._retry.cancel()
        if self._resync is not None:
            self._resync.cancel()
        await self._finish()
        if self._stuck:
            with suppress(OSError):  # a last try; nobody was promised any of it
                self.journal.append(self._backlog)
        if self.state is not None and not self.failure:
            self._work = self._checkpoint(self.state)
            await self._finish()
        try:
            await loop.run_in_executor(self._threads, self.journal.sync)
        except OSError as error:
            log.error("the journal can not be synced: %s", error)
        self.streams.close()
        self.journal.close()
        self.kv.close()
        self._threads.shutdown()

    async def _piece(self) -> None:
        waiting = self._waiting
        if waiting is not None:
            await asyncio.wait([waiting])
        self.maintain()
        await asyncio.sleep(0)
