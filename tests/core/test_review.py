"""What a hostile reading of the core found: each test is one way in which it went wrong."""

from __future__ import annotations

import gc

from tests.harness import FakeClient, World

from starlingmq.core.message import Message
from starlingmq.core.session import Session
from starlingmq.wire.mqtt import (
    Publish,
)
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL

NEVER = 0xFFFFFFFF


def alive(kind: type[object]) -> int:
    gc.collect()
    return sum(type(thing) is kind for thing in gc.get_objects())


def forget(w: World) -> None:
    """Let go of the harness's end of the connections, as a network does."""
    w.clients.clear()
    w._by_client.clear()


def payloads(client: FakeClient) -> list[bytes]:
    return [packet.payload for packet in client.receive() if isinstance(packet, Publish)]


def test_a_retained_message_that_was_replaced_is_not_kept_until_it_would_have_expired() -> None:
    w = World()
    pub = w.connect("pub")
    before = alive(Message)
    for number in range(100):
        pub.send(Publish(b"t", b"%d" % number, retain=True, expiry=1_000_000 + number))
    assert alive(Message) - before <= 1
    pub.send(Publish(b"t", b"", retain=True))
    assert alive(Message) == before
    assert w.state.publishing.retained_wheel.wake_at() == 0.0


def test_a_session_that_was_discarded_is_not_kept_until_it_would_have_expired() -> None:
    w = World()
    w.connect("c", properties={SESSION_EXPIRY_INTERVAL: 1_000_000}).drop()
    forget(w)
    before = alive(Session)
    for number in range(50):
        w.connect("c", properties={SESSION_EXPIRY_INTERVAL: 1_000_000 + number}).drop()
        forget(w)
    w.advance(60)
    assert alive(Session) == before
