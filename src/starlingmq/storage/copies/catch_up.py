"""Brings a follower to the state of its owner, while the owner serves, and then on to its turns.

1. The owner holds its checkpoints: the key-value store does not change, and nothing is deleted.
2. The records of the journal and of each stream that the follower lacks are sent, in pieces, at a bounded rate.
3. If the follower's key-value store is in another state, the whole store is sent. The follower replaces its own by it
   at the end, so it has a store that fits its journal at every moment.
4. What has come meanwhile is sent, until little is left. That is sent in one turn of the event loop, and from that turn
   on the follower gets each group.

A follower that fails in between begins again with what it has by then. The rate bounds the first pass only; otherwise
a follower would never reach an owner that writes faster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from starlingmq.storage.copies import copy_frames as frames
from starlingmq.storage.copies.copy_frames import CopyPosition
from starlingmq.storage.copies.copy_source import CopySource
from starlingmq.storage.copies.outbox import Outbox
from starlingmq.storage.durable_store import DurableStore
from starlingmq.storage.journal import Journal
from starlingmq.storage.kv import after

PIECE_BYTES: Final = 256 << 10
PIECE_RECORDS: Final = 2_000
PIECE_KEYS: Final = 1_000
LAST_BYTES: Final = 256 << 10  # sent in one turn

Send = Callable[[bytes], Awaitable[None]]


class CatchUp:
    """``sent`` of ``total`` bytes so far; the total is an estimate. ``rate`` in bytes/s, 0: unlimited. ``wake``: see
    ``Outbox``."""

    def __init__(
        self, store: DurableStore, source: CopySource, name: str, send: Send, wake: Callable[[], None], rate: float
    ) -> None:
        self.store = store
        self.source = source
        self.name = name
        self.sent = 0
        self.total = 0
        self._send_bytes = send
        self._wake = wake
        self._rate = rate
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._at = 0  # next offset of the journal that the follower lacks
        self._streams: dict[int, int] = {}  # the same of each stream

    async def run(self, position: CopyPosition) -> Outbox:
        """The outbox of the follower, which is sent all groups from now on. Raises OSError when the owner's disk cannot
        be read, and what ``send`` raises."""
        source = self.source
        self._at, self._streams = position.journal, dict(position.streams)
        await self.store.hold()
        try:
            self.total = self._estimate()
            await self._pass()
            if position.kv != source.kv_state:
                await self._send_store()
            self._rate = 0.0
            while self._estimate() > LAST_BYTES:
                await self._pass()
            return self._finish()
        finally:
            self.store.release()

    async def _pass(self) -> None:
        """Send what there is by now. The journal comes first, since a stream may lack what the journal has."""
        source = self.source
        end = source.journal.next  # no turn is half written now
        numbers = list(source.streams.by_number)
        await self._send(source.definitions())
        while self._at < end and (runs := _read(source.journal, self._at, end)):
            await self._send([frames.append(offset, records) for offset, records in runs])
            self._at = _end(runs)
        self._at = max(self._at, end)
        await self._send([frames.append(self._at, [])])  # records that were left out do not exist
        for number in numbers:
            await self._pass_stream(number)
        await self._send([frames.plain(frames.BOUNDARY)])

    async def _pass_stream(self, number: int) -> None:
        known = self.source.streams.by_number
        end = known[number].journal.next if number in known else 0
        while number in known and (at := self._streams.get(number, 0)) < end:
            runs = _read(known[number].journal, at, end)
            if not runs:
                break
            await self._send([frames.stream(number, offset, records) for offset, records in runs])
            self._streams[number] = _end(runs)

    async def _send_store(self) -> None:
        await self._send([frames.plain(frames.KV_BEGIN)])
        start = b""
        while found := self.store.kv.scan(start, None, PIECE_KEYS):
            await self._send([frames.kv(dict(found))])
            start = after(found[-1][0])
        await self._send([frames.plain(frames.KV_END)])

    def _finish(self) -> Outbox:
        """All that is left, in this turn of the event loop."""
        source = self.source
        operations = source.definitions()
        operations += [frames.append(*run) for run in _read_all(source.journal, self._at)]
        operations.append(frames.append(source.journal.next, []))
        for number, log in source.streams.by_number.items():
            left = _read_all(log.journal, self._streams.get(number, 0))
            operations += [frames.stream(number, offset, records) for offset, records in left]
            operations.append(frames.stream(number, log.journal.next, []))
        operations.append(source.kept())
        outbox = source.attach(self.name, self._wake, operations)
        self.sent += outbox.waiting
        return outbox

    async def _send(self, operations: list[bytes]) -> None:
        group = frames.encode_group(0, operations)
        await self._send_bytes(group)
        self.sent += len(group)
        ahead = self.sent / self._rate - (self._clock() - self._began) if self._rate else 0.0
        await asyncio.sleep(max(0.0, ahead))

    def _estimate(self) -> int:
        """About how many bytes the follower lacks."""
        left = _bytes_from(self.source.journal, self._at)
        for number, log in self.source.streams.by_number.items():
            left += _bytes_from(log.journal, self._streams.get(number, 0))
        return left


def _bytes_from(journal: Journal, at: int) -> int:
    first, next = journal.first, journal.next
    return 0 if next <= max(at, first) else journal.size * (next - max(at, first)) // (next - first)


def _read(journal: Journal, at: int, end: int) -> list[tuple[int, list[bytes]]]:
    """The next piece of the records before ``end``, as runs of neighbours: offset of the first, records."""
    runs: list[tuple[int, list[bytes]]] = []
    following = -1
    for offset, record in journal.read(at, min(PIECE_RECORDS, end - at), PIECE_BYTES):
        if offset >= end:
            break
        if offset != following:
            runs.append((offset, []))
        runs[-1][1].append(record)
        following = offset + 1
    return runs


def _read_all(journal: Journal, at: int) -> list[tuple[int, list[bytes]]]:
    runs: list[tuple[int, list[bytes]]] = []
    end = journal.next
    while at < end and (more := _read(journal, at, end)):
        runs += more
        at = _end(more)
    return runs


def _end(runs: list[tuple[int, list[bytes]]]) -> int:
    return runs[-1][0] + len(runs[-1][1])
