"""One node's quorum and relay, fed by hand."""

from __future__ import annotations

from math import inf

from starlingmq.cluster.links.control_frames import Heartbeat, MemberInfo, Membership
from starlingmq.cluster.links.peer_frames import Envelope
from starlingmq.cluster.membership.quorum import ConnectionChange, Quorum
from starlingmq.cluster.membership.relay import Relay

INTERVAL, TIMEOUT = 1.0, 5.0


def member(number: int, incarnation: int = 1) -> MemberInfo:
    return MemberInfo(f"n{number}", number, incarnation, f"n{number}:1")


class Self:
    """Node 1 of ``count``; the test feeds it the others' heartbeats."""

    def __init__(self, count: int, joining: tuple[int, ...] = (), one_machine: bool = False) -> None:
        self.quorum = Quorum(member(1), INTERVAL, TIMEOUT, one_machine)
        self.relay = Relay(1, self.quorum)
        self.set_members(count, joining)
        self.beats = 0

    def set_members(self, count: int, joining: tuple[int, ...] = (), revision: int = 1) -> None:
        members = Membership(revision, tuple([member(number) for number in range(1, count + 1)]))
        self.quorum.set_members(members, [member(number) for number in joining], 0.0)

    def hear(
        self,
        source: int,
        now: float,
        heard: tuple[int, ...] = (1,),
        relayed: tuple[int, ...] = (),
        incarnation: int = 1,
        taken: int = 0,
        number: int = 0,
        through: bool = False,
        revision: int = 1,
        ours: int = 1,
        misses: tuple[int, ...] = (),
    ) -> bool:
        """A heartbeat of ``source``. ``ours``: the incarnation of us that it says it hears."""
        self.beats += 1
        says = {n: ours if n == 1 else 1 for n in heard}
        also = {n: ours if n == 1 else 1 for n in relayed}
        known = Membership(revision, ())
        body = Heartbeat(
            1,
            0,
            {},
            says,
            frozenset([*heard, *relayed]),
            True,
            known,
            also,
            number or self.beats,
            {1: taken},
            gone=dict.fromkeys(misses, 1),
        )
        return self.quorum.took(Envelope(source, incarnation, 1, 0, body, through), now)


def test_a_single_node_always_serves() -> None:
    assert Self(1).quorum.enough()


def test_a_majority_is_enough() -> None:
    for count in range(2, 8):
        node = Self(count)
        beat = node.quorum.beat(0.0)
        for number in range(2, count + 1):
            assert node.quorum.enough() == (number - 2 >= count // 2)
            node.hear(number, 0.1, taken=beat)
        assert node.quorum.enough()


def test_a_majority_lasts_until_its_heartbeats_time_out() -> None:
    assert Self(1).quorum.lasts_until() == inf
    node = Self(5)
    assert node.quorum.lasts_until() < 0.0
    for number, sent in ((2, 0.0), (3, 1.0), (4, 2.0)):
        node.hear(number, sent + 0.5, taken=node.quorum.beat(sent))
    assert node.quorum.lasts_until() == 1.0 + TIMEOUT
    node.quorum.tick(1.0 + TIMEOUT)
    assert not node.quorum.enough()


def test_only_registered_nodes_serve_and_count() -> None:
    node = Self(3, joining=(4, 5))
    beat = node.quorum.beat(0.0)
    node.hear(4, 0.1, taken=beat)
    node.hear(5, 0.1, taken=beat)
    assert node.quorum.connected() == {4, 5} and not node.quorum.enough()
    joiner = Quorum(member(9), INTERVAL, TIMEOUT)
    joiner.set_members(Membership(1, (member(1),)), [member(9)], 0.0)
    assert not joiner.enough()


def test_a_connection_goes_both_ways_and_lasts_from_when_it_was_proven() -> None:
    node = Self(2)
    beat = node.quorum.beat(0.0)
    node.hear(2, 1.0, heard=(), taken=beat)
    assert node.quorum.hears(2) and not node.quorum.is_connected(2), "it does not hear us"
    node.hear(2, 4.0, taken=beat)
    assert node.quorum.take_changes() == [ConnectionChange(2, 1, True)]
    node.quorum.beat(4.5)
    assert node.quorum.wake_at() == 5.0
    node.quorum.tick(5.0)
    assert not node.quorum.is_connected(2) and node.quorum.hears(2), "what it took was sent a timeout ago"
    assert node.quorum.take_changes() == [ConnectionChange(2, 1, False)]


def test_incarnations_and_numbers() -> None:
    node = Self(2)
    beat = node.quorum.beat(0.0)
    assert node.hear(2, 0.1, incarnation=3, taken=beat) and node.quorum.is_connected(2)
    assert not node.hear(2, 0.2, incarnation=2, heard=(), taken=beat), "an incarnation that is over"
    assert not node.hear(7, 0.2, taken=beat), "nobody we know"
    node.hear(2, 0.3, incarnation=3, heard=(), number=1)
    assert node.quorum.is_connected(2), "a heartbeat that was overtaken says nothing"
    node.hear(2, 0.4, incarnation=3, taken=beat, ours=2, number=90)
    assert not node.quorum.is_connected(2), "it hears another incarnation of us"
    node.hear(2, 0.5, incarnation=4, taken=beat)
    assert [(change.incarnation, change.connected) for change in node.quorum.take_changes()] == [
        (3, True),
        (3, False),
        (4, True),
    ]


def test_nodes_vouch_for_the_memberships_they_have_and_removed_nodes_are_disconnected() -> None:
    node = Self(3)
    beat = node.quorum.beat(0.0)
    node.hear(2, 0.1, taken=beat, revision=4)
    node.hear(3, 0.1, taken=beat, revision=5)
    assert node.quorum.nodes_with_membership(4) == {2, 3} and node.quorum.nodes_with_membership(5) == {3}
    node.set_members(2, revision=6)
    assert node.quorum.connected() == {2} and node.quorum.take_changes()[-1] == ConnectionChange(3, 1, False)


def test_a_beat_each_interval_and_sooner_when_there_is_news() -> None:
    node = Self(2)
    assert [node.quorum.beat(now) for now in (0.0, 0.5, 0.9, 1.0, 1.5)] == [1, 0, 0, 2, 0]
    node.hear(2, 1.5)
    assert node.quorum.beat(1.5) == 3


def test_the_direct_way_until_it_is_known_not_to_work_then_a_third_that_stays() -> None:
    node = Self(4)
    relay = node.relay
    assert relay.next_hop(2) == 2 and relay.heartbeat_ways(2) == [2, 3, 4]
    beat = node.quorum.beat(0.0)
    for number in (2, 3, 4):
        node.hear(number, 0.1, heard=tuple({1, 2, 3, 4} - {number}), taken=beat)
    assert relay.next_hop(2) == 2 and relay.heartbeat_ways(2) == [2]
    node.hear(2, 0.2, heard=(4,), relayed=(1,), taken=beat)
    assert relay.next_hop(2) == 4, "2 hears 4 and not 3"
    assert relay.heartbeat_ways(2) == [2, 3, 4]
    node.hear(2, 0.3, heard=(3, 4), relayed=(1,), taken=beat)
    assert relay.next_hop(2) == 4, "it works, so it stays"
    node.hear(4, 0.4, heard=(2, 3), taken=beat)
    assert relay.next_hop(2) == 3 and relay.heartbeat_ways(2) == [2, 3]
    node.hear(3, 0.5, heard=(2, 4), taken=beat)
    assert relay.next_hop(2) is None
    node.hear(2, 0.6, taken=beat)
    assert relay.next_hop(2) == 2


def test_passing_on() -> None:
    relay = Self(3).relay
    body = Heartbeat(1, 0, {}, {}, frozenset(), True, Membership(0, ()), {}, 1, {})
    assert relay.pass_on(Envelope(2, 1, 3, 0, body)) == 3
    assert relay.pass_on(Envelope(2, 1, 3, 0, body, relayed=True)) is None, "one hop"
    assert relay.pass_on(Envelope(2, 1, 2, 0, body)) is None, "never back"
    assert relay.pass_on(Envelope(2, 1, 1, 0, body)) is None and relay.pass_on(Envelope(2, 1, 9, 0, body)) is None


def of_three() -> Self:
    """All three are connected."""
    node = Self(3)
    beat = node.quorum.beat(0.0)
    for number in (2, 3):
        node.hear(number, 0.1, taken=beat)
    node.quorum.take_changes()
    return node


def test_a_process_is_dead_when_all_others_miss_it() -> None:
    node = of_three()
    node.quorum.process_gone(3, 1, 0.2)
    assert not node.quorum.is_dead(3) and node.quorum.is_connected(3), "one node may be deceived"
    assert node.quorum.missed() == {3: 1}
    node.hear(2, 0.3, heard=(1, 3), misses=(3,))
    assert node.quorum.is_dead(3) and not node.quorum.is_connected(3)
    assert not node.quorum.is_connected_to_others(3), "what the second said of it before is over"
    assert node.quorum.take_changes() == [ConnectionChange(3, 1, False)]
    assert node.quorum.enough() and node.quorum.is_heard_by_nobody(3, 0.3)


def test_a_node_is_not_dead_while_this_node_hears_it() -> None:
    node = of_three()
    node.hear(2, 0.3, heard=(1, 3), misses=(3,))
    assert not node.quorum.is_dead(3) and node.quorum.is_connected(3)
    node.quorum.process_gone(3, 2, 0.4)
    assert not node.quorum.is_dead(3), "that is another life"
    node.quorum.process_gone(3, 1, 0.5)
    assert node.quorum.is_dead(3)


def test_a_frame_of_a_process_proves_that_it_lives() -> None:
    node = of_three()
    node.quorum.process_gone(3, 1, 0.2)
    node.hear(2, 0.3, misses=(3,))
    assert node.quorum.is_dead(3)
    node.hear(3, 0.4)
    assert not node.quorum.is_dead(3) and node.quorum.missed() == {}


def test_a_late_frame_by_way_of_another_node_does_not_bring_a_dead_process_back() -> None:
    node = of_three()
    node.quorum.process_gone(3, 1, 0.2)
    node.hear(2, 0.3, misses=(3,))
    node.quorum.take_changes()
    assert node.hear(3, 0.4, through=True), "what it says is taken"
    assert node.quorum.is_dead(3) and not node.quorum.hears(3) and node.quorum.take_changes() == []
    node.hear(2, 0.5, heard=(1, 3))
    node.hear(3, 0.6, through=True)
    assert not node.quorum.is_dead(3), "the third node hears it directly"


def test_a_new_life_is_not_dead() -> None:
    node = of_three()
    node.quorum.process_gone(3, 1, 0.2)
    node.hear(2, 0.3, misses=(3,))
    node.hear(3, 0.4, incarnation=2)
    assert not node.quorum.is_dead(3)
    node.hear(2, 0.5, misses=(3,))
    assert not node.quorum.is_dead(3), "what is missed is the life before"


def test_a_node_that_misses_all_others_does_not_serve() -> None:
    node = of_three()
    node.quorum.process_gone(3, 1, 0.2)
    assert node.quorum.enough()
    node.quorum.process_gone(2, 1, 0.2)
    assert not node.quorum.enough() and not node.quorum.is_dead(2) and not node.quorum.is_dead(3)
    assert node.quorum.lasts_until() < 0.2


def test_a_node_is_unheard_only_if_all_have_reported_so_since() -> None:
    node = of_three()
    beat = node.quorum.beat(4.0)
    node.hear(2, 4.1, heard=(1,), taken=beat)
    assert not node.quorum.is_heard_by_nobody(3, 4.0), "this node does"
    node.quorum.tick(0.1 + TIMEOUT)
    assert node.quorum.is_heard_by_nobody(3, 4.0)
    assert not node.quorum.is_heard_by_nobody(3, 4.1), "who says so has to say it since"
    node.hear(2, 5.5, heard=(1,), relayed=(3,))
    assert not node.quorum.is_heard_by_nobody(3, 4.0)


def of_one_machine(count: int) -> Self:
    node = Self(count, one_machine=True)
    beat = node.quorum.beat(0.0)
    for number in range(2, count + 1):
        node.hear(number, 0.1, taken=beat)
    node.quorum.take_changes()
    return node


def test_on_one_machine_the_last_node_whose_process_runs_serves() -> None:
    for count in (2, 3, 4):
        node = of_one_machine(count)
        for number in range(2, count + 1):
            node.quorum.process_gone(number, 1, 0.2)
        assert node.quorum.enough() and node.quorum.lasts_until() == inf
        assert all(node.quorum.is_dead(number) for number in range(2, count + 1))


def test_on_one_machine_a_node_that_is_silent_still_counts() -> None:
    node = of_one_machine(2)
    node.quorum.tick(TIMEOUT)
    assert not node.quorum.enough(), "its process may run, and serve"
    node.quorum.process_gone(2, 1, TIMEOUT)
    assert node.quorum.enough()


def test_on_one_machine_a_node_that_starts_again_counts_once_it_is_connected() -> None:
    node = of_one_machine(2)
    node.quorum.process_gone(2, 1, 0.2)
    node.hear(2, 0.3, incarnation=2, heard=())
    assert node.quorum.enough(), "it does not serve before it is connected"
    node.hear(2, 0.5, incarnation=2, taken=node.quorum.beat(0.4))
    assert node.quorum.is_connected(2) and node.quorum.enough()
    node.quorum.tick(0.4 + TIMEOUT)
    assert not node.quorum.enough(), "it counts again"


def test_on_one_machine_a_frame_of_the_same_life_shows_that_the_node_was_misled() -> None:
    node = of_one_machine(2)
    node.quorum.process_gone(2, 1, 0.2)
    node.hear(2, 0.3, heard=())
    node.quorum.tick(0.2 + TIMEOUT)
    assert not node.quorum.enough()


def test_a_node_that_starts_does_not_take_the_others_for_ended() -> None:
    node = Self(2, one_machine=True)
    assert not node.quorum.enough()
