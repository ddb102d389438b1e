"""Counters that grow faster than is allowed: one state machine for the alarms about drops and about closed connections.

| a reason is | when | what is told |
|---|---|---|
| quiet | within ``window`` it was counted at most as often as is allowed | nothing |
| too frequent | it was counted more often than that | at each look: its count since the first one |
| quiet again | no look of the last ``window`` found it too frequent | nothing; the next count begins at zero |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

LOOKS: Final = 100  # that are kept of a window, at most
REASONS_MAX: Final = 50


class Recent(NamedTuple):
    """``total`` since ``since``, ``recent`` of them within the window, none for ``quiet`` seconds; 0: at the last look
    it went on. Times are of looks."""

    reason: str
    total: int
    recent: int
    since: float
    quiet: float


class _Began(NamedTuple):
    at: float
    before: int  # counted until then
    held: float  # the last look at which it was too often


class RecentCounts:
    """``now``: seconds of any clock. Nothing was counted before the first."""

    def __init__(self, now: float, window: float) -> None:
        self._window = window
        self._looks: deque[tuple[float, dict[str, int]]] = deque([(now, {})])  # the first is from before the window
        self._began: dict[str, _Began] = {}
        self._changed: dict[str, tuple[float, int]] = {}  # the look that saw the last change, and the count

    def look(self, now: float, counted: Mapping[str, int], allowed: Callable[[str], float]) -> Iterator[Recent]:
        """``counted``: since the start, by reason; ``allowed``: of a reason within the window."""
        while len(self._looks) > 1 and self._looks[1][0] <= now - self._window:
            self._looks.popleft()
        if now > self._looks[-1][0] + self._window / LOOKS:
            self._looks.append((now, dict(counted)))
        since, before = self._looks[0]
        share = self._window / max(self._window, now - since)
        recent = {reason: count - before.get(reason, 0) for reason, count in counted.items()}
        for reason, grown in sorted(recent.items(), key=lambda one: -one[1]):
            if self._changed.get(reason, (0, 0))[1] != counted[reason]:
                self._changed[reason] = now, counted[reason]
            began = self._began.get(reason)
            if grown * share > allowed(reason) and (began or len(self._began) < REASONS_MAX):
                began = self._began[reason] = (began or self._first(reason))._replace(held=now)
                yield Recent(reason, counted[reason] - began.before, grown, began.at, now - self._changed[reason][0])
            elif began is not None and now - began.held >= self._window:
                del self._began[reason]

    def _first(self, reason: str) -> _Began:
        """The last look of the window before the first one that counted it."""
        start = self._looks[0][1].get(reason, 0)
        at = max((at for at, counted in self._looks if counted.get(reason, 0) == start), default=self._looks[0][0])
        return _Began(at, start, at)
