"""Queue groups over nodes whose members have a Maximum Packet Size: a message goes to a node where one accepts it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.mistakes import Mistake, each_mistake
from tests.cluster.test_queue_groups import group, heard, primary, quiet
from tests.core.test_group_sizes import LARGE, LIMIT, MIXED, SMALL, member, publish, took
from tests.nats.talk import connect

from starlingmq.core.delivery.group_engine import TOO_LARGE
from starlingmq.core.groups.group import Group
from starlingmq.core.groups.member_selection import ANY_SIZE, Room


def dropped(fleet: Fleet) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in fleet.nodes:
        for reason, count in node.state.ctx.counters.dropped.items():
            if count:
                found[reason] = found.get(reason, 0) + count
    return found


def waiting(fleet: Fleet) -> int:
    return sum(group(node).waiting() for node in fleet.nodes)


@pytest.mark.parametrize("notified", [True, False])
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_it_goes_to_the_node_where_a_member_accepts_it(qos: int, place: int, notified: bool) -> None:
    fleet = Fleet(3, max_inflight=65_535)
    if not notified:
        quiet(fleet)
    members = [member(fleet[place], "large", qos, 0)]
    fleet.advance(0.5)
    members += [member(fleet[(place + more) % 3], f"small{more}", qos) for more in (1, 2)]
    fleet.advance(1.5)
    assert primary(fleet) == place
    for node in fleet.nodes:
        publish(node, *MIXED, qos=qos)
        fleet.advance(1.0)
        publish(node, *MIXED, qos=qos)  # by credit
    fleet.advance(2.0)
    taken = [took(client) for client in members]
    assert sorted(payload for each in taken for payload in each) == sorted(MIXED * 6)
    assert all(set(each) <= set(SMALL) and each for each in taken[1:])
    assert dropped(fleet) == {}


def scene_of_a_far_member() -> None:
    """The primary has a member with a limit; the publisher, and the only member without one, are at the other nodes."""
    fleet = Fleet(3)
    small = member(fleet[0], "small", 1)
    fleet.advance(0.5)
    nats = connect(fleet[1])
    nats.send("SUB t g 1", "PING")
    fleet.advance(1.5)
    assert primary(fleet) == 0
    for _ in range(3):
        publish(fleet[2], *MIXED)
        fleet.advance(1.0)
    here, there = took(small), heard(nats)
    assert sorted(here + there) == sorted(MIXED * 3)
    assert here
    assert dropped(fleet) == {}
    assert waiting(fleet) == 0


def scene_without_a_fitting_member() -> None:
    """At no node: messages are dropped and counted, once each, wherever they enter, and the others arrive."""
    fleet = Fleet(3)
    members = [member(fleet[place], f"m{place}", 1, LIMIT - place) for place in (0, 1)]
    fleet.advance(1.5)
    for node in fleet.nodes:
        publish(node, *MIXED)
        fleet.advance(1.0)
    fleet.advance(2.0)
    assert sorted(took(members[0]) + took(members[1])) == sorted(SMALL * 3)
    assert dropped(fleet) == {TOO_LARGE: 3 * len(LARGE)}
    assert waiting(fleet) == 0


def scene_of_an_absent_member() -> None:
    """The only member without a limit has a session at another node, and no connection."""
    fleet = Fleet(3)
    away, small = member(fleet[1], "away", 1, 0, 3600), member(fleet[0], "small", 1)
    fleet.advance(1.0)
    away.drop()
    fleet.advance(1.0)
    publish(fleet[2], *MIXED)
    fleet.advance(2.0)
    assert sorted(took(small)) == SMALL
    assert dropped(fleet) == {TOO_LARGE: len(LARGE)}
    assert waiting(fleet) == 0


def scene_of_a_full_member() -> None:
    """The only member without a limit is at another node, and does not read for a while."""
    fleet = Fleet(3)
    small, large = member(fleet[0], "small", 1), member(fleet[1], "large", 1, 0)
    fleet.advance(1.0)
    large.block()
    fleet.advance(1.0)
    publish(fleet[2], *MIXED)
    fleet.advance(2.0)
    assert dropped(fleet) == {}
    large.unblock()
    fleet.advance(2.0)
    assert sorted(took(small) + took(large)) == sorted(MIXED)
    assert dropped(fleet) == {}


def scene_of_changing_limits() -> None:
    """A member comes back with another limit: credit that was granted before is renewed."""
    fleet = Fleet(3)
    small, other = member(fleet[0], "small", 1), member(fleet[1], "other", 1, 0)
    fleet.advance(1.0)
    publish(fleet[2], *MIXED)
    fleet.advance(2.0)
    assert sorted(took(small) + took(other)) == sorted(MIXED)
    other.drop()
    other = member(fleet[1], "other", 1)
    fleet.advance(2.0)
    publish(fleet[2], *MIXED)
    fleet.advance(2.0)
    assert sorted(took(small) + took(other)) == SMALL
    assert dropped(fleet) == {TOO_LARGE: len(LARGE)}
    assert waiting(fleet) == 0


SCENES = (
    scene_of_a_far_member,
    scene_without_a_fitting_member,
    scene_of_an_absent_member,
    scene_of_a_full_member,
    scene_of_changing_limits,
)


@pytest.mark.parametrize("scene", SCENES)
def test_members_of_other_nodes(scene: Callable[[], None]) -> None:
    scene()


MISTAKES = {
    "members of other nodes with a limit accept nothing": Mistake(
        Room, "accepts", lambda room, message: room.limit == ANY_SIZE, scene_of_a_far_member
    ),
    "what no member can take now is too large": Mistake(
        Group, "too_large", lambda group, message: True, scene_of_a_full_member
    ),
    "nothing is too large for all": Mistake(
        Group, "too_large", lambda group, message: False, scene_without_a_fitting_member
    ),
    "a node does not say what its members accept": Mistake(Group, "limit", lambda group: 0, scene_of_a_far_member),
}


@each_mistake(MISTAKES)
def test_the_scenes_find(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake.must_show(monkeypatch)
