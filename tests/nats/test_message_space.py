"""MQTT and NATS clients share one message space; and what time and mistakes do to NATS clients."""

from __future__ import annotations

from tests.harness import World
from tests.nats.talk import Msg, connect, subscribe

from starlingmq.wire.mqtt import Ack, Connack, Publish
from starlingmq.wire.packets import PUBACK
from starlingmq.wire.properties import (
    RESPONSE_TOPIC,
    SESSION_EXPIRY_INTERVAL,
    USER_PROPERTY,
    Properties,
    decode_property_bytes,
    encode_property_bytes,
)
from starlingmq.wire.reasons import Reason

# One message space


def test_mqtt_publishes_reach_nats_subscribers() -> None:
    world = World()
    peer = connect(world)
    peer.send("SUB sensors.> 1")
    device = world.connect("device")
    device.send(Publish(b"sensors/kitchen/1.5", b"21", 0))
    properties: Properties = {USER_PROPERTY: [("Unit", "C"), ("", "-")], RESPONSE_TOPIC: "answers/1"}
    device.send(Publish(b"sensors/a b", b"22", 1, packet_id=1, properties=encode_property_bytes(properties)))
    assert device.expect(Ack).reason == 0
    device.send(Publish(b"sensors", b"23", 0))
    device.send(Publish("sensors/\u2420".encode(), b"24", 0))
    assert peer.heard() == [
        Msg("sensors.kitchen.1/5", "1", b"21"),
        Msg("sensors.a\u2420b", "1", b"22", "answers.1", "Unit: C"),
    ]
    assert world.dropped == {"no_subject": 1}


def test_nats_publishes_reach_mqtt_subscribers() -> None:
    world = World()
    clients = [world.connect(f"v{version}", version) for version in (3, 4, 5)]
    for client in clients:
        subscribe(client, "a/#", 2)
    plain = world.connect("plain")
    subscribe(plain, "a/b", 0)
    peer = connect(world)
    peer.hpub("a.b", "Unit: C", b"hi", "_INBOX.1")
    for client in clients:
        got = client.expect(Publish)
        assert (got.topic, got.payload, got.qos) == (b"a/b", b"hi", 1)
    assert decode_property_bytes(got.properties) == {RESPONSE_TOPIC: "_INBOX/1", USER_PROPERTY: [("Unit", "C")]}
    assert plain.expect(Publish).qos == 0


def test_a_request_of_mqtt_is_answered_by_nats() -> None:
    world = World()
    asking = world.connect("asking")
    subscribe(asking, "answers/me")
    answering = connect(world)
    answering.send("SUB help 1")
    asking.send(Publish(b"help", b"?", 0, properties=encode_property_bytes({RESPONSE_TOPIC: "answers/me"})))
    [message] = answering.heard()
    assert isinstance(message, Msg)
    answering.pub(message.reply, b"!")
    assert asking.expect(Publish).payload == b"!"


def test_messages_for_a_disconnected_session_are_stored() -> None:
    world = World()
    away = world.connect("away", properties={SESSION_EXPIRY_INTERVAL: 100})
    subscribe(away, "a/b", 1)
    away.drop()
    peer = connect(world)
    peer.pub("a.b", b"kept")
    away = world.connect("away", clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 100})
    assert away.connack.session_present
    got = away.expect(Publish)
    assert (got.payload, got.qos) == (b"kept", 1)
    away.send(Ack(PUBACK, got.packet_id))


def test_only_what_somebody_wants_kept_is_stored() -> None:
    world = World(recording=True)
    online = world.connect("online")
    subscribe(online, "a", 0)
    peer = connect(world, verbose=True)
    world.writes.clear()
    peer.send("PUB a 1", "x", "PUB b 1", "x", "PING")
    assert world.writes == []
    away = world.connect("away", properties={SESSION_EXPIRY_INTERVAL: 100})
    subscribe(away, "a", 1)
    away.drop()
    world.writes.clear()
    peer.heard()
    world.state.receive(peer.client, b"PUB b 1\r\nx\r\nPUB a 1\r\nx\r\nPING\r\n", world.now)
    # +OK for a message that no receiver stores is sent at once; after the first stored one, all +OK wait for the disk.
    assert peer.client.stored_from == 1
    world.run()
    assert len(world.writes) == 1
    assert peer.heard() == ["+OK", "+OK", "PONG"]


def test_a_flush_waits_for_what_is_stored() -> None:
    world = World(recording=True)
    away = world.connect("away", properties={SESSION_EXPIRY_INTERVAL: 100})
    subscribe(away, "a", 1)
    away.drop()
    peer = connect(world)
    world.state.receive(peer.client, b"PUB a 1\r\nx\r\nPING\r\nPING\r\n", world.now)
    assert peer.client.stored_from == 0
    world.run()
    assert peer.heard() == ["PONG", "PONG"]


def test_a_message_that_must_be_stored_is_refused_while_storage_fails() -> None:
    world = World(recording=True)
    away = world.connect("away", properties={SESSION_EXPIRY_INTERVAL: 100})
    subscribe(away, "a", 1)
    away.drop()
    peer = connect(world)
    peer.send("SUB > 1")
    world.state.ctx.refusing = True
    peer.pub("a", b"x")
    peer.pub("b", b"x")
    assert peer.heard() == ["-ERR 'Permissions Violation for Publish to \"a\": Not Stored'", Msg("b", "1", b"x")]
    assert world.dropped == {"storage_failing": 1}


# Time and trouble


def test_a_silent_client_is_pinged_and_then_stale() -> None:
    world = World()
    peer = connect(world)
    world.advance(121.0)
    assert peer.heard() == ["PING"]
    peer.send("PONG")
    world.advance(119.0)
    assert peer.heard() == []
    world.advance(122.0)
    assert peer.heard() == ["PING", "PING"] or peer.heard() == ["PING"]
    world.advance(240.0)
    assert peer.heard()[-1] == "-ERR 'Stale Connection'"
    assert peer.closed


def test_a_slow_consumer_is_closed_and_its_publisher_held_before() -> None:
    world = World(queue_bytes=10_000, write_buffer=1000)
    slow, other, publisher = connect(world), connect(world), connect(world)
    for peer in (slow, other):
        peer.send("SUB a 1")
    slow.fake.block()
    publisher.pub("a", b"x" * 900)
    for _ in range(4):
        publisher.pub("a", b"x" * 900)
    assert publisher.fake.reading
    publisher.pub("a", b"x" * 900)
    assert not publisher.fake.reading
    world.advance(2.0)  # held for so long and no longer
    assert publisher.fake.reading
    for _ in range(6):
        publisher.pub("a", b"x" * 900)
    assert slow.closed
    assert all(isinstance(frame, Msg) for frame in slow.heard())  # a client that is told why does not come back
    assert [notice.detail for notice in world.notices] == ["slow consumer"]
    assert world.dropped == {"slow_consumer": 1}
    assert len(other.heard()) == 12
    publisher.pub("a", b"x")
    assert len(other.heard()) == 1


def test_a_receiver_that_reads_again_lets_its_publisher_go() -> None:
    world = World(queue_bytes=10_000, write_buffer=1000)
    slow, publisher = connect(world), connect(world)
    slow.send("SUB a 1")
    slow.fake.block()
    for _ in range(6):
        publisher.pub("a", b"x" * 900)
    assert not publisher.fake.reading
    slow.fake.unblock()
    assert publisher.fake.reading
    publisher.pub("a", b"x")
    assert not slow.closed
    assert len(slow.heard()) == 7


def test_lame_duck() -> None:
    world = World()
    peer = connect(world)
    world.state.shut_down(world.now)
    world.run()
    [info] = peer.heard()
    assert isinstance(info, str) and info.startswith("INFO ") and '"ldm":true' in info
    assert peer.closed


def test_many_subscriptions_go_little_by_little() -> None:
    world = World()
    peer = connect(world)
    peer.send(*(f"SUB a.{number} {number}" for number in range(3500)))
    assert len(world.state.router.tree) == 3500
    world.state.closed(peer.client, world.now)
    assert len(world.state.router.tree) == 2500
    world.run()
    assert len(world.state.router.tree) == 0


def test_client_ids_of_the_broker_are_not_for_mqtt_clients() -> None:
    world = World()
    client = world.connect("$nats/1")
    assert client.expect(Connack).reason == Reason.CLIENT_IDENTIFIER_NOT_VALID


def test_a_turn_has_its_budget() -> None:
    world = World()
    peer = connect(world)
    peer.send("SUB a 1")
    peer.send_raw(b"PUB a 1\r\nx\r\n" * 10_000 + b"PING\r\n")
    assert peer.heard() == [Msg("a", "1", b"x")] * 10_000 + ["PONG"]


def test_a_failed_store_ends_the_connection_without_ok() -> None:
    world = World(recording=True)
    away = world.connect("away", properties={SESSION_EXPIRY_INTERVAL: 100})
    subscribe(away, "a", 1)
    away.drop()
    peer = connect(world, verbose=True)
    world.state.receive(peer.client, b"PUB a 1\r\nx\r\n", world.now)
    held = b"".join(peer.client.frames[peer.client.stored_from :])
    assert held == b"+OK\r\n"
    assert world.state.refuse(peer.client, held, world.now) == b""
    world.run()
    assert peer.closed
