"""The server of one origin in one generation: which followers must have a change before it is acknowledged, and which
record it proposes.

The law: a change is acknowledged once every node in ``required`` has stored it. ``required`` contains every node that a
record in etcd lists in step, or may list because a proposal is under way (``copies.in_step_table``).

``in_step`` never becomes smaller than ``min_copies`` because a node lags; new changes are refused instead. So a change
that was accepted is on that many disks before it is acknowledged.

A server that has restarted asks the nodes in step whether they have more than its own disk does (a power failure may
have cost it the last records). If one has, it hands over to it. Until all of them have answered or have left, it does
not serve (``checked``). A successor does not wait for a node that is away, and stays in step because too few would be
left without it: what that node has more was not acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final
from zlib import crc32

from starlingmq.cluster.copies.copy_record import CopyRecord, too_few
from starlingmq.cluster.copies.copy_registry import StoringNode
from starlingmq.cluster.copies.follower_choice import misplaced_follower, next_follower
from starlingmq.cluster.copies.in_step_table import FOLLOWER_TABLE, FollowerAction, FollowerEvent, FollowerState

CALM_SECONDS: Final = 30.0  # between two looks at the places of followers
NEXT: Final = -1
LAG_SECONDS: Final = 10.0  # how long a connected follower may hold up acknowledgements


@dataclass(frozen=True, slots=True)
class CopySettings:
    """``copies``, ``required`` (cluster.min_copies) and ``timeout`` (cluster.copy_timeout) are the settings;
    ``silence``: how long a follower without a connection may hold up acknowledgements; ``calm``:
    see ``CALM_SECONDS``."""

    copies: int
    required: int
    timeout: float
    silence: float
    calm: float = CALM_SECONDS


class Follower:
    def __init__(self, name: str, listed: bool, now: float) -> None:
        self.name = name
        self.state = FollowerState.IN_STEP if listed else FollowerState.FOLLOWING
        self.incarnation = 0  # of its process, while it is attached
        self.proved = 0  # the incarnation in which it proved that it has everything
        self.live = False  # it gets each change
        self.asked = listed  # its position is not known yet
        self.away_since = now  # ``inf`` while it is attached
        self.stored = 0  # number of the last change that it has stored
        self.mark = 0  # it has to reach this number (``NEXT``: that of the last change at the next look) ...
        self.mark_at = now  # ... which was written by then
        self.late = False  # it holds up acknowledgements, and too few nodes would be left without it
        self.lost = False  # it is gone, and its place is filled at once


class CopyServer:
    """``restarted``: an earlier incarnation of this node has written the data. ``is_gone``: see ``LostNodes``."""

    refusal: str  # why new changes are refused; "": they are accepted
    checked: bool

    def __init__(
        self,
        record: CopyRecord,
        restarted: bool,
        settings: CopySettings,
        is_gone: Callable[[str], bool],
        now: float,
    ) -> None:
        self.record = record
        self.refusal = ""
        self.checked = False
        self._restarted = restarted
        self._settings = settings
        self._is_gone = is_gone
        self._written = 0
        self._longer: tuple[str, int] | None = None  # the node to hand over to, and its incarnation
        self._moving = ""  # a follower that another one is to replace, because of its place
        self._calm_since = now  # since then every follower is in step
        self._leaving: frozenset[str] = frozenset()  # nodes that have left the cluster
        self._forgotten: frozenset[str] = frozenset()  # nodes that were removed, and are not there
        self._asked_for = ""  # the node that an operator wants to serve
        self.followers = {
            name: Follower(name, name in record.in_step, now)
            for name in dict.fromkeys((*record.followers, *record.in_step))
            if name != record.server
        }
        self._look_at_size()

    # Inputs

    def renewed(self, record: CopyRecord, now: float) -> None:
        """A newer record of this generation."""
        self.record = record
        for name in record.followers:
            if name not in self.followers:
                self.followers[name] = Follower(name, False, now)
        for follower in list(self.followers.values()):
            listed = follower.name in record.in_step
            self._step(follower, FollowerEvent.LISTED if listed else FollowerEvent.UNLISTED, now)
            is_over = follower.name not in record.followers and follower.state is FollowerState.FOLLOWING
            if is_over and follower.away_since != inf:
                del self.followers[follower.name]
        self._look_at_size()

    def attached(self, name: str, incarnation: int, more: bool, now: float, less: bool = False) -> bool:
        """A follower is connected, and has told how much it has. ``more``: it has records that it would have to delete;
        ``less``: it has lost records that it had acknowledged. Returns whether it may be brought to the state of this
        node.

        A node in step may have more than a server that has restarted: that one has lost acknowledged records, and the
        other must serve. If it has more than a successor, the records were not acknowledged, and its checkpoint does
        not rest on them. (Handing over to it would go on for ever under load: each server leaves such records.)

        A node in step that has less was given an earlier state of its disk, or has lost the last records in a power
        failure. It leaves the nodes in step before it is brought up to date."""
        follower = self.followers.get(name)
        if follower is None:
            return False
        listed = name in self.record.in_step
        if more and self._restarted and not self.checked and listed:
            self._longer = name, incarnation
            return False
        if less and (listed or follower.state is FollowerState.LEAVING):
            self._step(follower, FollowerEvent.LAGS, now)
            return False
        follower.incarnation, follower.live = incarnation, False
        follower.asked, follower.away_since, follower.lost = False, inf, False
        if follower.stored >= follower.mark:
            follower.mark_at = now  # otherwise it holds up acknowledgements since before it connected again
        follower.mark = self._written
        follower.stored = 0  # an earlier process of it may have had another disk
        return True

    def detached(self, name: str, now: float) -> None:
        follower = self.followers.get(name)
        if follower is not None and follower.away_since == inf:
            follower.away_since = now
            follower.live = False

    def caught_up(self, name: str) -> None:
        """It gets each change from now on."""
        follower = self.followers.get(name)
        if follower is not None and follower.away_since == inf:
            follower.live = True

    def stored(self, name: str, number: int) -> None:
        """The follower has stored all changes up to that number."""
        follower = self.followers.get(name)
        if follower is not None:
            follower.stored = max(follower.stored, number)

    def hand_over(self, name: str) -> str:
        """Another node in step is to serve. Returns "" or the reason for a refusal."""
        if name not in self.record.in_step:
            return f"{name} does not have everything that {self.record.origin} has acknowledged"
        self._asked_for = name
        return ""

    def tick(self, written: int, now: float) -> None:
        """``written``: number of the last change. To be called now and then."""
        self._written = written
        for follower in self.followers.values():
            if follower.mark == NEXT:
                follower.mark, follower.mark_at = written, now
            kept_up = follower.live and follower.stored >= follower.mark
            if follower.stored >= follower.mark and follower.state is not FollowerState.PROVING:
                follower.mark, follower.mark_at = written, now
            is_wanted = follower.name in self.record.followers and self._stays(follower.name)
            if kept_up and is_wanted:
                self._step(follower, FollowerEvent.CAUGHT_UP, now)
            if follower.live and follower.mark != NEXT and follower.stored >= follower.mark:
                self._step(follower, FollowerEvent.PROVED, now)
            self._leave_behind(follower, now)
        self._leave_spare(now)
        self.checked = self.checked or (self._longer is None and not self._unknown())
        self._look_at_size()

    def _step(self, follower: Follower, event: FollowerEvent, now: float) -> None:
        row = FOLLOWER_TABLE.step(follower.state, event)
        follower.state = row.next
        if FollowerAction.MARK in row.actions:
            follower.mark, follower.mark_at = NEXT, now
        if FollowerAction.NOTE_INCARNATION in row.actions:
            follower.proved = follower.incarnation

    def _unknown(self) -> list[Follower]:
        listed = [each for each in self.followers.values() if each.asked and each.name in self.record.in_step]
        return listed if self._restarted else [each for each in listed if not each.late]

    # Lagging

    def _lags(self, follower: Follower, now: float) -> bool:
        """Whether it has held up acknowledgements for too long."""
        if follower.state is FollowerState.FOLLOWING:
            return False
        if self.checked and follower.stored >= self._written:
            return False
        if follower.stored < follower.mark and now >= follower.mark_at + LAG_SECONDS:
            return True
        if follower.away_since == inf:
            return False
        return self._is_gone(follower.name) or now >= follower.away_since + self._settings.silence

    def _leave_behind(self, follower: Follower, now: float) -> None:
        """Removes a follower that lags from the nodes in step, unless too few would be left."""
        lags = self._lags(follower, now)
        needed = follower.state is FollowerState.IN_STEP and self._staying() <= self._settings.required
        follower.late = lags and needed
        if lags and not needed:
            self._step(follower, FollowerEvent.LAGS, now)

    def _leave_spare(self, now: float) -> None:
        """Removes a node that was replaced, or that is one too many after the number of copies was lowered. The origin
        stays, since it gets its role back. While it is away it does not count: another node has the copy meanwhile."""
        many = self._staying() - self._settings.copies
        listed = [each for each in self.followers.values() if each.state is FollowerState.IN_STEP]
        spare = [each for each in reversed(listed) if each.name != self.record.origin]
        origin = next((each for each in listed if each.name == self.record.origin), None)
        if origin is not None and origin.away_since != inf:
            many -= 1
            if many == 0 and self._is_given_up(origin.name, now):
                self._step(origin, FollowerEvent.LAGS, now)
        if many > 0 and spare:
            self._step(min(spare, key=self._worth), FollowerEvent.LAGS, now)

    def _worth(self, follower: Follower) -> tuple[bool, float]:
        return self._stays(follower.name), follower.away_since

    def _stays(self, name: str) -> bool:
        """Whether no other node is to take its place."""
        return name != self._moving and name not in self._leaving

    def _let_leave(self, followers: Collection[str], now: float) -> None:
        """Removes nodes that have left the cluster, once no other one is being brought up to date in their place."""
        if all(name in self.record.in_step or name in self._leaving for name in followers):
            for each in self.followers.values():
                if each.name in self._leaving and self._staying() > self._settings.required:
                    self._step(each, FollowerEvent.LAGS, now)

    def _staying(self) -> int:
        """The number of nodes in step, including this one, that are not about to be removed."""
        return 1 + sum(1 for each in self.followers.values() if each.state is FollowerState.IN_STEP)

    def _look_at_size(self) -> None:
        late = sum(1 for each in self.followers.values() if each.late and each.name in self.record.in_step)
        self.refusal = too_few(len(self.record.in_step) - late, self._settings.required)

    # Results

    def required(self) -> tuple[str, ...]:
        """The followers that must store a change before it is acknowledged."""
        return tuple([each.name for each in self.followers.values() if each.state is not FollowerState.FOLLOWING])

    def proposal(
        self,
        nodes: Mapping[str, StoringNode],
        stored: Mapping[str, int],
        now: float,
        forgotten: Collection[str] = (),
        stopped: Collection[str] = (),
    ) -> CopyRecord | None:
        """The record that this server wants; None: the present one. ``forgotten``: nodes that were removed;
        ``stopped``: those that were stopped, and are expected to return."""
        record = self.record
        self._look_at_lost(stopped)
        self._forgotten = frozenset([name for name in forgotten if name not in nodes])
        self._leaving = frozenset([name for name, node in nodes.items() if node.leaving])
        if self._leaving:
            nodes = {name: node for name, node in nodes.items() if not node.leaving}
            self._let_leave(self._wanted_followers(nodes, stored, record.in_step, now), now)
        target = self._longer or self._willing(nodes) or self._returning(nodes)
        if target is not None and target[0] in record.in_step:
            return record.handed_to(*target)
        in_step = dict(record.in_step)
        for follower in self.followers.values():
            if follower.state is FollowerState.ENTERING:
                in_step[follower.name] = follower.proved
            elif follower.state is FollowerState.LEAVING:
                in_step.pop(follower.name, None)
        followers = self._wanted_followers(nodes, stored, in_step, now)
        wanted = replace(record, in_step=in_step, followers=followers)
        return None if wanted == record else wanted

    def _willing(self, nodes: Mapping[str, StoringNode]) -> tuple[str, int] | None:
        """The node that is to serve, once it has everything that is here: with less, a restarted one would hand the
        data back."""
        name = self._asked_for
        node = nodes.get(name)
        return (name, node.incarnation) if node is not None and self._is_level(node) else None

    def _returning(self, nodes: Mapping[str, StoringNode]) -> tuple[str, int] | None:
        """The node whose data it is, once it is in step again: only that node serves clients."""
        origin = self.record.origin
        node = nodes.get(origin)
        if node is None or node.stopping or not self._is_level(node):
            return None
        return origin, node.incarnation

    def _is_level(self, node: StoringNode) -> bool:
        """Whether it is in step, and gets each change."""
        follower = self.followers.get(node.name)
        if follower is None or follower.incarnation != node.incarnation:
            return False
        return follower.live and follower.state is FollowerState.IN_STEP

    def _wanted_followers(
        self, nodes: Mapping[str, StoringNode], stored: Mapping[str, int], in_step: Mapping[str, int], now: float
    ) -> tuple[str, ...]:
        """The followers, with others in place of those that are given up or have a bad place."""
        record = self.record
        followers = list(record.followers)
        wanted = self._settings.copies - 1
        if record.origin in nodes and record.origin not in (record.server, *followers):
            followers.insert(0, record.origin)  # it gets its role back once it is in step
        self._look_at_places(nodes, stored, now)
        away = [name for name in followers if not self._stays(name) or self._is_given_up(name, now)]
        while len(followers) - len(away) < wanted:
            name = next_follower(replace(self.record, followers=tuple(followers)), away, nodes, stored)
            if name:
                followers.append(name)
            elif self._moving in away:  # the better place is gone
                away.remove(self._moving)
                self._moving = ""
            else:
                return tuple(followers)
        present = [name for name in followers if name not in away]
        spare = [name for name in reversed(present[wanted:]) if name != record.origin]
        for name in (*away, *spare):
            if name not in in_step and self._may_go(name):
                followers.remove(name)
        return tuple(followers)

    def _look_at_places(self, nodes: Mapping[str, StoringNode], stored: Mapping[str, int], now: float) -> None:
        """Decides on a follower to be moved: one at a time, some while after the last change, and each origin at
        another moment, so that not all of them move to the same node."""
        states = [follower.state for follower in self.followers.values()]
        if self._moving not in self.record.followers:
            self._moving = ""
        if len(states) != self._settings.copies - 1 or any(state is not FollowerState.IN_STEP for state in states):
            self._calm_since = now
        elif not self._moving and now >= self._calm_since + self._settings.calm * (
            1 + crc32(self.record.origin.encode()) % 8
        ):
            self._calm_since = now
            self._moving = misplaced_follower(self.record, nodes, stored)

    def _look_at_lost(self, stopped: Collection[str]) -> None:
        """While only this node has everything, or fewer than ``required`` do, each follower that is gone and was not
        stopped is replaced at once: the next loss would lose data, or new changes are refused."""
        listed = [each for each in self.followers.values() if each.state is FollowerState.IN_STEP]
        whole = 1 + sum(1 for each in listed if each.away_since == inf)
        is_urgent = whole < max(2, self._settings.required)
        for follower in self.followers.values():
            is_lost = follower.away_since != inf and follower.name not in stopped and self._is_gone(follower.name)
            if is_urgent and is_lost:
                follower.lost = True

    def _is_given_up(self, name: str, now: float) -> bool:
        """Whether it was away for ``timeout``, is lost and missed, or was removed by an operator."""
        follower = self.followers.get(name)
        if follower is None:
            return name in self._forgotten
        return follower.lost or name in self._forgotten or now >= follower.away_since + self._settings.timeout

    def _may_go(self, name: str) -> bool:
        follower = self.followers.get(name)
        return follower is None or follower.state in (FollowerState.FOLLOWING, FollowerState.LEAVING)
