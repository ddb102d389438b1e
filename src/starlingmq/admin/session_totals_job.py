"""Sums over all sessions, computed over several turns of the event loop, and reused for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import thread_time
from typing import Final

from starlingmq.admin.paging import in_pieces
from starlingmq.core.broker import BrokerState
from starlingmq.core.reports.session_totals import SessionTotals

FRESH: Final = 2.0  # seconds for which a result is reused, at least
# a result is reused for at least this multiple of the time it took: so this costs at most a third of a percent of a
# core, whatever the number of sessions
SHARE: Final = 300


class SessionTotalsJob:
    """Requests that arrive while a survey runs share its result."""

    def __init__(self, state: BrokerState, clock: Callable[[], float]) -> None:
        """``clock``: that of the broker."""
        self._state = state
        self._clock = clock
        self._last = SessionTotals()
        self._good_until = 0.0
        self._task: asyncio.Task[SessionTotals] | None = None

    async def count(self) -> SessionTotals:
        loop = asyncio.get_running_loop()
        if loop.time() < self._good_until:
            return self._last
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._take())
        return await asyncio.shield(self._task)

    async def _take(self) -> SessionTotals:
        found = SessionTotals(self._clock(), self._last)
        for name, closed in self._state.ctx.counters.by_listener.items():
            found.of(name).add(closed.published, closed.bytes_in, closed.bytes_out)
        took = 0.0
        for piece in in_pieces(self._state.ctx.sessions):
            begun = thread_time()
            found.count(piece)
            took += thread_time() - begun
            await asyncio.sleep(0)
        for name, before in self._last.by_listener.items():
            # clients that disconnected during the survey were counted neither as open nor as closed
            found.of(name).at_least(before)
        found.finished()
        self._last = found
        self._state.ctx.counted_beyond_limits(found.beyond_limits)
        self._good_until = asyncio.get_running_loop().time() + max(FRESH, SHARE * took)
        return found
