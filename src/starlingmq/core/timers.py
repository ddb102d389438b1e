"""A timer wheel: things to look at again at some time, without a timer object each.

An item is looked at no earlier than asked and at most one tick later. There is no cancelling: whoever takes an item
out checks whether it is due and puts it in again if it is not, so a keep-alive costs nothing per packet.
"""

from __future__ import annotations

import heapq
from typing import Final

TICK: Final = 0.25  # seconds


class Wheel:
    _slots: dict[int, list[object]]
    _order: list[int]  # heap of the slot numbers in use

    def __init__(self) -> None:
        self._slots = {}
        self._order = []

    def add(self, item: object, when: float) -> None:
        number = int(when / TICK) + 1
        slot = self._slots.get(number)
        if slot is None:
            self._slots[number] = [item]
            heapq.heappush(self._order, number)
        else:
            slot.append(item)

    def wake_at(self) -> float:
        """When ``due`` has something next; 0.0 when the wheel is empty."""
        return self._order[0] * TICK if self._order else 0.0

    def due(self, now: float, limit: int) -> list[object]:
        """Take out at most ``limit`` items of the earliest slot that has come, oldest first; [] when none has."""
        if not self._order or self._order[0] * TICK > now:
            return []
        slot = self._slots[self._order[0]]
        if len(slot) > limit:
            self._slots[self._order[0]] = slot[limit:]
            return slot[:limit]
        return self._slots.pop(heapq.heappop(self._order))
