"""What a node has for the primaries of groups on other nodes (docs/GROUPS.md): it answers pulls, and tells by itself.

The laws: the same number is answered the same, and what it asks for is done once. A pull by an epoch below the highest
known one is refused. What may be handed over before the primary knows of it (a *standing* allotment) is what its last
pull said, and nothing once there is another primary, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from starlingmq.cluster.links.peer_frames import Body, GroupPull, GroupReport, GroupState, Pull
from starlingmq.core.broker import BrokerState
from starlingmq.core.groups.group import Group
from starlingmq.core.groups.member_selection import Room

GIVEN_PER_PULL: Final = 2048  # messages of one group
STATES_PER_FRAME: Final = 500  # and of what is told by ourselves to each node in a turn
LINED_PER_ANSWER: Final = 100


class Chooser:
    """Another node as the primary of groups, and what it knows of them."""

    incarnation: int
    number: int  # of the pull that was last answered, and the answer
    report: GroupReport | None
    groups: dict[bytes, Group]
    fresh: dict[bytes, None]  # changed since it was last answered
    news: dict[bytes, None]  # changed since it was last told by ourselves
    lined: dict[bytes, None]  # have something in line here, it was told
    told: dict[bytes, GroupState]  # in answers
    said: dict[bytes, GroupState]  # in answers or by ourselves

    def __init__(self) -> None:
        self.groups = {}
        self.begin(0)

    def begin(self, incarnation: int) -> None:
        """It is another one, or another life of it, and knows nothing."""
        self.incarnation = incarnation
        self.number = 0
        self.report = None
        self.fresh = dict.fromkeys(self.groups)
        self.news = dict.fromkeys(self.groups)
        self.lined = {}
        self.told = {}
        self.said = {}

    def forget(self, share: bytes) -> None:
        del self.groups[share]
        for told in (self.fresh, self.news, self.lined, self.told, self.said):
            told.pop(share, None)


class GroupSupply:
    """``connected`` says of a node whether it can be reached; ``follow`` is called where a pull has a primary (group,
    node, epoch) that etcd has not told of yet. ``refused`` counts pulls of who is primary no more."""

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
        self._restless: dict[int, None] = {}  # choosers that have news
        self._more = False  # than were told of in this turn
        self._out: list[tuple[int, Body]] = []

    def enter(self, node: int) -> None:
        self._me = node

    def reborn(self, node: int) -> None:
        if node in self._choosers:
            self._choosers[node].begin(0)
            self._restless[node] = None

    def connected(self, node: int) -> None:
        """There is another stream to that node: what was told on the one before, and not answered, may be gone."""
        chooser = self._choosers.get(node)
        if chooser is not None:
            for share in chooser.fresh:
                chooser.said.pop(share, None)
                chooser.news[share] = None
            self._restless[node] = None

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
        """It is over, or has another primary."""
        for chooser in self._choosers.values():
            if share in chooser.groups:
                chooser.forget(share)

    def changed(self, share: bytes, group: Group) -> None:
        """The line of a group, its members here or their room have; or it wants to be allotted something."""
        chooser = self._choosers.get(group.chooser)
        if chooser is not None and share in chooser.groups:
            chooser.fresh[share] = chooser.news[share] = None
            self._restless[group.chooser] = None

    # Answering

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
        # What waits is said again though nothing has changed, some of it each time: frames may have come out of order.
        for share in (*islice(chooser.fresh, STATES_PER_FRAME), *islice(chooser.lined, LINED_PER_ANSWER)):
            group = chooser.groups.get(share)
            if group is None or share in states:
                continue
            state = self._state(group, ())
            told = chooser.told.get(share)
            if state.waiting != 0 or told is None or _news(told, state):
                states[share] = state
            else:
                chooser.fresh.pop(share, None)
        for share, state in states.items():
            if share in chooser.groups:
                chooser.told[share] = chooser.said[share] = state
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
                group.rooms[allotment.node] = Room(subscription, allotment.online, room)

    def _state(self, group: Group, taken: tuple[tuple[int, int], ...]) -> GroupState:
        room = group.room(self._broker.ctx.write_buffer)
        return GroupState(group.share(), group.epoch, group.waiting(), group.online(), room, taken, group.wants())

    # Telling

    def turn(self) -> None:
        """Tell the primaries by ourselves what they can not know: one frame for each, however many groups."""
        self._more = False
        if not self._restless:
            return
        notify = self._broker.ctx.groups.notify
        for node in list(self._restless):
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
                del self._restless[node]

    def _notify(self, node: int, chooser: Chooser) -> None:
        states: list[GroupState] = []
        for share in list(islice(chooser.news, STATES_PER_FRAME)):
            del chooser.news[share]
            state = self._state(chooser.groups[share], ())
            said = chooser.said.get(share)
            if (
                said is None
                or (state.waiting != 0) != (said.waiting != 0)
                or state.online != said.online
                or (state.room != 0) != (said.room != 0)
                or (state.wants and not said.wants)
            ):
                chooser.said[share] = state
                states.append(state)
        if states:
            self._out.append((node, GroupReport(0, tuple(states))))

    def pending(self) -> bool:
        """Whether there is more to tell in a next turn."""
        return self._more

    def take_out(self) -> list[tuple[int, Body]]:
        out, self._out = self._out, []
        return out


def _news(told: GroupState, state: GroupState) -> bool:
    return told.online != state.online or told.room != state.room or told.wants != state.wants
