"""Waiting for a simulated node's disk: tickets as in ``net.driver``, and the store's event loop in virtual time."""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from tests.sim.schedule import Schedule
from tests.storage.simloop import SimLoop

from starlingmq.core.conditions.storage_failure import StorageFailure
from starlingmq.core.context.ready import Ready
from starlingmq.core.session.session import Client
from starlingmq.storage.durable_store import DurableStore
from starlingmq.storage.store import NotYetStored


class DiskLoop(SimLoop):
    """The store's timers, and its syncs in a thread. ``enter`` calls back when the node runs, if it still does."""

    def __init__(
        self, schedule: Schedule, random: Random, sync_seconds: float, enter: Callable[[Callable[[], None]], None]
    ) -> None:
        super().__init__(lambda: schedule.now)
        self.schedule = schedule
        self.random = random
        self.sync_seconds = sync_seconds
        self.enter = enter

    def become_running(self) -> None:
        """For ``asyncio.get_running_loop``, until another node's is, or ``none_runs``."""
        events._set_running_loop(self._myself)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        handle = asyncio.TimerHandle(when, callback, args, self._myself, context)
        self.schedule.at(when, self.enter, lambda: None if handle.cancelled() else handle._run())
        return handle

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        seconds = self.seconds_of(func) * (0.5 + self.random.random())
        self.schedule.at(self.begins(executor, seconds) + seconds, self.enter, lambda: self._done(func, future))
        return future

    def begins(self, executor: object, seconds: float) -> float:
        """When a thread of this executor begins a call that takes so long."""
        return self.schedule.now

    def seconds_of(self, func: Callable[..., Any]) -> float:
        """How long a call in a thread takes, on average."""
        return self.sync_seconds

    def _done(self, func: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        try:
            future.set_result(func())
        except OSError as error:
            future.set_exception(error)


def none_runs() -> None:
    events._set_running_loop(None)


class Ticket:
    def __init__(self, done: bool) -> None:
        self.done = done
        self.refused = False
        self.frames: list[tuple[Client, bytes]] = []


class Commits:
    """``release``: send what waited; with True something else, because it could not be stored."""

    def __init__(
        self, store: DurableStore, release: Callable[[Client, bytes, bool], None], refusal: StorageFailure
    ) -> None:
        self.store = store
        self.release = release
        self.refusal = refusal
        self._tickets: deque[Ticket] = deque()

    def commit(self, ready: Ready, refusing: bool) -> Ticket | None:
        """A ticket for the frames that must wait, None when none has to."""
        pending: Any = None
        if ready.writes:
            try:
                pending = self.store.commit(ready.writes)
            except NotYetStored:
                refusing = True
        if pending is None and not self._tickets and not refusing:
            return None
        ticket = Ticket(pending is None)
        if refusing and pending is None:
            self.refuse(ticket)
        self._tickets.append(ticket)
        if pending is not None:
            asyncio.ensure_future(pending).add_done_callback(lambda done: self._stored(ticket, done))
        return ticket

    def _stored(self, ticket: Ticket, done: asyncio.Future[None]) -> None:
        if done.cancelled():
            return  # the node is dead
        error = done.exception()
        assert error is None or isinstance(error, NotYetStored), error
        if error is not None:
            self.refuse(ticket)
            for later in self._tickets:
                self.refuse(later)
        ticket.done = True
        self.settle()

    def refuse(self, ticket: Ticket) -> None:
        if not ticket.refused:
            ticket.refused = True
            self.refusal.refused_turns += 1

    def settle(self) -> None:
        while self._tickets and self._tickets[0].done:
            ticket = self._tickets.popleft()
            for client, data in ticket.frames:
                self.release(client, data, ticket.refused)
            if ticket.refused:
                self.refusal.turn_answered()
