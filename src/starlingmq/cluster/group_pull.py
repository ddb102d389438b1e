"""The pull loop of the primaries on one node, and what a node answers that is pulled from (docs/GROUPS.md).

The laws: one pull at a time for each node, numbered, and repeated until it is answered; the same number is answered the
same. The loop rests only when nothing was found, or nobody has room. A pull by an epoch below the highest known one is
refused. Nothing of this carries a message, and all of it may be lost, doubled or late.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from starlingmq.cluster.frames import Allotment, Body, GroupPull, GroupReport, GroupState, Pull
from starlingmq.core.broker import BrokerState
from starlingmq.core.choosing import Room
from starlingmq.core.groups import Group

RESEND_SECONDS: Final = 0.25  # a pull that was not answered
NOTIFIED_REST: Final = 1.0  # seconds that the loop rests when nodes say by themselves that there is something
PULLS_PER_FRAME: Final = 100
GIVEN_PER_PULL: Final = 2048  # messages of one group


class Loop:
    """What a primary has going on with one node."""

    number: int  # of the last pull
    pull: GroupPull | None  # that is not answered yet
    sent_at: float
    rest_until: float
    not_before: float  # the node could give nothing of what waits there; 0.0: it could
    waiting: dict[bytes, None]  # groups that have something in line there
    stale: dict[bytes, None]  # groups of which more room may be there than we know

    def __init__(self) -> None:
        self.number = 0
        self.pull = None
        self.sent_at = 0.0
        self.rest_until = 0.0
        self.not_before = 0.0
        self.waiting = {}
        self.stale = {}


class Answered:
    """What was last answered to one node, and what it was told."""

    incarnation: int
    number: int
    report: GroupReport | None
    told: dict[bytes, GroupState]

    def __init__(self) -> None:
        self.incarnation = 0
        self.number = 0
        self.report = None
        self.told = {}


class GroupPulls:
    """``connected`` says of a node whether it can be reached. ``refused`` counts pulls of who is primary no more."""

    refused: int

    def __init__(self, broker: BrokerState, connected: Callable[[int], bool]) -> None:
        self.refused = 0
        self._broker = broker
        self._connected = connected
        self._me = 0
        self._loops: dict[int, Loop] = {}
        self._answered: dict[int, Answered] = {}
        self._mine: dict[bytes, Group] = {}  # groups that this node is the primary of
        self._theirs: dict[int, dict[bytes, Group]] = {}  # groups by the node that is their primary
        self._fresh: dict[bytes, None] = {}  # changed since their primary was last answered
        self._news: dict[bytes, None] = {}  # changed since it was last told by ourselves
        self._said: dict[bytes, GroupState] = {}  # what primaries were last told by ourselves
        self._out: list[tuple[int, Body]] = []

    def enter(self, node: int) -> None:
        self._me = node

    def set_members(self, numbers: tuple[int, ...]) -> None:
        """All members but this one."""
        for number in [number for number in self._loops if number not in numbers]:
            del self._loops[number]
            self._answered.pop(number, None)
        for number in numbers:
            self._loops.setdefault(number, Loop())

    def reborn(self, node: int) -> None:
        """A new life of that node: it knows of no pull, and has counted none."""
        if node in self._loops:
            self._loops[node] = Loop()
        self._answered.pop(node, None)

    # Who is primary of what

    def follow(self, group: Group, node: int, epoch: int, ours: bool) -> None:
        """The primary of a group is that node (0: nobody) from now on."""
        share = group.share()
        self.forget(share)
        group.epoch = max(group.epoch, epoch)
        group.primary = ours
        group.chooser = node
        group.rooms = {}
        group.waits_at = {}
        if ours:
            self._mine[share] = group
            for loop in self._loops.values():
                loop.stale[share] = None
        elif node != 0:
            self._theirs.setdefault(node, {})[share] = group
            self._fresh[share] = self._news[share] = None

    def forget(self, share: bytes) -> None:
        """It is over, or has another primary."""
        self._mine.pop(share, None)
        self._fresh.pop(share, None)
        self._news.pop(share, None)
        self._said.pop(share, None)
        for groups in self._theirs.values():
            groups.pop(share, None)
        for answered in self._answered.values():
            answered.told.pop(share, None)
        for loop in self._loops.values():
            loop.waiting.pop(share, None)
            loop.stale.pop(share, None)

    def changed(self, group: Group) -> None:
        """Its line, its members or their room have."""
        share = group.share()
        if group.primary:
            for node, members in group.counts.items():
                loop = self._loops.get(node)
                room = group.rooms.get(node)
                if loop is None or members == 0:
                    continue
                if room is None or (room.left * 2 <= room.given and room.given != 0):
                    loop.stale[share] = None  # what it said came before its route, or is used up
        else:
            self._fresh[share] = self._news[share] = None

    # The primary asks

    def turn(self, now: float) -> None:
        if self._mine:
            for number, loop in self._loops.items():
                if self._connected(number):
                    self._ask(number, loop, now)
        if self._news:
            if self._broker.ctx.groups.notify:
                self._notify()
            else:
                self._news.clear()

    def _ask(self, number: int, loop: Loop, now: float) -> None:
        if loop.pull is not None:
            if now >= loop.sent_at + RESEND_SECONDS:
                loop.sent_at = now
                self._out.append((number, loop.pull))
            return
        if now < loop.not_before:
            return
        loop.not_before = 0.0
        pulls = self._pulls(loop)
        if not pulls and now < loop.rest_until:
            return
        loop.number += 1
        loop.pull = GroupPull(loop.number, tuple(pulls))
        loop.sent_at = now
        self._out.append((number, loop.pull))

    def _pulls(self, loop: Loop) -> list[Pull]:
        pulls: list[Pull] = []
        for share in list(loop.waiting):
            group = self._mine.get(share)
            if group is None or len(pulls) == PULLS_PER_FRAME:
                continue
            allotments = self._allot(group)
            if allotments:
                loop.stale.pop(share, None)
                pulls.append(Pull(share, group.epoch, allotments))
        for share in list(loop.stale)[: PULLS_PER_FRAME - len(pulls)]:
            del loop.stale[share]
            group = self._mine.get(share)
            if group is not None:
                pulls.append(Pull(share, group.epoch, ()))
        return pulls

    def _allot(self, group: Group) -> tuple[Allotment, ...]:
        """All the room there is; what is not used comes back with the answer."""
        found: list[Allotment] = []
        room_here = group.room(self._broker.ctx.write_buffer)
        if room_here != 0:
            found.append(Allotment(self._me, group.online(), room_here))
        for node, room in group.rooms.items():
            if room.left > 0 and self._connected(node):
                found.append(Allotment(node, room.online, room.left))
                room.left = 0
        return tuple(found)

    def _took(self, number: int, report: GroupReport, now: float) -> None:
        """A node has answered, or tells by itself."""
        loop = self._loops.get(number)
        if loop is None:
            return
        pull = loop.pull
        if report.number != 0:
            if pull is None or report.number != pull.number:
                return  # to one that was answered before
            loop.pull = None
            self._give_back(pull, report)
            if not self._moved(pull, report):
                loop.not_before = now + self._broker.ctx.groups.poll_interval
        for state in report.states:
            group = self._mine.get(state.key)
            if group is None:
                continue
            if state.epoch > group.epoch:
                group.primary = False  # somebody else is; the watch will tell who
                self.forget(state.key)
                continue
            group.waits_at[number] = state.waiting
            if state.waiting != 0:
                loop.waiting[state.key] = None  # and as soon as somebody has room it is asked again, without a rest
            else:
                loop.waiting.pop(state.key, None)
            group.can_take(number, state.online, state.room)
            self._broker.groups.changed(group)
        if report.number != 0:
            groups = self._broker.ctx.groups
            loop.rest_until = now + (NOTIFIED_REST if groups.notify else groups.poll_interval)

    def _moved(self, pull: GroupPull, report: GroupReport) -> bool:
        """Whether anything was given, if anything could be: a node may not reach those that we reach."""
        asked = {each.key for each in pull.pulls if each.allotments}
        for state in report.states:
            if state.key in asked:
                group = self._mine.get(state.key)
                if group is None or state.waiting == 0 or any(count != 0 for _, count in state.taken):
                    return True
        return not asked

    def _give_back(self, pull: GroupPull, report: GroupReport) -> None:
        """What was allotted and not used."""
        states = {state.key: state for state in report.states}
        for asked in pull.pulls:
            group = self._mine.get(asked.key)
            if group is None or not asked.allotments:
                continue
            state = states.get(asked.key)
            taken = dict(state.taken) if state is not None else {}
            for allotment in asked.allotments:
                room = group.rooms.get(allotment.node)
                if room is not None:
                    room.left = min(room.given, room.left + allotment.room - taken.get(allotment.node, 0))
            self.changed(group)

    # A node answers

    def received(self, source: int, incarnation: int, body: GroupPull | GroupReport, now: float) -> None:
        if isinstance(body, GroupReport):
            self._took(source, body, now)
            return
        answered = self._answered.get(source)
        if answered is None or answered.incarnation < incarnation:
            answered = self._answered[source] = Answered()
            answered.incarnation = incarnation
        if body.number <= answered.number:
            if body.number == answered.number and answered.report is not None:
                self._out.append((source, answered.report))
            return
        states: dict[bytes, GroupState] = {}
        for pull in body.pulls:
            states[pull.key] = self._pulled(pull, source)
        for share, group in self._theirs.get(source, {}).items():
            if share in states:
                continue
            if share in self._fresh or group.waiting() != 0:
                state = self._state(group, ())
                told = answered.told.get(share)
                if state.waiting != 0 or told is None or told.online != state.online or told.room != state.room:
                    states[share] = state
        for share, state in states.items():
            answered.told[share] = self._said[share] = state
            self._fresh.pop(share, None)
        answered.number = body.number
        answered.report = GroupReport(body.number, tuple(states.values()))
        self._out.append((source, answered.report))

    def _pulled(self, pull: Pull, source: int) -> GroupState:
        group = self._broker.router.group(pull.key)
        if group is None:
            return GroupState(pull.key, pull.epoch, 0, 0, 0)
        if pull.epoch < group.epoch or (pull.epoch == group.epoch and group.primary):
            self.refused += 1
            return GroupState(pull.key, group.epoch, 0, 0, 0)
        if pull.epoch > group.epoch:
            self.follow(group, source, pull.epoch, False)
        taken: list[tuple[int, int]] = []
        if pull.allotments:
            for allotment in pull.allotments:
                subscription = group.nodes.get(allotment.node)
                if subscription is not None:
                    group.rooms[allotment.node] = Room(subscription, allotment.online, allotment.room)
            given = group.given
            self._broker.groups.pump(group, GIVEN_PER_PULL)
            taken.append((self._me, group.given - given))
            for node, room in group.rooms.items():
                taken.append((node, room.given - room.left))
            group.rooms = {}
        return self._state(group, tuple(taken))

    def _state(self, group: Group, taken: tuple[tuple[int, int], ...]) -> GroupState:
        room = group.room(self._broker.ctx.write_buffer)
        return GroupState(group.share(), group.epoch, group.waiting(), group.online(), room, taken)

    def _notify(self) -> None:
        """Tell the primaries by ourselves what they can not know: one frame for each, however many groups."""
        for node, groups in self._theirs.items():
            if not self._connected(node):
                continue
            states: list[GroupState] = []
            for share in list(self._news):
                group = groups.get(share)
                if group is None:
                    continue
                del self._news[share]
                state = self._state(group, ())
                told = self._said.get(share)
                if (
                    told is None
                    or (state.waiting != 0) != (told.waiting != 0)
                    or state.online != told.online
                    or (state.room != 0) != (told.room != 0)
                ):
                    self._said[share] = state
                    states.append(state)
            if states:
                self._out.append((node, GroupReport(0, tuple(states))))

    def take_out(self) -> list[tuple[int, Body]]:
        out, self._out = self._out, []
        return out

    def wake_at(self) -> float:
        """When ``turn`` has something though nothing happens; inf: never."""
        soonest = inf
        if self._mine:
            for number, loop in self._loops.items():
                if self._connected(number):
                    due = loop.not_before or loop.rest_until
                    soonest = min(soonest, due if loop.pull is None else loop.sent_at + RESEND_SECONDS)
        return soonest
