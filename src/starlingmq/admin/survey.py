"""Sums over all sessions, which nothing counts as it goes: taken some sessions a turn, and remembered for a while."""

from __future__ import annotations

import asyncio
import heapq
from typing import Final

from starlingmq.admin.listing import in_pieces, of_clients
from starlingmq.core.broker import BrokerState
from starlingmq.core.counters import OfListener

FRESH: Final = 2.0  # seconds that a survey is good for
SLOW_MAX: Final = 10  # sessions that are named because they lag most


class Survey:
    """What there was; ``slow`` are (messages that wait, client id), the worst first."""

    def __init__(self) -> None:
        self.connected = 0
        self.away = 0
        self.queued = 0
        self.queued_bytes = 0
        self.inflight = 0
        self.awaiting_rel = 0
        self.stalled = 0
        self.by_listener: dict[str, OfListener] = {}  # connections that are open, and those before them
        self.slow: list[tuple[int, str]] = []


class Surveyor:
    """Whoever asks while a survey is taken gets that one."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._last = Survey()
        self._taken = -FRESH
        self._task: asyncio.Task[Survey] | None = None

    async def survey(self) -> Survey:
        loop = asyncio.get_running_loop()
        if loop.time() < self._taken + FRESH:
            return self._last
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._take())
        return await asyncio.shield(self._task)

    async def _take(self) -> Survey:
        found = Survey()
        for name, closed in self._state.ctx.counters.by_listener.items():
            _of(found, name).add(closed.published, closed.bytes_in, closed.bytes_out)
        for piece in await in_pieces(self._state.ctx.sessions):
            for session in piece:
                if not of_clients(session):
                    continue
                client = session.client
                if client is not None:
                    found.connected += 1
                    _of(found, client.listener).add(client.published, client.bytes_in, client.bytes_out)
                else:
                    found.away += 1
                if session.stalled:
                    found.stalled += 1
                if session.window is not None:
                    found.inflight += len(session.window.entries)
                if session.inbound is not None:
                    found.awaiting_rel += session.inbound.held
                queue = session.queue
                if queue is not None:
                    waiting = len(queue)
                    found.queued += waiting
                    found.queued_bytes += queue.bytes
                    if session.client is not None and waiting:
                        found.slow = heapq.nlargest(SLOW_MAX, [*found.slow, (waiting, session.client_id)])
            await asyncio.sleep(0)
        for name, before in self._last.by_listener.items():
            _of(found, name).at_least(before)  # who went meanwhile was counted neither as open nor as closed
        self._last, self._taken = found, asyncio.get_running_loop().time()
        return found


def _of(survey: Survey, listener: str) -> OfListener:
    found = survey.by_listener.get(listener)
    if found is None:
        found = survey.by_listener[listener] = OfListener()
    return found
