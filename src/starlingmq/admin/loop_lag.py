"""The delay of the event loop, measured with a timer. It runs only where operators can read the result."""

from __future__ import annotations

import asyncio
from typing import Final

from starlingmq.core.observe.counters import Histogram

INTERVAL: Final = 0.25  # seconds


class LoopLag:
    def __init__(self) -> None:
        self.seen = Histogram()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + INTERVAL
        self._timer = loop.call_at(due, self._look, due)

    def _look(self, due: float) -> None:
        self.seen.add(asyncio.get_running_loop().time() - due)
        self.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
