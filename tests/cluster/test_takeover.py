"""Sessions follow their clients from node to node (docs/SESSIONS.md), one thing at a time."""

from __future__ import annotations

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.owner_store import owner_keys
from tests.harness import FakeClient

from starlingmq.wire.mqtt import Ack, Connack, Connect, Disconnect, Packet, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.packets import Pingreq
from starlingmq.wire.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL, SUBSCRIPTION_IDENTIFIER, Properties
from starlingmq.wire.reasons import Reason

PUBACK, PUBREC, PUBREL, PUBCOMP = 4, 5, 6, 7
LASTING: Properties = {SESSION_EXPIRY_INTERVAL: 3600}


def lasting(fleet: Fleet, place: int, client_id: str = "c", version: int = 5) -> FakeClient:
    properties = LASTING if version == 5 else None
    return fleet.connect(place, client_id, version=version, clean_start=False, properties=properties)


def subscribe(client: FakeClient, filter: bytes, qos: int, identifier: int = 0) -> None:
    properties: Properties = {SUBSCRIPTION_IDENTIFIER: [identifier]} if identifier else {}
    client.send(Subscribe(1, [SubscribeRequest(filter, qos)], properties))
    assert client.expect(Suback).reasons == [qos]


def publish(client: FakeClient, topic: bytes, payload: bytes, qos: int = 1, packet_id: int = 1) -> None:
    client.send(Publish(topic, payload, qos, packet_id=packet_id))
    if qos == 2:
        client.expect(Ack)
        client.send(Ack(PUBREL, packet_id))
    if qos:
        client.expect(Ack)


def published(packets: list[Packet]) -> list[bytes]:
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


def test_a_client_that_reconnects_elsewhere_finds_its_session_and_its_queue() -> None:
    fleet = Fleet(2)
    publisher, client = fleet.connect(0, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    for number in range(5):
        publish(publisher, b"t", b"%d" % number)
    client = lasting(fleet, 1)
    assert client.connack.session_present
    assert published(client.receive()) == [b"0", b"1", b"2", b"3", b"4"]
    fleet.advance(0.5)
    publish(publisher, b"t", b"5")
    assert published(client.receive()) == [b"5"]
    assert "c" not in fleet[0].state.ctx.sessions and len(fleet[0].state.ctx.sessions) == 2
    assert not fleet[0].state.router.resolve(b"t").subscriptions[1:]


def test_a_connected_client_is_told_that_it_is_elsewhere_now() -> None:
    fleet = Fleet(2)
    client = lasting(fleet, 0)
    again = lasting(fleet, 1)
    assert again.connack.session_present
    assert client.expect(Disconnect).reason == Reason.SESSION_TAKEN_OVER


def test_one_connection_for_a_client_id_without_a_session_too() -> None:
    fleet = Fleet(2)
    client = fleet.connect(0, "c")
    again = fleet.connect(1, "c")
    assert not again.connack.session_present
    fleet.advance(0.1)
    assert client.expect(Disconnect).reason == Reason.SESSION_TAKEN_OVER


def test_messages_during_a_takeover_come_once_and_in_order() -> None:
    fleet = Fleet(3)
    publishers = [fleet.connect(place, f"p{place}") for place in range(3)]
    client = lasting(fleet, 0)
    subscribe(client, b"t/#", 1)
    client.drop()
    fake = fleet[1].open(5, "c")
    fake.send(Connect(5, "c", False, properties=LASTING))
    for number in range(30):
        for place, publisher in enumerate(publishers):
            publisher.send(Publish(b"t/%d" % place, b"%d" % number, 1, packet_id=1))
        fleet.advance(0.002)
    fleet.advance(1.0)
    assert fake.expect(Connack).session_present
    packets = [packet for packet in fake.receive() if isinstance(packet, Publish)]
    for place in range(3):
        got = [int(packet.payload) for packet in packets if packet.topic == b"t/%d" % place]
        assert got == list(range(30))


@pytest.mark.parametrize("version", [4, 5])
def test_the_window_moves_with_its_packet_ids_and_stages(version: int) -> None:
    fleet = Fleet(2)
    publisher, client = fleet.connect(0, "p"), lasting(fleet, 0, version=version)
    subscribe(client, b"t", 2)
    for number, qos in enumerate((1, 2, 2)):
        publish(publisher, b"t", b"%d" % number, qos)
    sent = [packet for packet in client.receive() if isinstance(packet, Publish)]
    client.send(Ack(PUBREC, sent[1].packet_id))
    client.drop()
    again = lasting(fleet, 1, version=version).receive()
    assert [(p.packet_id, p.dup, p.payload) for p in again if isinstance(p, Publish)] == [
        (sent[0].packet_id, True, b"0"),
        (sent[2].packet_id, True, b"2"),
    ]
    assert [(p.type, p.packet_id) for p in again if isinstance(p, Ack)] == [(PUBREL, sent[1].packet_id)]


def test_clean_start_discards_the_session_wherever_it_is() -> None:
    fleet = Fleet(2)
    publisher, client = fleet.connect(0, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    publish(publisher, b"t", b"old")
    client = fleet.connect(1, "c", clean_start=True, properties=LASTING)
    assert not client.connack.session_present
    fleet.advance(1.0)
    assert not published(client.receive())
    assert "c" not in fleet[0].state.ctx.sessions and not fleet[0].state.router.resolve(b"t").subscriptions
    client.drop()
    assert lasting(fleet, 0).connack.session_present


def test_a_client_that_comes_back_to_its_own_node_claims_once() -> None:
    fleet = Fleet(2)
    lasting(fleet, 0).drop()
    fleet.advance(1.0)
    asked, told = fleet[0].cluster.ownership.claims, fleet[0].cluster.data_frames()
    again = lasting(fleet, 0)
    assert again.connack.session_present
    assert fleet[0].cluster.ownership.claims == asked + 1
    assert fleet[0].cluster.data_frames() == told


def test_ended_sessions_leave_no_owner_keys() -> None:
    fleet = Fleet(2)
    client = fleet.connect(0, "c")
    lasting(fleet, 0, "d").drop()
    moved = lasting(fleet, 1, "d")
    client.disconnect()
    moved.disconnect(properties={SESSION_EXPIRY_INTERVAL: 0})
    fleet.advance(1.0)
    assert not owner_keys([node.cluster for node in fleet.nodes])


def test_an_unreachable_owner_is_not_waited_for_and_hands_over_its_messages_later() -> None:
    fleet = Fleet(3)
    publisher, client = fleet.connect(2, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    publish(publisher, b"t", b"before")
    fleet.cut(1, 2)
    fleet.cut(1, 3)
    fleet.advance(6.0)
    began = fleet.now
    client = lasting(fleet, 1)
    assert not client.connack.session_present and fleet.now - began < 0.5
    subscribe(client, b"t", 1)
    publish(publisher, b"t", b"after")
    assert published(client.receive()) == [b"after"]
    fleet.heal()
    fleet.advance(6.0)
    assert published(client.receive()) == [b"before"]
    assert not [name for name in fleet[0].state.ctx.sessions if not name.startswith("$node/")]


def test_ten_that_race_end_with_one() -> None:
    fleet = Fleet(3)
    publisher, client = fleet.connect(0, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    publish(publisher, b"t", b"kept")
    racing = []
    for number in range(10):
        fake = fleet[number % 3].open(5, "c")
        fake.send(Connect(5, "c", False, properties=LASTING))
        racing.append(fake)
    fleet.advance(10.0)
    alive = [fake for fake in racing if not fake.closed]
    assert len(alive) == 1
    assert published(alive[0].receive()) == [b"kept"]
    assert sum("c" in node.state.ctx.sessions for node in fleet.nodes) == 1


def test_members_of_shared_groups_move_with_their_session() -> None:
    fleet = Fleet(2)
    publisher, client = fleet.connect(0, "p"), lasting(fleet, 0)
    subscribe(client, b"$share/g/t", 1)
    client.drop()
    publish(publisher, b"t", b"1")
    client = lasting(fleet, 1)
    fleet.advance(1.0)
    publish(publisher, b"t", b"2")
    fleet.advance(0.1)
    assert published(client.receive()) == [b"1", b"2"]


def test_options_of_subscriptions_move() -> None:
    fleet = Fleet(2)
    publisher, client = fleet.connect(0, "p"), lasting(fleet, 0)
    client.send(Subscribe(1, [SubscribeRequest(b"t", 2, retain_as_published=True)], {SUBSCRIPTION_IDENTIFIER: [7]}))
    client.expect(Suback)
    client.drop()
    client = lasting(fleet, 1)
    fleet.advance(0.5)
    publisher.send(Publish(b"t", b"x", 1, retain=True, packet_id=1))
    found = client.expect(Publish)
    assert found.retain and found.qos == 1 and found.subscription_ids == [7]


def test_an_older_session_that_was_served_first_gives_way_to_the_newer() -> None:
    """Of two nodes that have something the one with the older session answers first. The client has asked for it at yet
    another node meanwhile, and comes back: so it goes from here to here, and then the newer one comes."""
    fleet = Fleet(4)
    older, newer, here, last = [node.cluster.number for node in fleet.nodes]
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    for other in (newer, here, last):
        fleet.cut(older, other)
    fleet.advance(6.0, 0.05)
    lasting(fleet, 1).drop()
    fleet.mute = {(newer, older), (newer, here), (last, older), (last, newer), (last, here)}
    fleet.heal()
    fleet.advance(2.0, 0.05)
    for place in (2, 3, 2):
        fake = fleet[place].open(5, "c")
        fake.send(Connect(5, "c", False, properties=LASTING))
        fleet.advance(0.2)
    fleet.speak()
    fleet.advance(6.0, 0.05)
    assert fake.expect(Connack).reason == 0
    subscribe(fake, b"t", 1)  # it knows of the session reset
    names = [name for node in fleet.nodes for name in node.state.ctx.sessions if not name.startswith("$node/")]
    assert names == ["c"]


def test_a_client_that_never_read_session_present_0_keeps_its_subscriptions() -> None:
    """The client got a new session at another node, and left before it could read session present 0. Back at the first
    node, its old session is found first, and the other node's messages follow, as the later session's.
    """
    fleet = Fleet(3)
    here, there, third = [node.cluster.number for node in fleet.nodes]
    publisher, client = fleet.connect(2, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    fleet.cut(here, there)
    fleet.cut(here, third)
    fleet.advance(6.0, 0.05)
    begun = lasting(fleet, 1)
    assert not begun.connack.session_present
    begun.drop()
    fleet.mute = {(there, here)}
    fleet.heal()
    fleet.advance(2.0, 0.05)
    client = fleet[0].open(5, "c")
    client.send(Connect(5, "c", False, properties=LASTING))
    fleet.advance(0.3)
    fleet.speak()
    fleet.advance(0.3)
    assert not client.expect(Connack).session_present
    publish(publisher, b"t", b"one")
    fleet.advance(0.2)
    assert published(client.receive()) == [b"one"]


def test_a_node_that_waits_for_a_session_has_none_to_hand_over() -> None:
    """One node after the other claims the client id, and its client is gone each time before it is answered. The second
    one hears from the first that it may be owed something; that is not a session in place of the one that there is."""
    fleet = Fleet(5)
    home, first, second, *_ = [node.cluster.number for node in fleet.nodes]
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    fleet.mute = {(first, home), (second, home), (second, first)}
    for place in (1, 2):
        fake = fleet[place].open(5, "c")
        fake.send(Connect(5, "c", False, properties=LASTING))
        fleet.advance(0.2)
        fake.drop()
        fleet.parted = {(first, home), (second, home)}
        fleet.advance(3.0, 0.05)
    fleet.mute = set()
    fleet[2].cluster.connected(first, fleet.now)
    fleet.advance(1.0, 0.05)
    client = lasting(fleet, 3)
    assert client.connack.session_present
    fleet.speak()
    fleet.advance(3.0, 0.05)
    publish(fleet.connect(0, "p"), b"t", b"one")
    fleet.advance(0.2)
    assert published(client.receive()) == [b"one"]


def test_messages_sent_at_qos_2_are_not_resent_when_their_session_is_lost() -> None:
    """A receiver may act at PUBLISH (4.3.3, method A): a copy under another packet id would be another message to it.
    What was not sent yet comes, and so does what was sent at QoS 1."""
    fleet = Fleet(3)
    publisher = fleet.connect(0, "p")
    client = fleet.connect(1, "c", clean_start=False, properties={**LASTING, RECEIVE_MAXIMUM: 3})
    subscribe(client, b"t", 2)
    for number in range(5):
        publish(publisher, b"t", b"%d" % number, 1 if number == 1 else 2, number + 1)
    assert published(client.receive()) == [b"0", b"1", b"2"]
    home = fleet[1].cluster.number
    for other in fleet.nodes:
        fleet.cut(home, other.cluster.number)
    fleet.advance(4.0)
    client = lasting(fleet, 2)
    assert not client.connack.session_present
    client.send(Pingreq())
    fleet.heal()
    fleet.advance(5.0)
    assert sorted(published(client.receive())) == [b"1", b"3", b"4"]
    dropped = [node.state.ctx.counters.dropped.get("unsettled_qos2", 0) for node in fleet.nodes]
    assert sum(dropped) == 2


def test_messages_sent_at_qos_2_by_an_earlier_session_are_not_resent_when_the_later_is_lost() -> None:
    fleet = Fleet(4)
    publisher, client = fleet.connect(2, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 2)
    publish(publisher, b"t", b"one", 2)
    assert published(client.receive()) == [b"one"]
    home, other, *_ = [node.cluster.number for node in fleet.nodes]
    fleet.parted = {(home, other), (other, home)}
    fleet.advance(4.0)
    client = lasting(fleet, 1)
    assert not client.connack.session_present
    client = lasting(fleet, 0)
    assert not client.connack.session_present, "the later one can not be reached"
    client.send(Pingreq())
    fleet.speak()
    fleet.advance(5.0)
    publish(publisher, b"t", b"two", 2)
    assert published(client.receive()) == []
    subscribe(client, b"t", 2)
    publish(publisher, b"t", b"three", 2)
    assert published(client.receive()) == [b"three"]
    assert fleet[0].state.ctx.counters.dropped.get("unsettled_qos2") == 1


def test_a_session_lost_by_its_owner_is_not_taken_back_from_a_later_owner() -> None:
    """A session went to another node, came back and went on to a third one; a fourth one's marks are missing. The node
    in between loses its memory. The first one has that session on its way to the third already."""
    fleet = Fleet(4)
    first, between, _, fourth = [node.cluster.number for node in fleet.nodes]
    client = lasting(fleet, 0)
    subscribe(client, b"t", 2)
    client.drop()
    fleet.mute = {(fourth, first), (fourth, between)}
    for place in (1, 0):
        lasting(fleet, place).drop()
        fleet.advance(0.5)
    client = lasting(fleet, 2)
    fleet.advance(0.5)
    outbound_of = fleet[0].cluster.takeovers.migrations.outbound_of["c"]
    assert between in [outbound.target for outbound in outbound_of]
    fleet.restart(1)
    fleet.advance(12.0, 0.05)
    assert between not in [outbound.target for outbound in outbound_of]
    assert not client.closed, "it is served, and was sent away"
    for place in range(4):
        publish(fleet.connect(place, f"p{place}"), b"t", b"%d" % place, 2)
        fleet.advance(0.5)
    fleet.speak()
    fleet.advance(5.0)
    assert sorted(published(client.receive())) == [b"0", b"1", b"2", b"3"]
    client.drop()
    again = lasting(fleet, 0)
    fleet.advance(2.0)
    assert sorted(name for node in fleet.nodes for name in node.state.ctx.sessions if name.endswith("c")) == ["c"]
    assert again.connack.session_present


def test_a_node_that_takes_a_session_back_leaves_messages_of_a_later_owner_to_it() -> None:
    """As above, but the session did not come back before it went on: the first node knows of the third by its marks."""
    fleet = Fleet(4, max_inflight=65_535)
    first, between, _, fourth = [node.cluster.number for node in fleet.nodes]
    client, publisher = lasting(fleet, 0), fleet.connect(2, "p")
    subscribe(client, b"t", 2)
    client.drop()
    fleet.mute = {(fourth, first), (fourth, between)}
    for place in (1, 2):
        lasting(fleet, place).drop()
        fleet.advance(0.5)
    outbound = fleet[0].cluster.takeovers.migrations.outbound_of["c"][0]
    assert outbound.target == between and len(outbound.later) == 3
    fleet.restart(1)
    for number in range(240):
        publish(publisher, b"t", b"%d" % number, 2, number + 1)
        fleet.advance(0.05, 0.05)
    fleet.speak()
    fleet.advance(5.0, 0.05)
    client = lasting(fleet, 3)
    fleet.advance(2.0)
    found = published(client.receive())
    assert sorted(found, key=int) == [b"%d" % number for number in range(240)]


def test_a_session_that_both_later_owners_have_lost_is_not_on_its_way_any_more() -> None:
    """Its first node takes it back, with the marks of the last owner; then its client comes there."""
    fleet = Fleet(4)
    first, between, _, fourth = [node.cluster.number for node in fleet.nodes]
    client = lasting(fleet, 0)
    subscribe(client, b"t", 2)
    client.drop()
    fleet.mute = {(fourth, first), (fourth, between)}
    for place in (1, 2):
        lasting(fleet, place).drop()
        fleet.advance(0.5)
    fleet.mute |= {(first, between), (between, first)}
    for place in (1, 2):
        fleet.restart(place)
    fleet.advance(12.0, 0.05)
    owners = fleet.owners("c")
    assert owners in ([], [first]), "a key of what was lost is left"
    fleet.speak()
    fleet.advance(5.0, 0.05)
    session = fleet[0].state.ctx.sessions["c"]
    client = lasting(fleet, 0)
    fleet.advance(2.0)
    assert fleet[0].state.ctx.sessions["c"] is session and session.moving is None
    for place in range(4):
        publish(fleet.connect(place, f"p{place}"), b"t", b"%d" % place, 2)
    assert sorted(published(client.receive())) == [b"0", b"1", b"2", b"3"]


def test_a_mark_that_a_node_lost_before_a_former_owner_had_it_is_put_again() -> None:
    """The new owner had it already. The node keeps nothing, so the mark for the former owner is lost with it."""
    fleet = Fleet(3)
    client = lasting(fleet, 0)
    subscribe(client, b"t", 2)
    client.drop()
    fleet.mute = {(3, 1)}
    client = lasting(fleet, 1)
    assert client.connack.session_present
    fleet.advance(0.5)
    (inbound,) = fleet[1].cluster.takeovers.migrations.of("c")
    assert 3 in inbound.marks
    assert fleet[0].cluster.takeovers.outbound_count() == 1
    fleet.restart(2)
    fleet.advance(12.0, 0.05)
    fleet.speak()
    fleet.advance(5.0, 0.05)
    assert fleet[0].cluster.takeovers.outbound_count() == 0, "it waits for the mark"
    assert not fleet[1].cluster.takeovers.migrations.of("c")
    publish(fleet.connect(2, "p"), b"t", b"0", 2)
    fleet.advance(0.5)
    assert published(client.receive()) == [b"0"]


def test_a_suback_waits_for_the_marks_if_its_filter_was_not_acknowledged_where_the_session_was() -> None:
    """The publisher's node does not know yet that the former owner has subscribed. It knows the new one's routes; but
    what it sends before its mark is the former owner's, who does not get it."""
    fleet = Fleet(3)
    former, new, third = [node.cluster.number for node in fleet.nodes]
    publisher, client = fleet.connect(2, "p"), lasting(fleet, 0)
    fleet.parted = {(former, third)}
    client.send(Subscribe(1, [SubscribeRequest(b"t", 1)]))
    fleet.advance(0.1)
    assert not client.receive()
    client.drop()
    fleet.mute = {(new, third)}
    client = lasting(fleet, 1)
    assert client.connack.session_present
    client.send(Subscribe(2, [SubscribeRequest(b"t", 1)]))
    fleet.advance(0.3)
    promised = bool(client.receive())
    publish(publisher, b"t", b"one")
    fleet.advance(0.3)
    assert not promised and not client.receive(), "it was promised what nobody takes"
    fleet.speak()
    assert client.expect(Suback).reasons == [1]
    publish(publisher, b"t", b"two")
    fleet.advance(0.3)
    assert published(client.receive()) == [b"two"]


def test_a_suback_does_not_wait_for_the_mark_of_a_node_that_is_gone() -> None:
    fleet = Fleet(4)
    former, new, third, fourth = [node.cluster.number for node in fleet.nodes]
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    fleet.mute = {(new, third)}
    client = lasting(fleet, 1)
    client.send(Subscribe(2, [SubscribeRequest(b"t", 1)]))
    fleet.advance(0.3)
    assert not client.receive()
    fleet.parted = {(node, third) for node in (former, new, fourth)} | {(third, node) for node in (former, new, fourth)}
    fleet.advance(4.0, 0.05)
    assert client.expect(Suback).reasons == [1]
