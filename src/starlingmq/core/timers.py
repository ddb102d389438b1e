"""A timer wheel: things to look at again at some time, without a timer object each.

An item is looked at no earlier than asked and at most one tick later. Whoever takes an item out checks whether it is
due and puts it in again if it is not, so a keep-alive costs nothing per packet. An item that is of no more interest is
taken out by ``remove``: a far deadline must not keep what it was about alive until then.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import Final

TICK: Final = 0.25  # seconds
STALE_MIN: Final = 64  # slots that may be empty before their numbers are cleared away


class TimerWheel:
    _slots: dict[int, dict[object, None]]  # none is empty
    _order: list[int]  # heap of slot numbers: those in use, and some that are not any more, never the first

    def __init__(self) -> None:
        self._slots = {}
        self._order = []

    def add(self, item: object, when: float) -> None:
        number = int(when / TICK) + 1
        slot = self._slots.get(number)
        if slot is None:
            self._slots[number] = {item: None}
            heapq.heappush(self._order, number)
        else:
            slot[item] = None

    def remove(self, item: object, when: float) -> None:
        """Take out what was added for ``when``, if it is still there."""
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

    def wake_at(self) -> float:
        """When ``due`` has something next; 0.0 when the wheel is empty."""
        return self._order[0] * TICK if self._order else 0.0

    def due(self, now: float, limit: int) -> list[object]:
        """Take out at most ``limit`` items of the earliest slot that has come, oldest first; [] when none has."""
        if not self._order or self._order[0] * TICK > now:
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
