"""Reports to the operator that new subscriptions wait for retained messages: for how long, and because of which nodes.

A subscription waits until etcd has reported what the connected nodes had accepted before (``HeldReplay``). That takes
milliseconds. It takes longer when a node cannot write to etcd, or when this node does not hear of changes in etcd.

Invariant: one report as soon as a subscription has waited for SLOW_SECONDS, and the next one REPORT_SECONDS later at
the earliest.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from starlingmq.cluster.view.subsystem import Subsystem
from starlingmq.core.context.context import Context

SLOW_SECONDS: Final = 1.0
REPORT_SECONDS: Final = 60.0


class ReplayNotices(Subsystem):
    """``name_of`` returns the name of a node."""

    def __init__(self, ctx: Context, name_of: Callable[[int], str]) -> None:
        retaining = ctx.cluster.retained
        assert retaining is not None, "RetainedSync comes first"
        self._retaining = retaining
        self._name_of = name_of
        self._not_before = 0.0  # of the next report
        self._notices: list[str] = []

    def finish(self, now: float) -> None:
        if now >= self.wake_at(now):
            self._not_before = now + REPORT_SECONDS
            self._notices.append(self._report(now))

    def _report(self, now: float) -> str:
        waits = self._retaining.waits
        return (
            f"new subscriptions wait for retained messages ({waits.count}, the first for {waits.seconds(now):.1f} s), "
            f"because {self._reason()}; check etcd and its connections. A subscription waits for "
            f"{self._retaining.seconds:g} s at most; since the start {waits.incomplete} did so in vain"
        )

    def _reason(self) -> str:
        if not self._retaining.complete:
            return "this node has not read all retained messages from etcd"
        names = sorted(self._name_of(node) for node in self._retaining.waits.missing)
        return f"etcd has not reported to this node all that was accepted by {', '.join(names)}"

    def take_notices(self) -> list[str]:
        notices, self._notices = self._notices, []
        return notices

    def wake_at(self, now: float) -> float:
        waits = self._retaining.waits
        return max(waits.since + SLOW_SECONDS, self._not_before) if waits.count != 0 else inf
