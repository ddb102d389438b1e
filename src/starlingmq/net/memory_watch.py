"""Compares the memory of the process with ``limits.memory`` many times a second, and tells the core."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

from starlingmq.net.driver import Driver
from starlingmq.process import free_memory, memory

log = logging.getLogger("starlingmq")

MEMORY_INTERVAL: Final = 0.1  # seconds between two checks of the memory of the process, if it has a limit
UNLIMITED_INTERVAL: Final = 1.0  # and if it has none; a reload may set one
FREEING_SHARE: Final = 20  # returning freed memory to the system takes at most a twentieth of the time
MEMORY_FREE: Final = 0.95  # of ``limits.memory``: below this, everything is accepted again


class MemoryWatch:
    """``limit`` returns bytes, 0 for none; it is called each time."""

    def __init__(self, driver: Driver, limit: Callable[[], int]) -> None:
        self.driver = driver
        self.limit = limit
        self._timer: asyncio.TimerHandle | None = None
        self._free_again = 0.0  # the time when freed memory may be returned to the system again

    def look(self) -> None:
        """Check from now on, until ``stop``."""
        quotas = self.driver.state.ctx.quotas
        limit = self.limit()
        interval = MEMORY_INTERVAL if limit else UNLIMITED_INTERVAL
        if quotas.short_of_memory:
            limit = int(limit * MEMORY_FREE)
        had = memory() if limit else 0
        if limit and had > limit and monotonic() >= self._free_again:
            # The allocator keeps memory that many large packets needed. This must not cause refusals.
            began = monotonic()
            free_memory()
            had = memory()
            if had > limit:
                self.driver.shed()
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

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
