"""The owner's side of copies: what each turn changed goes to all followers, and what is acknowledged waits for them.

The law: a turn is *copied* once each node in ``required`` has acknowledged its group. ``required`` only loses a node
after etcd has confirmed that the node is not in step any more (``cluster.copies.in_step``), so whoever may be named
successor has everything that was acknowledged to a client.

    commit ---> group n ---> outbox of each follower ---> acknowledged(follower, n)
       |                                                          |
       +--- copied(local) waits until n <= all of ``required`` <--+

Nothing is dropped for a follower that is slow. Its outbox ends when it holds ``OUTBOX_BYTES``: the follower then goes
on from the owner's journal (``storage.copies.catch_up``), which is on disk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, Protocol

import msgspec

from starlingmq.storage.copies import copy_frames as frames
from starlingmq.storage.copies.copy_frames import Kept
from starlingmq.storage.journal import Journal
from starlingmq.storage.keys import META_COPY
from starlingmq.storage.kv import Batch
from starlingmq.storage.store import NotYetStored
from starlingmq.storage.streams.stream_logs import StreamLogs

OUTBOX_BYTES: Final = 64 << 20


class Appended(Protocol):
    """A stream with what it has for its log."""

    number: int
    next: int
    pending: list[bytes]


class Outbox:
    """What one follower has not been sent. ``wake`` is called when there is something, or when it has ended."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self.name = name
        self.bytes = 0
        self.ended = False
        self._wake = wake
        self._groups: deque[bytes] = deque()

    def put(self, group: bytes) -> None:
        if self.ended:
            return
        if self._groups and self.bytes + len(group) > OUTBOX_BYTES:
            self.end()
            return
        self._groups.append(group)
        self.bytes += len(group)
        self._wake()

    def take(self, size: int) -> bytes:
        """Up to ``size`` bytes of groups, one at least if there is one."""
        taken: list[bytes] = []
        total = 0
        while self._groups and (not taken or total + len(self._groups[0]) <= size):
            taken.append(self._groups.popleft())
            total += len(taken[-1])
        self.bytes -= total
        return b"".join(taken)

    def end(self) -> None:
        """Nothing more is put in."""
        self.ended = True
        self._groups.clear()
        self.bytes = 0
        self._wake()


class CopySource:
    """Of one open data directory, from its opening on. ``life`` is a number that no earlier opening had."""

    lsn: int  # of the last group

    def __init__(self, journal: Journal, streams: StreamLogs, life: int) -> None:
        self.journal = journal
        self.streams = streams
        self.life = life
        self.lsn = 0
        self.journal_end = journal.next
        self.stream_ends = {number: log.stream.next for number, log in streams.by_number.items()}
        self.required: Collection[str] = ()
        self.refusal = ""  # why nothing is accepted: too few nodes are in step
        self.on_acknowledged: Callable[[str, int], None] = lambda name, lsn: None
        self._acknowledged: dict[str, int] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._batches = 0
        self._defined = streams.version

    # What the store tells

    def commit(self, offset: int, records: list[bytes], streams: Iterable[tuple[int, int, list[bytes]]]) -> None:
        """The writes of a turn: records of the journal, and per stream its number, the offset of the first record, and
        the records."""
        if not records:
            return
        self.lsn += 1
        if not self._outboxes:
            return
        operations = self._definitions()
        operations.append(frames.append(offset, records))
        operations += [frames.stream(*each) for each in streams]
        self._send(operations)

    def copied(self, local: Awaitable[None] | None) -> Awaitable[None] | None:
        """What is done once the last commit is stored here (``local``) and copied; None: it is. Raises NotYetStored."""
        if self.refusal:
            raise NotYetStored(self.refusal)
        if self.is_copied(self.lsn):
            return local
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self.lsn, future))
        return future if local is None else _both(local, future)

    def wrote(self, batch: Batch) -> None:
        """A batch of the key-value store."""
        self._batches += 1
        self.lsn += 1
        if self._outboxes:
            self._send([frames.kv({**batch.changes, META_COPY: self._mark()})])

    def gave_back(self) -> None:
        """Segments of the journal were deleted."""
        self.lsn += 1
        if self._outboxes:
            self._send([self.kept()])

    def consumers_changed(self, number: int, content: bytes) -> None:
        self.lsn += 1
        if self._outboxes:
            self._send([self._consumers(number, content)])

    # What followers get

    @property
    def kv_state(self) -> tuple[int, int]:
        return self.life, self._batches

    def attach(self, name: str, wake: Callable[[], None]) -> Outbox:
        """From here on, groups go to this follower; it has, or is being sent, all up to ``lsn``."""
        outbox = Outbox(name, wake)
        if (older := self._outboxes.pop(name, None)) is not None:
            older.end()
        self._outboxes[name] = outbox
        return outbox

    def detach(self, outbox: Outbox) -> None:
        outbox.end()
        if self._outboxes.get(outbox.name) is outbox:
            del self._outboxes[outbox.name]

    def attached(self) -> dict[str, int]:
        """Bytes that wait for each follower that is sent what happens."""
        return {name: outbox.bytes for name, outbox in self._outboxes.items()}

    def whole_definitions(self) -> list[bytes]:
        """The operations that define all streams, and say who reads them."""
        logs = list(self.streams.by_number.values())
        found = [frames.plain(frames.DEFINE, msgspec.msgpack.encode([log.definition for log in logs]))]
        for log in logs:
            found.append(self._consumers(log.stream.number, log.consumers.encode()))
        return found

    def kept(self) -> bytes:
        segments = self.journal.segments()
        ranges = tuple([(segment.first, segment.next) for segment in segments])
        if not ranges:
            ranges = ((self.journal.first, self.journal.next),)
        streams = {number: log.journal.first for number, log in self.streams.by_number.items()}
        return frames.plain(frames.KEEP, msgspec.msgpack.encode(Kept(ranges, streams)))

    def mark_operation(self) -> bytes:
        """Marks a store that is received as being in the state of this one."""
        return frames.kv({META_COPY: self._mark()})

    # What followers have

    def acknowledge(self, name: str, lsn: int) -> None:
        """That follower has stored all groups up to this one."""
        if lsn > self._acknowledged.get(name, 0):
            self._acknowledged[name] = lsn
            self._settle()
            self.on_acknowledged(name, lsn)

    def acknowledged(self, name: str) -> int:
        return self._acknowledged.get(name, 0)

    def require(self, names: Collection[str], refusal: str) -> None:
        """From here on, groups count as copied once these have them. ``refusal``: why nothing is accepted, or ""."""
        self.required = names
        self.refusal = refusal
        if refusal:
            waiting, self._waiting = self._waiting, deque()
            for _, future in waiting:
                if not future.done():
                    future.set_exception(NotYetStored(refusal))
                    future.exception()  # of some of them nobody waits
        self._settle()

    def is_copied(self, lsn: int) -> bool:
        acknowledged = self._acknowledged
        return all(acknowledged.get(name, 0) >= lsn for name in self.required)

    def waiting(self) -> int:
        """Commits that wait for followers."""
        return len(self._waiting)

    def _settle(self) -> None:
        waiting = self._waiting
        while waiting and self.is_copied(waiting[0][0]):
            _, future = waiting.popleft()
            if not future.done():
                future.set_result(None)

    # Sending

    def _send(self, operations: list[bytes]) -> None:
        group = frames.encode_group(self.lsn, operations)
        for outbox in list(self._outboxes.values()):
            outbox.put(group)
            if outbox.ended:
                self.detach(outbox)

    def _definitions(self) -> list[bytes]:
        if self._defined == self.streams.version:
            return []
        self._defined = self.streams.version
        return self.whole_definitions()

    def _mark(self) -> bytes:
        return msgspec.msgpack.encode(self.kv_state)

    @staticmethod
    def _consumers(number: int, content: bytes) -> bytes:
        return frames.plain(frames.CONSUMERS, msgspec.msgpack.encode((number, content)))


async def _both(local: Awaitable[None], copied: asyncio.Future[None]) -> None:
    await local
    await copied
