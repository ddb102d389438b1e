"""Queue groups across nodes: combines the primaries (etcd) and their pulls (frames). See docs/GROUPS.md."""

from __future__ import annotations

from collections.abc import Callable

from starlingmq.cluster.etcd.etcd_requests import Answer, Request
from starlingmq.cluster.groups.group_primaries import GroupPrimaries
from starlingmq.cluster.groups.group_pull import GroupPulls
from starlingmq.cluster.groups.group_supply import GroupSupply
from starlingmq.cluster.links.control_frames import GroupPull, GroupReport, MemberInfo
from starlingmq.cluster.links.peer_frames import Body
from starlingmq.cluster.view.subsystem import NodeLife, Subsystem
from starlingmq.core.broker import BrokerState
from starlingmq.core.groups.group import Group


class QueueGroups(Subsystem):
    """``connected``: whether a node can be reached."""

    elections: GroupPrimaries
    pulls: GroupPulls  # of groups whose primary is this node
    supply: GroupSupply  # for groups whose primary is another node

    def __init__(self, broker: BrokerState, cluster: str, connected: Callable[[int], bool]) -> None:
        self.elections = GroupPrimaries(cluster)
        self.pulls = GroupPulls(broker, connected)
        self.supply = GroupSupply(broker, connected, lambda group, node, epoch: self._lead(group, node, epoch, False))
        self._broker = broker
        self._node = 0
        self._followed: dict[bytes, Group] = {}
        broker.groups.cluster()

    def enter(self, life: NodeLife, now: float) -> None:
        self.enter_again(life.me)

    def enter_again(self, me: MemberInfo) -> None:
        self._node = me.number
        self.elections.enter(me.number, me.incarnation)
        self.pulls.enter(me.number)
        self.supply.enter(me.number)

    def set_members(self, numbers: dict[int, None]) -> None:
        self.pulls.set_members(tuple([number for number in numbers if number != self._node]))

    def node_restarted(self, node: int) -> None:
        self.pulls.node_restarted(node)
        self.supply.node_restarted(node)

    def connected(self, node: int) -> None:
        self.pulls.connected(node)
        self.supply.connected(node)

    def answered(self, answer: Answer, now: float) -> None:
        self.elections.answered(answer, now)

    def received(self, source: int, incarnation: int, body: GroupPull | GroupReport, now: float) -> None:
        if isinstance(body, GroupPull):
            self.supply.pulled(source, incarnation, body)
        else:
            self.pulls.reported(source, body, now)

    def turn(self, now: float) -> None:
        """To be called after the turn's input: follows the primaries, pulls, and reports."""
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
                if self.pulls.leads(share):
                    self.pulls.changed(share, group)
                else:
                    self.supply.changed(share, group)
        for share in self.elections.take_changes():
            followed = self._followed.get(share)
            if followed is not None:
                self._follow(share, followed)
        self.pulls.turn(now)
        self.supply.turn()

    def _over(self, share: bytes) -> None:
        self.elections.want(share, False)
        self._followed.pop(share, None)
        self.pulls.forget(share)
        self.supply.forget(share)

    def _follow(self, share: bytes, group: Group) -> None:
        primary = self.elections.primary(share)
        self._lead(group, primary.node, primary.epoch, self.elections.is_ours(primary))

    def _lead(self, group: Group, node: int, epoch: int, ours: bool) -> None:
        """The primary of the group is that node from now on (0: none). Statements of the previous primary are void."""
        share = group.share()
        self.pulls.forget(share)
        self.supply.forget(share)
        group.node = self._node
        group.epoch = max(group.epoch, epoch)
        group.primary = False
        group.standing = False
        group.chooser = node
        group.rooms = {}
        group.waits_at = {}
        if ours:
            self.pulls.lead(share, group)
        elif node != 0:
            self.supply.serve(node, share, group)

    def take_requests(self, now: float) -> list[Request]:
        return self.elections.take_requests(now)

    def take_frames(self) -> list[tuple[int, Body]]:
        return self.pulls.take_out() + self.supply.take_out()

    def has_input(self) -> bool:
        groups = self._broker.groups
        return bool(groups.news or groups.ended)

    def is_pending(self) -> bool:
        return self.supply.pending()

    def wake_at(self, now: float) -> float:
        retry = self.elections.wake_at()
        soonest = self.pulls.wake_at()
        return min(soonest, retry) if retry else soonest
