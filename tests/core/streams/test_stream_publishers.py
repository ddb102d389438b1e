"""MQTT clients that publish to a stream with one sequence learn that it does not take a message."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.streams.stream_world import Streaming, payloads, policy_of, take
from tests.harness import FakeClient

from starlingmq.core.streams.policies import DISCARD_NEW
from starlingmq.wire.mqtt import PUBACK, PUBCOMP, PUBREC, PUBREL, Ack, Publish, Subscribe, SubscribeRequest
from starlingmq.wire.properties import (
    MAXIMUM_PACKET_SIZE,
    REASON_STRING,
    REQUEST_PROBLEM_INFORMATION,
    USER_PROPERTY,
    Properties,
    encode_property_bytes,
)


def listening(world: Streaming) -> FakeClient:
    listener = world.connect("listener")
    listener.send(Subscribe(1, [SubscribeRequest(b"t/#", 0)]))
    listener.receive()
    return listener


@pytest.mark.parametrize(
    ("limits", "reason", "why"),
    [
        ({"max_message_size": 3}, 0x97, "stream S: message size exceeds maximum allowed"),
        ({"discard": DISCARD_NEW, "max_messages": 1}, 0x97, "stream S: maximum messages exceeded"),
        ({"sealed": True}, 0x83, "stream S: invalid operation on sealed stream"),
    ],
)
def test_puback_says_why_a_stream_does_not_take_a_message_that_is_delivered(
    limits: dict[str, Any], reason: int, why: str
) -> None:
    world = Streaming()
    stream = world.stream()
    listener = listening(world)
    publisher = world.connect("publisher")
    publisher.send(Publish(b"t/1", b"1", 1, packet_id=1))
    assert publisher.expect(Ack).reason == 0
    world.state.jetstream.change(stream, policy_of(**limits), b"{}")
    publisher.send_all([Publish(b"t/1", b"2222", 1, packet_id=2), Publish(b"u", b"3", 1, packet_id=3)])
    refused, other = publisher.receive()
    assert isinstance(refused, Ack) and isinstance(other, Ack)
    assert (refused.type, refused.packet_id, refused.reason) == (PUBACK, 2, reason)
    assert refused.properties == {REASON_STRING: why}
    assert (other.packet_id, other.reason) == (3, 0x10)
    assert payloads(take(listener)) == [b"1", b"2222"]
    assert stream.index.count == 1


@pytest.mark.parametrize("properties", [{REQUEST_PROBLEM_INFORMATION: 0}, {MAXIMUM_PACKET_SIZE: 20}])
def test_a_publisher_that_does_not_want_reason_strings_gets_the_code(properties: Properties) -> None:
    world = Streaming()
    world.stream(policy=policy_of(sealed=True))
    publisher = world.connect("publisher", properties=properties)
    publisher.send(Publish(b"t/1", b"1", 1, packet_id=1))
    answer = publisher.expect(Ack)
    assert (answer.reason, answer.properties) == (0x83, {})


def test_a_wrong_expected_sequence_is_refused() -> None:
    world = Streaming()
    stream = world.stream()
    publisher = world.connect("publisher")
    expected = encode_property_bytes({USER_PROPERTY: [("Nats-Expected-Last-Sequence", "7")]})
    publisher.send(Publish(b"t/1", b"1", 1, packet_id=1, properties=expected))
    answer = publisher.expect(Ack)
    assert (answer.reason, answer.properties) == (0x83, {REASON_STRING: "stream S: wrong last sequence: 0"})
    publisher.send(Publish(b"t/1", b"1", 1, packet_id=2))
    assert publisher.expect(Ack).reason == 0
    assert stream.index.count == 1


def test_3_1_1_and_qos_2_have_no_code_for_it() -> None:
    world = Streaming()
    stream = world.stream(policy=policy_of(max_message_size=3))
    old = world.connect("old", version=4)
    old.send(Publish(b"t/1", b"1111", 1, packet_id=1))
    assert old.expect(Ack).reason == 0
    publisher = world.connect("publisher")
    publisher.send(Publish(b"t/1", b"1111", 2, packet_id=1))
    received = publisher.expect(Ack)
    assert (received.type, received.reason) == (PUBREC, 0)
    publisher.send(Ack(PUBREL, 1))
    completed = publisher.expect(Ack)
    assert (completed.type, completed.reason) == (PUBCOMP, 0)
    assert stream.index.count == 0
    assert world.dropped == {"stream_refused": 2}


def test_a_refusal_with_a_long_text_of_another_client_is_shortened() -> None:
    world = Streaming()
    world.stream()
    first, second = world.connect("first"), world.connect("second")
    long = encode_property_bytes({USER_PROPERTY: [("Nats-Msg-Id", "é" * 32755)]})
    first.send(Publish(b"t/1", b"1", 1, packet_id=1, properties=long))
    first.expect(Ack)
    wrong = encode_property_bytes({USER_PROPERTY: [("Nats-Expected-Last-Msg-Id", "x")]})
    second.send(Publish(b"t/1", b"2", 1, packet_id=2, properties=wrong))
    refused = second.expect(Ack)
    assert (refused.packet_id, refused.reason) == (2, 0x83)
    assert str(refused.properties[REASON_STRING]).startswith("stream S: wrong last msg ID: éé")
