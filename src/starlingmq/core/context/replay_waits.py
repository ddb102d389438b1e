"""New subscriptions whose retained messages have not all arrived at this node: how many, how long, from where."""

from __future__ import annotations


class ReplayWaits:
    """Updated in each turn of the cluster in which a subscription waits."""

    count: int  # subscriptions that wait now
    since: float  # when the first of them began to wait; of no meaning if there is none
    missing: dict[int, int]  # node -> how many of them wait for a message that this node has accepted
    incomplete: int  # subscriptions that waited for as long as they may, and got what was here

    def __init__(self) -> None:
        self.count = 0
        self.since = 0.0
        self.missing = {}
        self.incomplete = 0

    def seconds(self, now: float) -> float:
        """How long the first of them has waited."""
        return now - self.since if self.count != 0 else 0.0
