"""Compares the memory of the process with ``limits.memory`` many times a second, tells the core, and lets caches
age."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

from starlingmq.net.driver import Driver
from starlingmq.net.process import free_memory, memory

log = logging.getLogger("starlingmq")

MEMORY_INTERVAL: Final = 0.1  # seconds between two checks of the memory of the process, if it has a limit
UNLIMITED_INTERVAL: Final = 1.0  # and if it has none; a reload may set one
FREEING_SHARE: Final = 20  # returning freed memory to the system takes at most a twentieth of the time
CACHE_PERIOD: Final = 20.0  # seconds that caches keep at least; they keep nothing unused for twice as long
CACHED_MANY: Final = 4096  # topics: once a cache of more has shrunk, its memory is returned to the system
LEFT_SECONDS: Final = 20.0  # between two looks at whether many clients have gone
LEFT_MIN: Final = 16  # connections, and a quarter of those there were
MEMORY_FREE: Final = 0.95  # of ``limits.memory``: below this, everything is accepted again


class MemoryWatch:
    """``limit`` returns bytes, 0 for none; it is called each time."""

    def __init__(self, driver: Driver, limit: Callable[[], int]) -> None:
        self.driver = driver
        self.limit = limit
        self._timer: asyncio.TimerHandle | None = None
        self._free_again = 0.0  # the time when freed memory may be returned to the system again
        self._period_ends = monotonic() + CACHE_PERIOD
        self._cached = 0  # the most topics that were cached since freed memory was returned to the system
        self._connected = 0  # the most connections since then
        self._left_again = monotonic() + LEFT_SECONDS

    def look(self) -> None:
        """Check from now on, until ``stop``; and let caches age."""
        self._age()
        self._return_memory()
        quotas = self.driver.state.ctx.quotas
        limit = self.limit()
        interval = MEMORY_INTERVAL if limit else UNLIMITED_INTERVAL
        if quotas.short_of_memory:
            limit = int(limit * MEMORY_FREE)
        had = memory() if limit else 0
        if limit and had > limit and monotonic() >= self._free_again:
            # The allocator keeps memory that many large packets needed, and caches need not be kept. Neither must cause
            # refusals.
            began = monotonic()
            self.driver.state.caches.forget()
            free_memory()
            had = memory()
            if had > limit:
                self.driver.shed(had - int(self.limit() * MEMORY_FREE))
            self._free_again = began + FREEING_SHARE * (monotonic() - began)
        short = limit != 0 and had > limit
        if short != quotas.short_of_memory:
            quotas.short_of_memory = short
            log.warning(
                "the process uses %d MiB of memory: %s (limits.memory)",
                had >> 20,
                "new clients and messages are refused until it uses less"
                if short
                else "new clients and messages are accepted again",
            )
        self._timer = asyncio.get_running_loop().call_later(interval, self.look)

    def _age(self) -> None:
        """Caches let go what is old, so that clients that have gone leave nothing behind."""
        caches = self.driver.state.caches
        if monotonic() >= self._period_ends:
            self._period_ends = monotonic() + CACHE_PERIOD
            caches.age()
        cached = caches.let_old_go()
        self._cached = max(self._cached, cached)
        if self._cached > CACHED_MANY and cached < self._cached // 2:
            self._cached = cached
            free_memory()

    def _return_memory(self) -> None:
        """Memory that clients needed is returned to the system once many of them have gone: some milliseconds for each
        100 MB."""
        connected = self.driver.state.ctx.counters.connections_open
        self._connected = max(self._connected, connected)
        now = monotonic()
        if now < self._left_again:
            return
        if self._connected - connected >= max(LEFT_MIN, self._connected // 4):
            self._connected = connected
            free_memory()
        self._left_again = now + LEFT_SECONDS

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
