"""An event loop for tests: its time is moved by hand, and a seed draws when that is done which is done beside it.

Code that asks asyncio for futures, timers and threads runs on it unchanged, in one thread and the same way each time.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

CALLS_MAX = 1_000_000  # a loop that has more to do than this for one input runs in a circle


class Job:
    """A call in a thread: it is done at one moment, and what came of it is told at a later one."""

    def __init__(self, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.call = call
        self.future = future
        self.done = False
        self.result: object = None
        self.error: OSError | None = None

    def step(self) -> bool:
        """One moment further; whether that was the last one."""
        if not self.done:
            self.done = True
            try:
                self.result = self.call()
            except OSError as error:
                self.error = error
            return False
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)
        return True


class SimLoop:
    """It has what is asked for, and none of the other forty methods of an event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.jobs: deque[Job] = deque()  # one thread: one after the other
        self.failures = 0  # of jobs, as told
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._myself: Any = self  # typed as asyncio expects

    # The interface that asyncio and its users call

    def time(self) -> float:
        return self.clock()

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._myself)

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._myself, context)
        self._ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        handle = asyncio.TimerHandle(when, callback, args, self._myself, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, handle))
        return handle

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio tells; ``next_timer`` passes over it."""

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self._myself, **options)

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        self.jobs.append(Job(lambda: func(*args), future))
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if "handle" in context:  # a callback raised: nothing goes on after that
            raise context["exception"]

    # The interface of the tests

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be the loop that ``asyncio.get_running_loop`` finds."""
        before = events._get_running_loop()
        events._set_running_loop(self._myself)
        try:
            yield
        finally:
            events._set_running_loop(before)

    def run(self) -> None:
        """Until nothing is to be done right now."""
        with self.running():
            self.run_ready()

    def run_ready(self) -> None:
        """The same, when it is the running loop already."""
        for _ in range(CALLS_MAX):
            if not self._ready:
                return
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()
        raise AssertionError("the loop does not come to rest")

    def work(self) -> None:
        """The thread gets on by one moment."""
        if self.jobs and self.jobs[0].step():
            self.failures += self.jobs.popleft().error is not None

    def next_timer(self) -> float | None:
        """When the next timer is due; None: there is none."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def fire(self) -> None:
        """Let the timers go off whose time has come."""
        while (when := self.next_timer()) is not None and when <= self.time():
            self._ready.append(heapq.heappop(self._timers)[2])
