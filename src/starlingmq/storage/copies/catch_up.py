"""Brings a follower to the state of its owner, while the owner serves, and then on to its turns.

1. The owner holds its checkpoints: the key-value store does not change, and nothing is deleted.
2. If the follower's key-value store is in another state, the whole store is sent.
3. The records of the journal and of each stream that the follower lacks are sent, in pieces, at a bounded rate.
4. When little is left, it is sent in one turn of the event loop, and from that turn on the follower gets each group.

A follower that fails in between begins again with what it has by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from starlingmq.storage.copies import copy_frames as frames
from starlingmq.storage.copies.copy_frames import Position
from starlingmq.storage.copies.copy_source import CopySource, Outbox
from starlingmq.storage.durable_store import DurableStore
from starlingmq.storage.journal import Journal

PIECE_BYTES: Final = 1 << 20
PIECE_RECORDS: Final = 10_000
PIECE_KEYS: Final = 1000
LAST_BYTES: Final = 256 << 10  # sent in one turn

Send = Callable[[bytes], Awaitable[None]]


class CatchUp:
    """``sent`` of ``total`` bytes so far; the total is an estimate. ``rate`` in bytes/s, 0: as fast as it is taken.
    ``wake``: see ``CopySource.attach``."""

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

    async def run(self, position: Position) -> Outbox:
        """The outbox of the follower, which is sent all groups from now on. Raises OSError when the owner's disk cannot
        be read, and what ``send`` raises."""
        source = self.source
        await self.store.hold()
        try:
            self.total = self._estimate(position)
            if position.kv != source.kv_state:
                await self._send_store()
            await self._send([*source.whole_definitions()])
            at = position.journal
            streams = dict(position.streams)
            while True:
                at, more = await self._send_journal(at)
                for number in list(source.streams.by_number):
                    more = await self._send_stream(number, streams) or more
                if not more:
                    break
            return self._finish(at, streams)
        finally:
            self.store.release()

    async def _send_store(self) -> None:
        await self._send([frames.plain(frames.KV_BEGIN)])
        start = b""
        while found := self.store.kv.scan(start, None, PIECE_KEYS):
            await self._send([frames.kv(dict(found))])
            start = found[-1][0] + b"\0"
        await self._send([self.source.mark_operation(), frames.plain(frames.KV_END)])

    async def _send_journal(self, at: int) -> tuple[int, bool]:
        """Send records until little is left. The next offset, and whether anything was sent."""
        began = at
        journal = self.source.journal
        while _left(journal, at) and (runs := _read(journal, at)):
            await self._send([frames.append(offset, records) for offset, records in runs])
            at = runs[-1][0] + len(runs[-1][1])
        return at, at != began

    async def _send_stream(self, number: int, streams: dict[int, int]) -> bool:
        log = self.source.streams.by_number.get(number)
        began = streams.get(number, 0)
        while log is not None and _left(log.journal, streams.get(number, 0)):
            runs = _read(log.journal, streams.get(number, 0))
            if not runs:
                break
            await self._send([frames.stream(number, offset, records) for offset, records in runs])
            streams[number] = runs[-1][0] + len(runs[-1][1])
        return streams.get(number, 0) != began

    def _finish(self, at: int, streams: dict[int, int]) -> Outbox:
        """All that is left, in this turn of the event loop."""
        source = self.source
        operations = source.whole_definitions()
        operations += [frames.append(offset, records) for offset, records in _read_all(source.journal, at)]
        for number, log in source.streams.by_number.items():
            left = _read_all(log.journal, streams.get(number, 0))
            operations += [frames.stream(number, offset, records) for offset, records in left]
        operations.append(source.kept())
        outbox = source.attach(self.name, self._wake)
        group = frames.encode_group(source.lsn, operations)
        self.sent += len(group)
        outbox.put(group)
        return outbox

    async def _send(self, operations: list[bytes]) -> None:
        """A group that is not acknowledged by itself: its number is 0."""
        group = frames.encode_group(0, operations)
        await self._send_bytes(group)
        self.sent += len(group)
        if self._rate:
            ahead = self.sent / self._rate - (self._clock() - self._began)
            await asyncio.sleep(max(0.0, ahead))
        else:
            await asyncio.sleep(0)

    def _estimate(self, position: Position) -> int:
        journals: list[tuple[Journal, int]] = [(self.source.journal, position.journal)]
        for number, log in self.source.streams.by_number.items():
            journals.append((log.journal, position.streams.get(number, 0)))
        return sum(_bytes_from(journal, at) for journal, at in journals)


def _bytes_from(journal: Journal, at: int) -> int:
    """About how many bytes there are from that offset on."""
    first, next = journal.first, journal.next
    return 0 if next <= first else journal.size * (next - max(at, first)) // (next - first)


def _left(journal: Journal, at: int) -> bool:
    return _bytes_from(journal, at) > LAST_BYTES


def _read(journal: Journal, at: int) -> list[tuple[int, list[bytes]]]:
    """The next piece, as runs of neighbours: offset of the first, records."""
    runs: list[tuple[int, list[bytes]]] = []
    following = -1
    for offset, record in journal.read(at, PIECE_RECORDS, PIECE_BYTES):
        if offset != following:
            runs.append((offset, []))
        runs[-1][1].append(record)
        following = offset + 1
    return runs


def _read_all(journal: Journal, at: int) -> list[tuple[int, list[bytes]]]:
    runs: list[tuple[int, list[bytes]]] = []
    while more := _read(journal, at):
        runs += more
        at = more[-1][0] + len(more[-1][1])
    return runs
