"""SUBSCRIBE and UNSUBSCRIBE, their answers and their effect (MQTT 3.8 to 3.11)."""

from __future__ import annotations

import pytest

from starlingmq.wire.mqtt import Ack, Pingreq, Pingresp, Suback, Subscribe, SubscribeRequest, Unsuback, Unsubscribe
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.reasons import Reason
from tests.conformance.clauses import clause
from tests.conformance.conftest import MakeWorld
from tests.conformance.kit import (
    ALL,
    BOTH,
    deliver,
    ended,
    frame,
    messages,
    payloads,
    properties_byte,
    sole,
    subscribe,
    subscriber,
    topics,
    unsubscribe,
    utf8,
)
from tests.harness import World


@clause(
    v3="2.3.1-7 3.8.4-1 3.8.4-2 3.8.4-4 3.8.4-5 3.9.3-1 3.9.3-2",
    v5="2.2.1-6 3.8.4-1 3.8.4-2 3.8.4-5 3.8.4-6 3.8.4-7 3.9.3-1 3.9.3-2",
)
@pytest.mark.parametrize("packet_id", [1, 513, 65535])
@pytest.mark.parametrize("version", ALL)
def test_one_suback_answers_every_filter_in_order(w: World, version: int, packet_id: int) -> None:
    c = w.connect(client_id="a", version=version)
    c.send(Subscribe(packet_id, [SubscribeRequest(filter, qos) for filter, qos in ((b"a", 2), (b"b", 0), (b"c/#", 1))]))
    assert sole(c, Suback) == Suback(packet_id, [2, 0, 1])
    pub = w.connect(client_id="pub")
    for topic in ("a", "b", "c/d"):
        deliver(pub, topic, qos=2)
    assert [(m.topic, m.qos) for m in messages(c)] == [(b"a", 2), (b"b", 0), (b"c/d", 1)]


@pytest.mark.parametrize(
    ("version", "reasons"),
    [
        pytest.param(4, [0, 0x80, 2], marks=clause(v3="3.8.4-5 3.9.3-1 3.9.3-2 3.8.4-4")),
        pytest.param(5, [0, Reason.NOT_AUTHORIZED, 2], marks=clause(v5="3.8.4-5 3.8.4-7 3.9.3-1 3.9.3-2")),
    ],
)
def test_a_filter_that_is_refused_leaves_the_others(make_world: MakeWorld, version: int, reasons: list[int]) -> None:
    w = make_world(ask_subscribe=True)
    c = w.connect(client_id="a", version=version)
    c.send(Subscribe(7, [SubscribeRequest(f, qos) for f, qos in ((b"a", 0), (b"b", 1), (b"c", 2))]))
    w.answer(w.question(), reasons=[0, Reason.NOT_AUTHORIZED, 0])
    assert sole(c, Suback) == Suback(7, reasons)
    pub = w.connect(client_id="pub")
    for topic in ("a", "b", "c"):
        deliver(pub, topic)
    assert topics(c) == [b"a", b"c"]


@clause(v3="3.8.3-2")
@pytest.mark.parametrize("version", BOTH)
def test_a_server_without_wildcards_refuses_filters_that_have_one(make_world: MakeWorld, version: int) -> None:
    w = make_world(wildcard_subscription=False)
    c = w.connect(client_id="a", version=version)
    refusal = Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED if version == 5 else 0x80
    assert subscribe(c, "a/#", "a/b", "+") == [refusal, 0, refusal]
    deliver(w.connect(client_id="pub"), "a/b")
    assert topics(c) == [b"a/b"]


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(0x80, marks=clause(v3="3.8.1-1 2.2.2-1 2.2.2-2", v5="3.8.1-1 2.1.3-1")),
        pytest.param(0x83, marks=clause(v3="3.8.1-1 2.2.2-1 2.2.2-2", v5="3.8.1-1 2.1.3-1")),
        pytest.param(0xA0, marks=clause(v3="3.10.1-1 2.2.2-1 2.2.2-2", v5="3.10.1-1 2.1.3-1")),
        pytest.param(0xAF, marks=clause(v3="3.10.1-1 2.2.2-1 2.2.2-2", v5="3.10.1-1 2.1.3-1")),
    ],
)
@pytest.mark.parametrize("version", BOTH)
def test_wrong_flags_are_malformed(w: World, version: int, first: int) -> None:
    c = w.connect(client_id="a", version=version)
    options = b"\0" if first >> 4 == 8 else b""
    c.send(frame(first, b"\0\1" + properties_byte(version) + utf8("t") + options))
    ended(c, Reason.MALFORMED_PACKET)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(0x82, marks=clause(v3="3.8.3-3", v5="3.8.3-2")),
        pytest.param(0xA2, marks=clause(v3="3.10.3-2", v5="3.10.3-2")),
    ],
)
@pytest.mark.parametrize("version", BOTH)
def test_no_filter_at_all_is_a_protocol_error(w: World, version: int, first: int) -> None:
    c = w.connect(client_id="a", version=version)
    c.send(frame(first, b"\0\1" + properties_byte(version)))
    ended(c, Reason.PROTOCOL_ERROR)


@clause(v3="2.3.1-1", v5="2.2.1-3")
@pytest.mark.parametrize("first", [0x82, 0xA2])
@pytest.mark.parametrize("version", BOTH)
def test_packet_identifier_0_is_refused(w: World, version: int, first: int) -> None:
    c = w.connect(client_id="a", version=version)
    options = b"\0" if first == 0x82 else b""
    c.send(frame(first, b"\0\0" + properties_byte(version) + utf8("t") + options))
    ended(c, Reason.PROTOCOL_ERROR, Reason.MALFORMED_PACKET)


@pytest.mark.parametrize(
    ("version", "options"),
    [
        *(pytest.param(4, o, marks=clause(v3="3.8.3-4")) for o in (0x03, 0x04, 0x08, 0x40, 0x80, 0xFC)),
        *(pytest.param(5, o, marks=clause(v5="3.8.3-5")) for o in (0x40, 0x80, 0xC0)),
    ],
)
def test_reserved_option_bits_are_malformed(w: World, version: int, options: int) -> None:
    c = w.connect(client_id="a", version=version)
    c.send(frame(0x82, b"\0\1" + properties_byte(version) + utf8("t") + bytes([options])))
    ended(c, Reason.MALFORMED_PACKET)


@clause(v5="4.13.1-1")
@pytest.mark.parametrize("options", [0x03, 0x30])
def test_qos_3_and_retain_handling_3_are_protocol_errors(w: World, options: int) -> None:
    c = w.connect(client_id="a")
    c.send(frame(0x82, b"\0\1\0" + utf8("t") + bytes([options])))
    ended(c, Reason.PROTOCOL_ERROR)


@clause(v3="3.8.4-6", v5="3.8.4-8")
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("version", ALL)
def test_delivery_is_at_the_lesser_qos(w: World, version: int, granted: int, published: int) -> None:
    sub = subscriber(w, "t", qos=granted, version=version)
    deliver(w.connect(client_id="pub"), "t", qos=published)
    assert [m.qos for m in messages(sub)] == [min(granted, published)]


@clause(v3="3.8.4-3", v5="3.8.4-3")
@pytest.mark.parametrize("version", BOTH)
def test_the_same_filter_again_replaces_the_subscription(w: World, version: int) -> None:
    sub = subscriber(w, "t", qos=2, version=version)
    pub = w.connect(client_id="pub")
    subscribe(sub, "t", qos=0)
    deliver(pub, "t", qos=2)
    assert [m.qos for m in messages(sub)] == [0]
    unsubscribe(sub, "t")
    deliver(pub, "t")
    assert sub.receive() == []


@clause(v3="3.8.4-3", v5="3.8.4-4")
@pytest.mark.parametrize("version", BOTH)
def test_replacing_a_subscription_loses_nothing_that_waits(w: World, version: int) -> None:
    sub = subscriber(w, "t", qos=1, version=version)
    pub = w.connect(client_id="pub")
    deliver(pub, "t", b"1", qos=1)
    first = messages(sub)
    subscribe(sub, "t", qos=1)
    deliver(pub, "t", b"2", qos=1)
    for message in first:
        sub.send(Ack(PUBACK, message.packet_id))
    assert payloads(sub) == [b"2"]


@clause(v5="3.8.3-3")
def test_no_local_keeps_a_clients_own_messages_from_it(w: World) -> None:
    c = w.connect(client_id="a")
    subscribe(c, "t", no_local=True)
    subscribe(c, "u")
    other = w.connect(client_id="b")
    deliver(c, "t", b"own")
    deliver(c, "u", b"own")
    deliver(other, "t", b"other")
    assert [(m.topic, m.payload) for m in messages(c)] == [(b"u", b"own"), (b"t", b"other")]


@clause(
    v3="2.3.1-7 3.10.4-4 3.10.4-5 3.10.4-6 3.10.4-2",
    v5="2.2.1-6 3.10.4-4 3.10.4-5 3.10.4-6 3.10.4-2 3.11.3-1 3.11.3-2",
)
@pytest.mark.parametrize("version", ALL)
def test_one_unsuback_answers_every_filter_in_order(w: World, version: int) -> None:
    c = subscriber(w, "a", "b", "c", version=version)
    c.send(Unsubscribe(0x0A0B, [b"c", b"never", b"a"]))
    codes = [0, int(Reason.NO_SUBSCRIPTION_EXISTED), 0] if version == 5 else []
    assert sole(c, Unsuback) == Unsuback(0x0A0B, codes)
    pub = w.connect(client_id="pub")
    for topic in ("a", "b", "c"):
        deliver(pub, topic, qos=1)
    assert topics(c) == [b"b"]


@clause(v3="3.10.4-5 3.10.4-4", v5="3.10.4-5 3.10.4-4 3.11.3-2")
@pytest.mark.parametrize("version", ALL)
def test_unsuback_comes_also_when_there_was_nothing(w: World, version: int) -> None:
    c = w.connect(client_id="a", version=version)
    assert unsubscribe(c, "never", packet_id=77) == ([Reason.NO_SUBSCRIPTION_EXISTED] if version == 5 else [])


@clause(v3="3.10.4-3", v5="3.10.4-3")
@pytest.mark.parametrize("version", BOTH)
def test_deliveries_already_begun_are_completed(w: World, version: int) -> None:
    c = subscriber(w, "t", qos=2, version=version)
    pub = w.connect(client_id="pub")
    deliver(pub, "t", b"1", qos=1)
    deliver(pub, "t", b"2", qos=2)
    one, two = messages(c)
    unsubscribe(c, "t")
    c.send(Ack(PUBACK, one.packet_id))
    c.send(Ack(PUBREC, two.packet_id))
    assert sole(c, Ack) == Ack(PUBREL, two.packet_id)
    c.send(Ack(PUBCOMP, two.packet_id))
    assert c.receive() == []
    assert not c.closed


@clause(v3="3.10.4-2", v5="3.10.4-2")
@pytest.mark.parametrize("version", BOTH)
def test_retained_messages_that_were_not_begun_are_not_sent_after_unsubscribe(
    make_world: MakeWorld, version: int
) -> None:
    w = make_world(retained_batch=10)
    pub = w.connect(client_id="pub")
    for number in range(100):
        deliver(pub, f"t/{number}", retain=True)
    c = w.connect(client_id="a", version=version)
    c.send_all([Subscribe(1, [SubscribeRequest(b"t/#")]), Unsubscribe(2, [b"t/#"])])
    packets = c.receive()
    unsuback = [type(packet) for packet in packets].index(Unsuback)
    assert packets[unsuback + 1 :] == []


@clause(v3="3.8.4-1 3.8.4-5 3.9.3-1 3.10.4-4", v5="3.8.4-1 3.8.4-6 3.9.3-1 3.10.4-4 3.11.3-1")
@pytest.mark.parametrize("version", BOTH)
def test_thousands_of_filters_are_answered_in_order_and_before_what_follows(w: World, version: int) -> None:
    c = w.connect(client_id="a", version=version)
    filters = [b"t/%d" % number for number in range(2500)]
    requests = [SubscribeRequest(filter, number % 3) for number, filter in enumerate(filters)]
    c.send_all([Subscribe(1, requests), Unsubscribe(2, [b"none", *filters]), Pingreq()])
    assert c.receive() == [
        Suback(1, [number % 3 for number in range(2500)]),
        Unsuback(2, [int(Reason.NO_SUBSCRIPTION_EXISTED)] + [0] * 2500 if version == 5 else []),
        Pingresp(),
    ]
