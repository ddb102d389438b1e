"""One decision about accepting messages, in the terms of MQTT 5, 3.1.1, NATS and the HTTP API."""

from __future__ import annotations

from typing import Any

import pytest
from tests.harness import World
from tests.nats.talk import connect

from starlingmq.admin.messages import TURNED_DOWN
from starlingmq.core.nats.nats_publishing import WHY
from starlingmq.core.publish import publish_admission
from starlingmq.core.publish.publish_admission import (
    ADMITTED,
    COUNTED,
    ISOLATED,
    MEMORY,
    NOT_STORED,
    POSTPONED,
    RESERVED,
    STREAM_FULL,
    UNCHECKED,
    admit,
)
from starlingmq.core.router.stream import Stream
from starlingmq.wire.mqtt import Ack, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.packets import PUBACK, PUBREC
from starlingmq.wire.reasons import Reason

VERDICTS = (ISOLATED, NOT_STORED, MEMORY, RESERVED, STREAM_FULL)
REASONS = {
    ISOLATED: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    NOT_STORED: Reason.QUOTA_EXCEEDED,
    MEMORY: Reason.QUOTA_EXCEEDED,
    RESERVED: Reason.NOT_AUTHORIZED,
    STREAM_FULL: Reason.QUOTA_EXCEEDED,
}


def limit(world: World, verdict: int) -> str:
    """Make a broker refuse messages for this reason; return the topic of a message that would be stored for a
    session.
    """
    ctx = world.state.ctx
    ctx.isolated = verdict == ISOLATED
    ctx.refusing = verdict == NOT_STORED
    ctx.quotas.short_of_memory = verdict == MEMORY
    if verdict == STREAM_FULL:
        stream = Stream("s", 1, [b"a/#"])
        world.state.router.add_stream(stream)
        stream.full = True
        ctx.full_streams = 1
    return "$SYS/x" if verdict == RESERVED else "a/b"


def serving() -> World:
    world = World()
    reader = world.connect("reader")
    reader.send(Subscribe(1, [SubscribeRequest(b"a/#", 1)]))
    reader.expect(Suback)
    return world


def client_of(kind: str, verdict: int) -> tuple[World, str, Any]:
    """Connect before the limit applies, because some limits refuse clients as well."""
    world = serving()
    client = connect(world) if kind == "nats" else world.connect("writer", version=int(kind))
    return world, limit(world, verdict), client


def delivered(world: World) -> int:
    reader = next(fake for fake in world.clients if fake.client_id == "reader")
    return sum(isinstance(packet, Publish) for packet in reader.receive())


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_5_is_told_the_reason(verdict: int, qos: int) -> None:
    world, topic, client = client_of("5", verdict)
    client.send(Publish(topic.encode(), b"x", qos, packet_id=1))
    assert client.expect(Ack) == Ack(PUBACK if qos == 1 else PUBREC, 1, REASONS[verdict])
    assert world.state.ctx.counters.dropped == {COUNTED[verdict]: 1} and delivered(world) == 0


@pytest.mark.parametrize("verdict", VERDICTS)
def test_mqtt_3_is_not_acknowledged_but_where_it_may_not_publish(verdict: int) -> None:
    world, topic, client = client_of("4", verdict)
    client.send(Publish(topic.encode(), b"x", 1, packet_id=1))
    assert client.closed == (verdict != RESERVED) and delivered(world) == 0


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("header", [False, True])
def test_nats_is_told_the_reason_of_what_somebody_wants_stored(verdict: int, header: bool) -> None:
    world, topic, client = client_of("nats", verdict)
    subject = topic.replace("/", ".")
    (client.hpub(subject, "A: b", b"x") if header else client.pub(subject, b"x"))
    heard = client.heard()
    assert delivered(world) == 0
    if verdict == ISOLATED:
        assert client.closed
        return
    assert len(heard) == 1 and heard[0].startswith("-ERR 'Permissions Violation for Publish"), heard
    assert WHY[verdict] in heard[0] and not client.closed
    assert world.state.ctx.counters.dropped == {COUNTED[verdict]: 1}


@pytest.mark.parametrize("kind", ["4", "5", "nats"])
@pytest.mark.parametrize("verdict", [MEMORY, RESERVED])
def test_messages_without_storage_are_refused_for_these_reasons_too(kind: str, verdict: int) -> None:
    world, topic, client = client_of(kind, verdict)
    topic = "nobody" if verdict == MEMORY else topic
    if kind == "nats":
        client.pub(topic.replace("/", "."), b"x")
    else:
        client.send(Publish(topic.encode(), b"x", 0))
    assert world.state.ctx.counters.dropped == {COUNTED[verdict]: 1}
    assert not client.closed


@pytest.mark.parametrize("kind", ["4", "5", "nats"])
@pytest.mark.parametrize("verdict", [ISOLATED, NOT_STORED, STREAM_FULL])
def test_messages_without_storage_are_admitted_while_storage_fails(kind: str, verdict: int) -> None:
    world, _, client = client_of(kind, verdict)
    if kind == "nats":
        client.pub("nobody", b"x")
    else:
        client.send(Publish(b"nobody", b"x", 0))
    assert not world.state.ctx.counters.dropped and not client.closed


@pytest.mark.parametrize("rate", [{"message_rate": 5}, {"byte_rate": 100}])
@pytest.mark.parametrize("kind", ["4", "5", "nats"])
def test_a_client_that_is_too_fast_is_not_read_for_a_while_and_loses_nothing(kind: str, rate: dict[str, int]) -> None:
    world = World(**rate)
    reader = world.connect("reader")
    reader.send(Subscribe(1, [SubscribeRequest(b"a/#", 0)]))
    reader.expect(Suback)
    client: Any = connect(world) if kind == "nats" else world.connect("writer", version=int(kind))
    for _ in range(20):
        if kind == "nats":
            client.pub("a.b", b"0123456789")
        else:
            client.send(Publish(b"a/b", b"0123456789", 0))
    assert delivered(world) < 20
    world.advance(60.0)
    assert delivered(world) > 0 and not world.state.ctx.counters.dropped


def test_each_verdict_has_words_in_each_protocol() -> None:
    every = {value for name, value in vars(publish_admission).items() if name.isupper() and isinstance(value, int)}
    assert every == {ADMITTED, ISOLATED, POSTPONED, NOT_STORED, MEMORY, RESERVED, STREAM_FULL, UNCHECKED}
    admitted = {ADMITTED, UNCHECKED}  # of the latter the payload decides, in the words of its contract
    assert set(TURNED_DOWN) == every - admitted and set(WHY) == every - {*admitted, ISOLATED, POSTPONED}
    assert len(COUNTED) == len(every)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_the_decision_itself(verdict: int) -> None:
    world = serving()
    topic = limit(world, verdict)
    route = world.state.router.resolve(topic.encode())
    assert admit(world.state.ctx, route, True) == verdict
    assert admit(world.state.ctx, route, False) == (verdict if verdict in (MEMORY, RESERVED) else ADMITTED)
    world.state.ctx.catching_up = True
    assert admit(world.state.ctx, route, False) == POSTPONED
