"""Deletes, from time to time, what streams no longer keep, in a thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from starlingmq.storage.storage_thread import StorageThread
from starlingmq.storage.streams.stream_logs import StreamLogs

log = logging.getLogger("starlingmq.storage")

TIDY_SECONDS: Final = 1.0  # between two checks of the retention of streams


class StreamTidying:
    def __init__(self, streams: StreamLogs, thread: StorageThread, clock: Callable[[], float]) -> None:
        self.streams = streams
        self.thread = thread
        self.clock = clock
        self.running: asyncio.Future[list[None]] | None = None
        self._next_at = 0.0

    def look(self) -> None:
        now = self.clock()
        if now < self._next_at or self.running is not None:
            return
        self._next_at = now + TIDY_SECONDS
        self.streams.weigh()
        asyncio.get_running_loop().call_later(TIDY_SECONDS, self.thread.wake)
        if work := self.streams.tidy(now):
            self.running = self.thread.start(lambda: [step() for step in work])
            self.running.add_done_callback(self._tidied)

    def _tidied(self, done: asyncio.Future[list[None]]) -> None:
        self.running = None
        error = done.exception()
        if error is not None:
            log.error("a stream exceeds its retention, because deleting failed: %s; it is retried", error)
        self.streams.gave_back()
        self.streams.weigh()
