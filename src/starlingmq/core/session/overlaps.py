"""How many of one session's subscriptions can match one topic?

Filters of one *shape* have their wildcards at the same places, and are equally long unless they end with ``#``: a topic
that matches two of them gives both the same levels, so they are the same filter. So no topic matches more filters of a
session than it has shapes. A filter may be there several times, in several shared groups or under several ``sid``; each
further time counts as a further shape, which the third one of a shape's other filters shares.

A search costs as much as it finds, for each message of any publisher. Hence the bound: of the thousands of
subscriptions that an application has, few overlap.
"""

from __future__ import annotations

from typing import Final

from starlingmq.wire.characters import HASH, PLUS

OVERLAPS_MAX: Final = 512
OVERLAPS: Final = "overlapping_subscriptions"  # counted and logged
OVERLAPPING: Final = f"more than {OVERLAPS_MAX} of its subscriptions would overlap: use fewer patterns of wildcards"


class Overlaps:
    """The shapes of a session's filters. Kept once it has so many subscriptions that the bound matters."""

    _shapes: dict[bytes, int]  # number of filters
    _times: dict[bytes, int]  # by filter, of those that may be there several times

    def __init__(self) -> None:
        self._shapes = {}
        self._times = {}

    def __len__(self) -> int:
        """Number of shapes."""
        return len(self._shapes)

    def full_for(self, filter: bytes, repeatable: bool) -> bool:
        """Whether the filter would be one too many."""
        if len(self._shapes) < OVERLAPS_MAX:
            return False
        return _shape(filter, self._times.get(filter, 0) + 1 if repeatable else 0) not in self._shapes

    def add(self, filter: bytes, repeatable: bool) -> None:
        times = 0
        if repeatable:
            times = self._times[filter] = self._times.get(filter, 0) + 1
        shape = _shape(filter, times)
        self._shapes[shape] = self._shapes.get(shape, 0) + 1

    def remove(self, filter: bytes, repeatable: bool) -> None:
        times = 0
        if repeatable:
            times = self._times.pop(filter)
            if times > 1:
                self._times[filter] = times - 1
        shape = _shape(filter, times)
        left = self._shapes.pop(shape) - 1
        if left != 0:
            self._shapes[shape] = left


def _shape(filter: bytes, times: int) -> bytes:
    """``times``: 0 for a filter that is there once only, otherwise its number among the same ones."""
    if PLUS not in filter and HASH not in filter:
        return b"%d" % times
    levels = [level if level == b"+" or level == b"#" else b"" for level in filter.split(b"/")]
    return b"%d/%b" % (times, b"/".join(levels))
