"""A QoS 0 message of a 3.x client is forwarded in its original frame to receivers that get the same bytes."""

from __future__ import annotations

import pytest
from tests.harness import FakeClient, World

from starlingmq.wire.mqtt import Publish, Subscribe, SubscribeRequest


def subscriber(world: World, name: str, version: int, qos: int = 0) -> FakeClient:
    client = world.connect(name, version=version)
    client.send(Subscribe(1, [SubscribeRequest(b"t/+", qos)]))
    client.receive()
    return client


@pytest.mark.parametrize("size", [0, 64, 121, 122, 123, 124, 125, 20_000])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_receivers_of_all_versions_get_the_message_whatever_its_length(size: int, version: int) -> None:
    world = World()
    receivers = [subscriber(world, f"r{each}", each, each - 3) for each in (3, 4, 5)]
    publisher = world.connect("publisher", version=version)
    # Several in one read, so that each frame is a part of what was read.
    first, second = Publish(b"t/1", b"a" * size), Publish(b"t/2", b"b" * size)
    publisher.send_all([first, second])
    for receiver in receivers:
        found = [each for each in receiver.receive() if isinstance(each, Publish)]
        assert [(each.topic, each.payload, each.qos, each.retain) for each in found] == [
            (b"t/1", first.payload, 0, False),
            (b"t/2", second.payload, 0, False),
        ]


def test_a_retained_message_does_not_keep_its_flag_on_the_way() -> None:
    world = World()
    receiver = subscriber(world, "receiver", 4)
    world.connect("publisher", version=4).send(Publish(b"t/1", b"x", retain=True))
    assert [each.retain for each in receiver.receive() if isinstance(each, Publish)] == [False]
