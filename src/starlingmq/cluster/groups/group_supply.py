"""The messages that this node supplies to primaries on other nodes (docs/GROUPS.md): it answers pulls, and reports
changes on its own.

Invariants: a repeated number gets the same answer, and its request is carried out once. A pull with an epoch below the
highest known one is refused. A *standing* allotment (messages that may be handed over before the primary knows of them)
comes from the primary's last pull, and ends as soon as there is another primary, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from starlingmq.cluster.links.control_frames import GroupPull, GroupReport, GroupState, Pull
from starlingmq.cluster.links.peer_frames import Body
from starlingmq.core.broker import BrokerState
from starlingmq.core.groups.group import Group
from starlingmq.core.groups.member_selection import Room

GIVEN_PER_PULL: Final = 2048  # messages of one group
STATES_PER_FRAME: Final = 500  # in answers, and in own reports to each node per turn
LINED_PER_ANSWER: Final = 100


class Chooser:
    """Another node as the primary of groups, and what was reported to it."""

    incarnation: int
    number: int  # of the pull that was last answered
    report: GroupReport | None
    groups: dict[bytes, Group]
    fresh: dict[bytes, None]  # groups that have changed since the last answer
    news: dict[bytes, None]  # groups that have changed since the last own report
    lined: dict[bytes, None]  # groups that have messages waiting here, as was reported
    answered_states: dict[bytes, GroupState]  # the states in answers
    reported_states: dict[bytes, GroupState]  # the states in answers or own reports

    def __init__(self) -> None:
        self.groups = {}
        self.begin(0)

    def begin(self, incarnation: int) -> None:
        """It is a new node, or has restarted, and knows nothing."""
        self.incarnation = incarnation
        self.number = 0
        self.report = None
        self.fresh = dict.fromkeys(self.groups)
        self.news = dict.fromkeys(self.groups)
        self.lined = {}
        self.answered_states = {}
        self.reported_states = {}

    def forget(self, share: bytes) -> None:
        del self.groups[share]
        for told in (self.fresh, self.news, self.lined, self.answered_states, self.reported_states):
            told.pop(share, None)


class GroupSupply:
    """``connected``: whether a node can be reached. ``follow`` is called when a pull names a primary (group, node,
    epoch) that etcd has not reported yet. ``refused`` counts pulls of former primaries."""

    refused: int

    def __init__(
        self, broker: BrokerState, connected: Callable[[int], bool], follow: Callable[[Group, int, int], None]
    ) -> None:
        self.refused = 0
        self._broker = broker
        self._connected = connected
        self._follow = follow
        self._me = 0
        self._choosers: dict[int, Chooser] = {}
        self._unreported: dict[int, None] = {}  # choosers with changes to report
        self._more = False  # changes were left for the next turn
        self._out: list[tuple[int, Body]] = []

    def enter(self, node: int) -> None:
        self._me = node

    def node_restarted(self, node: int) -> None:
        if node in self._choosers:
            self._choosers[node].begin(0)
            self._unreported[node] = None

    def connected(self, node: int) -> None:
        """There is a new stream to that node: unanswered reports on the previous one may be lost."""
        chooser = self._choosers.get(node)
        if chooser is not None:
            for share in chooser.fresh:
                chooser.reported_states.pop(share, None)
                chooser.news[share] = None
            self._unreported[node] = None

    def serve(self, node: int, share: bytes, group: Group) -> None:
        """That node is the primary of a group from now on."""
        self._chooser(node).groups[share] = group
        self.changed(share, group)

    def _chooser(self, node: int) -> Chooser:
        found = self._choosers.get(node)
        if found is None:
            found = self._choosers[node] = Chooser()
        return found

    def forget(self, share: bytes) -> None:
        """The group has ended, or has another primary."""
        for chooser in self._choosers.values():
            if share in chooser.groups:
                chooser.forget(share)

    def changed(self, share: bytes, group: Group) -> None:
        """The queue of a group, its members here or their capacity have changed; or it needs an allotment."""
        chooser = self._choosers.get(group.chooser)
        if chooser is not None and share in chooser.groups:
            chooser.fresh[share] = chooser.news[share] = None
            self._unreported[group.chooser] = None

    # Answers

    def pulled(self, source: int, incarnation: int, body: GroupPull) -> None:
        chooser = self._chooser(source)
        if chooser.incarnation < incarnation:
            chooser.begin(incarnation)
        if body.number <= chooser.number:
            if body.number == chooser.number and chooser.report is not None:
                self._out.append((source, chooser.report))
            return
        states: dict[bytes, GroupState] = {}
        for pull in body.pulls:
            states[pull.key] = self._pulled(pull, source)
        # Waiting messages are reported again even without a change, some of them each time: frames may arrive out of
        # order.
        for share in (*islice(chooser.fresh, STATES_PER_FRAME), *islice(chooser.lined, LINED_PER_ANSWER)):
            group = chooser.groups.get(share)
            if group is None or share in states:
                continue
            state = self._state(group, ())
            told = chooser.answered_states.get(share)
            if state.waiting != 0 or told is None or _news(told, state):
                states[share] = state
            else:
                chooser.fresh.pop(share, None)
        for share, state in states.items():
            if share in chooser.groups:
                chooser.answered_states[share] = chooser.reported_states[share] = state
                chooser.fresh.pop(share, None)
                chooser.lined.pop(share, None)
                if state.waiting != 0:
                    chooser.lined[share] = None  # behind the others
        chooser.number = body.number
        chooser.report = GroupReport(body.number, tuple(states.values()))
        self._out.append((source, chooser.report))

    def _pulled(self, pull: Pull, source: int) -> GroupState:
        group = self._broker.router.group(pull.key)
        if group is None:
            return GroupState(pull.key, pull.epoch, 0, 0, 0)
        if pull.epoch < group.epoch or (pull.epoch == group.epoch and group.primary):
            self.refused += 1
            return GroupState(pull.key, group.epoch, 0, 0, 0)
        if pull.epoch > group.epoch:
            self._follow(group, source, pull.epoch)
        taken: list[tuple[int, int]] = []
        if pull.allotments:
            self._rooms(group, pull, False)
            given = group.given
            self._broker.groups.pump(group, GIVEN_PER_PULL)
            taken.append((self._me, group.given - given))
            for node, room in group.rooms.items():
                taken.append((node, room.given - room.left))
        if pull.allotments or pull.stands:
            self._rooms(group, pull, True)
            group.standing = pull.stands
        return self._state(group, tuple(taken))

    def _rooms(self, group: Group, pull: Pull, standing: bool) -> None:
        group.rooms = {}
        for allotment in pull.allotments:
            subscription = group.nodes.get(allotment.node)
            if subscription is not None:
                room = allotment.standing if standing else allotment.room
                group.rooms[allotment.node] = Room(subscription, allotment.online, room, allotment.limit)

    def _state(self, group: Group, taken: tuple[tuple[int, int], ...]) -> GroupState:
        room = group.room(self._broker.ctx.write_buffer)
        share, waiting, online = group.share(), group.waiting(), group.online()
        limit, wants = group.limit(), group.wants()
        return GroupState(share, group.epoch, waiting, online, room, taken, wants, limit, group.growth)

    # Own reports

    def turn(self) -> None:
        """Reports changes to the primaries on its own: one frame for each, however many groups."""
        self._more = False
        if not self._unreported:
            return
        notify = self._broker.ctx.groups.notify
        for node in list(self._unreported):
            chooser = self._choosers[node]
            if not notify:
                chooser.news.clear()
            elif self._connected(node):
                self._notify(node, chooser)
            else:
                continue
            if chooser.news:
                self._more = True
            else:
                del self._unreported[node]

    def _notify(self, node: int, chooser: Chooser) -> None:
        states: list[GroupState] = []
        for share in list(islice(chooser.news, STATES_PER_FRAME)):
            del chooser.news[share]
            state = self._state(chooser.groups[share], ())
            said = chooser.reported_states.get(share)
            if (
                said is None
                or (state.waiting != 0) != (said.waiting != 0)
                or (state.online, state.limit) != (said.online, said.limit)
                or (state.room != 0) != (said.room != 0)
                or (state.wants and not said.wants)
            ):
                chooser.reported_states[share] = state
                states.append(state)
        if states:
            self._out.append((node, GroupReport(0, tuple(states))))

    def pending(self) -> bool:
        """Whether the next turn has more to report."""
        return self._more

    def take_out(self) -> list[tuple[int, Body]]:
        out, self._out = self._out, []
        return out


def _news(reported: GroupState, state: GroupState) -> bool:
    if reported.online != state.online or reported.limit != state.limit:
        return True
    return reported.room != state.room or reported.wants != state.wants
