"""A former owner that is slow, and heard: a CONNECT waits for it, and is never told that there is no session."""

from __future__ import annotations

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.test_takeover import LASTING, lasting, publish, published, subscribe
from tests.harness import FakeClient

from starlingmq.config.settings import ClusterConfig
from starlingmq.wire.mqtt import Connack, Connect
from starlingmq.wire.reasons import Reason

CONFIG = ClusterConfig()


def connecting(fleet: Fleet, place: int, version: int = 5) -> FakeClient:
    fake = fleet[place].open(version, "c")
    fake.send(Connect(version, "c", False, properties=LASTING if version == 5 else {}))
    return fake


def slow(fleet: Fleet, version: int = 5) -> FakeClient:
    """A session at the first node, whose messages to the others do not come for now."""
    home, *others = [node.cluster.number for node in fleet.nodes]
    client = lasting(fleet, 0, version=version)
    subscribe(client, b"t", 1)
    client.drop()
    publish(fleet.connect(0, "p"), b"t", b"queued")
    fleet.mute = {(home, other) for other in others}
    return connecting(fleet, 1, version)


@pytest.mark.parametrize("version", [4, 5])
def test_a_hand_over_that_is_slow_is_waited_for(version: int) -> None:
    fleet = Fleet(3)
    client = slow(fleet, version)
    fleet.advance(5 * CONFIG.takeover_timeout, 0.05)
    assert client.receive() == [] and not client.closed
    fleet.speak()
    fleet.advance(1.0)
    assert client.expect(Connack).session_present
    assert published(client.receive()) == [b"queued"]


@pytest.mark.parametrize("version", [4, 5])
def test_a_connect_that_waits_too_long_is_to_come_again_and_finds_its_session_then(version: int) -> None:
    fleet = Fleet(3)
    client = slow(fleet, version)
    fleet.advance(CONFIG.takeover_limit + 1.0, 0.5)
    assert client.expect(Connack).reason == (Reason.SERVER_BUSY if version == 5 else 3)
    assert client.closed
    client = connecting(fleet, 1, version)
    fleet.speak()
    fleet.advance(1.0)
    assert client.expect(Connack).session_present
    assert published(client.receive()) == [b"queued"]


def test_an_owner_that_falls_silent_is_not_waited_for() -> None:
    fleet = Fleet(3)
    client = slow(fleet)
    home = fleet[0].cluster.number
    for node in fleet.nodes[1:]:
        fleet.cut(home, node.cluster.number)
    fleet.advance(CONFIG.member_timeout + 0.5)
    assert not client.expect(Connack).session_present


def test_a_clean_start_does_not_wait_for_slow_nodes() -> None:
    fleet = Fleet(3)
    slow(fleet).drop()
    assert not fleet.connect(1, "c", clean_start=True).connack.session_present


def test_a_second_claim_does_not_wait_for_a_node_that_waits_for_the_claimer() -> None:
    """A client goes to another node, to a third one, and back to the other one, while its session is still on its way
    to there. The third one waits for it too, by an older claim."""
    fleet = Fleet(3)
    slow(fleet).drop()
    for place in (2, 1):
        fleet.advance(0.2)
        client = connecting(fleet, place)
    fleet.advance(0.2)
    fleet.speak()
    fleet.advance(1.0)
    assert client.expect(Connack).session_present
    assert published(client.receive()) == [b"queued"]


def test_two_nodes_that_claim_in_turns_do_not_wait_for_each_other() -> None:
    """The first has been asked by the second for what is still on its way to it, and claims once more: it asks the
    second, which has asked the first."""
    fleet = Fleet(3)
    home, first, second = [node.cluster.number for node in fleet.nodes]
    lasting(fleet, 0).drop()
    fleet.mute = {(home, first), (home, second)}
    for place in (1, 2, 1):
        client = connecting(fleet, place)
        fleet.advance(0.3)
    fleet.speak()
    fleet.advance(3.0, 0.05)
    assert client.expect(Connack).session_present


def test_a_client_lost_before_it_owns_its_client_id_does_not_take_over() -> None:
    fleet = Fleet(3)
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    fleet.hold_owners(1)
    gone = connecting(fleet, 1)
    gone.drop()
    fleet.give_owners()
    fleet.advance(1.0)
    assert not client.closed
    publish(fleet.connect(2, "p"), b"t", b"one")
    assert published(client.receive()) == [b"one"]
    client.drop()
    assert lasting(fleet, 2).connack.session_present


def test_a_connect_is_not_closed_for_waiting() -> None:
    """``mqtt.connect_timeout`` is for clients that do not say what they want."""
    fleet = Fleet(3)
    client = slow(fleet)
    fleet.advance(fleet[1].state.ctx.mqtt.connect_timeout + 2.0, 0.1)
    assert not client.closed


def test_messages_that_are_held_keep_their_order_on_the_way_to_a_third_owner() -> None:
    """A client goes on to a third node before its session has come to the second one."""
    fleet = Fleet(4)
    home, second, third, other = [node.cluster.number for node in fleet.nodes]
    publisher, client = fleet.connect(3, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    numbers = iter(range(1000))

    def say() -> None:
        number = next(numbers)
        publish(publisher, b"t", b"%d" % number, packet_id=number + 1)

    for _ in range(3):
        say()
    lasting(fleet, 1).drop()
    fleet.mute = {(home, second)}
    for _ in range(3):
        say()
    client = connecting(fleet, 2)
    for _ in range(3):
        fleet.advance(0.1)
        say()
    del third, other
    fleet.speak()
    for _ in range(3):
        fleet.advance(0.1)
        say()
    fleet.advance(1.0)
    client.expect(Connack)
    got = [int(payload) for payload in published(client.receive())]
    assert got == sorted(got) and len(got) == 12, got
