"""Decides whether a turn of the cluster has work. Most turns of a busy broker have none, and a whole turn costs as much
as some messages.

A turn is whole when there was an event (frames, answers of etcd, operator requests), when something is due
(``due_at``), when the last turn left work (``is_unfinished``), or when the core or an operator has left input for a
subsystem (``has_input``). Each subsystem answers for itself. ``test_pending_work.py`` in ``tests/cluster`` runs whole
clusters to find out if one forgets something.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from starlingmq.cluster.view.subsystem import Subsystem, overriding


class PendingWork:
    def __init__(self, subsystems: Sequence[Subsystem]) -> None:
        self._with_input = overriding(subsystems, lambda kind: kind.has_input)
        self._busy = overriding(subsystems, lambda kind: kind.is_busy)
        self._pending = overriding(subsystems, lambda kind: kind.is_pending)
        self._waking = overriding(subsystems, lambda kind: kind.wake_at)

    def has_input(self) -> bool:
        """Called in each turn."""
        return any(each.has_input() for each in self._with_input)

    def is_unfinished(self) -> bool:
        """Called after a whole turn."""
        for each in self._busy:
            if each.is_busy():
                return True
        return self.is_pending()

    def is_pending(self) -> bool:
        """Whether the next turn has work that does not wait for anything."""
        return any(each.is_pending() for each in self._pending)

    def due_at(self, now: float) -> float:
        """When a turn has work without an event; ``inf``: never."""
        soonest = inf
        for each in self._waking:
            due = each.wake_at(now)
            if due < soonest:
                soonest = due
        return soonest
