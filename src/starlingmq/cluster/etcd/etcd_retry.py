"""When to ask etcd again after an error: after a delay that doubles with each further error, up to a maximum."""

from __future__ import annotations


class EtcdRetry:
    """``at``: the time before which nothing is sent; 0.0 before the first error. ``first`` and ``longest`` are the
    bounds of the delay, in seconds."""

    def __init__(self, first: float, longest: float) -> None:
        self.at = 0.0
        self._first = first
        self._longest = longest
        self._delay = first

    def failed(self, now: float) -> None:
        self.at = now + self._delay
        self._delay = min(2.0 * self._delay, self._longest)

    def succeeded(self) -> None:
        """The next error is followed by the shortest delay. ``at`` stays."""
        self._delay = self._first
