"""For every legal packet, encoding and decoding gives the same packet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from starlingmq.wire.mqtt import (
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
    Will,
    ack_frame,
    decode,
    encode,
    frame_length,
    packet_id_bytes,
    publish_frame,
    publish_parts,
)
from starlingmq.wire.primitives import decode_varint, encode_varint
from starlingmq.wire.properties import (
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    Properties,
    PropertyValue,
    decode_properties,
    decode_property_bytes,
    encode_properties,
    encode_property_bytes,
    publish_properties,
    split_publish_properties,
)
from starlingmq.wire.reasons import MalformedPacket, MqttError, Reason, connack_return_code
from tests.few import drawn

from .case_builders import WILL, frame, s, sized
from .cases import ACK_CODES, DISCONNECT_CODES
from .property_cases import FORWARDED, PROPERTIES

T = TypeVar("T")

# The time of an example is not tested: a busy machine must not fail.
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

enough = drawn(25, 200)  # to draw a packet takes longer than to check it


def holds(examples: int, strategy: SearchStrategy[T], check: Callable[[T], None]) -> None:
    settings(relaxed, max_examples=examples)(given(strategy)(check))()


VERSIONS = st.sampled_from((3, 4, 5))
PACKET_IDS = st.integers(1, 65535)
QOS = st.integers(0, 2)
BLOCKS = st.binary(max_size=300)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
TOPICS = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=40).map(str.encode)
FILTERS = TEXT.map(str.encode)
PAIRS = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4)
SUBSCRIPTION_IDS = st.lists(st.integers(1, 268_435_455), min_size=1, max_size=4)


def value_of(identifier: int) -> SearchStrategy[PropertyValue]:
    """Return any legal value of the kind of the example in the table of cases."""
    _, raw, example, _ = PROPERTIES[identifier]
    if identifier == 0x0B:
        return SUBSCRIPTION_IDS
    if identifier == 0x26:
        return PAIRS
    if identifier == 0x08:
        return TOPICS.map(bytes.decode)
    if isinstance(example, str):
        return TEXT
    if isinstance(example, bytes):
        return BLOCKS
    least = 1 if identifier in (0x21, 0x23, 0x27) else 0
    return st.integers(least, 1 if len(raw) == 1 else 256 ** len(raw) - 1)


def properties_of(packet: int, but: tuple[int, ...] = ()) -> SearchStrategy[Properties]:
    legal = [i for i in PROPERTIES if packet in PROPERTIES[i][3] and i not in but]
    return st.fixed_dictionaries({}, optional={i: value_of(i) for i in legal}).map(lambda p: dict(p.items()))


def since_5(version: int, strategy: SearchStrategy[T], before: T) -> SearchStrategy[T]:
    return strategy if version == 5 else st.just(before)


def having(version: int, packet: int, but: tuple[int, ...] = ()) -> SearchStrategy[Properties]:
    return since_5(version, properties_of(packet, but), {})


def wills(version: int) -> SearchStrategy[Will | None]:
    return st.none() | st.builds(Will, TOPICS, BLOCKS, QOS, st.booleans(), having(version, WILL))


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    properties = draw(having(version, 1))
    if AUTHENTICATION_METHOD not in properties:
        properties.pop(AUTHENTICATION_DATA, None)
    username = draw(st.none() | TEXT)
    password = draw(st.none() | BLOCKS) if version == 5 or username is not None else None
    will = draw(wills(version))
    keep_alive = draw(st.integers(0, 65535))
    name, clean_start, bridge = draw(TEXT), draw(st.booleans()), draw(st.booleans())
    return Connect(
        version, name, clean_start, keep_alive, username, password, will, properties=properties, bridge=bridge
    )


@st.composite
def publishes(draw: st.DrawFn, version: int) -> Publish:
    qos = draw(QOS)
    packet = Publish(draw(TOPICS), draw(BLOCKS), qos, draw(st.booleans()))
    if qos:
        packet.dup = draw(st.booleans())
        packet.packet_id = draw(PACKET_IDS)
    if version == 5:
        packet.properties = encode_property_bytes(draw(properties_of(PUBLISH, (0x02, 0x0B, 0x23))))
        packet.expiry = draw(st.integers(-1, 0xFFFFFFFF))
        packet.topic_alias = draw(st.integers(0, 65535))
        packet.subscription_ids = draw(st.none() | SUBSCRIPTION_IDS)
    return packet


def acks(version: int) -> SearchStrategy[Ack]:
    def of(kind: int) -> SearchStrategy[Ack]:
        reason = since_5(version, st.sampled_from(ACK_CODES[kind]), 0)
        return st.builds(Ack, st.just(kind), PACKET_IDS, reason, having(version, kind))

    return st.sampled_from((PUBACK, PUBREC, PUBREL, PUBCOMP)).flatmap(of)


def subscribes(version: int) -> SearchStrategy[Subscribe]:
    no = since_5(version, st.booleans(), False)
    line = st.builds(SubscribeRequest, FILTERS, QOS, no, no, since_5(version, st.integers(0, 2), 0))
    lines = st.lists(line, min_size=1, max_size=4)
    one_id = st.integers(1, 268_435_455).map(lambda i: [i])
    plain = having(version, 8, (0x0B,))
    numbered = st.builds(lambda p, i: {**p, 0x0B: i}, plain, one_id)
    return st.builds(Subscribe, PACKET_IDS, lines, plain | since_5(version, numbered, {}))


def auths() -> SearchStrategy[Packet]:
    properties = st.builds(lambda p, m: {**p, AUTHENTICATION_METHOD: m}, properties_of(15), TEXT)
    return st.builds(Auth, st.sampled_from((0, 0x18, 0x19)), properties) | st.just(Auth())


def packets(version: int) -> SearchStrategy[Packet]:
    refusal = st.sampled_from((0x80, 0x84, 0x87, 0x9F)) if version == 5 else st.integers(1, 5)
    granted = st.lists(st.sampled_from((0, 1, 2, 0x80)), min_size=1, max_size=5)
    removed = since_5(version, st.lists(st.sampled_from((0, 0x11, 0x80)), min_size=1, max_size=5), [])
    reason = since_5(version, st.sampled_from(sorted(DISCONNECT_CODES)), 0)
    choices: list[SearchStrategy[Packet]] = [
        connects(version),
        st.builds(Connack, st.booleans(), st.just(0), having(version, 2)),
        st.builds(Connack, st.just(False), refusal, having(version, 2)),
        publishes(version),
        acks(version),
        subscribes(version),
        st.builds(Suback, PACKET_IDS, granted, having(version, 9)),
        st.builds(Unsubscribe, PACKET_IDS, st.lists(FILTERS, min_size=1, max_size=4), having(version, 10)),
        st.builds(Unsuback, PACKET_IDS, removed, having(version, 11)),
        st.builds(Disconnect, reason, having(version, 14)),
    ]
    return st.one_of([*choices, auths()] if version == 5 else choices)


PACKETS: SearchStrategy[tuple[int, Packet]] = VERSIONS.flatmap(lambda v: st.tuples(st.just(v), packets(v)))


def read(data: bytes, pos: int, version: int) -> tuple[Packet, int]:
    end = pos + frame_length(data, pos)
    start = pos + 2
    while data[start - 1] & 128:
        start += 1
    return decode(data[pos], data, start, end, version), end


@enough
def test_packets_are_read_as_written_and_print_as_what_makes_them(examples: int) -> None:
    def check(case: tuple[int, Packet]) -> None:
        version, packet = case
        raw = encode(packet, version)
        assert read(raw, 0, version) == (packet, len(raw))
        assert eval(repr(packet), globals()) == packet

    holds(examples, PACKETS, check)


@enough
def test_streams(examples: int) -> None:
    def check(case: tuple[int, list[Packet]]) -> None:
        version, sent = case
        data = b"".join(encode(packet, version) for packet in sent)
        got, pos = [], 0
        while pos < len(data):
            packet, pos = read(data, pos, version)
            got.append(packet)
        assert got == sent

    holds(examples, VERSIONS.flatmap(lambda v: st.tuples(st.just(v), st.lists(packets(v), max_size=6))), check)


@enough
def test_parts_make_the_frame(examples: int) -> None:
    def check(case: tuple[Publish, int]) -> None:
        p, version = case
        qos = p.qos or 1
        head, tail = publish_parts(p.topic, p.payload, qos, p.retain, version, p.properties)
        pid = packet_id_bytes(p.packet_id or 1)
        whole = publish_frame(p.topic, p.payload, qos, p.retain, False, p.packet_id or 1, version, p.properties)
        assert head + pid + tail == whole

    holds(examples, st.tuples(publishes(5), VERSIONS), check)


def test_writers_at_every_length() -> None:
    """A fast path ends where a length grows by a byte, so lengths around each such boundary are encoded."""
    sizes = [*range(1, 300), *range(16_370, 16_390)]
    for size in sizes:
        for topic, payload in ((b"t" * size, b"p"), (b"t", b"p" * size)):
            for version, none in ((4, b""), (5, b"\0")):
                plain = frame(0x31, s(topic), none, payload)
                numbered = frame(0x34, s(topic), "1234", none, payload)
                assert publish_frame(topic, payload, 0, True, False, 0, version, b"") == plain
                assert publish_frame(topic, payload, 2, False, False, 0x1234, version, b"") == numbered
                head, tail = publish_parts(topic, payload, 2, False, version, b"")
                assert head + b"\x12\x34" + tail == numbered
        raw = b"\x26" + s(b"n" * size) + s("v")
        assert publish_frame(b"t", b"p", 0, False, False, 0, 5, raw) == frame(0x30, s("t"), sized(raw), b"p")


@relaxed
@given(st.sampled_from((PUBACK, PUBREC, PUBREL, PUBCOMP)), PACKET_IDS, VERSIONS)
def test_short_acks(kind: int, packet_id: int, version: int) -> None:
    first = kind << 4 | (2 if kind == PUBREL else 0)
    assert ack_frame(first, packet_id) == encode(Ack(kind, packet_id), version)


@relaxed
@given(st.integers(0, 268_435_455))
def test_varints(value: int) -> None:
    raw = encode_varint(value)
    assert len(raw) == 1 + (value >= 128) + (value >= 16_384) + (value >= 2_097_152)  # [MQTT-1.5.5-1]
    assert decode_varint(b"\xff" + raw + b"\xff", 1, 1 + len(raw)) == (value, 1 + len(raw))
    with pytest.raises(MalformedPacket):
        decode_varint(raw, 0, len(raw) - 1)


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (2_097_151, "ffff7f"),
        (2_097_152, "80808001"),
        (268_435_455, "ffffff7f"),
    ],
)
def test_varints_of_the_specification(value: int, raw: str) -> None:
    assert encode_varint(value) == bytes.fromhex(raw)


def test_oversized_fields_are_refused() -> None:
    with pytest.raises(MalformedPacket):
        encode_varint(268_435_456)
    with pytest.raises(MalformedPacket):
        publish_frame(bytes(65_536), b"", 0, False, False, 0, 4, b"")
    with pytest.raises(MalformedPacket):
        publish_parts(bytes(65_536), b"", 1, False, 5, b"")
    with pytest.raises(MalformedPacket):
        encode(Connect(4, "x" * 65_536), 4)


@enough
def test_properties(examples: int) -> None:
    def check(case: tuple[int, Properties]) -> None:
        packet, properties = case
        if packet == 8 and 0x0B in properties:
            properties[0x0B] = [7]
        raw = encode_properties(properties)
        assert decode_properties(b"\1" + raw + b"\1", 1, 1 + len(raw), packet) == (properties, 1 + len(raw))

    holds(
        examples,
        st.sampled_from([WILL, *range(1, 12), 14, 15]).flatmap(lambda k: st.tuples(st.just(k), properties_of(k))),
        check,
    )


PUBLISH_PROPERTIES = [i for i in PROPERTIES if PUBLISH in PROPERTIES[i][3]]


def one_property(identifier: int) -> SearchStrategy[bytes]:
    return value_of(identifier).map(lambda value: encode_property_bytes({identifier: value}))


SECTIONS = st.lists(st.sampled_from(PUBLISH_PROPERTIES).flatmap(one_property) | st.binary(max_size=3), max_size=6)


@enough
def test_splitting_agrees_with_decoding(examples: int) -> None:
    """The fast parser of PUBLISH properties against the plain one: same values, or the same refusal."""

    def check(pieces: list[bytes]) -> None:
        raw = b"".join(pieces)
        try:
            properties: Properties | int = decode_property_bytes(raw)
        except MqttError as error:
            properties = error.reason
        try:
            forwarded, expiry, alias, ids = split_publish_properties(b"\1" + raw + b"\1", 1, 1 + len(raw))
        except MqttError as error:
            assert error.reason == properties
            return
        assert isinstance(properties, dict)
        assert expiry == properties.pop(0x02, -1)
        assert alias == properties.pop(0x23, 0)
        assert ids == properties.pop(0x0B, None)
        assert decode_property_bytes(forwarded) == properties
        assert set(properties) <= FORWARDED
        again = publish_properties(forwarded, expiry, alias, ids)
        assert split_publish_properties(again, 0, len(again)) == (forwarded, expiry, alias, ids)

    holds(examples, SECTIONS, check)


@relaxed
@given(
    st.lists(st.sampled_from(sorted(FORWARDED)), unique=True).flatmap(lambda ids: st.tuples(*map(one_property, ids)))
)
def test_forwarded_properties_are_not_touched(pieces: tuple[bytes, ...]) -> None:
    """Byte for byte and in order [MQTT-3.3.2-17] [MQTT-3.3.2-18], wherever the others stand between them."""
    hop_only = (b"\x02\0\0\0\1", b"\x23\0\1", b"\x0b\1", b"\x0b\2")
    mixed = b"".join(a + b for a, b in zip(pieces, hop_only, strict=False)) + b"".join(pieces[len(hop_only) :])
    assert split_publish_properties(mixed, 0, len(mixed))[0] == b"".join(pieces)


def test_values_of_the_wrong_kind() -> None:
    for identifier, wrong in ((0x03, 1), (0x09, "text"), (0x21, b"12"), (0x26, [1]), (0x0B, [("a", "b")]), (0x23, [1])):
        with pytest.raises(TypeError):
            encode_property_bytes({identifier: wrong})
    with pytest.raises(MalformedPacket):
        encode_property_bytes({0x7E: 1})


def test_return_codes_of_3_1_1() -> None:
    codes = {reason: connack_return_code(reason) for reason in Reason}
    assert {code for code in codes.values() if code >= 0} == {0, 1, 2, 3, 4, 5}
    assert codes[Reason.SUCCESS] == 0
    assert codes[Reason.UNSUPPORTED_PROTOCOL_VERSION] == 1
    assert codes[Reason.CLIENT_IDENTIFIER_NOT_VALID] == 2
    assert codes[Reason.SERVER_UNAVAILABLE] == 3
    assert codes[Reason.BAD_USER_NAME_OR_PASSWORD] == 4
    assert codes[Reason.NOT_AUTHORIZED] == 5
    assert codes[Reason.PROTOCOL_ERROR] == -1


def test_records_of_different_kinds_differ() -> None:
    assert Unsubscribe(1, [b"a"]) != Subscribe(1, [SubscribeRequest(b"a")])
    assert Disconnect() != Auth()
    assert Ack(PUBACK, 1) != Ack(PUBREC, 1)
    assert Disconnect() != 0
    assert str(MalformedPacket("why")) == "why (reason 0x81)"
