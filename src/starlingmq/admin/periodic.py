"""Something that is done every few seconds, from ``start`` to ``stop``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("starlingmq.admin")


class Periodic:
    """An error is logged, and the next call follows in its time. ``what``: for the log, such as "looking for alarms".
    ``at_once``: the first call is at the start."""

    def __init__(
        self, what: str, seconds: float, act: Callable[[], Awaitable[object]], *, at_once: bool = False
    ) -> None:
        self._what = what
        self._seconds = seconds
        self._act = act
        self._at_once = at_once
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        await ended(self._task)

    async def _run(self) -> None:
        if not self._at_once:
            await asyncio.sleep(self._seconds)
        while True:
            try:
                await self._act()
            except Exception:
                log.exception("internal error while %s", self._what)
            await asyncio.sleep(self._seconds)


async def ended(task: asyncio.Task[None] | None) -> None:
    """Cancel this task, if there is one, and wait until it has ended."""
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
