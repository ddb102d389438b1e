"""Login checks: a few at a time, in the order of ``auth.fair_queue``.

A check that has begun is finished even if its client is gone: its result counts against the address that caused it. A
check that has not begun is skipped if its connection is closed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlingmq.auth.fair_queue import FairQueue, QueueTicket
from starlingmq.core.limits.address_key import peer_host

if TYPE_CHECKING:
    from starlingmq.auth.automatic_bans import AutomaticBans
    from starlingmq.hooks import AuthRequest

Outcome = TypeVar("Outcome")

TOTAL_MAX: Final = 2000  # waiting logins
PATIENCE: Final = 8.0  # seconds; shorter than mqtt.connect_timeout, so that the client gets a reply


class ChecksBusy(Exception):
    """The check was not made: too many wait already, or this one has waited for too long."""


class CheckCounts:
    """Running totals, for metrics."""

    def __init__(self) -> None:
        self.checked = 0
        self.refused = 0  # too many waited
        self.expired = 0  # waited for too long
        self.gone = 0  # the connection was closed before its turn


class _WaitingCheck:
    def __init__(self, request: AuthRequest, work: Callable[[], Awaitable[Any]], since: float) -> None:
        self.request = request
        self.work = work
        self.since = since
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class Checks:
    """At most ``slots`` checks run at once, ``slots_of_one`` of them (0: all) for one address; ``key_max`` wait per
    address."""

    def __init__(
        self,
        slots: int,
        key_max: int,
        bans: AutomaticBans,
        slots_of_one: int = 0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.slots = slots
        self.slots_of_one = slots_of_one or slots
        self._running: Counter[str] = Counter()
        self.figures = CheckCounts()
        self._queue: FairQueue[_WaitingCheck] = FairQueue(key_max, TOTAL_MAX)
        self._bans = bans
        self._clock = clock
        self._under_way: set[asyncio.Task[None]] = set()

    @property
    def key_max(self) -> int:
        return self._queue.key_max

    @key_max.setter
    def key_max(self, value: int) -> None:
        self._queue.key_max = value

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def run(self, request: AuthRequest, known: bool, work: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """Run ``work`` when it is its turn, and return its result. Raises ChecksBusy, or what ``work`` raises."""
        waiting = _WaitingCheck(request, work, self._clock())
        key = self._bans.queue_key(request.peer, request.username or "")
        ticket, lost = self._queue.offer(key, waiting, known)
        if lost is not None:
            self._refuse(lost.item)
        if ticket is None:
            self.figures.refused += 1
            raise ChecksBusy
        self._go()
        try:
            outcome: Outcome = await waiting.future
            return outcome
        finally:
            if self._queue.drop(ticket):
                self.figures.gone += 1

    def _go(self) -> None:
        while len(self._under_way) < self.slots and (ticket := self._next()) is not None:
            task = asyncio.create_task(self._work(ticket))
            self._under_way.add(task)
            self._running[ticket.key] += 1
            task.add_done_callback(self._under_way.discard)

    def _next(self) -> QueueTicket[_WaitingCheck] | None:
        """The next check that is still wanted."""
        while (ticket := self._queue.take(self._held())) is not None:
            waiting = ticket.item
            if waiting.future.done():
                continue
            request, now = waiting.request, self._clock()
            if request.gone():
                self.figures.gone += 1
            elif self._bans.of(now, peer_host(request.peer), "", "") is not None:
                self.figures.refused += 1  # banned while it waited
            elif now - waiting.since > PATIENCE:
                self.figures.expired += 1
            else:
                return ticket
            waiting.future.set_exception(ChecksBusy())
        return None

    def _refuse(self, waiting: _WaitingCheck) -> None:
        self.figures.refused += 1
        if not waiting.future.done():
            waiting.future.set_exception(ChecksBusy())

    def _held(self) -> list[str]:
        if self.slots_of_one >= self.slots:
            return []
        return [key for key, running in self._running.items() if running >= self.slots_of_one]

    async def _work(self, ticket: QueueTicket[_WaitingCheck]) -> None:
        waiting = ticket.item
        self.figures.checked += 1
        try:
            result = await waiting.work()
        except Exception as error:
            if not waiting.future.done():
                waiting.future.set_exception(error)
        else:
            if not waiting.future.done():
                waiting.future.set_result(result)
        finally:
            self._under_way.discard(asyncio.current_task())
            self._running[ticket.key] -= 1
            if not self._running[ticket.key]:
                del self._running[ticket.key]
            # after the result has been counted, since it may cause a ban
            asyncio.get_running_loop().call_soon(self._go)

    async def close(self) -> None:
        """Refuse all waiting checks."""
        self.slots = 0
        while (ticket := self._queue.take()) is not None:
            self._refuse(ticket.item)
        for task in self._under_way:
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)
