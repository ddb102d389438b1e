"""The pull loop of the groups whose primary is this node (docs/GROUPS.md). The other end is
cluster.groups.group_supply.

Invariants: one pull at a time for each node, numbered, and repeated until it is answered. The loop rests only when
nothing was found, or no member has room. These frames carry no messages, and may be lost, duplicated or late: the node
that hands a message over holds it, and the primary only decides how many may go where.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from starlingmq.cluster.links.control_frames import Allotment, GroupPull, GroupReport, Pull
from starlingmq.cluster.links.peer_frames import Body
from starlingmq.core.broker import BrokerState
from starlingmq.core.groups.group import Group
from starlingmq.core.groups.member_selection import ANY_SIZE

RESEND_SECONDS: Final = 0.25  # until an unanswered pull is repeated
SETTLE_SECONDS: Final = 0.25  # how long a new primary waits for the nodes to report the capacity of their members
NOTIFIED_REST: Final = 1.0  # seconds between polls when nodes report new messages themselves
PULLS_PER_FRAME: Final = 100

# for each node with members: its number, members there, whether there is room, what size they accept
Chances = tuple[tuple[int, int, bool, int], ...]


class Loop:
    """The state of a primary's exchange with one node."""

    number: int  # of the last pull
    pull: GroupPull | None  # not answered yet
    sent_at: float
    rest_until: float
    not_before: float  # the node could not hand over what waits there, so it is not asked before; 0.0: it could
    waiting: dict[bytes, None]  # groups with messages waiting there ...
    ready: dict[bytes, None]  # ... for which there may be room
    stale: dict[bytes, None]  # groups that may have more room there than is known
    wanting: dict[bytes, None]  # groups that need a new standing allotment for that node
    standing: dict[bytes, Chances]  # the nodes and members of the last standing allotment

    def __init__(self) -> None:
        self.number = 0
        self.pull = None
        self.sent_at = 0.0
        self.rest_until = 0.0
        self.not_before = 0.0
        self.waiting = {}
        self.ready = {}
        self.stale = {}
        self.wanting = {}
        self.standing = {}

    def forget(self, share: bytes) -> None:
        for groups in (self.waiting, self.ready, self.stale, self.wanting, self.standing):
            groups.pop(share, None)


class Settling:
    """A group whose primary is this node, while some nodes have not reported the capacity of their members yet."""

    asked: dict[int, None]
    until: float

    def __init__(self, asked: dict[int, None]) -> None:
        self.asked = asked
        self.until = 0.0  # set in the next turn


class GroupPulls:
    """``connected``: whether a node can be reached."""

    def __init__(self, broker: BrokerState, connected: Callable[[int], bool]) -> None:
        self._broker = broker
        self._connected = connected
        self._me = 0
        self._loops: dict[int, Loop] = {}
        self._mine: dict[bytes, Group] = {}  # groups whose primary is this node ...
        self._settling: dict[bytes, Settling] = {}  # ... and those of them for which it does not assign messages yet
        self._reached: list[int] = []  # connected nodes in the previous turn
        self._out: list[tuple[int, Body]] = []

    def enter(self, node: int) -> None:
        self._me = node

    def set_members(self, numbers: tuple[int, ...]) -> None:
        """``numbers``: all members except this one."""
        for number in [number for number in self._loops if number not in numbers]:
            del self._loops[number]
        for number in numbers:
            self._loops.setdefault(number, Loop())

    def node_restarted(self, node: int) -> None:
        """That node has restarted: it knows of no pull, and has no allotment."""
        if node in self._loops:
            self._loops[node] = Loop()

    def connected(self, node: int) -> None:
        """There is a new stream to that node: requests on the previous one may be lost."""
        loop = self._loops.get(node)
        if loop is not None:
            loop.sent_at = -inf

    def lead(self, share: bytes, group: Group) -> None:
        """This node is the primary of a group from now on. It assigns messages, including those that waited for a
        primary, once it knows the capacity of the other nodes with members, or has waited long enough for that.
        Otherwise its own members would get everything."""
        self._mine[share] = group
        asked: dict[int, None] = {}
        for number, loop in self._loops.items():
            loop.stale[share] = None
            if group.counts.get(number, 0) != 0 and self._connected(number):
                asked[number] = None
        if asked:
            self._settling[share] = Settling(asked)
        else:
            self._choose(share, group)

    def leads(self, share: bytes) -> bool:
        return share in self._mine

    def _choose(self, share: bytes, group: Group) -> None:
        group.primary = True
        self._broker.groups.changed(group)

    def _settle(self, now: float) -> None:
        for share, settling in list(self._settling.items()):
            if settling.until == 0.0:
                settling.until = now + SETTLE_SECONDS
            if not any(self._connected(number) for number in settling.asked) or now >= settling.until:
                del self._settling[share]
                self._choose(share, self._mine[share])

    def forget(self, share: bytes) -> None:
        """The group has ended, or has another primary."""
        if self._mine.pop(share, None) is not None:
            self._settling.pop(share, None)
            for loop in self._loops.values():
                loop.forget(share)

    def changed(self, share: bytes, group: Group) -> None:
        """The queue of a group, its members or their capacity have changed. This node is its primary."""
        chances: Chances | None = None
        for node, loop in self._loops.items():
            room = group.rooms.get(node)
            if group.counts.get(node, 0) != 0 and (room is None or (room.left * 2 <= room.given and room.given != 0)):
                loop.stale[share] = None  # its report is older than its route, or its room is used up
            if share in loop.waiting:
                loop.ready[share] = None
            stood = loop.standing.get(share)
            if stood is not None:
                if chances is None:
                    chances = self._chances(group)
                if stood != chances:
                    loop.wanting[share] = None

    # Pulls

    def turn(self, now: float) -> None:
        if not self._mine:
            return
        if self._settling:
            self._settle(now)
        reached = [number for number in self._loops if self._connected(number)]
        if reached != self._reached:
            self._reached = reached
            for loop in self._loops.values():
                loop.ready.update(loop.waiting)
        for number in reached:
            self._ask(number, self._loops[number], now)

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
        while loop.ready and len(pulls) < PULLS_PER_FRAME:
            share = next(iter(loop.ready))
            del loop.ready[share]
            group = self._mine.get(share)
            if group is not None and self._has_room(group):
                loop.stale.pop(share, None)
                pulls.append(self._pull(loop, share, group, True))
        while loop.wanting and len(pulls) < PULLS_PER_FRAME:
            share = next(iter(loop.wanting))
            group = self._mine.get(share)
            if group is not None:
                pulls.append(self._pull(loop, share, group, False))
            else:
                del loop.wanting[share]
        while loop.stale and len(pulls) < PULLS_PER_FRAME:
            share = next(iter(loop.stale))
            del loop.stale[share]
            group = self._mine.get(share)
            if group is not None:
                pulls.append(Pull(share, group.epoch, ()))
        return pulls

    def _has_room(self, group: Group) -> bool:
        if any(room.left > 0 and group.reaches(room) for room in group.rooms.values()):
            return True
        return group.room(self._broker.ctx.write_buffer) != 0

    def _pull(self, loop: Loop, share: bytes, group: Group, all_of_it: bool) -> Pull:
        """``all_of_it``: allots all the room there is for messages that wait there; unused room comes back with the
        answer. For messages that enter there later, allots a part: half of the room that the members last reported,
        with windows grown, divided among the nodes. By the windows as they are, members that always have room would
        need a report and a pull for every few messages. That part is not subtracted here: a message that finds no room
        waits at the member's node, and a node whose members have no room at all gets none. If some members have a
        Maximum Packet Size, nodes without connected members are named as well, so that the node can tell whether a
        message is too large for all."""
        loop.wanting.pop(share, None)
        loop.standing[share] = self._chances(group)
        part = 2 * (len(self._loops) + 1)
        found: list[Allotment] = []
        room_here, limit = group.room(self._broker.ctx.write_buffer), group.limit()
        limited = any(each not in (0, ANY_SIZE) for each in (limit, *[room.limit for room in group.rooms.values()]))
        if room_here != 0:
            room_now = room_here if all_of_it else 0
            standing = max(1, (room_here + group.growth) // part)
            found.append(Allotment(self._me, group.online(), room_now, standing, limit))
        elif limited and group.online() == 0:
            found.append(Allotment(self._me, 0, 0))
        for node, room in group.rooms.items():
            if room.given > 0 and group.reaches(room):
                given = room.left if all_of_it else 0
                room.left -= given
                standing = max(1, (room.given + room.growth) // part)
                found.append(Allotment(node, room.online, given, standing, room.limit))
            elif limited and room.online == 0:
                found.append(Allotment(node, 0, 0))
        return Pull(share, group.epoch, tuple(found), True)

    def _chances(self, group: Group) -> Chances:
        here = (self._me, group.online(), group.room(self._broker.ctx.write_buffer) != 0, group.limit())
        rooms = group.rooms.items()
        others = [(node, room.online, room.given != 0 and group.reaches(room), room.limit) for node, room in rooms]
        return (here, *others)

    # Answers

    def reported(self, number: int, report: GroupReport, now: float) -> None:
        """A node has answered, or reports on its own."""
        loop = self._loops.get(number)
        if loop is None:
            return
        pull = loop.pull
        if report.number != 0:
            if pull is None or report.number != pull.number:
                return  # the answer to a pull that was answered before
            loop.pull = None
            self._give_back(pull, report)
            if not self._moved(pull, report):
                loop.not_before = now + self._broker.ctx.groups.poll_interval
        for state in report.states:
            group = self._mine.get(state.key)
            if group is None:
                continue
            if state.epoch > group.epoch:
                group.primary = False  # another node is the primary; the watch will report which
                self.forget(state.key)
                continue
            group.waits_at[number] = state.waiting
            if state.waiting != 0:
                loop.waiting[state.key] = loop.ready[state.key] = None
            else:
                loop.waiting.pop(state.key, None)
                loop.ready.pop(state.key, None)
            if state.wants:
                loop.wanting[state.key] = None
            group.can_take(number, state.online, state.room, state.limit, state.growth)
            settling = self._settling.get(state.key)
            if settling is not None:
                settling.asked.pop(number, None)
            self._broker.groups.changed(group)
        if report.number != 0:
            groups = self._broker.ctx.groups
            loop.rest_until = now + (NOTIFIED_REST if groups.notify else groups.poll_interval)

    def _moved(self, pull: GroupPull, report: GroupReport) -> bool:
        """Whether anything was handed over, if it could be. A node may not reach the members that this one reaches."""
        asked = {each.key for each in pull.pulls if any(allotment.room != 0 for allotment in each.allotments)}
        for state in report.states:
            if state.key in asked:
                group = self._mine.get(state.key)
                if group is None or state.waiting == 0 or any(count != 0 for _, count in state.taken):
                    return True
        return not asked

    def _give_back(self, pull: GroupPull, report: GroupReport) -> None:
        """Takes back what was allotted and not used."""
        states = {state.key: state for state in report.states}
        for asked in pull.pulls:
            group = self._mine.get(asked.key)
            if group is None or not asked.allotments:
                continue
            state = states.get(asked.key)
            taken = dict(state.taken) if state is not None else {}
            for allotment in asked.allotments:
                room = group.rooms.get(allotment.node)
                if room is not None and allotment.room != 0:
                    room.left = min(room.given, room.left + allotment.room - taken.get(allotment.node, 0))
            self.changed(asked.key, group)

    def take_out(self) -> list[tuple[int, Body]]:
        out, self._out = self._out, []
        return out

    def wake_at(self) -> float:
        """When ``turn`` has to be called without an event; inf: never."""
        soonest = inf
        if self._mine:
            for number, loop in self._loops.items():
                if self._connected(number):
                    due = loop.not_before or loop.rest_until
                    soonest = min(soonest, due if loop.pull is None else loop.sent_at + RESEND_SECONDS)
        for settling in self._settling.values():
            soonest = min(soonest, settling.until)
        return soonest
