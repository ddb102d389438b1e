"""Bounds on what a client can make the broker keep."""

from __future__ import annotations

from tests.harness import World

from starlingmq.wire.mqtt import Ack, Connack, Connect, Publish, Will
from starlingmq.wire.reasons import Reason


def test_a_connect_may_be_as_large_as_connect_size_says() -> None:
    world = World(connect_size=300)
    large = world.open()
    large.send(Connect(5, "c", will=Will(b"w", b"x" * 300)))
    assert large.expect(Connack).reason == Reason.PACKET_TOO_LARGE
    assert large.closed
    assert world.connect(will=Will(b"w", b"x" * 200)).connack.reason == 0


def test_what_follows_a_connect_in_the_same_read_may_be_larger() -> None:
    world = World(connect_size=300)
    client = world.open()
    client.send_all([Connect(5, "c"), Publish(b"t", b"x" * 1000, qos=1, packet_id=1)])
    client.expect(Connack)
    assert client.expect(Ack).packet_id == 1
