"""Tests of the checks of ``world`` and ``lives``: each bug that is likely here is planted, and is caught.

Each bug is a class with one wrong method. A bug that no check finds any more means that a check is dead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

import pytest
from msgspec.structs import replace
from tests.cluster.lives import run
from tests.cluster.world import INTERVAL, STEP, TIMEOUT, World

from starlingmq.cluster.etcd.etcd_requests import Compare, Request, Txn
from starlingmq.cluster.links.control_frames import Heartbeat, MemberInfo, Membership
from starlingmq.cluster.links.heartbeat_changes import HeartbeatReader, HeartbeatWriter
from starlingmq.cluster.links.peer_frames import Envelope
from starlingmq.cluster.membership.members import Members
from starlingmq.cluster.membership.quorum import Quorum, QuorumPeer
from starlingmq.cluster.membership.relay import Relay

pytestmark = pytest.mark.interpreted_only("a class that is compiled has none of Python below it")

SEEDS_MAX = 40  # lives in which a mistake has to show


class CountsWhomItHears(Quorum):
    def _is_heard_by(self, peer: QuorumPeer) -> bool:
        return True

    def _look(self, peer: QuorumPeer, now: float) -> None:
        peer.rests_on = max(peer.direct_at, peer.relayed_at)
        super()._look(peer, now)


class CountsJoining(Quorum):
    def enough(self) -> bool:
        return self._number in self._registered and len(self.connected()) >= len(self._registered) // 2


class CountsItself(Quorum):
    def enough(self) -> bool:
        count = sum(1 for number in self.connected() if number in self._registered)
        return self._number in self._registered and count + 1 >= len(self._registered) // 2


class ForgetsNobodyInTime(Quorum):
    def _look(self, peer: QuorumPeer, now: float) -> None:
        super()._look(peer, min(now, max(peer.direct_at, peer.relayed_at)))


class SaysNothingOfWhatIsRelayed(Quorum):
    def heard_relayed(self) -> dict[int, int]:
        return {}


class TakesAnyMembership(Members):
    def adopt(self, membership: Membership, now: float) -> None:
        self._adopted = membership
        self._registry.parsed.membership = membership
        self._look(now)


class AsksNobody(Members):
    """Joins as soon as it is there."""

    def _is_known(self, now: float) -> bool:
        return True


class KeepsWhoItHeard(Members):
    """Heartbeats heard under the earlier membership count for the new one."""

    def known_by(self, numbers: frozenset[int], now: float) -> None:
        super().known_by(numbers | self._heard, now)

    def _look(self, now: float) -> None:
        heard = self._heard
        super()._look(now)
        self._heard = heard


class Careless(Members):
    """Does not compare ``forgotten``."""

    forgotten: ClassVar[bytes] = b""

    def take_requests(self) -> list[Request]:
        return [self._spoiled(request) if isinstance(request, Txn) else request for request in super().take_requests()]

    def _spoiled(self, txn: Txn) -> Txn:
        compares: tuple[Compare, ...] = tuple([c for c in txn.compares if self.forgotten not in c.key])
        return Txn(txn.tag, compares, txn.success, txn.failure)


class ComparesNoNumber(Careless):
    forgotten = b"/next_number"


class ComparesNoChange(Careless):
    forgotten = b"/members/changed"


class LeavesTheLeaseLost(Members):
    def _come_online(self, me: MemberInfo) -> None:
        pass


class PassesNothingOn(Relay):
    def pass_on(self, envelope: Envelope) -> int | None:
        return None


class BeatsTheDirectWayOnly(Relay):
    def heartbeat_ways(self, target: int) -> list[int]:
        return [target]


class PassesBack(Relay):
    def pass_on(self, envelope: Envelope) -> int | None:
        return envelope.source


class TellsAChangeOnce(HeartbeatWriter):
    """Relies on each heartbeat to arrive."""

    def to(self, target: int, taken: int) -> Heartbeat:
        return super().to(target, self._beat.number - 1 if taken and self._beat is not None else 0)


class TellsNothingOfTheLost(HeartbeatWriter):
    """Does not say that there is nothing to say of a node any more."""

    def to(self, target: int, taken: int) -> Heartbeat:
        beat = super().to(target, taken)
        return replace(beat, changed=tuple([node for node in beat.changed if node in self._said]))


class TellsTheMembershipToNobody(HeartbeatWriter):
    def write(self, beat: Heartbeat) -> None:
        super().write(beat)
        self._membership_at = 1


class ReadsWithoutABase(HeartbeatReader):
    def read(self, source: int, incarnation: int, beat: Heartbeat) -> Heartbeat:
        known = self._read.get(source)
        if known is None or known[0] != incarnation:
            nobody = Membership(beat.membership.revision, ())
            nothing = replace(beat, vector={}, heard={}, relayed={}, connected=frozenset(), membership=nobody, number=0)
            self._read[source] = incarnation, replace(nothing, since=0, listeners=())
        return super().read(source, incarnation, replace(beat, since=min(beat.since, 1)))


class ReadsWhatIsLate(HeartbeatReader):
    def read(self, source: int, incarnation: int, beat: Heartbeat) -> Heartbeat:
        known = self._read.get(source)
        if known is not None and known[0] == incarnation:
            self._read[source] = incarnation, replace(known[1], number=min(known[1].number, beat.number - 1))
        return super().read(source, incarnation, replace(beat, since=min(beat.since, beat.number - 1)))


Bug = type[Members | Quorum | Relay | HeartbeatWriter | HeartbeatReader]


def world_of(bug: Bug) -> type[World]:
    class Wrong(World):
        writer_class = bug if issubclass(bug, HeartbeatWriter) else HeartbeatWriter
        reader_class = bug if issubclass(bug, HeartbeatReader) else HeartbeatReader
        members_class = bug if issubclass(bug, Members) else Members
        quorum_class = bug if issubclass(bug, Quorum) else Quorum
        relay_class = bug if issubclass(bug, Relay) else Relay

    return Wrong


IN_LIVES = [
    (CountsWhomItHears, "though it reaches"),
    pytest.param(CountsJoining, "and .* with|though it reaches", marks=pytest.mark.long),
    pytest.param(CountsItself, "and .* with|though it reaches", marks=pytest.mark.long),
    pytest.param(ForgetsNobodyInTime, "though it reaches", marks=pytest.mark.long),
    (TakesAnyMembership, "goes back"),
    (ComparesNoNumber, "was given twice"),
    (LeavesTheLeaseLost, "do not come together"),
    pytest.param(TellsAChangeOnce, "do not come together|though it reaches|reads another", marks=pytest.mark.long),
    pytest.param(TellsNothingOfTheLost, "reads another", marks=pytest.mark.long),
    (TellsTheMembershipToNobody, "reads another"),
    pytest.param(ReadsWithoutABase, "reads another", marks=pytest.mark.long),
    pytest.param(ReadsWhatIsLate, "reads another", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("bug", "complaint"), IN_LIVES)
def test_lives_catch_it(bug: Bug, complaint: str) -> None:
    wrong = world_of(bug)
    for seed in range(SEEDS_MAX):
        try:
            run(seed, world_class=wrong)
        except AssertionError as error:
            assert re.search(complaint, str(error))
            return
    pytest.fail("nobody noticed")


def alone_while_two_join(world: World) -> None:
    """a is a cluster of one. It hears two that are joining, and is cut off in the moment in which one of them is in."""
    a = world.start("a")
    world.run_until_all_serve(3.0)
    b, c = world.start("b"), world.start("c")
    while len(a.members.joining) < 2:
        world.run(STEP)
    world.etcd.cut("a")
    while b.members.state == c.members.state == "joining":
        world.run(STEP)
    for name in "bc":
        world.cut("a", name)
        world.cut(name, "a")
    world.run(3 * TIMEOUT)


def unseen_while_two_join(world: World) -> None:
    """a is a cluster of one, and reaches neither etcd nor any other node while two are joining."""
    world.start("a")
    world.run_until_all_serve(3.0)
    world.etcd.cut("a")
    for name in "bc":
        world.cut("a", name)
        world.cut(name, "a")
        world.start(name)
    world.run(3 * TIMEOUT)


def a_triangle_without_a_side(world: World) -> None:
    """a and b do not reach each other but through c, one way and the other; all have to serve, connected to all."""
    for name in "abc":
        world.start(name)
    world.run_until_all_serve(5.0)
    world.cut("a", "b")
    world.run(3 * TIMEOUT)
    assert world.agreed(), world.describe()
    world.cut("b", "a")
    world.run(3 * TIMEOUT)
    assert world.agreed(), world.describe()
    frames = world.relayed
    world.run(10 * INTERVAL)
    assert world.relayed - frames <= 2 * 12, "more is relayed than the heartbeats between two"
    a, b = world.nodes["a"], world.nodes["b"]
    assert a.relay is not None and a.relay.next_hop(b.number) == world.nodes["c"].number
    world.cuts.clear()
    world.run(3 * TIMEOUT)
    assert a.relay.next_hop(b.number) == b.number and world.agreed()


SCENES = [alone_while_two_join, unseen_while_two_join, a_triangle_without_a_side]
IN_SCENES = [
    (AsksNobody, unseen_while_two_join, "serves with .* and .* with"),
    pytest.param(KeepsWhoItHeard, alone_while_two_join, "serves with .* and .* with", marks=pytest.mark.long),
    (ComparesNoChange, alone_while_two_join, "serves with .* and .* with"),
    (SaysNothingOfWhatIsRelayed, a_triangle_without_a_side, "connected"),
    (PassesNothingOn, a_triangle_without_a_side, "connected"),
    pytest.param(BeatsTheDirectWayOnly, a_triangle_without_a_side, "connected", marks=pytest.mark.long),
    pytest.param(PassesBack, a_triangle_without_a_side, "connected", marks=pytest.mark.long),
]


@pytest.mark.parametrize("scene", SCENES)
def test_scenes(scene: Callable[[World], None]) -> None:
    for seed in range(8):
        scene(World(seed))


@pytest.mark.parametrize(("bug", "scene", "complaint"), IN_SCENES)
def test_scenes_catch_it(bug: Bug, scene: Callable[[World], None], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        for seed in range(8):
            scene(world_of(bug)(seed))
