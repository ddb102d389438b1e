"""Reasons for which more messages are dropped than an operator allows: how many since when, and whether it goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

WINDOW_SECONDS: Final = 60.0  # over which drops are averaged
APART_SECONDS: Final = 1.0  # between two counts that are kept, so a minute has few
REASONS_MAX: Final = 50


class Dropped(NamedTuple):
    """``messages`` since ``since``, none for ``quiet`` seconds; 0: at the last look it went on. Times are of looks."""

    reason: str
    messages: int
    since: float
    quiet: float


class _Began(NamedTuple):
    at: float
    before: int  # messages until then
    held: float  # the last look at which the rate was too high


class DroppedMessages:
    """``now``: seconds of any clock. Nothing was dropped before this process began."""

    def __init__(self, now: float) -> None:
        self._looks: deque[tuple[float, dict[str, int]]] = deque([(now, {})])  # the first is from before the minute
        self._began: dict[str, _Began] = {}
        self._last: dict[str, tuple[float, int]] = {}  # the look that saw the last change, and the count

    def look(self, now: float, counted: Mapping[str, int], most: float) -> Iterator[Dropped]:
        """``counted``: messages dropped since the start, by reason; ``most``: per second, 0: any."""
        while len(self._looks) > 1 and self._looks[1][0] <= now - WINDOW_SECONDS:
            self._looks.popleft()
        if now > self._looks[-1][0] + APART_SECONDS:
            self._looks.append((now, dict(counted)))
        self._last |= {
            reason: (now, count) for reason, count in counted.items() if self._last.get(reason, (0, 0))[1] != count
        }
        since, before = self._looks[0]
        seconds = max(WINDOW_SECONDS, now - since)
        rates = {reason: (count - before.get(reason, 0)) / seconds for reason, count in counted.items()}
        for reason, one in list(self._began.items()):
            if (not most or rates[reason] <= most) and now - one.held >= WINDOW_SECONDS:
                del self._began[reason]
        for reason, rate in sorted(rates.items(), key=lambda one: -one[1])[:REASONS_MAX]:
            if most and rate > most:
                began = self._began.get(reason) or self._first(reason, now)
                self._began[reason] = began._replace(held=now)
                yield Dropped(reason, counted[reason] - began.before, began.at, now - self._last[reason][0])

    def _first(self, reason: str, now: float) -> _Began:
        """The last look of the minute before the first drop."""
        start = self._looks[0][1].get(reason, 0)
        at = max((at for at, counted in self._looks if counted.get(reason, 0) == start), default=self._looks[0][0])
        return _Began(at, start, now)
