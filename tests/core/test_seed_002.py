"""The example of the design's second seed: window 2, four messages, acknowledgements that are lost."""

from __future__ import annotations

import pytest
from tests.conformance.kit import deliver, messages, persistent, subscribe
from tests.harness import FakeClient, World

from starlingmq.wire.mqtt import Ack, Publish
from starlingmq.wire.packets import PUBACK


def receiver(w: World, version: int) -> FakeClient:
    """Return a receiver with a window of 2; messages 1 to 4 have been published to it."""
    sub = persistent(w, "sub", version)
    subscribe(sub, "t", qos=1)
    pub = w.connect("pub")
    for number in range(1, 5):
        deliver(pub, "t", b"%d" % number, qos=1)
    return sub


def numbers(found: list[Publish]) -> list[int]:
    return [int(message.payload) for message in found]


def acknowledge(sub: FakeClient, found: list[Publish], *wanted: int) -> None:
    for message in found:
        if int(message.payload) in wanted:
            sub.send(Ack(PUBACK, message.packet_id))


@pytest.mark.parametrize("version", [3, 4])
def test_the_window_is_sent_again_when_nothing_is_heard(version: int) -> None:
    w = World(max_inflight=2, retry_interval=30.0)
    sub = receiver(w, version)
    seen = messages(sub)
    assert numbers(seen) == [1, 2]
    acknowledge(sub, seen, 1)
    seen += messages(sub)
    assert numbers(seen) == [1, 2, 3]
    w.advance(29.0)
    assert messages(sub) == []
    w.advance(2.5)
    again = messages(sub)
    assert [(number, message.dup) for number, message in zip(numbers(again), again, strict=True)] == [
        (2, True),
        (3, True),
    ]
    acknowledge(sub, again, 2, 3)
    last = messages(sub)
    assert [(message.payload, message.dup) for message in last] == [(b"4", False)]
    acknowledge(sub, last, 4)
    w.advance(1000.0)
    assert messages(sub) == []
    assert numbers([*seen, *again, *last]) == [1, 2, 3, 2, 3, 4]
    assert w.dropped == {}


@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_same_with_a_connection_that_breaks(version: int) -> None:
    """In MQTT 5, messages are sent again only after a reconnection."""
    w = World(max_inflight=2)
    sub = receiver(w, version)
    seen = messages(sub)
    acknowledge(sub, seen, 1)
    seen += messages(sub)
    sub.drop()
    w.advance(1000.0)
    sub = persistent(w, "sub", version)
    again = messages(sub)
    assert [message.dup for message in again] == [True, True]
    acknowledge(sub, again, 2, 3)
    last = messages(sub)
    assert [message.dup for message in last] == [False]
    assert numbers([*seen, *again, *last]) == [1, 2, 3, 2, 3, 4]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_window_of_one_keeps_the_order_of_everything(version: int) -> None:
    w = World(max_inflight=1)
    sub = receiver(w, version)
    order = []
    while found := messages(sub):
        order += numbers(found)
        acknowledge(sub, found, *numbers(found))
    assert order == [1, 2, 3, 4]
