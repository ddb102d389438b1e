"""Handshakes and windows of QoS 1 and QoS 2: bounded, and expired in time."""

from __future__ import annotations

import pytest
from tests.conformance.kit import payloads, subscribe
from tests.harness import World

from starlingmq.core.context.ready import INBOUND_DELETE
from starlingmq.core.session.qos import WINDOW_MAX
from starlingmq.wire.mqtt import (
    Ack,
    Publish,
)
from starlingmq.wire.packets import PUBACK, PUBREC, PUBREL
from starlingmq.wire.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL, Properties

NEVER = 0xFFFFFFFF


@pytest.mark.parametrize("limit", [0, 1])
def test_qos_2_messages_that_are_never_released_are_bounded_in_bytes(limit: int) -> None:
    w = World(queue_bytes=10_000, max_awaiting_rel=limit)
    c = w.connect("c", version=4)
    for number in range(1, 30):
        c.send(Publish(b"t", bytes(1000), qos=2, packet_id=number))
    assert c.closed
    assert w.state.ctx.counters.errors == {"quota_exceeded": 1}


def test_expired_handshakes_are_deleted_from_the_store() -> None:
    w = World(recording=True)
    c = w.connect("c", properties={SESSION_EXPIRY_INTERVAL: NEVER})
    c.send(Publish(b"t", b"", qos=2, packet_id=1))
    c.send(Publish(b"t", b"", qos=2, packet_id=2))
    c.send(Ack(PUBREL, 2))
    w.advance(400)
    assert [write.packet_id for write in w.writes if write.kind == INBOUND_DELETE] == [1, 2]


def test_a_qos_2_message_to_a_sys_topic_is_refused_in_its_pubrec() -> None:
    w = World()
    c = w.connect("c")
    c.send(Publish(b"$SYS/broker/x", b"", qos=2, packet_id=1))
    assert c.expect(Ack) == Ack(PUBREC, 1, 0x87)


def test_an_acknowledgement_of_a_message_that_was_not_resent_makes_no_room() -> None:
    w = World()
    agreed: Properties = {SESSION_EXPIRY_INTERVAL: NEVER}
    sub = w.connect("sub", properties=agreed)
    subscribe(sub, "t", qos=1)
    pub = w.connect("pub")
    for number in range(4):
        pub.send(Publish(b"t", b"%d" % number, qos=1, packet_id=1))
    last = [packet.packet_id for packet in sub.receive() if isinstance(packet, Publish)][-1]
    sub.drop()
    back = w.connect("sub", clean_start=False, properties={**agreed, RECEIVE_MAXIMUM: 1})
    assert payloads(back) == [b"0"]
    back.send(Ack(PUBACK, last))
    assert payloads(back) == [], "Receive Maximum is 1, and one is unacknowledged"


def test_unacknowledged_messages_are_bounded_in_bytes() -> None:
    w = World(queue_bytes=10_000)
    sub = w.connect("sub", version=4)
    subscribe(sub, "t", qos=1)
    pub = w.connect("pub")
    for _ in range(50):
        pub.send(Publish(b"t", bytes(1000), qos=1, packet_id=1))
    received = [packet for packet in sub.receive() if isinstance(packet, Publish)]
    assert len(received) == 10
    for packet in received:
        sub.send(Ack(PUBACK, packet.packet_id))
    assert len(payloads(sub)) == 9, "the queue had room for 9"


def test_the_send_window_leaves_packet_ids_free() -> None:
    w = World(max_inflight=65_535)
    for version in (4, 5):
        client = w.connect(f"c{version}", version=version).client
        assert client.window_limit == WINDOW_MAX
