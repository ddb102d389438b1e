"""A publisher is held for slow receivers (``publisher_hold``) no longer and no more often than necessary."""

from __future__ import annotations

from tests.conformance.kit import subscribe
from tests.harness import World

from starlingmq.wire.mqtt import (
    Ack,
    Publish,
)
from starlingmq.wire.packets import PUBACK
from starlingmq.wire.properties import RECEIVE_MAXIMUM


def test_a_publisher_to_many_slow_receivers_is_held_once_for_all_of_them() -> None:
    w = World(max_mqueue_len=10, publisher_hold=1.0)
    for number in range(20):
        slow = w.connect(f"slow{number}", properties={RECEIVE_MAXIMUM: 1})
        subscribe(slow, "t", qos=1)
    pub = w.connect("pub")
    for number in range(50):
        pub.send(Publish(b"t", b"", qos=1, packet_id=number + 1))
    w.advance(2.0)
    assert len(pub.receive()) == 50


def test_a_publisher_is_not_held_for_messages_to_itself() -> None:
    w = World(max_mqueue_len=10, publisher_hold=1.0)
    c = w.connect("c", properties={RECEIVE_MAXIMUM: 1})
    subscribe(c, "t", qos=1)
    for number in range(8):
        c.send(Publish(b"t", b"%d" % number, qos=1, packet_id=number + 1))
    seen: list[bytes] = []
    for _ in range(8):
        for packet in c.receive():
            if isinstance(packet, Publish):
                seen.append(packet.payload)
                c.send(Ack(PUBACK, packet.packet_id))
    assert seen == [b"%d" % number for number in range(8)]


def test_two_clients_that_publish_to_each_other_are_not_both_held() -> None:
    w = World(max_mqueue_len=10, publisher_hold=1.0)
    a, b = (w.connect(name, properties={RECEIVE_MAXIMUM: 1}) for name in "ab")
    subscribe(a, "to/a", qos=1)
    subscribe(b, "to/b", qos=1)
    for number in range(8):
        a.send(Publish(b"to/b", b"", qos=1, packet_id=number + 1))
        b.send(Publish(b"to/a", b"", qos=1, packet_id=number + 1))
    assert a.reading or b.reading
