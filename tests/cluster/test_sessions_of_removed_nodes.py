"""A session at a node that left for good is gone: its client is told session present 0 until it certainly knows."""

from __future__ import annotations

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.test_slow_takeovers import connecting
from tests.cluster.test_takeover import lasting, publish, subscribe

from starlingmq.wire.mqtt import Connack
from starlingmq.wire.reasons import Reason

REMOVED = "node 1 had its session and is no longer a member of the cluster"


def forgotten() -> Fleet:
    """A session was at a node that has ended and was removed."""
    fleet = Fleet(4)
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    fleet.advance(0.5)
    fleet.end(0)
    deadline = fleet.now + 6.0
    while refused := fleet[0].cluster.forget("n1", False, fleet.now):
        assert fleet.now < deadline, refused
        fleet.advance(0.05, 0.05)  # its lease has not ended yet
    fleet.advance(1.0)
    return fleet


@pytest.mark.parametrize("back", [0, 1])
def test_a_client_that_may_not_have_read_that_its_session_is_gone_is_told_again(back: int) -> None:
    fleet = forgotten()
    client = lasting(fleet, 0)
    assert not client.connack.session_present
    assert fleet[0].notices[-1].detail == REMOVED
    client.drop()
    client = lasting(fleet, back)
    assert not client.connack.session_present, "it may not have read the first CONNACK"
    assert fleet[back].cluster.takeovers.lost["told_again"] == 1
    publish(client, b"other", b"x", 1)
    client.drop()
    assert lasting(fleet, 1).connack.session_present
    assert fleet[0].cluster.takeovers.lost["removed"] == 1


@pytest.mark.parametrize("back", [0, 1])
def test_a_client_that_disconnects_before_its_connack_is_told_later(back: int) -> None:
    """The owner key of the removed node stays until a session is here that remembers the loss."""
    fleet = forgotten()
    fleet.hold_owners(0)
    first = connecting(fleet, 0)
    first.drop()
    fleet.give_owners()
    fleet.advance(1.0)
    for _ in range(2):
        client = lasting(fleet, back)
        assert not client.connack.session_present
        client.drop()
    assert fleet[back].cluster.takeovers.lost == {"removed": 1, "told_again": 1}


def test_a_connect_that_waits_for_a_node_when_it_is_removed_is_told() -> None:
    fleet = Fleet(4)
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    fleet.advance(0.5)
    home, *others = [node.cluster.number for node in fleet.nodes]
    fleet.mute = {(home, other) for other in others}
    client = connecting(fleet, 1)
    fleet.advance(1.0)
    assert client.receive() == [], "it waits for its session"
    fleet.end(0)
    assert fleet[0].cluster.forget("n1", True, fleet.now) == ""
    fleet.advance(4.0, 0.05)
    connack = client.expect(Connack)
    assert (connack.reason, connack.session_present) == (Reason.SUCCESS, False)
    client.drop()
    assert not lasting(fleet, 2).connack.session_present


def test_a_session_that_is_later_than_that_of_the_removed_node_stays() -> None:
    fleet = Fleet(4)
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    home, *others = [node.cluster.number for node in fleet.nodes]
    fleet.parted = {(home, other) for other in others} | {(other, home) for other in others}
    fleet.advance(4.0, 0.05)
    client = lasting(fleet, 1)
    assert not client.connack.session_present
    publish(client, b"other", b"x", 1)
    client.drop()
    fleet.end(0)
    deadline = fleet.now + 6.0
    while refused := fleet[0].cluster.forget("n1", False, fleet.now):
        assert fleet.now < deadline, refused
        fleet.advance(0.05, 0.05)  # its lease has not ended yet
    fleet.advance(1.0)
    assert lasting(fleet, 1).connack.session_present
