"""Quotas of retained messages, and their replay within the limits of a queue."""

from __future__ import annotations

import pytest
from tests.conformance.kit import payloads, subscribe
from tests.harness import World

from starlingmq.wire.mqtt import (
    Ack,
    Publish,
)
from starlingmq.wire.properties import RECEIVE_MAXIMUM
from starlingmq.wire.reasons import Reason


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_that_cannot_be_retained_is_refused_or_delivered(version: int, qos: int) -> None:
    w = World(retained_messages=1)
    watcher = w.connect("w")
    subscribe(watcher, "#")
    c = w.connect("c", version=version)
    c.send(Publish(b"a", b"1", retain=True))
    c.send(Publish(b"b", b"2", qos=qos, packet_id=qos, retain=True))
    refused = qos == 1 and version == 5
    assert payloads(watcher) == ([b"1"] if refused else [b"1", b"2"])
    assert w.dropped == {"retained_quota": 1}
    if refused:
        assert c.expect(Ack).reason == Reason.QUOTA_EXCEEDED


def test_a_retained_message_may_be_replaced_when_the_quota_is_used_up() -> None:
    w = World(retained_bytes=20)
    c = w.connect("c")
    for payload in (b"123456789012345", b"1234567890abcde"):
        c.send(Publish(b"a", payload, qos=1, packet_id=1, retain=True))
        assert c.expect(Ack).reason < 0x80


def test_replayed_retained_messages_do_not_overflow_the_queue() -> None:
    w = World(queue_bytes=1_000_000, write_buffer=100_000)
    pub = w.connect("pub")
    for number in range(100):
        pub.send(Publish(b"r/%03d" % number, bytes(50_000), retain=True))
    for qos in (0, 1):
        sub = w.connect(f"sub{qos}", properties={RECEIVE_MAXIMUM: 3})
        subscribe(sub, "#", qos=qos)
        assert len(payloads(sub)) == 100
        assert w.dropped == {}


def test_retained_messages_take_a_part_of_the_memory_only() -> None:
    """Otherwise new clients would be refused for ever, because of what one client has retained."""
    w = World(memory=200_000)
    c = w.connect("c")
    reasons = []
    for number in range(300):
        c.send(Publish(b"a/%d" % number, b"x" * 100, qos=1, packet_id=1, retain=True))
        reasons.append(c.expect(Ack).reason)
    assert reasons[0] < 0x80 and reasons[-1] == Reason.QUOTA_EXCEEDED
    assert 150 < len(w.state.retained) < 250
    c.send(Publish(b"a/0", b"y" * 100, qos=1, packet_id=1, retain=True))
    assert c.expect(Ack).reason < 0x80, "it replaces one"
    c.send(Publish(b"a/0", b"", qos=1, packet_id=1, retain=True))
    assert c.expect(Ack).reason < 0x80
