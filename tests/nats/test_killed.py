"""Queue groups when the process of a node is gone: what enters elsewhere goes past its members from that moment on."""

from __future__ import annotations

import pytest
from tests.cluster.fleet import Fleet
from tests.nats.talk import Msg, NatsPeer, connect

from starlingmq.core.groups.group import Group

EACH = 90


def heard(peer: NatsPeer) -> list[bytes]:
    return [frame.payload for frame in peer.heard() if isinstance(frame, Msg)]


def group(fleet: Fleet, place: int) -> Group:
    found = fleet[place].state.router.group(b"$share/g/svc")
    assert found is not None
    return found


def three() -> tuple[Fleet, list[NatsPeer], list[NatsPeer]]:
    """A member and a publisher at each node; the first one has the primary. All have been allotted something."""
    fleet = Fleet(3)
    workers = []
    for node in fleet.nodes:
        workers.append(connect(node))
        assert workers[-1].said("SUB svc g 1", "PING") == ["PONG"]
        fleet.advance(0.3)
    publishers = [connect(node) for node in fleet.nodes]
    for number in range(EACH):
        publishers[number % 3].pub("svc", b"before")
        fleet.advance(0.02)
    assert min(len(heard(worker)) for worker in workers) > EACH / 10
    assert [group(fleet, place).chooser for place in range(3)] == [1, 1, 1]
    return fleet, workers, publishers


def kill(fleet: Fleet, place: int) -> None:
    """The operating system closes the connections of a killed process; its peers see that."""
    number = fleet[place].cluster.number
    fleet.end(place)
    for node in fleet.nodes:
        node.cluster.disconnected(number, fleet.now)


@pytest.mark.parametrize("place", [0, 2])
def test_nothing_is_given_to_a_node_that_was_killed_whether_it_had_the_primary_or_not(place: int) -> None:
    fleet, workers, publishers = three()
    kill(fleet, place)
    del workers[place], publishers[place]
    for number in range(2 * EACH):
        publishers[number % 2].pub("svc", b"%d" % number)
    fleet.advance(0.1)
    got = [payload for worker in workers for payload in heard(worker)]
    assert sorted(got) == sorted(b"%d" % number for number in range(2 * EACH))


def test_requests_go_on_while_there_is_no_primary() -> None:
    fleet, workers, publishers = three()
    kill(fleet, 0)
    for second in range(20):
        for number in range(30):
            publishers[1 + number % 2].pub("svc", b"%d" % (30 * second + number))
        fleet.advance(1.0, 0.1)
    got = [payload for worker in workers for payload in heard(worker)]
    assert sorted(got) == sorted(b"%d" % number for number in range(600))
    assert group(fleet, 0).chooser != 1


def test_a_node_whose_stream_has_ended_and_that_lives_is_asked_again_when_it_answers() -> None:
    fleet, workers, publishers = three()
    fleet[1].cluster.disconnected(3, fleet.now)
    for _ in range(EACH):
        publishers[1].pub("svc", b"past it")
    assert heard(workers[2]) == []
    fleet.advance(2.0)
    for number in range(EACH):
        publishers[1].pub("svc", b"%d" % number)
        fleet.advance(0.02)
    assert len(heard(workers[2])) > EACH / 10


def test_a_stream_that_is_there_again_counts_at_once() -> None:
    fleet, workers, publishers = three()
    fleet[1].cluster.disconnected(3, fleet.now)
    fleet[1].cluster.connected(3, fleet.now)
    for _ in range(EACH):
        publishers[1].pub("svc", b"x")
    assert heard(workers[2])


def test_a_node_that_was_allotted_nothing_gives_to_its_own_members_while_there_is_no_primary() -> None:
    fleet = Fleet(3)
    workers = [connect(node) for node in fleet.nodes]
    for worker in workers:
        worker.said("SUB svc g 1", "PING")
        fleet.advance(0.3)
    asking = connect(fleet[1])
    fleet[1].state.blocked(workers[1].client)
    kill(fleet, 0)
    asking.pub("svc", b"in line")
    assert not group(fleet, 0).standing
    fleet[1].state.drained(workers[1].client, fleet.now)
    fleet.run()
    asking.pub("svc", b"at once")
    assert heard(workers[1]) == [b"in line", b"at once"]


def test_a_member_whose_subscription_is_not_known_everywhere_is_passed_over_until_it_is_read_again() -> None:
    """Its PONG waits, and with it what it would answer: a requester would wait as long."""
    fleet, workers, publishers = three()
    fleet.cut(1, 3)
    fleet.cut(2, 3)
    newcomer = connect(fleet[1])
    assert newcomer.said("SUB svc g 1", "PING") == []
    for _ in range(EACH):
        publishers[1].pub("svc", b"past it")
    assert heard(newcomer) == []
    while "PONG" not in (told := newcomer.heard()):
        assert not [frame for frame in told if isinstance(frame, Msg)] and not newcomer.closed
        fleet.advance(0.05)
    heard(workers[1])
    for _ in range(EACH):
        publishers[1].pub("svc", b"for both")
    assert heard(newcomer)


def test_waiting_messages_reach_the_only_member_once_all_nodes_know_its_subscription() -> None:
    fleet = Fleet(3)
    fleet.cut(1, 3)
    fleet.cut(2, 3)
    worker, asking = connect(fleet[1]), connect(fleet[1])
    worker.send("SUB svc g 1", "PING")
    asking.pub("svc", b"?")
    assert heard(worker) == []
    fleet.advance(4.5)
    assert worker.heard() == ["PONG", Msg("svc", "1", b"?")]
