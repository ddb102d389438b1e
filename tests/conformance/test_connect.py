"""CONNECT and CONNACK: what is accepted, what is refused, and how (MQTT 3.1, 3.2)."""

from __future__ import annotations

from typing import Any

import pytest

from starlingmq.wire.mqtt import Connack, Connect, Pingreq, Pingresp
from starlingmq.wire.properties import (
    ASSIGNED_CLIENT_IDENTIFIER,
    REQUEST_RESPONSE_INFORMATION,
    RESPONSE_INFORMATION,
    SESSION_EXPIRY_INTERVAL,
    Properties,
)
from starlingmq.wire.reasons import Reason
from tests.conformance.clauses import clause
from tests.conformance.conftest import MakeWorld
from tests.conformance.kit import (
    ALL,
    BOTH,
    connect_frame,
    deliver,
    ended,
    frame,
    messages,
    persistent,
    publish_frame,
    refused,
    sole,
    subscriber,
    topics,
    utf8,
)
from tests.harness import World

LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@clause(v3="3.1.0-1", v5="3.1.0-1 3.14.0-1")
@pytest.mark.parametrize("first", [b"\xc0\x00", publish_frame("t"), b"\xe0\x00", b"\xf0\x00"])
def test_anything_but_connect_at_the_beginning_is_closed_without_a_word(w: World, first: bytes) -> None:
    watcher = subscriber(w, "#")
    c = w.open()
    c.send(first)
    assert c.closed
    assert c.receive() == []
    assert watcher.receive() == []


@clause(v3="3.1.0-2 4.8.0-1", v5="3.1.0-2 4.13.1-1")
@pytest.mark.parametrize("version", ALL)
def test_a_second_connect_ends_the_connection(w: World, version: int) -> None:
    c = w.connect(client_id="a", version=version)
    c.send(Connect(version=version, client_id="a"))
    ended(c, Reason.PROTOCOL_ERROR)


@clause(v3="3.1.4-4 3.2.0-1", v5="3.1.4-5 3.2.0-1")
@pytest.mark.parametrize("version", ALL)
def test_an_accepted_connect_is_acknowledged_before_anything_else(w: World, version: int) -> None:
    c = w.open(version=version)
    c.send(connect_frame(version) + b"\xc0\x00")
    connack, pingresp = c.receive()
    assert isinstance(connack, Connack)
    assert (connack.reason, connack.session_present) == (0, False)
    assert pingresp == Pingresp()


@clause(v3="3.1.2-1", v5="3.1.2-1")
@pytest.mark.parametrize(
    ("version", "name"), [(4, "mqtt"), (4, "MQTTX"), (5, "MQIsdp"), (5, "HTTP"), (3, "MQTT"), (4, "MQIsdp")]
)
def test_a_wrong_protocol_name_is_not_served(w: World, version: int, name: str) -> None:
    watcher = subscriber(w, "#")
    c = w.open(version=version)
    c.send(connect_frame(version, name=name) + publish_frame("t", version=version))
    assert c.closed
    if version == 5:
        assert sole(c, Connack).reason == Reason.UNSUPPORTED_PROTOCOL_VERSION  # never the form of 3.1.1
    else:
        assert c.output == b"\x20\x02\x00\x01"
        c.version = 4  # for the audit: the answer is one of 3.1.1
    assert watcher.receive() == []


@clause(v3="3.1.2-2", v5="3.1.2-2")
@pytest.mark.parametrize("level", [0, 2, 6, 0x86, 255])
def test_an_unsupported_protocol_level_is_refused_by_name(w: World, level: int) -> None:
    c = w.open(version=4)
    c.send(connect_frame(level, name="MQTT"))
    assert c.closed
    assert c.output == b"\x20\x02\x00\x01"  # clients of every version understand this CONNACK


@pytest.mark.parametrize(
    ("flags", "payload"),
    [
        pytest.param(0x03, utf8("c"), id="reserved flag", marks=clause(v3="3.1.2-3", v5="3.1.2-3")),
        pytest.param(0x0A, utf8("c"), id="will QoS, no will", marks=clause(v3="3.1.2-11 3.1.2-13", v5="3.1.2-11")),
        pytest.param(0x22, utf8("c"), id="will retain, no will", marks=clause(v3="3.1.2-11 3.1.2-15", v5="3.1.2-13")),
        pytest.param(0x1E, None, id="will QoS 3", marks=clause(v3="3.1.2-14", v5="3.1.2-12")),
        pytest.param(0x06, utf8("c"), id="no will fields", marks=clause(v3="3.1.2-9", v5="3.1.2-9")),
        pytest.param(0x02, utf8("c") + utf8("u"), id="unannounced user", marks=clause(v3="3.1.2-18", v5="3.1.2-16")),
        pytest.param(0x82, utf8("c"), id="no user name", marks=clause(v3="3.1.2-19", v5="3.1.2-17")),
        pytest.param(
            0x82, utf8("c") + utf8("u") + utf8("p"), id="extra password", marks=clause(v3="3.1.2-20", v5="3.1.2-18")
        ),
        pytest.param(0xC2, utf8("c") + utf8("u"), id="no password", marks=clause(v3="3.1.2-21", v5="3.1.2-19")),
        pytest.param(0x02, b"", id="no client id", marks=clause(v3="3.1.3-3", v5="3.1.3-3")),
        pytest.param(0x02, utf8(b"\xc3\x28"), id="client id not UTF-8", marks=clause(v3="3.1.3-4", v5="3.1.3-4")),
        pytest.param(
            0x82, utf8("c") + utf8(b"\xed\xa0\x80"), id="user not UTF-8", marks=clause(v3="3.1.3-11", v5="3.1.3-12")
        ),
    ],
)
@clause(v3="3.1.4-1", v5="3.1.4-1 4.13.1-1")
@pytest.mark.parametrize("version", BOTH)
def test_a_malformed_connect_is_closed(w: World, version: int, flags: int, payload: bytes | None) -> None:
    if payload is None:  # all that belongs to a will
        payload = utf8("c") + (b"\0" if version == 5 else b"") + utf8("t") + utf8("m")
    c = w.open(version=version)
    c.send(connect_frame(version, payload, flags))
    refused(c, Reason.MALFORMED_PACKET)


@clause(v3="3.1.3-10", v5="3.1.3-11")
@pytest.mark.parametrize("topic", [b"\xff\xfe", b"a\0b", b"a/#", b""])
@pytest.mark.parametrize("version", BOTH)
def test_a_will_topic_that_is_no_topic_is_refused(w: World, version: int, topic: bytes) -> None:
    c = w.open(version=version)
    payload = utf8("c") + (b"\0" if version == 5 else b"") + utf8(topic) + utf8("m")
    c.send(connect_frame(version, payload, 0x06))
    refused(c, Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR, Reason.TOPIC_NAME_INVALID)


@clause(v3="3.1.2-22")
@pytest.mark.parametrize("version", BOTH)
def test_a_password_without_a_user_name_is_for_mqtt_5_only(w: World, version: int) -> None:
    c = w.open(version=version)
    c.send(connect_frame(version, utf8("c") + utf8("p"), 0x42))
    if version == 5:
        assert sole(c, Connack).reason == Reason.SUCCESS
    else:
        refused(c)


@clause(v3="3.1.3-1", v5="3.1.3-1")
@pytest.mark.parametrize("version", BOTH)
def test_the_fields_of_the_payload_are_taken_in_their_order(make_world: MakeWorld, version: int) -> None:
    w = make_world(ask_authenticate=True)
    watcher = w.connect(client_id="watcher", answer=Reason.SUCCESS)
    c = w.open(version=version)
    will_properties = b"\0" if version == 5 else b""
    fields = utf8("id") + will_properties + utf8("will/topic") + utf8("message") + utf8("user") + utf8("secret")
    c.send(connect_frame(version, fields, 0xC6))
    connect = w.question().connect
    assert connect is not None and connect.will is not None
    assert (connect.client_id, connect.username, connect.password) == ("id", "user", b"secret")
    assert (connect.will.topic, connect.will.payload) == (b"will/topic", b"message")
    assert watcher.receive() == []


@clause(v3="3.1.3-5", v5="3.1.3-5")
@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("client_id", ["a", "Z", "0", LETTERS[:23], LETTERS[23:46], LETTERS[-23:]])
def test_short_client_ids_of_letters_and_digits_are_accepted(
    make_world: MakeWorld, version: int, strict: bool, client_id: str
) -> None:
    w = make_world(strict_client_id=strict)
    assert w.connect(client_id=client_id, version=version).connack.reason == 0


@clause(v3="3.1.3-9 3.2.2-4 3.2.2-5", v5="3.1.3-8 3.2.2-6 3.2.2-7 4.13.2-1")
@pytest.mark.parametrize("version", BOTH)
def test_a_client_id_that_is_too_long_is_refused_by_name(make_world: MakeWorld, version: int) -> None:
    w = make_world(client_id_length=23)
    c = w.open(version=version)
    c.send(connect_frame(version, utf8("x" * 24)))
    refused(c, Reason.CLIENT_IDENTIFIER_NOT_VALID, return_code=2)


@clause(v3="3.1.3-9 3.2.2-4", v5="3.1.3-8 3.2.2-6")
@pytest.mark.parametrize(
    ("settings", "client_id", "accepted"),
    [
        ({"client_id_length": 23}, "$link/" + "x" * 90, True),
        ({"client_id_length": 23}, "$link/" + "x" * 91, False),
        ({"client_id_length": 200}, "$link/" + "x" * 194, True),
        ({"client_id_length": 200}, "$link/" + "x" * 195, False),
        ({"strict_client_id": True}, "$link/a-b_c.9/1/2", True),
        ({"strict_client_id": True}, "$link/a b", False),
        ({"strict_client_id": True}, "$link/\u00e9", False),
        ({"strict_client_id": True}, "$link/" + "x" * 91, False),
    ],
)
def test_an_id_of_a_link_does_not_get_around_the_settings(
    make_world: MakeWorld, settings: dict[str, Any], client_id: str, accepted: bool
) -> None:
    c = make_world(**settings).open(version=5)
    c.send(connect_frame(5, utf8(client_id)))
    if accepted:
        (connack,) = c.receive()
        assert isinstance(connack, Connack) and connack.reason == 0
    else:
        refused(c, Reason.CLIENT_IDENTIFIER_NOT_VALID)


@clause(v3="3.1.4-5", v5="3.1.4-6")
@pytest.mark.parametrize("version", BOTH)
def test_packets_after_a_refused_connect_are_not_processed(make_world: MakeWorld, version: int) -> None:
    w = make_world(client_id_length=23)
    watcher = subscriber(w, "#")
    c = w.open(version=version)
    c.send(connect_frame(version, utf8("x" * 24)) + publish_frame("t", version=version) + b"\xc0\x00")
    c.send(publish_frame("t", version=version))
    refused(c, Reason.CLIENT_IDENTIFIER_NOT_VALID, return_code=2)
    assert watcher.receive() == []


@clause(v3="3.1.3-6")
def test_empty_client_ids_get_sessions_of_their_own(w: World) -> None:
    first = w.connect(client_id="", version=4)
    second = w.connect(client_id="", version=4)
    assert (first.connack.reason, second.connack.reason) == (0, 0)
    assert not first.closed
    for c in (first, second):
        c.send(Pingreq())
        assert sole(c, Pingresp) == Pingresp()


@clause(v3="3.1.3-8")
@pytest.mark.parametrize("version", BOTH)
def test_an_empty_client_id_may_be_refused(make_world: MakeWorld, version: int) -> None:
    w = make_world(empty_client_id=False)
    c = w.open(version=version)
    c.send(connect_frame(version, utf8("")))
    refused(c, Reason.CLIENT_IDENTIFIER_NOT_VALID, return_code=2)
    assert w.connect(client_id="named", version=version).connack.reason == 0


@clause(v3="3.1.3-7 3.1.3-8 3.2.2-4 3.2.2-5")
def test_an_empty_client_id_can_not_name_a_session_to_be_kept(w: World) -> None:
    c = w.open(version=4)
    c.send(connect_frame(4, utf8(""), flags=0))
    refused(c, return_code=2)


@clause(v5="3.1.3-6 3.1.3-7 3.2.2-16")
@pytest.mark.parametrize("clean", [True, False])
def test_an_assigned_client_id_is_told_and_names_the_session(w: World, clean: bool) -> None:
    settings: Properties = {SESSION_EXPIRY_INTERVAL: 1000}
    first = w.connect(client_id="", clean_start=clean, properties=settings)
    second = w.connect(client_id="", clean_start=clean, properties=settings)
    name, other = (c.connack.properties[ASSIGNED_CLIENT_IDENTIFIER] for c in (first, second))
    assert name and other and name != other
    first.drop()
    assert w.connect(client_id=str(name), clean_start=False).connack.session_present
    assert not second.closed


@clause(v5="3.1.3-7")
def test_a_client_id_of_its_own_is_not_told_back(w: World) -> None:
    assert ASSIGNED_CLIENT_IDENTIFIER not in w.connect(client_id="a").connack.properties


@clause(v3="3.1.4-2 3.1.3-2", v5="3.1.4-3 3.1.3-2 4.13.2-1")
@pytest.mark.parametrize("newer", BOTH)
@pytest.mark.parametrize("older", BOTH)
def test_connecting_again_ends_the_older_connection(w: World, older: int, newer: int) -> None:
    first = w.connect(client_id="same", version=older)
    bystander = w.connect(client_id="Same", version=older)
    second = w.connect(client_id="same", version=newer)
    ended(first, Reason.SESSION_TAKEN_OVER)
    assert not bystander.closed
    second.send(Pingreq())
    assert sole(second, Pingresp) == Pingresp()


@clause(v3="3.2.2-6")
def test_a_connect_without_a_fitting_return_code_is_closed_without_connack(make_world: MakeWorld) -> None:
    w = make_world(max_qos=1)
    c = w.open(version=4)
    c.send(connect_frame(4, utf8("c") + utf8("t") + utf8("m"), 0x16))  # a will of QoS 2
    refused(c)


@clause(v5="3.1.2-28")
@pytest.mark.parametrize(("asked", "told"), [(None, False), (0, False), (1, True)])
def test_response_information_is_for_those_who_ask(make_world: MakeWorld, asked: int | None, told: bool) -> None:
    w = make_world(response_information="replies/")
    c = w.connect(client_id="a", properties={} if asked is None else {REQUEST_RESPONSE_INFORMATION: asked})
    assert c.connack.properties.get(RESPONSE_INFORMATION) == ("replies/" if told else None)


@clause(v3="3.1.4-1", v5="3.1.4-1")
@pytest.mark.parametrize("version", BOTH)
def test_bytes_after_the_last_field_make_connect_malformed(w: World, version: int) -> None:
    whole = connect_frame(version)
    c = w.open(version=version)
    c.send(frame(0x10, whole[2:] + b"\0"))
    refused(c, Reason.MALFORMED_PACKET)


@clause(v3="7.0.0-2")
@pytest.mark.parametrize("version", ALL)
def test_the_bare_protocol_is_enough(w: World, version: int) -> None:
    """Nothing but what the specification requires is sent, and everything works."""
    watcher = subscriber(w, "a/b", version=version)
    c = w.open(version=version)
    c.send(connect_frame(version, utf8("bare")) + publish_frame("a/b", b"hello", version=version) + b"\xe0\x00")
    assert [(m.topic, m.payload) for m in messages(watcher)] == [(b"a/b", b"hello")]
    assert c.closed


@clause(v3="3.1.3-2", v5="3.1.3-2")
@pytest.mark.parametrize("version", BOTH)
def test_sessions_of_two_client_ids_are_apart(w: World, version: int) -> None:
    a, b = persistent(w, "a", version), persistent(w, "b", version)
    sub = subscriber(w, "unrelated")
    assert not a.connack.session_present and not b.connack.session_present
    for c, topic in ((a, "to/a"), (b, "to/b")):
        c.send(frame(0x82, b"\0\1" + (b"\0" if version == 5 else b"") + utf8(topic) + b"\0"))
        c.receive()
    deliver(sub, "to/a")
    assert (topics(a), topics(b)) == ([b"to/a"], [])


@clause(v5="3.1.4-1 4.13.1-1")
@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        pytest.param(b"\x21\0\0", Reason.PROTOCOL_ERROR, id="Receive Maximum 0"),
        pytest.param(b"\x27\0\0\0\0", Reason.PROTOCOL_ERROR, id="Maximum Packet Size 0"),
        pytest.param(b"\x11\0\0\0\1" * 2, Reason.PROTOCOL_ERROR, id="twice"),
        pytest.param(b"\x16\0\1d", Reason.PROTOCOL_ERROR, id="data without method"),
        pytest.param(b"\x17\2", Reason.PROTOCOL_ERROR, id="Request Problem Information 2"),
        pytest.param(b"\x19\2", Reason.PROTOCOL_ERROR, id="Request Response Information 2"),
        pytest.param(b"\x24\1", Reason.MALFORMED_PACKET, id="Maximum QoS from a client"),
        pytest.param(b"\x21\0", Reason.MALFORMED_PACKET, id="cut short"),
    ],
)
def test_a_connect_with_impossible_properties_is_refused(w: World, properties: bytes, reason: Reason) -> None:
    c = w.open()
    c.send(connect_frame(properties=properties))
    refused(c, reason)
