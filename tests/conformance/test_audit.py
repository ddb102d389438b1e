"""Rules for every packet the broker sends, held by the audit that ends each conformance test (see audit.py).

First a run that makes the broker send packets of every kind under tight limits, then proof that the audit sees
each breach.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from starlingmq.wire.mqtt import Ack, Auth, Connect, Disconnect, Publish, Subscribe, SubscribeRequest, Unsubscribe
from starlingmq.wire.packets import PUBREC, PUBREL
from starlingmq.wire.properties import (
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    REASON_STRING,
    REQUEST_PROBLEM_INFORMATION,
    USER_PROPERTY,
    Properties,
)
from starlingmq.wire.reasons import Reason
from tests.conformance.audit import complaints, split, varint
from tests.conformance.clauses import clause
from tests.conformance.conftest import MakeWorld
from tests.conformance.kit import deliver, publish, publish_frame, subscriber
from tests.harness import FakeClient, World

CONNACK, PUBACK, SUBACK, UNSUBACK, DISCONNECT, AUTH = 2, 4, 9, 11, 14, 15
ANSWERS = {PUBACK: "PUBACK", 5: "PUBREC", 6: "PUBREL", 7: "PUBCOMP", SUBACK: "SUBACK", UNSUBACK: "UNSUBACK"}


def provoke(w: World, properties: Properties) -> FakeClient:
    """Connect and make the broker refuse something in every kind of packet, a DISCONNECT last."""
    c = w.open()
    c.max_packet = int(str(properties.get(MAXIMUM_PACKET_SIZE, 0)))
    c.send(Connect(client_id="provoker", properties={**properties, AUTHENTICATION_METHOD: "m"}))
    w.answer(w.question(), Reason.CONTINUE_AUTHENTICATION)
    c.send(Auth(Reason.CONTINUE_AUTHENTICATION, {AUTHENTICATION_METHOD: "m"}))
    w.answer(w.question(), Reason.SUCCESS)
    for qos in (1, 2):
        publish(c, "t", qos=qos, packet_id=qos)
        w.answer(w.question(), Reason.NOT_AUTHORIZED)
    c.send(Ack(PUBREC, 99))
    c.send(Ack(PUBREL, 99))
    c.send(Subscribe(3, [SubscribeRequest(b"/" * 500), SubscribeRequest(b"$share")]))
    c.send(Unsubscribe(4, [b"a"]))
    c.send(b"\x00\x00")
    assert c.closed
    return c


def kinds(c: FakeClient) -> list[int]:
    return [first >> 4 for first, _, _ in split(c.output)]


EVERYTHING = [AUTH, CONNACK, PUBACK, 5, 6, 7, SUBACK, UNSUBACK, DISCONNECT]

SIZES = (
    "3.1.2-24 3.2.2-19 3.2.2-20 3.4.2-2 3.4.2-3 3.5.2-2 3.5.2-3 3.6.2-2 3.6.2-3 3.7.2-2 3.7.2-3 3.9.2-1 3.9.2-2 "
    "3.11.2-1 3.11.2-2 3.14.2-3 3.14.2-4 3.15.2-2 3.15.2-3"
)


@clause(
    v3="2.2.2-1 3.2.0-1 3.9.3-2",
    v5="1.5.5-1 2.1.3-1 2.2.2-1 3.2.0-1 3.2.0-2 3.2.2-1 3.2.2-8 3.4.2-1 3.5.2-1 3.6.2-1 3.7.2-1 3.9.3-2 3.11.3-2 "
    "3.14.0-1 3.14.2-1 3.14.2-2 3.14.4-1 3.15.2-1",
)
def test_every_kind_of_packet_is_well_formed(make_world: MakeWorld) -> None:
    w = make_world(ask_authenticate=True, ask_publish=True)
    c = provoke(w, {})
    assert kinds(c) == EVERYTHING
    assert complaints(c) == []


@clause(v5=SIZES)
def test_nothing_optional_makes_a_packet_too_large(make_world: MakeWorld) -> None:
    """With as much room as CONNACK needs, and no more, the same packets come: only shorter."""
    w = make_world(ask_authenticate=True, ask_publish=True)
    generous = provoke(w, {})
    limit = max(size for first, _, size in split(generous.output) if first >> 4 == CONNACK)
    tight = provoke(w, {MAXIMUM_PACKET_SIZE: limit})
    assert kinds(tight) == EVERYTHING
    assert max(size for _, _, size in split(tight.output)) <= limit
    assert complaints(tight) == []


@clause(v5="3.1.2-29")
def test_without_problem_information_reasons_are_told_in_connack_and_disconnect_only(make_world: MakeWorld) -> None:
    w = make_world(ask_authenticate=True, ask_publish=True)
    c = provoke(w, {REQUEST_PROBLEM_INFORMATION: 0})
    packets = c.receive()
    assert len(packets) == len(EVERYTHING)
    for packet in packets:
        if packet.type in ANSWERS or isinstance(packet, Auth):
            assert not {REASON_STRING, USER_PROPERTY} & set(getattr(packet, "properties", {})), packet


@clause(v5="3.14.2-3")
def test_a_disconnect_says_why_where_there_is_room(w: World) -> None:
    for limit, told in ((0, True), (30, False)):
        c = w.connect(client_id="a", properties={MAXIMUM_PACKET_SIZE: limit} if limit else {})
        c.send(b"\x00\x00")
        (packet,) = c.receive()
        assert isinstance(packet, Disconnect)
        assert (REASON_STRING in packet.properties) == told


@clause(v5="1.5.5-1")
@pytest.mark.parametrize("size", [100, 122, 123, 124, 125, 16_377, 16_378, 16_379, 16_380, 16_381])
def test_lengths_take_the_fewest_bytes(w: World, size: int) -> None:
    sub = subscriber(w, "t")
    deliver(w.connect(client_id="pub"), "t", b"x" * size)
    assert sub.output.endswith(publish_frame("t", b"x" * size))
    assert complaints(sub) == []


# -- the audit sees what is wrong


@dataclass
class Written:
    output: bytes
    version: int = 5
    max_packet: int = 0


ACCEPTED = b"\x20\x03\0\0\0"
ACCEPTED_V3 = b"\x20\x02\0\0"


@pytest.mark.parametrize(
    ("version", "written", "complaint"),
    [
        (5, b"\xd0\0", "before CONNACK"),
        (5, ACCEPTED * 2, "more than one CONNACK"),
        (5, b"\x20\x03\0\x87\0\xd0\0", "after the last word"),
        (4, b"\x20\x02\0\x05\xd0\0", "after the last word"),
        (5, ACCEPTED + b"\xe0\0\xd0\0", "after the last word"),
        (5, b"\xe0\0", "before CONNACK"),
        (5, b"\x20\x03\2\0\0", "reserved CONNACK flags"),
        (5, b"\x20\x03\1\x87\0", "session present"),
        (5, b"\x20\x03\0\x8e\0", "reason code 0x8e"),
        (4, b"\x20\x02\0\x06", "reason code 0x06"),
        (5, ACCEPTED + b"\x40\x03\0\1\x92", "reason code 0x92"),
        (5, ACCEPTED + b"\x50\x03\0\1\x92", "reason code 0x92"),
        (5, ACCEPTED + b"\x62\x03\0\1\x91", "reason code 0x91"),
        (5, ACCEPTED + b"\x70\x03\0\1\x80", "reason code 0x80"),
        (5, ACCEPTED + b"\x90\x04\0\1\0\x03", "reason code 0x03"),
        (4, ACCEPTED_V3 + b"\x90\x03\0\1\x87", "reason code 0x87"),
        (5, ACCEPTED + b"\xb0\x04\0\1\0\x92", "reason code 0x92"),
        (5, ACCEPTED + b"\xe0\x01\x04", "reason code 0x04"),
        (5, b"\xf0\x02\x01\0", "reason code 0x01"),
        (5, ACCEPTED + b"\xe0\x07\0\x05\x11\0\0\0\1", "property 0x11"),
        (5, ACCEPTED + b"\x40\x07\0\1\0\x03\x21\0\1", "property 0x21"),
        (5, ACCEPTED + b"\xe0\x0a\0\x08\x1f\0\1a\x1f\0\1a", "repeated"),
        (4, ACCEPTED_V3 + b"\xe0\0", "not for a server to send"),
        (4, ACCEPTED_V3 + b"\x40\x03\0\1\0", "before MQTT 5"),
        (5, ACCEPTED + b"\xc0\0", "not for a server to send"),
        (5, ACCEPTED + b"\xd1\0", "flags 0001"),
        (5, ACCEPTED + b"\x60\x02\0\1", "flags 0000"),
        (5, ACCEPTED + b"\x40\x02\0\0", "packet identifier 0"),
        (5, ACCEPTED + b"\x38\x04\0\1t\0", "DUP with QoS 0"),
        (5, ACCEPTED + b"\x36\x06\0\1t\0\1\0", "QoS 3"),
        (5, ACCEPTED + b"\x32\x06\0\1t\0\0\0", "packet identifier 0"),
        (5, ACCEPTED + b"\x30\x04\0\1#\0", "topic name"),
        (5, ACCEPTED + b"\x30\x03\0\0\0", "neither topic nor alias"),
        (4, ACCEPTED_V3 + b"\x30\x02\0\0", "empty topic"),
        (5, ACCEPTED + b"\xd0\x80\0", "longer than needed"),
        (5, ACCEPTED + b"\xd0", "unreadable"),
        (5, ACCEPTED + b"\x30\x08\0\1t\0", "cut short"),
    ],
)
def test_the_audit_sees(version: int, written: bytes, complaint: str) -> None:
    found = complaints(Written(written, version))
    assert len(found) == 1 and complaint in found[0], found


def test_the_audit_sees_what_is_too_large_and_passes_what_is_not() -> None:
    assert complaints(Written(ACCEPTED + b"\xd0\0", max_packet=5)) == []
    assert complaints(Written(ACCEPTED + b"\xd0\0", max_packet=4)) != []
    assert complaints(Written(b"\xf0\x07\x18\x05\x15\0\2ab" + ACCEPTED)) == []
    assert complaints(Written(b"")) == []
    assert varint(b"\x80\x01", 0) == (128, 2)


def test_the_audit_agrees_with_the_codec_on_a_message_with_everything(w: World) -> None:
    sub = subscriber(w, "t", qos=2)
    c = w.connect(client_id="pub")
    c.send(Publish(b"t", b"m", qos=1, packet_id=1, expiry=9, properties=b"\x01\x01\x03\0\1a\x26\0\1k\0\1v"))
    assert complaints(sub) == []
    assert split(sub.output)[-1][0] >> 4 == 3
