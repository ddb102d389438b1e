"""Whether a turn of the cluster has anything to do: most turns of a busy broker have not, and a whole one costs as much
as some messages do.

A turn is whole when something came in (frames, answers of etcd, orders), when something is due (``due_at``), when the
last one left something that the next one has to look at (``is_unfinished``), or when the core or an operator has put
something where a subsystem looks (``has_input``). Each subsystem answers for itself; in ``tests/cluster``
``test_pending_work.py`` has whole clusters find out if one forgets something.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from starlingmq.cluster.subsystem import Subsystem, overriding


class PendingWork:
    def __init__(self, subsystems: Sequence[Subsystem]) -> None:
        self._with_input = overriding(subsystems, lambda kind: kind.has_input)
        self._busy = overriding(subsystems, lambda kind: kind.is_busy)
        self._pending = overriding(subsystems, lambda kind: kind.is_pending)
        self._waking = overriding(subsystems, lambda kind: kind.wake_at)

    def has_input(self) -> bool:
        """Asked in each turn."""
        return any(each.has_input() for each in self._with_input)

    def is_unfinished(self) -> bool:
        """Asked after a whole turn."""
        for each in self._busy:
            if each.is_busy():
                return True
        return self.is_pending()

    def is_pending(self) -> bool:
        """Whether there is work for the next turn, without waiting for anything."""
        return any(each.is_pending() for each in self._pending)

    def due_at(self, now: float) -> float:
        """When a turn has something to do though nothing comes in; ``inf``: never."""
        soonest = inf
        for each in self._waking:
            due = each.wake_at(now)
            if due < soonest:
                soonest = due
        return soonest
