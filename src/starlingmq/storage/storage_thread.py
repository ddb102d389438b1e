"""The thread for blocking calls of the store: syncs, and steps of checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class StorageThread:
    """``wake`` makes the driver call the store's ``maintain`` soon. ``waiting``: the step for which ``run`` waits."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        self.waiting: asyncio.Future[None] | None = None
        self._threads = ThreadPoolExecutor(1, "starlingmq-storage")

    def start(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, call)

    def run(self, call: Callable[[], None]) -> Iterator[None]:
        """Run a blocking call in the thread, and continue in the turn after it."""
        waiting = self.start(call)
        self.waiting = waiting
        waiting.add_done_callback(self._go_on)
        yield
        error = waiting.exception()
        if error is not None:
            raise error

    def _go_on(self, done: asyncio.Future[None]) -> None:
        done.exception()
        self.waiting = None
        self.wake()

    def close(self) -> None:
        self._threads.shutdown()
