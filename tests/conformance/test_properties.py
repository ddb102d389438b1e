"""Properties that travel with a message, aliases and identifiers (MQTT 5, 3.3.2.3, 3.3.4)."""

from __future__ import annotations

import pytest

from starlingmq.wire.mqtt import Publish
from starlingmq.wire.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    PAYLOAD_FORMAT_INDICATOR,
    RESPONSE_TOPIC,
    TOPIC_ALIAS_MAXIMUM,
    USER_PROPERTY,
    Properties,
    encode_properties,
)
from starlingmq.wire.reasons import Reason
from tests.conformance.clauses import clause
from tests.conformance.conftest import MakeWorld
from tests.conformance.kit import (
    deliver,
    ended,
    messages,
    payloads,
    persistent,
    publish_frame,
    subscribe,
    subscriber,
    topics,
    utf8,
)
from tests.harness import World

PAIRS = [("z", "1"), ("a", "2"), ("z", "1"), ("", ""), ("a", "\u00fc")]


def raw(properties: Properties) -> bytes:
    return encode_properties(properties)[1:]


@pytest.mark.parametrize(
    "properties",
    [
        *(pytest.param({PAYLOAD_FORMAT_INDICATOR: n}, marks=clause(v5="3.3.2-4")) for n in (0, 1)),
        pytest.param({RESPONSE_TOPIC: "back/to me"}, marks=clause(v5="3.3.2-15")),
        pytest.param({CORRELATION_DATA: bytes(range(256))[:80]}, marks=clause(v5="3.3.2-16")),
        pytest.param({USER_PROPERTY: PAIRS}, marks=clause(v5="3.3.2-17 3.3.2-18")),
        pytest.param({CONTENT_TYPE: "text/\ufeffplain"}, marks=clause(v5="3.3.2-20 1.5.4-3")),
    ],
)
@pytest.mark.parametrize("way", ["live", "retained", "queued"])
def test_properties_are_forwarded_as_they_came(w: World, properties: Properties, way: str) -> None:
    sub = persistent(w, "sub", 5)
    pub = w.connect(client_id="pub")
    if way != "retained":
        subscribe(sub, "t", qos=1)
    if way == "queued":
        sub.drop()
    deliver(pub, "t", b"text", qos=1, retain=way == "retained", properties=raw(properties))
    if way == "retained":
        subscribe(sub, "t", qos=1)
    elif way == "queued":
        sub = persistent(w, "sub", 5)
    assert [m.properties for m in messages(sub)] == [raw(properties)]


@clause(v5="2.2.2-1")
def test_clients_of_3_1_1_and_5_exchange_messages_without_properties(w: World) -> None:
    old, new = subscriber(w, "t", version=4, client_id="old"), subscriber(w, "t", client_id="new")
    deliver(w.connect(client_id="pub5"), "t", b"5", properties=raw({USER_PROPERTY: PAIRS}))
    deliver(w.connect(client_id="pub4", version=4), "t", b"4")
    assert payloads(old) == [b"5", b"4"]
    assert [(m.payload, m.properties) for m in messages(new)] == [(b"5", raw({USER_PROPERTY: PAIRS})), (b"4", b"")]
    assert new.output.endswith(publish_frame("t", b"4"))


@pytest.mark.parametrize(
    ("properties", "reasons"),
    [
        pytest.param(b"\x08" + utf8("a/#"), (0x82, 0x81, 0x90), id="wildcard", marks=clause(v5="3.3.2-14")),
        pytest.param(b"\x08" + utf8("+"), (0x82, 0x81, 0x90), id="plus", marks=clause(v5="3.3.2-14")),
        pytest.param(b"\x08" + utf8(b"\xff"), (0x81,), id="response topic", marks=clause(v5="3.3.2-13")),
        pytest.param(b"\x03" + utf8(b"\xc3\x28"), (0x81,), id="content type", marks=clause(v5="3.3.2-19")),
        pytest.param(b"\x26" + utf8(b"\xff") + utf8("v"), (0x81,), id="name", marks=clause(v5="1.5.7-1")),
        pytest.param(b"\x26" + utf8("n") + utf8(b"\xed\xa0\x80"), (0x81,), id="value", marks=clause(v5="1.5.7-1")),
        pytest.param(b"\x26" + utf8("n") + utf8("\0"), (0x81,), id="null", marks=clause(v5="1.5.7-1 1.5.4-2")),
        pytest.param(b"\x0b\x01", (0x82, 0x81), id="identifier", marks=clause(v5="3.3.4-6")),
        pytest.param(b"\x23\x00\x00", (0x94,), id="alias 0", marks=clause(v5="3.3.2-8")),
        pytest.param(b"\x01\x02", (0x81, 0x82), id="payload format 2", marks=clause(v5="4.13.1-1")),
        pytest.param(b"\x03" + utf8("a") + b"\x03" + utf8("a"), (0x82,), id="twice", marks=clause(v5="4.13.1-1")),
        pytest.param(b"\x11\0\0\0\1", (0x81, 0x82), id="not of PUBLISH", marks=clause(v5="4.13.1-1")),
        pytest.param(b"\x7f", (0x81,), id="unknown", marks=clause(v5="4.13.1-1")),
    ],
)
def test_a_property_that_may_not_be_ends_the_connection(w: World, properties: bytes, reasons: tuple[int, ...]) -> None:
    watcher = subscriber(w, "#")
    c = w.connect(client_id="a")
    c.send(publish_frame("t", properties=properties))
    ended(c, *reasons)
    assert watcher.receive() == []


# -- message expiry


@clause(v5="3.3.2-6")
@pytest.mark.parametrize("waited", [0, 4, 9])
def test_the_forwarded_expiry_is_what_remains(w: World, waited: int) -> None:
    sub = persistent(w, "sub", 5)
    subscribe(sub, "t", qos=1)
    sub.drop()
    deliver(w.connect(client_id="pub"), "t", qos=1, expiry=10)
    w.advance(waited)
    (message,) = messages(persistent(w, "sub", 5))
    assert message.expiry == 10 - waited


@clause(v5="3.3.2-6 3.3.2-5")
def test_retained_messages_age_too(w: World) -> None:
    deliver(w.connect(client_id="pub"), "t", b"kept", retain=True, expiry=10)
    w.advance(6)
    assert [m.expiry for m in messages(subscriber(w, "t", client_id="early"))] == [4]
    w.advance(6)
    assert subscriber(w, "t", client_id="late").receive() == []


@clause(v5="3.3.2-5")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_an_expired_message_that_was_not_begun_is_dropped(w: World, version: int, qos: int) -> None:
    sub = persistent(w, "sub", version)
    subscribe(sub, "t", qos=2)
    sub.drop()
    pub = w.connect(client_id="pub")
    deliver(pub, "t", b"brief", qos=qos, expiry=5)
    deliver(pub, "t", b"lasting", qos=qos)
    w.advance(7)
    assert payloads(persistent(w, "sub", version)) == [b"lasting"]


# -- topic aliases


def aliased(topic: str, alias: int, payload: bytes = b"x") -> bytes:
    return publish_frame(topic, payload, properties=b"\x23" + alias.to_bytes(2))


@clause(v5="3.3.2-12")
def test_every_alias_up_to_the_maximum_is_accepted(make_world: MakeWorld) -> None:
    w = make_world(topic_alias_max=16)
    watcher = subscriber(w, "t/#")
    c = w.connect(client_id="a")
    highest = c.connack.properties[TOPIC_ALIAS_MAXIMUM]
    assert highest == 16
    for alias in range(1, 17):
        c.send(aliased(f"t/{alias}", alias))
    for alias in range(1, 17):
        c.send(aliased("", alias))
    c.send(aliased("t/new", 16) + aliased("", 16))
    expected = [b"t/%d" % alias for alias in range(1, 17)]
    assert topics(watcher) == [*expected, *expected, b"t/new", b"t/new"]


@clause(v5="3.2.2-17 3.3.2-9")
def test_an_alias_above_the_maximum_is_refused(make_world: MakeWorld) -> None:
    w = make_world(topic_alias_max=16)
    c = w.connect(client_id="a")
    c.send(aliased("t", 17))
    ended(c, Reason.TOPIC_ALIAS_INVALID)


@clause(v5="3.2.2-18")
def test_a_topic_alias_is_refused_where_aliases_are_off(make_world: MakeWorld) -> None:
    w = make_world(topic_alias_max=0)
    c = w.connect(client_id="a")
    assert c.connack.properties.get(TOPIC_ALIAS_MAXIMUM, 0) == 0
    c.send(aliased("t", 1))
    ended(c, Reason.TOPIC_ALIAS_INVALID)


@clause(v5="3.3.2-7")
def test_aliases_end_with_their_connection(w: World) -> None:
    watcher = subscriber(w, "t")
    c = persistent(w, "a", 5)
    c.send(aliased("t", 1))
    assert topics(watcher) == [b"t"]
    c.drop()
    c = persistent(w, "a", 5)
    c.send(aliased("", 1))
    ended(c, Reason.PROTOCOL_ERROR, Reason.TOPIC_ALIAS_INVALID)
    assert watcher.receive() == []


@clause(v5="3.3.2-7")
def test_aliases_are_of_one_connection(w: World) -> None:
    watcher = subscriber(w, "#")
    one, two = w.connect(client_id="one"), w.connect(client_id="two")
    one.send(aliased("t/1", 1))
    two.send(aliased("t/2", 1))
    one.send(aliased("", 1))
    assert topics(watcher) == [b"t/1", b"t/2", b"t/1"]


@clause(v5="3.1.2-27")
@pytest.mark.parametrize("properties", [{}, {TOPIC_ALIAS_MAXIMUM: 0}])
def test_a_client_without_topic_alias_maximum_gets_no_aliases(w: World, properties: Properties) -> None:
    sub = w.connect(client_id="sub", properties=properties)
    subscribe(sub, "a/long/topic/#")
    pub = w.connect(client_id="pub")
    for _ in range(5):
        deliver(pub, "a/long/topic/name")
    assert [(m.topic, m.topic_alias) for m in messages(sub)] == [(b"a/long/topic/name", 0)] * 5


@clause(v5="3.1.2-26 3.3.2-11 3.3.2-8 3.3.2-7")
def test_aliases_to_a_client_stay_within_its_maximum_and_mean_what_they_say(w: World) -> None:
    pub = w.connect(client_id="pub")
    sent = [f"a/long/topic/{n % 5}" for n in range(40)]
    for _ in range(2):
        sub = persistent(w, "sub", 5, clean=True, properties={TOPIC_ALIAS_MAXIMUM: 2})
        subscribe(sub, "a/long/topic/#")
        for topic in sent:
            deliver(pub, topic)
        assert [name.decode() for name in resolved(messages(sub), 2)] == sent
        sub.drop()


def resolved(found: list[Publish], highest: int) -> list[bytes]:
    """The topics of messages that may use aliases."""
    table: dict[int, bytes] = {}
    names = []
    for message in found:
        assert message.topic_alias <= highest
        if message.topic and message.topic_alias:
            table[message.topic_alias] = message.topic
        names.append(message.topic or table[message.topic_alias])
    return names


# -- subscription identifiers


@clause(v5="3.3.4-3 3.3.4-4 3.3.4-2")
def test_one_copy_carries_the_identifiers_of_all_matching_subscriptions(w: World) -> None:
    sub = w.connect(client_id="sub")
    for filter, qos, identifier in (("a/#", 0, 10), ("a/+", 2, 0), ("a/b", 1, 268_435_455), ("b/#", 0, 5)):
        subscribe(sub, filter, qos=qos, identifier=identifier)
    deliver(w.connect(client_id="pub"), "a/b", qos=2)
    (message,) = messages(sub)
    assert message.qos == 2
    assert sorted(message.subscription_ids or []) == [10, 268_435_455]


@clause(v5="3.3.4-3")
@pytest.mark.parametrize("way", ["retained", "queued"])
def test_identifiers_also_come_with_retained_and_queued_messages(w: World, way: str) -> None:
    sub = persistent(w, "sub", 5)
    pub = w.connect(client_id="pub")
    if way == "retained":
        deliver(pub, "a", retain=True)
    subscribe(sub, "+", qos=1, identifier=3)
    if way == "queued":
        sub.drop()
        deliver(pub, "a", qos=1)
        sub = persistent(w, "sub", 5)
    assert [m.subscription_ids for m in messages(sub)] == [[3]]


@clause(v5="3.8.4-3 3.3.4-3")
def test_replacing_a_subscription_replaces_its_identifier(w: World) -> None:
    sub = w.connect(client_id="sub")
    pub = w.connect(client_id="pub")
    subscribe(sub, "a", identifier=3)
    subscribe(sub, "a", identifier=4)
    deliver(pub, "a")
    assert [m.subscription_ids for m in messages(sub)] == [[4]]
    subscribe(sub, "a")
    deliver(pub, "a")
    assert [m.subscription_ids for m in messages(sub)] == [None]
