"""PUBLISH: how it is answered, refused and forwarded (MQTT 3.3)."""

from __future__ import annotations

import pytest

from starlingmq.wire.mqtt import Ack, Publish
from starlingmq.wire.packets import PUBACK, PUBREC
from starlingmq.wire.properties import MAXIMUM_QOS, RETAIN_AVAILABLE
from starlingmq.wire.reasons import Reason
from tests.conformance.clauses import clause
from tests.conformance.conftest import MakeWorld
from tests.conformance.kit import (
    ALL,
    BOTH,
    deliver,
    ended,
    messages,
    publish,
    publish_frame,
    refused,
    sole,
    subscribe,
    subscriber,
    utf8,
    will,
)
from tests.harness import World


@clause(
    v3="3.3.4-1 2.3.1-5 2.3.1-6 4.3.2-2",
    v5="3.3.4-1 2.2.1-2 2.2.1-5 4.3.2-4 4.3.3-8",
)
@pytest.mark.parametrize("packet_id", [1, 0x1234, 65535])
@pytest.mark.parametrize("version", ALL)
def test_a_publish_is_answered_as_its_qos_asks(w: World, version: int, packet_id: int) -> None:
    watcher = subscriber(w, "t")
    c = w.connect(client_id="a", version=version)
    c.send(publish_frame("t", b"0", version=version))
    assert c.receive() == []
    c.send(publish_frame("t", b"1", version=version, flags=0x02, packet_id=packet_id))
    assert sole(c, Ack) == Ack(PUBACK, packet_id)
    c.send(publish_frame("t", b"2", version=version, flags=0x04, packet_id=packet_id))
    assert sole(c, Ack) == Ack(PUBREC, packet_id)
    assert [m.payload for m in messages(watcher)] == [b"0", b"1"]  # QoS 2 is routed at PUBREL


@clause(v3="3.3.1-4 4.8.0-1", v5="3.3.1-4 4.13.1-1")
@pytest.mark.parametrize("version", ALL)
def test_qos_3_is_malformed(w: World, version: int) -> None:
    watcher = subscriber(w, "t")
    c = w.connect(client_id="a", version=version)
    c.send(publish_frame("t", version=version, flags=0x06, packet_id=1))
    ended(c, Reason.MALFORMED_PACKET)
    assert watcher.receive() == []


@clause(v3="3.3.1-2", v5="3.3.1-2")
@pytest.mark.parametrize("version", ALL)
def test_dup_with_qos_0_is_malformed(w: World, version: int) -> None:
    c = w.connect(client_id="a", version=version)
    c.send(publish_frame("t", version=version, flags=0x08))
    ended(c, Reason.MALFORMED_PACKET)


@clause(v3="2.3.1-1", v5="2.2.1-3")
@pytest.mark.parametrize("flags", [0x02, 0x04])
@pytest.mark.parametrize("version", ALL)
def test_packet_identifier_0_is_refused(w: World, version: int, flags: int) -> None:
    c = w.connect(client_id="a", version=version)
    c.send(publish_frame("t", version=version, flags=flags, packet_id=0))
    ended(c, Reason.PROTOCOL_ERROR, Reason.MALFORMED_PACKET)


@clause(v3="3.3.1-3", v5="3.3.1-3")
@pytest.mark.parametrize("version", BOTH)
def test_dup_is_not_passed_on(w: World, version: int) -> None:
    watcher = subscriber(w, "t", qos=2, version=version)
    c = w.connect(client_id="a", version=version)
    deliver(c, "t", qos=1, dup=True)
    deliver(c, "t", qos=2, dup=True)
    assert [(m.qos, m.dup) for m in messages(watcher)] == [(1, False), (2, False)]


@clause(v3="3.3.2-1 3.3.2-2 4.7.1-1", v5="3.3.2-1 3.3.2-2 4.7.0-1")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic", [b"a/+", b"+", b"#", b"a/#", b"a+b", b"\xff", b"a\xed\xa0\x80", b"a\xc3"])
@pytest.mark.parametrize("version", BOTH)
def test_publishing_to_an_invalid_topic_name_is_refused(w: World, version: int, topic: bytes, qos: int) -> None:
    watcher = subscriber(w, "#")
    c = w.connect(client_id="a", version=version)
    c.send(publish_frame(topic, version=version, flags=qos << 1, packet_id=1 if qos else None))
    ended(c, Reason.MALFORMED_PACKET if max(topic) > 0x7F else Reason.TOPIC_NAME_INVALID)
    assert watcher.receive() == []


@clause(v3="3.3.5-1", v5="3.3.4-2")
@pytest.mark.parametrize(("published", "delivered"), [(0, 0), (1, 1), (2, 1)])
@pytest.mark.parametrize("version", ALL)
def test_overlapping_subscriptions_deliver_at_the_highest_qos(
    w: World, version: int, published: int, delivered: int
) -> None:
    sub = w.connect(client_id="sub", version=version)
    subscribe(sub, "a/#", qos=0)
    subscribe(sub, "a/+", qos=1)
    subscribe(sub, "a/b", qos=0)
    deliver(w.connect(client_id="pub"), "a/b", qos=published)
    (message,) = messages(sub)
    assert message.qos == delivered


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        pytest.param(4, Reason.SUCCESS, marks=clause(v3="3.3.5-2")),
        pytest.param(5, Reason.NOT_AUTHORIZED, marks=clause(v5="3.4.2-1 3.5.2-1")),
    ],
)
@pytest.mark.parametrize(("qos", "kind"), [(1, PUBACK), (2, PUBREC)])
def test_an_unauthorised_publish_is_acknowledged_and_goes_nowhere(
    make_world: MakeWorld, version: int, reason: int, qos: int, kind: int
) -> None:
    w = make_world(ask_publish=True)
    watcher = subscriber(w, "#")
    c = w.connect(client_id="a", version=version)
    publish(c, "t", qos=qos)
    w.answer(w.question(), Reason.NOT_AUTHORIZED)
    assert sole(c, Ack) == Ack(kind, 1, reason)
    assert watcher.receive() == []


@clause(v5="3.4.2-1")
def test_nobody_to_deliver_to_is_told(w: World) -> None:
    c = w.connect(client_id="a")
    publish(c, "t", qos=1)
    assert sole(c, Ack) == Ack(PUBACK, 1, Reason.NO_MATCHING_SUBSCRIBERS)


@clause(v5="3.2.2-9 3.2.2-11")
@pytest.mark.parametrize("highest", [0, 1, 2])
def test_maximum_qos_is_told_and_held(make_world: MakeWorld, highest: int) -> None:
    w = make_world(max_qos=highest)
    c = w.connect(client_id="a")
    assert c.connack.properties.get(MAXIMUM_QOS) == (None if highest == 2 else highest)
    publish(c, "t", qos=2)
    if highest == 2:
        assert sole(c, Ack).type == PUBREC
    else:
        ended(c, Reason.QOS_NOT_SUPPORTED)


@clause(v3="3.8.4-6", v5="3.2.2-10")
@pytest.mark.parametrize("version", BOTH)
def test_subscriptions_above_maximum_qos_are_granted_what_there_is(make_world: MakeWorld, version: int) -> None:
    w = make_world(max_qos=1)
    c = w.connect(client_id="a", version=version)
    assert [subscribe(c, "t", qos=qos) for qos in (0, 1, 2)] == [[0], [1], [1]]


@clause(v5="3.2.2-12 3.2.2-7 3.2.2-8")
def test_a_will_above_maximum_qos_is_refused(make_world: MakeWorld) -> None:
    w = make_world(max_qos=1)
    c = w.connect(client_id="a", will=will(qos=2))
    refused(c, Reason.QOS_NOT_SUPPORTED)
    assert w.connect(client_id="a", will=will(qos=1)).connack.reason == 0


@clause(v5="3.2.2-13 3.2.2-7 3.2.2-8")
def test_a_retained_will_without_retained_messages_is_refused(make_world: MakeWorld) -> None:
    w = make_world(retain_available=False)
    c = w.connect(client_id="a", will=will(retain=True))
    refused(c, Reason.RETAIN_NOT_SUPPORTED)


@clause(v5="3.2.2-14")
def test_a_retained_message_where_there_are_none_is_refused(make_world: MakeWorld) -> None:
    w = make_world(retain_available=False)
    c = w.connect(client_id="a")
    assert c.connack.properties[RETAIN_AVAILABLE] == 0
    publish(c, "t", retain=True)
    ended(c, Reason.RETAIN_NOT_SUPPORTED)


@clause(v3="3.3.2-1 4.8.0-1", v5="3.3.2-1 4.13.1-1")
@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("body", [b"", b"\0", b"\0\5ab", utf8("t") + b"\0"])
def test_a_publish_that_ends_too_early_is_malformed(w: World, version: int, body: bytes) -> None:
    c = w.connect(client_id="a", version=version)
    c.send(bytes([0x32, len(body)]) + body)
    ended(c, Reason.MALFORMED_PACKET)


@clause(v3="4.5.0-1 3.3.4-1", v5="4.5.0-1 3.3.4-1")
@pytest.mark.parametrize("version", ALL)
def test_a_client_may_be_its_own_subscriber(w: World, version: int) -> None:
    c = subscriber(w, "t", qos=1, version=version)
    publish(c, "t", b"mine", qos=1, packet_id=9)
    packets = c.receive()
    assert Ack(PUBACK, 9) in packets
    assert [p.payload for p in packets if isinstance(p, Publish)] == [b"mine"]
