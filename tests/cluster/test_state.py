"""Some nodes together: what clients on different nodes see of each other (docs/CLUSTER.md)."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.subscribers import payloads, subscribe
from tests.harness import FakeClient

from starlingmq.cluster.links.peer_frames import Data, RouteApplied
from starlingmq.core.session.session import Client
from starlingmq.wire.mqtt import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
)
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL

patches = pytest.mark.interpreted_only("what is compiled can not be patched")

PUBACK, PUBREC, PUBREL, PUBCOMP = 4, 5, 6, 7


def data_frames(fleet: Fleet) -> int:
    return sum(node.cluster.data_frames() for node in fleet.nodes)


def test_a_message_reaches_subscribers_on_every_node() -> None:
    fleet = Fleet(3)
    here, there, away = fleet.connect(0, "a"), fleet.connect(1, "b"), fleet.connect(2, "c", version=4)
    for client in (here, there, away):
        subscribe(client, b"x/+")
    here.send(Publish(b"x/1", b"one", 0))
    there.send(Publish(b"x/2", b"two", 0))
    assert payloads(here) == payloads(there) == payloads(away) == [b"one", b"two"]


def test_qos_2_leaves_for_another_node_with_its_commit_and_qos_1_at_once() -> None:
    """A restart before the commit would route it again, under another number: at QoS 1 it may come twice, at 2 not."""
    fleet = Fleet(2)
    there = fleet.connect(1, "s")
    subscribe(there, b"t", 2)
    here = fleet.connect(0, "p")
    fleet[0].state.ctx.recording = True
    held: list[int] = []
    write = fleet[0]._write_link

    def look(client: Client) -> None:
        if client.frames:
            held.append(client.stored_from)
        write(client)

    with patch.object(fleet[0], "_write_link", look):
        here.send(Publish(b"t", b"x", 1, packet_id=1))
        here.send(Publish(b"t", b"x", 2, packet_id=2))
        here.send(Ack(PUBREL, 2))
    assert held == [-1, 0]
    assert payloads(there) == [b"x", b"x"]


def test_the_figures_of_a_node_are_its_own() -> None:
    fleet = Fleet(2, sys_interval=1.0)
    here, there = fleet.connect(0, "a"), fleet.connect(1, "b")
    wanted = (b"subscriptions/count", b"cluster/messages/#", b"cluster/state")
    requests = [SubscribeRequest(b"$SYS/broker/" + figure, 0) for figure in wanted]
    here.send(Subscribe(1, requests))
    there.send(Subscribe(1, [*requests, SubscribeRequest(b"t", 0)]))
    here.send(Publish(b"t", b"x", 0))
    fleet.advance(1.1)
    assert figures(here) == {b"subscriptions/count": b"3", **cluster_figures(forwarded=b"1", received=b"0")}
    assert figures(there) == {b"subscriptions/count": b"4", **cluster_figures(forwarded=b"0", received=b"1")}


def figures(client: FakeClient) -> dict[bytes, bytes]:
    """The latest of each that a client was told, by what follows $SYS/broker/."""
    packets = [packet for packet in client.receive() if isinstance(packet, Publish)]
    told = {packet.topic[len(b"$SYS/broker/") :]: packet.payload for packet in packets if packet.topic[:1] == b"$"}
    return {topic: value for topic, value in told.items() if not topic.startswith(b"cluster/handshakes/")}


def cluster_figures(forwarded: bytes, received: bytes) -> dict[bytes, bytes]:
    return {
        b"cluster/state": b"serving",
        b"cluster/messages/forwarded": forwarded,
        b"cluster/messages/received": received,
        b"cluster/messages/doubled": b"0",
        b"cluster/messages/unwanted": b"0",
    }


@pytest.mark.parametrize("version", [3, 4, 5])
def test_all_qualities_of_service_across_nodes(version: int) -> None:
    fleet = Fleet(2)
    publisher, subscriber = fleet.connect(0, "a", version=version), fleet.connect(1, "b", version=version)
    subscribe(subscriber, b"t", 2)
    publisher.send(Publish(b"t", b"0", 0))
    publisher.send(Publish(b"t", b"1", 1, packet_id=1))
    assert publisher.expect(Ack).type == PUBACK
    publisher.send(Publish(b"t", b"2", 2, packet_id=2))
    assert publisher.expect(Ack).type == PUBREC
    assert [(p.payload, p.qos) for p in subscriber.receive() if isinstance(p, Publish)] == [(b"0", 0), (b"1", 1)]
    publisher.send(Ack(PUBREL, 2))
    assert publisher.expect(Ack).type == PUBCOMP
    assert [(p.payload, p.qos) for p in subscriber.receive() if isinstance(p, Publish)] == [(b"2", 2)]


def test_properties_expiry_and_retain_flag_travel() -> None:
    fleet = Fleet(2)
    publisher, subscriber = fleet.connect(0, "a"), fleet.connect(1, "b")
    subscriber.send(Subscribe(1, [SubscribeRequest(b"t", 1, retain_as_published=True)]))
    subscriber.expect(Suback)
    properties = b"\x03\x00\x04text\x26\x00\x01k\x00\x01v"
    publisher.send(Publish(b"t", b"p", 1, retain=True, packet_id=1, properties=properties, expiry=60))
    found = subscriber.expect(Publish)
    assert (found.properties, found.expiry, found.retain) == (properties, 60, True)


def test_clients_on_one_node_cause_no_frames() -> None:
    fleet = Fleet(3)
    one, two = fleet.connect(1, "a"), fleet.connect(1, "b")
    subscribe(two, b"t", 1)
    before = data_frames(fleet)
    for number in range(10):
        one.send(Publish(b"t", b"%d" % number, 1, packet_id=number + 1))
    assert len(payloads(two)) == 10
    assert data_frames(fleet) == before


def test_messages_are_not_sent_to_a_node_that_has_unsubscribed() -> None:
    fleet = Fleet(2)
    publisher, subscriber = fleet.connect(0, "a"), fleet.connect(1, "b")
    subscribe(subscriber, b"t")
    subscriber.send(Unsubscribe(2, [b"t"]))
    assert subscriber.expect(Unsuback).reasons == [0]
    before = data_frames(fleet)
    publisher.send(Publish(b"t", b"p", 1, packet_id=1))
    assert publisher.expect(Ack).reason == 0x10
    assert data_frames(fleet) == before


@patches
def test_suback_waits_until_the_others_have_applied_the_route() -> None:
    fleet = Fleet(3)
    client = fleet.connect(0, "a")
    applied: list[tuple[int, object]] = []
    node = fleet[0].cluster
    receive = node.received

    def delayed(envelope: object, now: float) -> None:
        if getattr(envelope, "source", 0) == 3 and isinstance(getattr(envelope, "body", None), RouteApplied):
            applied.append((3, envelope))
        else:
            receive(envelope, now)  # type: ignore[arg-type]

    node.received = delayed  # type: ignore[method-assign]
    client.send(Subscribe(1, [SubscribeRequest(b"t", 0)]))
    assert client.receive() == []
    node.received = receive  # type: ignore[method-assign]
    for _, envelope in applied:
        node.received(envelope, fleet.now)  # type: ignore[arg-type]
    fleet.run()
    assert client.expect(Suback).reasons == [0]


@patches
def test_a_subscription_that_cannot_hold_everywhere_is_refused() -> None:
    fleet = Fleet(3)
    client, old = fleet.connect(0, "a"), fleet.connect(0, "b", version=4)
    node = fleet[0].cluster
    assert node.routes is not None
    node.routes.applied_by = lambda nodes: 0  # type: ignore[method-assign]
    client.send(Subscribe(1, [SubscribeRequest(b"t", 1), SubscribeRequest(b"$share", 1)]))
    old.send(Subscribe(1, [SubscribeRequest(b"t", 1)]))
    fleet.advance(node.config.subscribe_ack_timeout + 0.1)
    assert client.expect(Suback).reasons == [0x83, 0x8F]
    assert old.expect(Suback).reasons == [0x80]
    session = fleet[0].state.ctx.sessions["a"]
    assert session.subscription_count() == 0


def isolated(fleet: Fleet) -> None:
    for other in (2, 3):
        fleet.cut(1, other)
    fleet.advance(3.0)
    assert [node.cluster.serving for node in fleet.nodes] == [False, True, True]


def test_a_minority_refuses_requests_of_mqtt_5_clients() -> None:
    fleet = Fleet(3)
    client = fleet.connect(0, "a")
    client.send(Publish(b"t", b"held", 2, packet_id=9))
    assert client.expect(Ack).type == PUBREC
    subscribe(client, b"t")
    isolated(fleet)
    client.send(Publish(b"t", b"0", 0))
    assert client.expect(Publish).payload == b"0"
    client.send(Publish(b"t", b"1", 1, packet_id=1))
    client.send(Publish(b"t", b"2", 2, packet_id=2))
    client.send(Subscribe(3, [SubscribeRequest(b"u", 0)]))
    client.send(Unsubscribe(4, [b"t"]))
    said: list[Packet] = client.receive()
    assert [(type(p), getattr(p, "reason", None) or getattr(p, "reasons", None)) for p in said] == [
        (Ack, 0x83),
        (Ack, 0x83),
        (Suback, [0x83]),
        (Unsuback, [0x83]),
    ]
    client.send(Ack(PUBREL, 9))
    assert client.expect(Disconnect).reason == 0x9C and client.closed
    refused = fleet[0].open(5, "new")
    refused.send(Connect(5, "new"))
    assert refused.expect(Connack).reason == 0x88 and refused.closed


@pytest.mark.parametrize("packet", [Publish(b"t", b"1", 1, packet_id=1), Subscribe(3, [SubscribeRequest(b"u", 0)])])
def test_a_minority_closes_3_1_1_connections_without_an_answer(packet: Packet) -> None:
    fleet = Fleet(3)
    client = fleet.connect(0, "a", version=4)
    isolated(fleet)
    client.send(packet)
    assert client.receive() == [] and client.closed
    refused = fleet[0].open(4, "b")
    refused.send(Connect(4, "b"))
    assert refused.expect(Connack).reason == 3 and refused.closed


def test_after_healing_everything_goes_on() -> None:
    fleet = Fleet(3)
    publisher, subscriber = fleet.connect(1, "a"), fleet.connect(0, "b")
    subscribe(subscriber, b"t", 1)
    isolated(fleet)
    publisher.send(Publish(b"t", b"meanwhile", 1, packet_id=1))
    assert publisher.expect(Ack).type == PUBACK
    assert payloads(subscriber) == []
    fleet.heal()
    fleet.advance(2.0)
    assert all(node.cluster.serving for node in fleet.nodes)
    assert payloads(subscriber) == [b"meanwhile"]


def test_two_nodes_that_hear_each_other_no_more_go_through_the_third() -> None:
    fleet = Fleet(3)
    publisher, subscriber = fleet.connect(0, "a"), fleet.connect(1, "b")
    subscribe(subscriber, b"t", 1)
    fleet.cut(1, 2)
    fleet.advance(3.0)
    assert all(node.cluster.serving for node in fleet.nodes)
    publisher.send(Publish(b"t", b"around", 1, packet_id=1))
    assert payloads(subscriber) == [b"around"]
    assert fleet[2].cluster.frames_relayed > 0


def test_a_way_that_is_cut_in_one_direction_is_got_around_too() -> None:
    fleet = Fleet(3)
    publisher, subscriber = fleet.connect(0, "a"), fleet.connect(1, "b")
    subscribe(subscriber, b"t", 1)
    fleet.cut(1, 2, both=False)
    fleet.advance(3.0)
    publisher.send(Publish(b"t", b"around", 1, packet_id=1))
    fleet.advance(0.5)
    assert all(node.cluster.serving for node in fleet.nodes)
    assert payloads(subscriber) == [b"around"]


@patches
def test_publishing_waits_for_the_routes_of_a_node_that_is_back() -> None:
    fleet = Fleet(3)
    publisher, subscriber = fleet.connect(0, "a"), fleet.connect(1, "b")
    subscribe(subscriber, b"t", 1)
    for other in (1, 2):
        fleet.cut(3, other)
    fleet.advance(3.0)
    node = fleet[0]
    routes = node.cluster.routes
    assert routes is not None
    caught_up = routes.caught_up
    routes.caught_up = lambda source: False  # type: ignore[method-assign]
    fleet.heal()
    for _ in range(100):
        fleet.advance(0.01)
        if node.state.ctx.catching_up:
            break
    publisher.send_all([Publish(b"t", b"1", 1, packet_id=1), Publish(b"t", b"2", 1, packet_id=2)])
    assert node.cluster.serving and publisher.receive() == []
    routes.caught_up = caught_up  # type: ignore[method-assign]
    fleet.advance(0.6)
    assert [packet.packet_id for packet in publisher.receive() if isinstance(packet, Ack)] == [1, 2]
    assert payloads(subscriber) == [b"1", b"2"]


@patches
def test_a_node_whose_routes_do_not_come_makes_the_others_refuse_in_the_end() -> None:
    fleet = Fleet(3)
    for other in (1, 2):
        fleet.cut(3, other)
    fleet.advance(3.0)
    routes = fleet[0].cluster.routes
    assert routes is not None
    routes.caught_up = lambda source: False  # type: ignore[method-assign]
    fleet.heal()
    fleet.advance(6.0)
    assert [node.cluster.serving for node in fleet.nodes] == [False, True, True]


def test_an_offline_session_queues_messages_from_other_nodes() -> None:
    fleet = Fleet(2)
    subscriber = fleet.connect(1, "b", properties={SESSION_EXPIRY_INTERVAL: 600})
    subscribe(subscriber, b"t", 1)
    subscriber.drop()
    publisher = fleet.connect(0, "a")
    publisher.send(Publish(b"t", b"kept", 1, packet_id=1))
    assert publisher.expect(Ack).reason == 0
    again = fleet.connect(1, "b", clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 600})
    assert again.connack.session_present and payloads(again) == [b"kept"]


def test_qos_0_for_a_node_that_can_not_be_reached_is_counted() -> None:
    fleet = Fleet(3)
    publisher, subscriber = fleet.connect(0, "a"), fleet.connect(2, "b")
    subscribe(subscriber, b"t")
    for other in (1, 2):
        fleet.cut(3, other)
    fleet.advance(3.0)
    publisher.send(Publish(b"t", b"gone", 0))
    assert fleet[0].dropped == {"peer_unreachable": 1}


def test_more_than_may_wait_for_a_node_is_refused() -> None:
    fleet = Fleet(3)
    publisher, subscriber = fleet.connect(0, "a"), fleet.connect(2, "b")
    subscribe(subscriber, b"t", 1)
    for other in (1, 2):
        fleet.cut(3, other)
    fleet.advance(3.0)
    node = fleet[0]
    node.state.ctx.cluster.forward_bytes = 1000
    codes: list[int] = []
    for number in range(20):
        publisher.send(Publish(b"t", bytes(100), 1, packet_id=number + 1))
        codes.append(publisher.expect(Ack).reason)
    assert codes[:10] == [0] * 10 and codes[-1] == 0x97
    fleet.heal()
    fleet.advance(3.0)
    assert len(payloads(subscriber)) == codes.count(0)


def test_a_subscriber_that_does_not_read_holds_the_publisher_on_the_other_node() -> None:
    fleet = Fleet(2, publisher_hold=60.0, max_mqueue_len=100)
    publisher, subscriber = fleet.connect(0, "a"), fleet.connect(1, "b")
    subscribe(subscriber, b"t", 1)
    subscriber.block()
    for number in range(50_000):
        if not publisher.reading:
            break
        publisher.send(Publish(b"t", bytes(1000), 1, packet_id=number % 60_000 + 1))
    else:
        raise AssertionError("the publisher was never held")
    sent = number
    subscriber.unblock()
    got = 0
    for _ in range(200):
        for packet in subscriber.receive():
            if isinstance(packet, Publish):
                got += 1
                subscriber.send(Ack(PUBACK, packet.packet_id))
        fleet.advance(0.05)
    assert publisher.reading and got >= sent
    assert fleet[1].dropped == {}


def test_leaving_takes_a_node_and_its_routes_out() -> None:
    fleet = Fleet(3)
    subscriber, publisher = fleet.connect(2, "b"), fleet.connect(0, "a")
    subscribe(subscriber, b"t")
    fleet[2].cluster.leave(fleet.now)
    fleet.advance(1.0)
    assert fleet[2].cluster.left
    assert [member.name for member in fleet[0].cluster.members.membership.members] == ["n1", "n2"]
    publisher.send(Publish(b"t", b"p", 1, packet_id=1))
    assert publisher.expect(Ack).reason == 0x10


def test_forgetting_a_node_drops_and_counts_messages_that_wait_for_it() -> None:
    fleet = Fleet(3)
    subscriber, publisher = fleet.connect(2, "b"), fleet.connect(0, "a")
    subscribe(subscriber, b"t", 1)
    for other in (1, 2):
        fleet.cut(3, other)
    fleet.etcd.cut("n3")
    fleet.advance(15.0)
    publisher.send(Publish(b"t", b"p", 1, packet_id=1))
    assert publisher.expect(Ack).reason == 0
    assert fleet[0].cluster.forget("n3", False, fleet.now) == ""
    fleet.advance(6.0)
    assert [member.name for member in fleet[1].cluster.members.membership.members] == ["n1", "n2"]
    assert fleet[0].dropped == {"session_ended": 1}
    assert "$node/3" not in fleet[0].state.ctx.sessions


def test_no_client_may_call_itself_a_node() -> None:
    fleet = Fleet(1)
    client = fleet[0].open(5, "$node/2")
    client.send(Connect(5, "$node/2"))
    assert client.expect(Connack).reason == 0x85


def test_one_frame_is_sent_per_counted_forward() -> None:
    fleet = Fleet(2)
    publisher, subscriber = fleet.connect(0, "a"), fleet.connect(1, "b")
    subscribe(subscriber, b"t", 1)
    start = len(fleet.carried)
    publisher.send(Publish(b"t", b"p", 1, packet_id=1))
    assert sum(isinstance(envelope.body, Data) for envelope in fleet.carried[start:]) == 1
    assert fleet[0].state.ctx.counters.forwards_sent == fleet[1].state.ctx.counters.forwards_received == 1


@patches
def test_an_acknowledgement_that_was_put_off_does_not_hide_a_later_one() -> None:
    """A disk that fails puts marks off, and they come after those of what was stored in between."""
    fleet = Fleet(2)
    subscribe(fleet.connect(1, "b"), b"t")
    line = fleet[1].cluster.transports[1]
    kept: list[bytes] = []
    port = line.peer.acks.transport
    with patch.object(type(port), "write", lambda self, data: kept.append(data)):
        publisher = fleet.connect(0, "a")
        for number in range(3):
            publisher.send(Publish(b"t", b"%d" % number, 0))
    assert len(kept) == 3
    port.write(kept[2] + kept[0] + kept[1])
    fleet.advance(0.5)
    assert fleet[0].cluster.transports[2].link.unacknowledged() == 0


def test_messages_that_stay_at_their_node_cause_no_frames() -> None:
    """No frame and no request for a message, at any QoS: what nodes say meanwhile they would have said without it."""
    fleet = Fleet(3)
    subscriber, publisher = fleet.connect(0, "s"), fleet.connect(0, "p")
    subscribe(subscriber, b"t", 2)
    fleet.advance(1.0)
    fleet.carried.clear()
    asked: list[object] = []
    for node in fleet.nodes:
        node.on_cluster_ready = lambda node, ready: asked.extend(ready.requests)
    for number in range(1, 101):
        publisher.send(Publish(b"t", b"x", number % 3, packet_id=number if number % 3 else 0))
        if number % 3 == 2:
            publisher.send(Ack(PUBREL, number))
    assert len(subscriber.receive()) == 100
    assert (fleet.carried, asked) == ([], [])
