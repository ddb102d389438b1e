"""The time of a simulated world, and what happens when."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

EVENTS_MAX = 1_000_000  # a world that needs more for its few seconds runs in a circle


class Schedule:
    """Events by virtual time in seconds; those of one moment in the order in which they were made."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.now = start
        self.count = 0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        self.count += 1
        heappush(self._events, (when if when > self.now else self.now, self.count, call, arguments))

    def after(self, delay: float, call: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + delay, call, *arguments)

    def run(self, until: float) -> None:
        """Let everything happen that is due by ``until``."""
        events = self._events
        while events and events[0][0] <= until:
            when, _, call, arguments = heappop(events)
            self.now = when
            call(*arguments)
        assert self.count < EVENTS_MAX, "the world does not come to rest"
        self.now = until
