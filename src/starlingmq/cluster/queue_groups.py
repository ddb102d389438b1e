"""Queue groups over nodes, put together: who is primary (etcd), and what they pull (frames). See docs/GROUPS.md."""

from __future__ import annotations

from collections.abc import Callable

from starlingmq.cluster.etcd import Answer, Request
from starlingmq.cluster.frames import Body, GroupPull, GroupReport
from starlingmq.cluster.group_elections import GroupElections
from starlingmq.cluster.group_pull import GroupPulls
from starlingmq.core.broker import BrokerState
from starlingmq.core.groups import Group


class QueueGroups:
    """``connected`` says of a node whether it can be reached."""

    elections: GroupElections
    pulls: GroupPulls

    def __init__(self, broker: BrokerState, cluster: str, connected: Callable[[int], bool]) -> None:
        self.elections = GroupElections(cluster)
        self.pulls = GroupPulls(broker, connected)
        self._broker = broker
        self._followed: dict[bytes, Group] = {}
        broker.groups.cluster()

    def enter(self, node: int, incarnation: int) -> None:
        """Our number is known."""
        self.elections.enter(node, incarnation)
        self.pulls.enter(node)

    def answered(self, answer: Answer, now: float) -> None:
        self.elections.answered(answer, now)

    def received(self, source: int, incarnation: int, body: GroupPull | GroupReport, now: float) -> None:
        self.pulls.received(source, incarnation, body, now)

    def turn(self, now: float) -> None:
        """After what the turn brought in: follow who is primary of what, ask, and tell."""
        groups = self._broker.groups
        ended = groups.ended
        if ended:
            groups.ended = []
            for share in ended:
                self._over(share)
        news = groups.news
        if news:
            groups.news = {}
            self.elections.begin()
            for group in news:
                share = group.share()
                self.elections.want(share, len(group.members) != 0)
                if self._followed.get(share) is not group:
                    self._followed[share] = group
                    self._follow(share, group)
                self.pulls.changed(group)
        for share in self.elections.take_changes():
            followed = self._followed.get(share)
            if followed is not None:
                self._follow(share, followed)
        self.pulls.turn(now)

    def _over(self, share: bytes) -> None:
        self.elections.want(share, False)
        self._followed.pop(share, None)
        self.pulls.forget(share)

    def _follow(self, share: bytes, group: Group) -> None:
        primary = self.elections.primary(share)
        ours = self.elections.is_ours(primary)
        self.pulls.follow(group, primary.node, primary.epoch, ours)
        if ours:
            self._broker.groups.changed(group)

    def take_requests(self, now: float) -> list[Request]:
        return self.elections.take_requests(now)

    def take_out(self) -> list[tuple[int, Body]]:
        return self.pulls.take_out()

    def wake_at(self) -> float:
        """When ``turn`` has something though nothing happens; inf: never."""
        retry = self.elections.wake_at()
        soonest = self.pulls.wake_at()
        return min(soonest, retry) if retry else soonest
