"""Delayed refusals, which slow down guessing. Bounded: with too many of them the oldest is sent early."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

DELAYED_MAX: Final = 1000


class Delays:
    def __init__(self) -> None:
        self._waiting: dict[asyncio.Event, None] = {}

    async def wait(self, seconds: float) -> None:
        if not seconds:
            return
        if len(self._waiting) >= DELAYED_MAX:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.set()
        woken = asyncio.Event()
        self._waiting[woken] = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await woken.wait()
        finally:
            self._waiting.pop(woken, None)
