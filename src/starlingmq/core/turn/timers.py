"""A timer wheel: items that are due at some time, without a timer object each.

An item comes out no earlier than requested and at most one tick later. The caller checks whether the item is really
due, and adds it again if not, so a keep-alive costs nothing per packet. ``remove`` takes out an item that is no longer
needed: a far deadline must not keep its object alive until then.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import Final

TICK: Final = 0.25  # seconds
STALE_MIN: Final = 64  # empty slots that are tolerated before their numbers are removed


def sooner(one: float, other: float) -> float:
    """The earlier of two times. 0.0 means never."""
    if one == 0.0 or (other != 0.0 and other < one):
        return other
    return one


class TimerWheel:
    _slots: dict[int, dict[object, None]]  # none is empty
    _order: list[int]  # heap of slot numbers: those in use, and some that are empty, but never the first
    soonest: float  # the time of the next item; 0.0 if the wheel is empty

    def __init__(self) -> None:
        self._slots = {}
        self._order = []
        self.soonest = 0.0

    def add(self, item: object, when: float) -> None:
        number = int(when / TICK) + 1
        slot = self._slots.get(number)
        if slot is None:
            self._slots[number] = {item: None}
            heapq.heappush(self._order, number)
            self._look()
        else:
            slot[item] = None

    def remove(self, item: object, when: float) -> None:
        """Remove an item that was added for ``when``, if it is still there."""
        number = int(when / TICK) + 1
        slot = self._slots.get(number)
        if slot is None:
            return
        slot.pop(item, None)
        if slot:
            return
        del self._slots[number]
        if len(self._order) > 2 * len(self._slots) + STALE_MIN:
            self._order = list(self._slots)
            heapq.heapify(self._order)
        self._skip()

    def _skip(self) -> None:
        order = self._order
        while order and order[0] not in self._slots:
            heapq.heappop(order)
        self._look()

    def _look(self) -> None:
        self.soonest = self._order[0] * TICK if self._order else 0.0

    def wake_at(self) -> float:
        """The time of the next item; 0.0 if the wheel is empty."""
        return self.soonest

    def has_due(self, now: float) -> bool:
        """Whether ``due`` returns something. Asked in each turn."""
        return self.soonest != 0.0 and self.soonest <= now

    def due(self, now: float, limit: int) -> list[object]:
        """Take out at most ``limit`` items of the earliest slot that is due, oldest first; [] if none is."""
        if not self.has_due(now):
            return []
        number = self._order[0]
        slot = self._slots[number]
        if len(slot) > limit:
            found = list(islice(slot, limit))
            for item in found:
                del slot[item]
            return found
        del self._slots[number]
        self._skip()
        return list(slot)
