"""Members of a group with a Maximum Packet Size: they are skipped for messages that are larger."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.test_group_engine import SHARE, group, heard
from tests.harness import FakeClient, World
from tests.nats.talk import connect
from tests.storage.world import StoredWorld

from starlingmq.core.delivery.group_engine import TOO_LARGE
from starlingmq.core.groups.member_selection import ID_SIZE, accepts, publish_size
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.session.session import Session, Subscription
from starlingmq.wire.mqtt import Ack, Publish, Subscribe, SubscribeRequest
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import (
    MAXIMUM_PACKET_SIZE,
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    USER_PROPERTY,
    Properties,
    encode_properties,
)

LIMIT = 100
LARGE = [b"%02d" % number + b"x" * LIMIT for number in range(20)]
SMALL = [b"%02d" % number for number in range(20)]
MIXED = [payload for pair in zip(SMALL, LARGE, strict=True) for payload in pair]


@pytest.fixture(params=[World, StoredWorld])
def world(request: pytest.FixtureRequest) -> World:
    made: World = request.param()
    return made


def member(world: World, name: str, qos: int, limit: int = LIMIT, expiry: int = 0, **more: int) -> FakeClient:
    agreed: Properties = {SESSION_EXPIRY_INTERVAL: expiry}
    if limit:
        agreed[MAXIMUM_PACKET_SIZE] = limit
    client = world.connect(name, 5, expiry == 0, properties=agreed)
    properties: Properties = {SUBSCRIPTION_IDENTIFIER: [more["id"]]} if more else {}
    client.send(Subscribe(1, [SubscribeRequest(SHARE, qos)], properties))
    return client


def publish(world: World, *payloads: bytes, qos: int = 1) -> None:
    client = world.connect("publisher")
    for number, payload in enumerate(payloads, 1):
        client.send(Publish(b"t", payload, qos, packet_id=number if qos else 0))
        if qos == 2:
            client.send(Ack(PUBREL, number))
    client.drop()


def took(client: FakeClient) -> list[bytes]:
    """The payloads; all handshakes are completed."""
    found: list[bytes] = []
    while packets := client.receive():
        for packet in packets:
            if isinstance(packet, Publish):
                found.append(packet.payload)
                if packet.qos:
                    client.send(Ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
            elif isinstance(packet, Ack) and packet.type == PUBREL:
                client.send(Ack(PUBCOMP, packet.packet_id))
    return found


def dropped(world: World) -> dict[str, int]:
    return {reason: count for reason, count in world.state.ctx.counters.dropped.items() if count}


@pytest.mark.parametrize("expiry", [0, 3600])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_a_member_does_not_accept_goes_to_another_one(world: World, qos: int, expiry: int) -> None:
    small, large = member(world, "small", qos, expiry=expiry), member(world, "large", qos, 0, expiry)
    publish(world, *MIXED, qos=qos)
    here, there = took(small), took(large)
    assert sorted(here + there) == sorted(MIXED)
    assert set(LARGE) <= set(there)
    assert here
    assert dropped(world) == {}
    assert group(world).waiting() == 0


def test_a_nats_member_takes_what_an_mqtt_member_does_not_accept(world: World) -> None:
    small, nats, publisher = member(world, "small", 1), connect(world), connect(world)
    nats.send("SUB t g 1")
    publish(world, *MIXED)
    publisher.send_raw(b"".join(b"PUB t %d\r\n%b\r\n" % (len(payload), payload) for payload in MIXED))
    here, there = took(small), heard(nats)
    assert sorted(here + there) == sorted(MIXED * 2)
    assert set(here) <= set(SMALL)
    assert dropped(world) == {}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_no_member_accepts_is_dropped_and_counted(world: World, qos: int) -> None:
    small, smaller = member(world, "small", qos), member(world, "smaller", qos, LIMIT - 40)
    publish(world, *MIXED, qos=qos)
    assert sorted(took(small) + took(smaller)) == SMALL
    assert dropped(world) == {TOO_LARGE: len(LARGE)}
    assert group(world).waiting() == 0


def test_it_waits_for_a_member_that_accepts_it_and_is_full(world: World) -> None:
    small, large = member(world, "small", 1), member(world, "large", 1, 0)
    large.block()
    publish(world, *MIXED)
    assert dropped(world) == {}
    large.unblock()
    assert sorted(took(small) + took(large)) == sorted(MIXED)
    assert dropped(world) == {}


def test_it_does_not_wait_for_a_member_without_a_connection(world: World) -> None:
    small, away = member(world, "small", 1), member(world, "away", 1, 0, 3600)
    away.drop()
    publish(world, *MIXED)
    assert sorted(took(small)) == SMALL
    assert dropped(world) == {TOO_LARGE: len(LARGE)}


def test_without_any_connection_it_waits(world: World) -> None:
    away = member(world, "away", 1, LIMIT, 3600)
    away.drop()
    publish(world, LARGE[0])
    assert group(world).waiting() == 1
    assert took(member(world, "away", 1, 0, 3600)) == [LARGE[0]]


def test_a_lent_message_that_comes_back_is_dropped_if_nobody_else_accepts_it(world: World) -> None:
    large = member(world, "large", 1, 0)
    publish(world, LARGE[0], SMALL[0])
    small = member(world, "small", 1)
    large.drop()
    assert took(small) == [SMALL[0]]
    assert dropped(world) == {TOO_LARGE: 1}


def test_a_member_that_is_back_with_a_limit_is_known_by_it(world: World) -> None:
    """NATS clients publish past the group queue as long as no member has a limit."""
    member(world, "m", 1, 0, 3600).drop()
    small, nats, publisher = member(world, "m", 1, LIMIT, 3600), connect(world), connect(world)
    nats.send("SUB t g 1")
    publisher.send_raw(b"".join(b"PUB t %d\r\n%b\r\n" % (len(payload), payload) for payload in LARGE))
    assert heard(nats) == LARGE
    assert took(small) == []


texts = st.text("ab", min_size=1, max_size=140)


@given(
    topic=texts,
    payload=st.one_of(st.binary(max_size=40), st.sampled_from([100, 120, 16_000, 16_370, 2_097_100]).map(bytes)),
    qos=st.integers(0, 2),
    granted=st.integers(0, 2),
    value=st.one_of(st.none(), texts),
    ids=st.sampled_from([b"", b"\x0b\x05", b"\x0b\xff\xff\xff\x7f"]),
    expires=st.booleans(),
    aliases=st.integers(0, 2),
    known=st.booleans(),
    off=st.integers(-20, 20),
)
def test_the_size_is_that_of_the_packet_which_is_sent(
    topic: str,
    payload: bytes,
    qos: int,
    granted: int,
    value: str | None,
    ids: bytes,
    expires: bool,
    aliases: int,
    known: bool,
    off: int,
) -> None:
    """Also with properties, an identifier and topic aliases. A node that knows only the limit counts no fewer bytes."""
    world = World()
    client = world.connect("c").client
    properties = b"" if value is None else encode_properties({USER_PROPERTY: [("a", value)]})[1:]
    if value is not None and len(value) > 120:
        properties = encode_properties({USER_PROPERTY: [("a", value)]})[2:]
    now = world.now
    message = Message(topic.encode(), payload, qos, False, properties, now + 60 if expires else 0.0, "p", now)
    subscription = Subscription(cast(Session, client.session), b"t", granted, False, False, ids)
    outgoing = Outgoing(message, min(qos, granted), False, ids, None)
    client.alias_out_limit = aliases
    if aliases:
        client.aliases_out = {message.topic: 1} if known else {b"another": 1}
    plain = publish_size(message, len(topic), len(ids), outgoing.qos)
    client.max_packet = max(1, plain + off)
    accepted = accepts(client, subscription, message)
    frame = world.state.delivery.frame(client, outgoing, 1, False)
    assert accepted == (len(frame) <= client.max_packet)
    assert plain <= publish_size(message, len(topic), ID_SIZE, 1)
