"""One space of messages: all names of the table, and what headers can say, from either protocol to the other, on one
node and between two."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.cluster.fleet import Fleet
from tests.harness import FakeClient, World
from tests.nats.talk import Msg, NatsPeer, connect
from tests.wire.test_nats_headers import name, value
from tests.wire.test_nats_subjects import FILTERS, PAIRS, names

from starlingmq.core.topics.topics import valid_topic
from starlingmq.wire.mqtt import Publish, Suback, Subscribe, SubscribeRequest, Unsubscribe
from starlingmq.wire.nats_subjects import subject_of
from starlingmq.wire.properties import (
    RESPONSE_TOPIC,
    SESSION_EXPIRY_INTERVAL,
    USER_PROPERTY,
    Properties,
    decode_property_bytes,
    encode_property_bytes,
)

relaxed = settings(deadline=None, max_examples=50)


class Ends:
    """A client of each protocol, on one node or on two."""

    def __init__(self, nodes: int) -> None:
        here, there = (World(), None) if nodes == 1 else (lambda fleet: (fleet[0], fleet[1]))(Fleet(2))
        self.nats: NatsPeer = connect(here)
        self.mqtt: FakeClient = (there or here).connect("m")

    def subscribe(self, filter: bytes) -> None:
        self.mqtt.receive()
        self.mqtt.send(Subscribe(1, [SubscribeRequest(filter, 0)]))
        assert self.mqtt.expect(Suback).reasons == [0]
        self.mqtt.receive()

    def forget(self, filter: bytes) -> None:
        """No client is subscribed any more: to ``filter`` here, by the sid 1 there."""
        self.mqtt.send(Unsubscribe(7, [filter]))
        self.nats.send("UNSUB 1", "PING")
        self.mqtt.receive()
        self.nats.heard()

    def publish(self, topic: bytes, payload: bytes = b"", properties: Properties | None = None, qos: int = 0) -> None:
        block = encode_property_bytes(properties or {})
        self.mqtt.send(Publish(topic, payload, qos, packet_id=qos, properties=block))

    def to_nats(self) -> list[Msg]:
        return [message for message in self.nats.heard() if isinstance(message, Msg)]

    def to_mqtt(self) -> list[Publish]:
        return [packet for packet in self.mqtt.receive() if isinstance(packet, Publish)]


@pytest.fixture(scope="module", params=[1, 2])
def ends(request: pytest.FixtureRequest) -> Ends:
    return Ends(request.param)


@pytest.mark.parametrize(("subject", "topic"), PAIRS)
def test_names_both_ways(ends: Ends, subject: str, topic: str) -> None:
    reserved = topic.startswith("$SYS/")
    assert ends.nats.said(f"SUB {subject} 1".encode(), "PING") == ["PONG"]
    ends.publish(topic.encode(), b"down", qos=1)
    assert ends.to_nats() == ([] if reserved else [Msg(subject, "1", b"down")])
    ends.nats.send("UNSUB 1")
    ends.subscribe(topic.encode())
    ends.nats.send(f"PUB {subject} 2".encode(), b"up")
    assert [packet.topic.decode() for packet in ends.to_mqtt()] == ([] if reserved else [topic])
    ends.forget(topic.encode())


@pytest.mark.parametrize(("subject", "filter"), FILTERS)
def test_wildcards_both_ways(ends: Ends, subject: str, filter: str) -> None:
    """A NATS subscription with wildcards gets the same messages as an MQTT subscription to its filter."""
    ends.subscribe(filter.encode())
    ends.nats.send(f"SUB {subject} 1".encode(), "PING")
    ends.to_nats()
    for topic in ("a", "a/b", "a/b/c", "b", "v1.2/x", "/x", "a//x/y", "c>/x", "$SYS/x", "$other/x", "a/"):
        ends.publish(topic.encode(), topic.encode())
    down = [message.payload for message in ends.to_nats()]
    assert down == [packet.payload for packet in ends.to_mqtt()]
    ends.forget(filter.encode())


@relaxed
@given(names)
def test_any_name_comes_back(ends: Ends, topic: bytes) -> None:
    """Published by MQTT, taken by NATS, published again by it: the same name."""
    assume(valid_topic(topic) and not topic.startswith(b"$") and subject_of(topic))
    ends.nats.send("SUB > 1", "PING")
    ends.subscribe(b"#")
    ends.to_nats()
    ends.publish(topic, b"x")
    [message] = ends.to_nats()
    ends.nats.pub(message.subject, b"y")
    assert [packet.topic for packet in ends.to_mqtt()] == [topic, topic]
    ends.forget(b"#")


@relaxed
@given(
    st.lists(st.tuples(name, value), max_size=4), st.sampled_from(["", "answers/me", "a b/.c"]), st.binary(max_size=9)
)
def test_any_headers_come_back(ends: Ends, pairs: list[tuple[str, str]], reply: str, payload: bytes) -> None:
    """User Properties and Response Topic of MQTT as headers and reply of NATS, and from there to MQTT again."""
    properties: Properties = {USER_PROPERTY: pairs} if pairs else {}
    if reply:
        properties[RESPONSE_TOPIC] = reply
    ends.nats.send("SUB to.nats 1", "PING")
    ends.subscribe(b"to/mqtt")
    ends.to_nats()
    ends.publish(b"to/nats", payload, properties)
    [message] = ends.to_nats()
    assert message.payload == payload
    if message.headers:
        ends.nats.hpub("to.mqtt", message.headers, payload, message.reply)
    else:
        ends.nats.pub("to.mqtt", payload, message.reply)
    [packet] = ends.to_mqtt()
    assert decode_property_bytes(packet.properties) == properties
    assert packet.payload == payload
    ends.forget(b"to/mqtt")


def test_each_version_of_mqtt_and_each_qos_to_nats_on_another_node() -> None:
    fleet = Fleet(2)
    peer = connect(fleet[1])
    peer.send("SUB up.> 1", "PING")
    peer.heard()
    for version in (3, 4, 5):
        client = fleet[0].connect(f"v{version}", version)
        for qos in (0, 1, 2):
            client.send(Publish(f"up/{version}/{qos}".encode(), b"x", qos, packet_id=qos))
            if qos == 2:
                client.send(b"\x62\x02\x00\x02")
    assert [message.subject for message in peer.heard() if isinstance(message, Msg)] == [
        f"up.{version}.{qos}" for version in (3, 4, 5) for qos in (0, 1, 2)
    ]
    receivers = [fleet[0].connect(f"r{version}", version, clean_start=False) for version in (3, 4)]
    receivers.append(fleet[0].connect("r5", 5, properties={SESSION_EXPIRY_INTERVAL: 100}))
    for client in receivers:
        client.send(Subscribe(1, [SubscribeRequest(b"down/#", 2)]))
        client.expect(Suback)
    peer.hpub("down.x", "A: b", b"x", "_INBOX.1")
    for client in receivers:
        got = client.expect(Publish)
        assert (got.topic, got.payload, got.qos) == (b"down/x", b"x", 1)
    assert decode_property_bytes(got.properties) == {RESPONSE_TOPIC: "_INBOX/1", USER_PROPERTY: [("A", "b")]}
