"""The owner's side of one connection to a follower: brings it up to date, then sends it each group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from starlingmq.storage.copies.catch_up import CatchUp, Send
from starlingmq.storage.copies.copy_frames import CopyPosition
from starlingmq.storage.copies.copy_source import CopySource
from starlingmq.storage.copies.outbox import Outbox
from starlingmq.storage.durable_store import DurableStore

MESSAGE_BYTES = 256 << 10


class FeedEnded(Exception):
    """The follower was too slow for what is kept in memory for it. It goes on from the journal after a new hello."""


class CopyFeed:
    """``rate``: bytes/s while the follower catches up, 0: unlimited. ``on_live`` is called when it gets each group."""

    def __init__(self, store: DurableStore, source: CopySource, name: str, rate: float = 0.0) -> None:
        self.name = name
        self.phase: Literal["catching up", "live"] = "catching up"
        self.on_live: Callable[[], None] = lambda: None
        self._source = source
        self._more = asyncio.Event()
        self._outbox: Outbox | None = None
        self._store = store
        self._rate = rate
        self._catch_up: CatchUp | None = None

    @property
    def sent(self) -> int:
        """Bytes sent to bring the follower up to date, of about ``total``."""
        return self._catch_up.sent if self._catch_up is not None else 0

    @property
    def total(self) -> int:
        return self._catch_up.total if self._catch_up is not None else 0

    async def run(self, position: CopyPosition, send: Send) -> None:
        """Send until it is cancelled. ``position``: of the follower after it has begun. ``send`` waits while the
        connection is full. Raises FeedEnded, OSError, and what ``send`` raises."""
        self._source.forget(self.name)
        catch_up = CatchUp(self._store, self._source, self.name, send, self._more.set, self._rate)
        self._catch_up = catch_up
        outbox = self._outbox = await catch_up.run(position)
        self.phase = "live"
        self.on_live()
        try:
            while not outbox.ended:
                while data := outbox.take(MESSAGE_BYTES):
                    await send(data)
                self._more.clear()
                if not outbox.ended:
                    await self._more.wait()
        finally:
            self._source.detach(outbox)
        raise FeedEnded(f"follower {self.name} is too slow")

    def acknowledge(self, lsn: int) -> None:
        """The follower has stored all groups up to this one."""
        if self._outbox is not None:
            self._source.acknowledge(self._outbox, lsn)
