"""The timer wheel against a list of appointments: none early, none late by more than a tick, none lost."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.few import drawn, live

from starlingmq.core.turn.timers import TICK, TimerWheel


class WheelAsTheListSays(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.wheel = TimerWheel()
        self.waiting: dict[int, float] = {}  # item -> requested time
        self.now = 1_000_000.0
        self.added = 0

    @rule(delay=st.sampled_from([-3.0, 0.0, 0.1, TICK, 2 * TICK, 0.6, 1.0, 1.01, 30.0]) | st.floats(0.0, 5.0))
    def add(self, delay: float) -> None:
        self.added += 1
        self.waiting[self.added] = self.now + delay
        self.wheel.add(self.added, self.now + delay)

    @rule(place=st.integers(0, 5))
    def remove(self, place: int) -> None:
        items = list(self.waiting)
        if place < len(items):
            self.wheel.remove(items[place], self.waiting.pop(items[place]))

    @rule(limit=st.integers(1, 4))
    def due(self, limit: int) -> None:
        found = self.wheel.due(self.now, limit)
        assert len(found) <= limit
        for item in found:
            assert isinstance(item, int)
            assert self.waiting.pop(item) <= self.now, "early, or a second time"

    @rule()
    def everything_due(self) -> None:
        """Taking until nothing is returned yields every item that was due a tick ago."""
        last_slot = 0
        while found := self.wheel.due(self.now, 3):
            for item in found:
                assert isinstance(item, int)
                when = self.waiting.pop(item)
                assert when <= self.now
                slot = int(when / TICK)
                assert slot >= last_slot, "a later one came first"
                last_slot = slot
        assert all(when > self.now - TICK for when in self.waiting.values())

    @rule(time=st.sampled_from([0.01, 0.1, TICK, 1.0, 7.0]))
    def time_passes(self, time: float) -> None:
        self.now += time

    @invariant()
    def it_wakes_for_the_first(self) -> None:
        wake = self.wheel.wake_at()
        if self.waiting:
            first = min(self.waiting.values())
            assert first <= wake <= first + TICK
        else:
            assert wake == 0.0


@drawn(25, 200)
def test_the_wheel_is_as_the_list_says(examples: int) -> None:
    live(WheelAsTheListSays, examples)
