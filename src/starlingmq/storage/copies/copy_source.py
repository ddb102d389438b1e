"""The owner's side of copies: what each turn changed goes to all followers, and what is acknowledged waits for them.

The law: a turn is *copied* once each node in ``required`` has acknowledged its group. ``required`` only loses a node
after etcd has confirmed that the node is not in step any more (``cluster.copies``), so a successor has everything that
was acknowledged to a client.

    commit ---> group n ---> outbox of each follower ---> acknowledge(follower, n)
       |                                                          |
       +--- copied(local) waits until n <= all of ``required`` <--+

Nothing is dropped for a slow follower. Its outbox ends when it holds too much; the follower then goes on from the
owner's journal (``catch_up``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final

import msgspec

from starlingmq.storage.copies import copy_frames as frames
from starlingmq.storage.copies.copy_facts import CopyFacts
from starlingmq.storage.copies.copy_frames import NO_KV, CopyPosition, Defined, Hello, Kept
from starlingmq.storage.copies.outbox import Outbox
from starlingmq.storage.journal import Journal
from starlingmq.storage.keys import META_COPY
from starlingmq.storage.kv import Batch
from starlingmq.storage.store import NotYetStored
from starlingmq.storage.streams.stream_logs import StreamLog, StreamLogs

BROKEN: Final = "too few copies: "


class CopySource:
    """Of one open data directory, from the beginning of a life on. ``facts``: its COPY file. ``kv_state``: the mark in
    its key-value store. ``ends``: where its deleted streams ended. ``clock``: monotonic seconds. ``on_refusal`` is told
    when ``refusal`` changes."""

    def __init__(
        self,
        journal: Journal,
        streams: StreamLogs,
        facts: CopyFacts,
        engine: str,
        segment_size: int,
        kv_state: tuple[int, int],
        ends: Callable[[], dict[str, int]],
        clock: Callable[[], float],
    ) -> None:
        self.journal = journal
        self.streams = streams
        self.facts = facts
        self.kv_state = kv_state
        self.ends = ends
        self.clock = clock
        self.lsn = 1  # of the last group
        self.stored_before = journal.next  # records below this offset are copied
        self._confirmed = 0  # all nodes in step have had the records below this offset in this life
        self.required: Collection[str] = ()
        self.refusal = ""  # why nothing is accepted: too few nodes are in step
        self.on_refusal: Callable[[str], None] = lambda refusal: None
        self.on_acknowledged: Callable[[str, int], None] = lambda name, lsn: None
        self._hello = Hello(facts.owner, facts.generation, engine, segment_size, facts.lives)
        self._acknowledged: dict[str, int] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._waiting: deque[tuple[int, int, asyncio.Future[None]]] = deque()  # lsn, end of the journal, who waits
        self._unshown: deque[tuple[int, list[tuple[StreamLog, int]]]] = deque()  # lsn, ends of streams
        self._streamed: list[bytes] = []  # operations for streams, of this turn

    def hello(self) -> bytes:
        return msgspec.msgpack.encode(self._hello)

    # Reports of the store

    def streamed(self, number: int, offset: int, records: list[bytes]) -> None:
        """Records were appended to a stream. They belong to the next ``commit``."""
        if self._outboxes:
            self._streamed.append(frames.stream(number, offset, records))

    def commit(self, offset: int, records: list[bytes]) -> None:
        """Records were appended to the journal, all those of a turn; ``offset`` of the first."""
        operations, self._streamed = self._streamed, []
        if records and self._outboxes:
            operations.insert(0, frames.append(offset, records))
        if records or operations:
            self._send(operations)

    def copied(self, local: Awaitable[None] | None) -> Awaitable[None] | None:
        """Completes once everything up to here is stored on this node (``local``) and copied; None: both. Raises
        NotYetStored."""
        if self.refusal:
            raise NotYetStored(self.refusal)
        if self.is_copied(self.lsn):
            self.stored_before = self._confirmed = self.journal.next
            return local
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self.lsn, self.journal.next, future))
        return future if local is None else _both(local, future)

    def show(self, marks: list[tuple[StreamLog, int]]) -> None:
        """Show these records of streams to readers once everything up to here is copied."""
        if self.is_copied(self.lsn):
            self.streams.show(marks)
        elif marks:
            self._unshown.append((self.lsn, marks))

    def mark(self, batch: Batch) -> None:
        """Mark a batch that is about to be written into the key-value store."""
        state = (self.facts.generation, self.kv_state[1] + 1)
        batch.put(META_COPY, msgspec.msgpack.encode(state))

    def wrote(self, batch: Batch) -> None:
        """A marked batch was written."""
        self.kv_state = (self.facts.generation, self.kv_state[1] + 1)
        self._send([frames.kv(batch.changes)] if self._outboxes else [])

    def gave_back(self) -> None:
        """Segments of the journal or of streams were deleted."""
        self._send([self.kept()] if self._outboxes else [])

    def defined(self) -> None:
        """A stream was created, changed or deleted."""
        self._send(self.definitions() if self._outboxes else [])

    def consumed(self, number: int, content: bytes) -> None:
        """The consumers of a stream have changed; ``content`` of CONSUMERS."""
        self._send([frames.packed(frames.CONSUMERS, (number, content))] if self._outboxes else [])

    # Sent to followers

    def forget(self, name: str) -> None:
        """A follower begins again. What it acknowledged before does not count any more: its disk may have been
        replaced."""
        if (older := self._outboxes.get(name)) is not None:
            self.detach(older)
        self._acknowledged[name] = 0

    def attach(self, name: str, wake: Callable[[], None], operations: list[bytes]) -> Outbox:
        """From here on, groups go to this follower; ``operations`` is all that it lacks up to now."""
        self.forget(name)
        outbox = Outbox(name, wake)
        self._outboxes[name] = outbox
        outbox.put(self.lsn, frames.encode_group(self.lsn, operations), self.clock())
        return outbox

    def detach(self, outbox: Outbox) -> None:
        outbox.end()
        if self._outboxes.get(outbox.name) is outbox:
            del self._outboxes[outbox.name]

    def behind(self, name: str) -> tuple[int, float] | None:
        """Bytes and seconds by which a follower is behind; None if it is not attached."""
        outbox = self._outboxes.get(name)
        if outbox is None:
            return None
        since = outbox.since()
        return outbox.behind, 0.0 if since is None else self.clock() - since

    def definitions(self) -> list[bytes]:
        """The operations that define all streams and their consumers."""
        logs = list(self.streams.by_number.values())
        defined = Defined([log.definition for log in logs], self.ends())
        return [frames.packed(frames.DEFINE, defined), *map(self._consumers, logs)]

    def kept(self) -> bytes:
        ranges = tuple([(segment.first, segment.next) for segment in self.journal.segments()])
        if not ranges:
            ranges = ((self.journal.first, self.journal.next),)
        streams = {number: log.journal.first for number, log in self.streams.by_number.items()}
        return frames.packed(frames.KEEP, Kept(ranges, streams))

    # Stored by followers

    def acknowledge(self, outbox: Outbox, lsn: int) -> None:
        """The follower has stored all groups up to this one. A late acknowledgement on an earlier connection does not
        count."""
        name = outbox.name
        if outbox.ended or self._outboxes.get(name) is not outbox or lsn <= self._acknowledged[name] or lsn > self.lsn:
            return
        self._acknowledged[name] = lsn
        outbox.acknowledged(lsn)
        self._settle()
        self.on_acknowledged(name, lsn)

    def acknowledged(self, name: str) -> int:
        return self._acknowledged.get(name, 0)

    def require(self, names: Collection[str], refusal: str) -> None:
        """From here on, groups count as copied once these nodes have them. ``refusal``: why nothing is accepted, or
        ""."""
        self.required = names
        before, self.refusal = self.refusal, refusal and BROKEN + refusal
        if self.refusal:
            self._give_up()
        self._settle()
        if self.refusal != before:
            self.on_refusal(self.refusal)

    def is_copied(self, lsn: int) -> bool:
        acknowledged = self._acknowledged
        return all(acknowledged.get(name, 0) >= lsn for name in self.required)

    def lost_by(self, position: CopyPosition) -> bool:
        """Whether a copy with this position, if its node is in step, has lost something that it had acknowledged."""
        return position.kv == NO_KV or position.journal < self._confirmed

    @property
    def waiting(self) -> int:
        """Number of commits that wait for followers."""
        return len(self._waiting)

    def when_copied(self, lsn: int, call: Callable[[], None]) -> None:
        """Call when a group is copied that is not yet, or when the present groups are given up."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: call())
        self._waiting.append((lsn, self.journal.next, future))

    @property
    def reaches_followers(self) -> bool:
        """Whether all followers in step get each group, so that waiting for them makes sense."""
        return not self.refusal and all(name in self._outboxes for name in self.required)

    async def flush(self, seconds: float) -> None:
        """Give the followers in step this time to store everything up to here."""
        if self.is_copied(self.lsn) or not self.reaches_followers:
            return
        copied = asyncio.Event()
        self.when_copied(self.lsn, copied.set)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await copied.wait()

    def close(self) -> None:
        """No caller waits any more, and nothing more is sent."""
        for outbox in list(self._outboxes.values()):
            self.detach(outbox)
        self.refusal = f"{BROKEN}the node is stopping"
        self._give_up()

    def _settle(self) -> None:
        waiting = self._waiting
        while waiting and self.is_copied(waiting[0][0]):
            _, end, future = waiting.popleft()
            self.stored_before = self._confirmed = end
            if not future.done():
                future.set_result(None)
        while self._unshown and self.is_copied(self._unshown[0][0]):
            self.streams.show(self._unshown.popleft()[1])

    def _give_up(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(NotYetStored(self.refusal))
                future.exception()  # for some of them no caller reads the exception

    # Sending

    def _send(self, operations: list[bytes]) -> None:
        self.lsn += 1
        if not self._outboxes:
            return
        group = frames.encode_group(self.lsn, operations)
        now = self.clock()
        for outbox in list(self._outboxes.values()):
            outbox.put(self.lsn, group, now)
            if outbox.ended:
                self.detach(outbox)

    @staticmethod
    def _consumers(log: StreamLog) -> bytes:
        return frames.packed(frames.CONSUMERS, (log.stream.number, log.consumers.encode()))


async def _both(local: Awaitable[None], copied: asyncio.Future[None]) -> None:
    await local
    await copied
