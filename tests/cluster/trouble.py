"""When a node was killed, frozen or cut off, so that a check knows where others could not see what its clients did."""

from __future__ import annotations

import time
from math import inf


class Trouble:
    """Times are seconds by the monotonic clock."""

    def __init__(self) -> None:
        self.kills: list[float] = []
        self._spans: list[tuple[float, float]] = []
        self._since = inf

    def killed(self) -> None:
        self.kills.append(time.monotonic())

    def begins(self) -> None:
        """The node is frozen, or something that it sends or that is sent to it does not arrive."""
        self._since = min(self._since, time.monotonic())

    def ends(self) -> None:
        if self._since != inf:
            self._spans.append((self._since, time.monotonic()))
            self._since = inf

    def was_killed(self, since: float, until: float) -> bool:
        return any(since <= at < until for at in self.kills)

    def met(self, since: float, until: float) -> bool:
        """Whether any of it happened between these two times."""
        spans = [*self._spans, (self._since, inf)]
        return self.was_killed(since, until) or any(began < until and since < ended for began, ended in spans)
