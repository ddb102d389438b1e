"""A cluster node that was suspended accepts nothing until it knows whether it still has a quorum."""

from __future__ import annotations

from tests.harness import World

from starlingmq.wire.mqtt import Ack, Publish, Suback, Subscribe, SubscribeRequest


def test_the_first_packet_after_a_standstill_is_refused() -> None:
    world = World()
    client = world.connect()
    world.state.ctx.serves_until = world.now + 2.0
    client.send(Publish(b"t", b"1", qos=1, packet_id=1))
    assert client.expect(Ack).reason < 0x80
    world.now += 2.0
    client.send_all([Publish(b"t", b"2", qos=1, packet_id=2), Subscribe(3, [SubscribeRequest(b"t", 0)])])
    assert client.expect(Ack).reason == 0x83
    assert client.expect(Suback).reasons == [0x83]
