"""The one table of MQTT wire cases: frames, and the packet or the reason code they must come to.

Frames are written as pieces: a ``str`` is hexadecimal, ``bytes`` stand for themselves, ``s(...)`` is a field with its
two length bytes. ``frame`` puts first byte and remaining length before them; cases about these write them out.
Expected values come from the specifications, never from the codec.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from starlingmq.wire.mqtt import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from starlingmq.wire.properties import PropertyValue

MALFORMED = 0x81
PROTOCOL = 0x82
VERSION = 0x84
TOPIC = 0x90
ALIAS = 0x94

WILL = 0


class Case(NamedTuple):
    """``packet`` is None for a frame that must be refused with ``reason``. ``canonical``: encoding gives this frame."""

    name: str
    frame: bytes
    version: int
    packet: Packet | None
    reason: int = 0
    canonical: bool = True


def joined(*pieces: str | bytes) -> bytes:
    return b"".join(bytes.fromhex(piece) if isinstance(piece, str) else piece for piece in pieces)


def s(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return len(raw).to_bytes(2, "big") + raw


def sized(body: bytes) -> bytes:
    """``body`` with its length as a variable byte integer before it."""
    length, out = len(body), b""
    while True:
        length, digit = divmod(length, 128)
        out += bytes((digit | (128 if length else 0),))
        if not length:
            return out + body


def frame(first: int, *pieces: str | bytes) -> bytes:
    return bytes((first,)) + sized(joined(*pieces))


def props(*pieces: str | bytes) -> bytes:
    return sized(joined(*pieces))


def good(name: str, version: int, raw: bytes, packet: Packet) -> Case:
    return Case(f"{name} v{version}", raw, version, packet)


def other(name: str, version: int, raw: bytes, packet: Packet) -> Case:
    """Legal, but not the form we write."""
    return Case(f"{name} v{version}", raw, version, packet, canonical=False)


def bad(name: str, version: int, raw: bytes, reason: int = MALFORMED) -> Case:
    return Case(f"{name} v{version}", raw, version, None, reason)


# --- properties ---------------------------------------------------------------------------------------------------

# MQTT 5, table 2-4: id -> name, an encoded value, what it means, the packets it is for.
ACKS = {PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK}
EVERYWHERE = {WILL, CONNECT, CONNACK, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT, AUTH} | ACKS
PROPERTIES: dict[int, tuple[str, bytes, PropertyValue, set[int]]] = {
    0x01: ("payload format indicator", joined("01"), 1, {PUBLISH, WILL}),
    0x02: ("message expiry interval", joined("00000e10"), 3600, {PUBLISH, WILL}),
    0x03: ("content type", s("text/plain"), "text/plain", {PUBLISH, WILL}),
    0x08: ("response topic", s("réponse/1"), "réponse/1", {PUBLISH, WILL}),
    0x09: ("correlation data", s(b"\0\xff"), b"\0\xff", {PUBLISH, WILL}),
    0x0B: ("subscription identifier", joined("ffffff7f"), [268_435_455], {PUBLISH, SUBSCRIBE}),
    0x11: ("session expiry interval", joined("ffffffff"), 0xFFFFFFFF, {CONNECT, CONNACK, DISCONNECT}),
    0x12: ("assigned client identifier", s("auto-1"), "auto-1", {CONNACK}),
    0x13: ("server keep alive", joined("003c"), 60, {CONNACK}),
    0x15: ("authentication method", s("SCRAM"), "SCRAM", {CONNECT, CONNACK, AUTH}),
    0x16: ("authentication data", s(b"\1\2"), b"\1\2", {CONNECT, CONNACK, AUTH}),
    0x17: ("request problem information", joined("00"), 0, {CONNECT}),
    0x18: ("will delay interval", joined("00000005"), 5, {WILL}),
    0x19: ("request response information", joined("01"), 1, {CONNECT}),
    0x1A: ("response information", s("answers/"), "answers/", {CONNACK}),
    0x1C: ("server reference", s("b.example:1883"), "b.example:1883", {CONNACK, DISCONNECT}),
    0x1F: ("reason string", s("because"), "because", ACKS | {CONNACK, DISCONNECT, AUTH}),
    0x21: ("receive maximum", joined("ffff"), 65535, {CONNECT, CONNACK}),
    0x22: ("topic alias maximum", joined("0000"), 0, {CONNECT, CONNACK}),
    0x23: ("topic alias", joined("0001"), 1, {PUBLISH}),
    0x24: ("maximum qos", joined("01"), 1, {CONNACK}),
    0x25: ("retain available", joined("00"), 0, {CONNACK}),
    0x26: ("user property", s("ключ") + s(""), [("ключ", "")], EVERYWHERE),
    0x27: ("maximum packet size", joined("00000001"), 1, {CONNECT, CONNACK}),
    0x28: ("wildcard subscription available", joined("01"), 1, {CONNACK}),
    0x29: ("subscription identifier available", joined("00"), 0, {CONNACK}),
    0x2A: ("shared subscription available", joined("01"), 1, {CONNACK}),
}
# Forwarded by a server as they are; the other properties of a PUBLISH become fields of the packet.
FORWARDED = {0x01, 0x03, 0x08, 0x09, 0x26}


def carrier(packet: int, raw: bytes, values: dict[int, PropertyValue]) -> tuple[bytes, Packet]:
    """A frame of type ``packet`` (WILL: a CONNECT with a will) with the encoded properties ``raw``, and its meaning."""
    p = sized(raw)
    if packet == WILL:
        body = ("0004", b"MQTT", "05 04 0000", "00", s("c"), p, s("w"), s("bye"))
        return frame(0x10, *body), Connect(
            5, "c", clean_start=False, will=Will(b"w", b"bye", properties=values), properties={}
        )
    if packet == CONNECT:
        return frame(0x10, "0004", b"MQTT", "05 02 000a", p, s("c")), Connect(5, "c", True, 10, properties=values)
    if packet == CONNACK:
        return frame(0x20, "00 00", p), Connack(False, 0, values)
    if packet == PUBLISH:
        return frame(0x30, s("t"), p, b"x"), publish_of(raw, values)
    if packet in (PUBACK, PUBREC):
        return frame(packet << 4, "0007 10", p), Ack(packet, 7, 0x10, values)
    if packet in (PUBREL, PUBCOMP):
        return frame(packet << 4 | (2 if packet == PUBREL else 0), "0007 92", p), Ack(packet, 7, 0x92, values)
    if packet == SUBSCRIBE:
        return frame(0x82, "0007", p, s("f"), "01"), Subscribe(7, [SubscribeRequest(b"f", 1)], values)
    if packet == SUBACK:
        return frame(0x90, "0007", p, "01"), Suback(7, [1], values)
    if packet == UNSUBSCRIBE:
        return frame(0xA2, "0007", p, s("f")), Unsubscribe(7, [b"f"], values)
    if packet == UNSUBACK:
        return frame(0xB0, "0007", p, "11"), Unsuback(7, [0x11], values)
    if packet == DISCONNECT:
        return frame(0xE0, "04", p), Disconnect(4, values)
    return frame(0xF0, "18", p), Auth(0x18, values)


def publish_of(raw: bytes, values: dict[int, PropertyValue]) -> Publish:
    """What a PUBLISH with one property, or with FORWARDED ones only, comes to."""
    packet = Publish(b"t", b"x", properties=raw if set(values) <= FORWARDED else b"")
    expiry, alias, ids = values.get(0x02), values.get(0x23), values.get(0x0B)
    packet.expiry = expiry if isinstance(expiry, int) else -1
    packet.topic_alias = alias if isinstance(alias, int) else 0
    packet.subscription_ids = [i for i in ids if isinstance(i, int)] if isinstance(ids, list) else None
    return packet


def encoded(*identifiers: int) -> bytes:
    return b"".join(bytes((i,)) + PROPERTIES[i][1] for i in identifiers)


def property_cases() -> Iterator[Case]:
    """Every property in every packet: accepted where it belongs, refused elsewhere."""
    for identifier, (name, _, value, packets) in PROPERTIES.items():
        for packet in sorted(EVERYWHERE):
            legal = packet in packets
            # An AUTH must name its method, and data need one (3.1.2.11.10, 3.15.2.2.2).
            needs_method = identifier != 0x15 and (packet == AUTH or (packet == CONNECT and identifier == 0x16))
            method = (0x15,) if needs_method and legal else ()
            values: dict[int, PropertyValue] = {i: PROPERTIES[i][2] for i in method}
            if legal:
                values[identifier] = value
            raw, meaning = carrier(packet, encoded(*method, identifier), values)
            title = f"{name} in {'will' if packet == WILL else f'packet type {packet}'}"
            yield good(title, 5, raw, meaning) if legal else bad(title, 5, raw)
            if legal and identifier != 0x26 and not (identifier == 0x0B and packet == PUBLISH):
                twice, _ = carrier(packet, encoded(*method, identifier, identifier), {})
                yield bad(f"{title} twice", 5, twice, PROTOCOL)


def all_properties_cases() -> Iterator[Case]:
    """Each packet with everything it can have at once, user properties repeated."""
    users = encoded(0x26) + b"\x26" + s("a") + s("b") + encoded(0x26)
    for packet in sorted(EVERYWHERE - {PUBLISH}):
        legal = [i for i in PROPERTIES if packet in PROPERTIES[i][3] and i != 0x26]
        values: dict[int, PropertyValue] = {i: PROPERTIES[i][2] for i in legal}
        values[0x26] = [("ключ", ""), ("a", "b"), ("ключ", "")]
        yield good(f"all properties of packet type {packet}", 5, *carrier(packet, encoded(*legal) + users, values))


def publish_property_cases() -> Iterator[Case]:
    forwarded = encoded(0x26, 0x01, 0x03, 0x26, 0x08, 0x09, 0x26)
    hop = encoded(0x02, 0x23, 0x0B) + b"\x0b\x05" + b"\x0b\x05"
    meaning = Publish(b"t", b"x", 2, True, True, 9, forwarded, 3600, 1, [268_435_455, 5, 5])
    yield good("all properties of PUBLISH", 5, frame(0x3D, s("t"), "0009", props(forwarded, hop), b"x"), meaning)
    mixed = encoded(0x26, 0x01, 0x02, 0x03, 0x23, 0x26, 0x08, 0x0B, 0x09) + b"\x0b\x05" + encoded(0x26) + b"\x0b\x05"
    yield other("all properties of PUBLISH mixed", 5, frame(0x3D, s("t"), "0009", props(mixed), b"x"), meaning)
    yield good(
        "alias instead of topic", 5, frame(0x30, s(""), props("23 ffff"), b"x"), Publish(b"", b"x", topic_alias=65535)
    )
    yield good("expiry of zero", 5, frame(0x30, s("t"), props("02 00000000")), Publish(b"t", expiry=0))
    long = encoded(0x26) * 20
    yield good("property length of two bytes", 5, frame(0x30, s("t"), props(long)), Publish(b"t", properties=long))


def carried(packet: int, raw: bytes) -> bytes:
    return carrier(packet, raw, {})[0]


def bad_property_cases() -> Iterator[Case]:
    yield from bad_value_cases()
    yield from bad_identifier_cases()
    yield from bad_property_text_cases()
    yield from bad_property_length_cases()


def bad_value_cases() -> Iterator[Case]:
    for name, value, packet, reason in (
        ("subscription identifier", "0b 00", SUBSCRIBE, PROTOCOL),
        ("subscription identifier", "0b 00", PUBLISH, PROTOCOL),
        ("receive maximum", "21 0000", CONNECT, PROTOCOL),
        ("receive maximum", "21 0000", CONNACK, PROTOCOL),
        ("maximum packet size", "27 00000000", CONNECT, PROTOCOL),
        ("maximum packet size", "27 00000000", CONNACK, PROTOCOL),
        ("topic alias", "23 0000", PUBLISH, ALIAS),
    ):
        yield bad(f"{name} zero in packet type {packet}", 5, carried(packet, joined(value)), reason)
    for identifier in (0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A):
        for packet in sorted(PROPERTIES[identifier][3]):
            for digit in (2, 255):
                title = f"{PROPERTIES[identifier][0]} {digit} in packet type {packet}"
                yield bad(title, 5, carried(packet, bytes((identifier, digit))), PROTOCOL)
    for topic in ("", "a/+", "#", "a/#/b", "a+"):
        for packet in (PUBLISH, WILL):
            title = f"response topic {topic!r} in packet type {packet}"
            yield bad(title, 5, carried(packet, b"\x08" + s(topic)), PROTOCOL)
    yield bad("authentication data without method in CONNECT", 5, carried(CONNECT, encoded(0x16)), PROTOCOL)


def bad_identifier_cases() -> Iterator[Case]:
    for packet in sorted(EVERYWHERE):
        for identifier in sorted(set(range(256)) - set(PROPERTIES)):
            title = f"unknown property {identifier} in packet type {packet}"
            yield bad(title, 5, carried(packet, bytes((identifier, 0, 0))))
        long = carried(packet, joined("a6 00", s("a"), s("b")))
        yield bad(f"long form of a property identifier in packet type {packet}", 5, long)


def bad_property_text_cases() -> Iterator[Case]:
    for text in BAD_TEXT:
        for packet, identifier in ((PUBLISH, 0x03), (PUBLISH, 0x08), (CONNECT, 0x15), (DISCONNECT, 0x1F)):
            title = f"{PROPERTIES[identifier][0]} {text!r} in packet type {packet}"
            yield bad(title, 5, carried(packet, bytes((identifier,)) + s(text)))
        for packet in (PUBLISH, CONNECT, WILL, PUBACK):
            title = f"{text!r} in packet type {packet}"
            yield bad(f"user property name {title}", 5, carried(packet, b"\x26" + s(text) + s("v")))
            yield bad(f"user property value {title}", 5, carried(packet, b"\x26" + s("n") + s(text)))


def bad_property_length_cases() -> Iterator[Case]:
    for identifier, (name, value, _, packets) in PROPERTIES.items():
        for packet in sorted(packets):
            for cut in range(len(value)):
                title = f"{name} cut after {cut} in packet type {packet}"
                yield bad(title, 5, carried(packet, bytes((identifier,)) + value[:cut]))
    yield bad("five byte subscription identifier", 5, carried(SUBSCRIBE, joined("0b 8080808001")))
    yield bad("five byte subscription identifier in PUBLISH", 5, carried(PUBLISH, joined("0b 8080808001")))
    yield bad("property length beyond PUBLISH", 5, frame(0x30, s("t"), "05 01 01"))
    yield bad("property length missing in PUBLISH", 5, frame(0x30, s("t")))
    yield bad("property length of five bytes in PUBLISH", 5, frame(0x30, s("t"), "8080808000"))
    yield bad("property length unfinished in PUBLISH", 5, frame(0x30, s("t"), "80"))
    yield bad("long form of property length 3", 5, frame(0x30, s("t"), "83 80 00 23 0001"))
    for form in ("80 00", "80 80 00", "80 80 80 00"):
        yield bad(f"property length {form} in PUBLISH", 5, frame(0x30, s("t"), form))
        yield bad(f"property length {form} in PUBACK", 5, frame(0x40, "0001 00", form))
        yield bad(f"property length {form} in SUBSCRIBE", 5, frame(0x82, "0001", form, s("t"), "00"))
        yield bad(f"property length {form} in CONNECT", 5, frame(0x10, "0004", b"MQTT", "05 02 0000", form, s("c")))
        raw = "0b" + form.replace("80", "81", 1)
        yield bad(f"subscription identifier {form}", 5, carried(SUBSCRIBE, joined(raw)))
        yield bad(f"subscription identifier {form} in PUBLISH", 5, carried(PUBLISH, joined(raw)))
    yield bad("property length beyond PUBACK", 5, frame(0x40, "0001 00 01"))
    yield bad("property length missing in SUBSCRIBE", 5, frame(0x82, "0001"))
    yield bad("property length beyond CONNECT", 5, frame(0x10, "0004", b"MQTT", "05 02 0000 7f", s("c")))


# MQTT 5, 1.5.4: a lone continuation, overlong forms, a surrogate, beyond U+10FFFF, an unfinished sequence, U+0000.
BAD_TEXT = (b"\x80", b"\xc0\xaf", b"\xe0\x80\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\xe2\x82", b"\xff", b"a\0b")
# Legal though odd: U+FEFF is no byte order mark [MQTT-1.5.4-3], the last code point, a control character.
ODD_TEXT = ("\ufeffx", "\U0010ffff", "\x01", "Ω≈ç√", "\u200f")


# --- CONNECT and CONNACK ------------------------------------------------------------------------------------------

HEADS = {3: joined("0006", b"MQIsdp", "03"), 4: joined("0004", b"MQTT", "04"), 5: joined("0004", b"MQTT", "05")}


UNKNOWN_PROTOCOLS = (
    *(("MQTT", level) for level in (0, 3, 6, 0x44, 0x80, 0x83, 0x86)),
    *(("MQIsdp", level) for level in (2, 4, 5, 0x84)),
    ("mqtt", 4),
    ("MQTTX", 5),
    ("", 4),
    ("HTTP", 1),
)


def connect(version: int, flags: int, *rest: str | bytes) -> bytes:
    """A CONNECT with keep alive 60 and, in MQTT 5, no properties; ``rest`` is its payload."""
    return frame(0x10, HEADS[version], bytes((flags,)), "003c", "00" if version == 5 else "", *rest)


def connect_cases() -> Iterator[Case]:
    # The shortest CONNECT there is, written out.
    yield good("CONNECT bare", 4, joined("10 0c 0004 4d515454 04 02 0000 0000"), Connect(4))
    yield good("CONNECT bare", 3, joined("10 0f 0006 4d5149736470 03 02 0000 0001 61"), Connect(3, "a"))
    yield good("CONNECT bare", 5, joined("10 0d 0004 4d515454 05 00 ffff 00 0000"), Connect(5, "", False, 65535))
    for v in (3, 4, 5):
        none = b"\0" if v == 5 else b""
        yield good("CONNECT", v, connect(v, 0x02, s("client-1")), Connect(v, "client-1", True, 60))
        marked = HEADS[v][:-1] + bytes((0x80 | v,))  # how mosquitto marks its bridges; it is in no specification
        raw = frame(0x10, marked, "02 003c", none, s("c"))
        yield good("CONNECT of a bridge", v, raw, Connect(v, "c", True, 60, bridge=True))
        yield good("CONNECT keeps session", v, connect(v, 0x00, s("c")), Connect(v, "c", False, 60))
        yield good("CONNECT user", v, connect(v, 0x82, s("c"), s("u")), Connect(v, "c", True, 60, "u"))
        full = connect(v, 0xF6, s("c"), none, s("w/t"), s(b"\0\1"), s("üser"), s(b"\0\xff"))
        will = Will(b"w/t", b"\0\1", 2, True)
        yield good("CONNECT full", v, full, Connect(v, "c", True, 60, "üser", b"\0\xff", will))
        for qos in (0, 1, 2):
            for retain in (False, True):
                flags = 0x06 | qos << 3 | (0x20 if retain else 0)
                raw = connect(v, flags, s("c"), none, s("w"), s(""))
                yield good(
                    f"CONNECT will {qos} {retain}", v, raw, Connect(v, "c", True, 60, will=Will(b"w", b"", qos, retain))
                )
        yield good(
            "CONNECT empty user and password",
            v,
            connect(v, 0xC2, s("c"), s(""), s("")),
            Connect(v, "c", True, 60, "", b""),
        )
        for text in ODD_TEXT:
            yield good(f"CONNECT id {text!r}", v, connect(v, 0x02, s(text)), Connect(v, text, True, 60))
        long = "x" * 65535
        yield good("CONNECT longest id", v, connect(v, 0x02, s(long)), Connect(v, long, True, 60))
    yield good("CONNECT password alone", 5, connect(5, 0x42, s("c"), s("p")), Connect(5, "c", True, 60, None, b"p"))
    # MQTT 3.1: "the Remaining Length field takes precedence over the User Name flag", and the same for the password.
    yield other("CONNECT user announced only", 3, connect(3, 0x82, s("c")), Connect(3, "c", True, 60))
    yield other("CONNECT password announced only", 3, connect(3, 0xC2, s("c"), s("u")), Connect(3, "c", True, 60, "u"))


def bad_connect_cases() -> Iterator[Case]:
    for v in (3, 4, 5):
        none = b"\0" if v == 5 else b""
        yield bad("CONNECT will QoS 3", v, connect(v, 0x1E, s("c"), none, s("w"), s("")))
        for flags in (0x03, 0x0A, 0x12, 0x1A, 0x22, 0x3A):
            raw = connect(v, flags, s("c"))
            if v == 3:  # bit 0 is not used, QoS and RETAIN of a will that is not there are disregarded
                yield other(f"CONNECT flags {flags:#x}", v, raw, Connect(3, "c", True, 60, protocol_name="MQIsdp"))
            else:
                yield bad(f"CONNECT flags {flags:#x}", v, raw)
        yield bad("CONNECT empty", v, frame(0x10))
        yield bad("CONNECT without id", v, connect(v, 0x02))
        yield bad("CONNECT will missing", v, connect(v, 0x06, s("c"), none))
        yield bad("CONNECT will payload missing", v, connect(v, 0x06, s("c"), none, s("w")))
        yield bad("CONNECT with more", v, connect(v, 0x02, s("c"), b"x"))
        yield bad("CONNECT user not announced", v, connect(v, 0x02, s("c"), s("u")))
        yield bad("CONNECT id too long", v, connect(v, 0x02, "0002", b"c"))
        yield bad("CONNECT password cut", v, connect(v, 0xC2, s("c"), s("u"), "0003", b"pw"))
        for topic in ("", "#", "+", "a/+/b", "a/#"):
            raw = connect(v, 0x06, s("c"), none, s(topic), s(""))
            yield bad(f"CONNECT will topic {topic!r}", v, raw, TOPIC)
        for text in BAD_TEXT:
            yield bad(f"CONNECT id {text!r}", v, connect(v, 0x02, s(text)))
            yield bad(f"CONNECT user {text!r}", v, connect(v, 0x82, s("c"), s(text)))
            yield bad(f"CONNECT will topic {text!r}", v, connect(v, 0x06, s("c"), none, s(text), s("")))
        for flags in (1, 2, 4, 8):
            yield bad(f"CONNECT first byte {flags}", v, frame(0x10 | flags, HEADS[v], "02 0000", none, s("c")))
    for v in (3, 4):
        yield bad("CONNECT password without user", v, connect(v, 0x42, s("c"), s("p")))
    for v in (4, 5):
        yield bad("CONNECT user missing", v, connect(v, 0x82, s("c")))
        yield bad("CONNECT password missing", v, connect(v, 0xC2, s("c"), s("u")))
    for name, level in UNKNOWN_PROTOCOLS:
        raw = frame(0x10, s(name), bytes((level,)), "02 0000 00", s("c"))
        yield bad(f"CONNECT {name!r} level {level}", 5, raw, VERSION)
    yield bad("CONNECT protocol name broken", 4, frame(0x10, s(b"MQ\xffT"), "04 02 0000", s("c")))


def connack_cases() -> Iterator[Case]:
    for v in (3, 4):
        yield good("CONNACK session present", v, joined("20 02 01 00"), Connack(True))
        for code in range(6):
            yield good(f"CONNACK {code}", v, joined("20 02 00", bytes((code,))), Connack(False, code))
        yield bad("CONNACK 6", v, joined("20 02 00 06"), PROTOCOL)
        yield bad("CONNACK with more", v, joined("20 03 00 00 00"))
    yield good("CONNACK", 5, joined("20 03 01 00 00"), Connack(True))
    refusals = (*range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F)
    for code in range(256):
        raw = joined("20 03 00", bytes((code,)), "00")
        legal = code == 0 or code in refusals
        yield (
            good(f"CONNACK {code}", 5, raw, Connack(False, code)) if legal else bad(f"CONNACK {code}", 5, raw, PROTOCOL)
        )
    yield bad("CONNACK without properties", 5, joined("20 02 00 00"))
    for v in (3, 4, 5):
        none = "00" if v == 5 else ""
        yield bad("CONNACK reserved flags", v, frame(0x20, "02 00", none))
        yield bad("CONNACK empty", v, frame(0x20))
        yield bad("CONNACK without code", v, frame(0x20, "00"))
        yield bad("CONNACK session present and refused", v, frame(0x20, "01", "80" if v == 5 else "05", none), PROTOCOL)
        yield bad("CONNACK first byte", v, frame(0x22, "00 00", none))


# --- PUBLISH and its acknowledgements -----------------------------------------------------------------------------


def publish_cases() -> Iterator[Case]:
    yield good("PUBLISH written out", 4, joined("30 07 0003 612f62 6869"), Publish(b"a/b", b"hi"))
    yield good(
        "PUBLISH written out",
        5,
        joined("33 0a 0003 612f62 000a 00 6869"),
        Publish(b"a/b", b"hi", 1, True, packet_id=10),
    )
    for v in (3, 4, 5):
        none = b"\0" if v == 5 else b""
        for first in (0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x3A, 0x3B, 0x3C, 0x3D):
            qos, dup, retain = first >> 1 & 3, bool(first & 8), bool(first & 1)
            pid = b"\xff\xfe" if qos else b""
            packet = Publish(b"a/b", b"payload", qos, retain, dup, 0xFFFE if qos else 0)
            yield good(f"PUBLISH {first:#x}", v, frame(first, s("a/b"), pid, none, b"payload"), packet)
        yield good("PUBLISH without payload", v, frame(0x31, s("a"), none), Publish(b"a", retain=True))
        yield good(
            "PUBLISH QoS 1 without payload", v, frame(0x32, s("a"), "0001", none), Publish(b"a", b"", 1, packet_id=1)
        )
        for size in (0, 100, 127, 128, 255, 256, 16_383, 16_384, 65_535):
            topic, payload = b"t" * max(size, 1), b"p" * size
            yield good(f"PUBLISH topic of {size}", v, frame(0x30, s(topic), none, b"p"), Publish(topic, b"p"))
            yield good(
                f"PUBLISH payload of {size}",
                v,
                frame(0x34, s("t"), "0100", none, payload),
                Publish(b"t", payload, 2, packet_id=256),
            )
        # Topics are not looked at here, the core does that once per topic.
        for raw in (b"a/#", b"+", b"\xff", b"a\0b"):
            yield good(f"PUBLISH topic {raw!r}", v, frame(0x30, s(raw), none), Publish(raw))


def bad_publish_cases() -> Iterator[Case]:
    for v in (3, 4, 5):
        none = b"\0" if v == 5 else b""
        for first in (0x36, 0x37, 0x3E, 0x3F):
            yield bad(f"PUBLISH QoS 3 {first:#x}", v, frame(first, s("a"), "0001", none))
        for first in (0x38, 0x39):
            yield bad(f"PUBLISH QoS 0 with DUP {first:#x}", v, frame(first, s("a"), none))
        for first in (0x32, 0x34, 0x3A, 0x3C):
            yield bad(f"PUBLISH packet id 0 {first:#x}", v, frame(first, s("a"), "0000", none, b"x"), PROTOCOL)
            yield bad(f"PUBLISH packet id cut {first:#x}", v, frame(first, s("a"), "00"))
            yield bad(f"PUBLISH packet id missing {first:#x}", v, frame(first, s("a")))
        yield bad("PUBLISH empty", v, frame(0x30))
        yield bad("PUBLISH of one byte", v, frame(0x30, "00"))
        yield bad("PUBLISH topic cut", v, frame(0x30, "0005", b"abc"))
        yield bad("PUBLISH topic far too long", v, frame(0x30, "ffff", b"abc"))
        yield bad("PUBLISH topic empty", v, frame(0x30, "0000", none, b"x"), PROTOCOL)
        yield bad("PUBLISH topic empty and nothing else", v, frame(0x30, "0000", none), PROTOCOL)
        yield bad("PUBLISH QoS 1 topic empty", v, frame(0x32, "0000 0001", none), PROTOCOL)
    only_format = frame(0x30, "0000", props("01 00"), b"x")
    yield bad("PUBLISH topic empty, properties without alias", 5, only_format, PROTOCOL)


PUB_CODES = (0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)
ACK_CODES = {PUBACK: PUB_CODES, PUBREC: PUB_CODES, PUBREL: (0x00, 0x92), PUBCOMP: (0x00, 0x92)}


def ack_cases() -> Iterator[Case]:
    for kind, first in ((PUBACK, 0x40), (PUBREC, 0x50), (PUBREL, 0x62), (PUBCOMP, 0x70)):
        for v in (3, 4, 5):
            for pid in (1, 255, 256, 65535):
                yield good(f"ack {first:#x} {pid}", v, frame(first, pid.to_bytes(2, "big")), Ack(kind, pid))
            yield bad(f"ack {first:#x} packet id 0", v, frame(first, "0000"), PROTOCOL)
            yield bad(f"ack {first:#x} empty", v, frame(first))
            yield bad(f"ack {first:#x} packet id cut", v, frame(first, "01"))
            for flags in range(16):
                if flags != first & 15 and not (v == 3 and first == 0x62 and flags == 10):
                    yield bad(f"ack {first:#x} flags {flags}", v, frame(first & 0xF0 | flags, "0001"))
            if v != 5:
                yield bad(f"ack {first:#x} with reason", v, frame(first, "0001 00"))
        for code in range(256):
            raw = frame(first, "0001", bytes((code,)))
            if code not in ACK_CODES[kind]:
                yield bad(f"ack {first:#x} reason {code}", 5, raw, PROTOCOL)
            elif code:
                yield good(f"ack {first:#x} reason {code}", 5, raw, Ack(kind, 1, code))
        yield other(f"ack {first:#x} success spelled out", 5, frame(first, "0001 00"), Ack(kind, 1))
        yield other(f"ack {first:#x} no properties spelled out", 5, frame(first, "0001 00 00"), Ack(kind, 1))
        yield bad(f"ack {first:#x} with more", 5, frame(first, "0001 00 00 00"))
        yield bad(f"ack {first:#x} property length unfinished", 5, frame(first, "0001 00 80"))
    yield other("PUBREL with DUP", 3, frame(0x6A, "0001"), Ack(PUBREL, 1))


# --- SUBSCRIBE, UNSUBSCRIBE and their answers ---------------------------------------------------------------------


def subscribe_cases() -> Iterator[Case]:
    for v in (3, 4, 5):
        none = b"\0" if v == 5 else b""
        for qos in (0, 1, 2):
            raw = frame(0x82, "000a", none, s("a/+/#"), bytes((qos,)))
            yield good(f"SUBSCRIBE QoS {qos}", v, raw, Subscribe(10, [SubscribeRequest(b"a/+/#", qos)]))
        three = frame(0x82, "ffff", none, s("a"), "00", s("$share/g/b"), "01", s("ü"), "02")
        lines = [SubscribeRequest(b"a"), SubscribeRequest(b"$share/g/b", 1), SubscribeRequest("ü".encode(), 2)]
        yield good("SUBSCRIBE three", v, three, Subscribe(65535, lines))
        yield good(
            "SUBSCRIBE empty filter", v, frame(0x82, "0001", none, s(""), "00"), Subscribe(1, [SubscribeRequest(b"")])
        )
        yield good("UNSUBSCRIBE", v, frame(0xA2, "0001", none, s("a/#")), Unsubscribe(1, [b"a/#"]))
        yield good(
            "UNSUBSCRIBE three",
            v,
            frame(0xA2, "0100", none, s("a"), s("b"), s("a")),
            Unsubscribe(256, [b"a", b"b", b"a"]),
        )
    yield other("SUBSCRIBE with DUP", 3, frame(0x8A, "0001", s("a"), "00"), Subscribe(1, [SubscribeRequest(b"a")]))
    yield other("UNSUBSCRIBE with DUP", 3, frame(0xAA, "0001", s("a")), Unsubscribe(1, [b"a"]))
    for options in range(0x30):
        if options & 3 != 3:
            line = SubscribeRequest(b"f", options & 3, bool(options & 4), bool(options & 8), options >> 4)
            yield good(
                f"SUBSCRIBE options {options:#x}",
                5,
                frame(0x82, "0001 00", s("f"), bytes((options,))),
                Subscribe(1, [line]),
            )


def bad_subscribe_cases() -> Iterator[Case]:
    for v in (3, 4, 5):
        none = b"\0" if v == 5 else b""
        for name, first, option in (("SUBSCRIBE", 0x82, b"\0"), ("UNSUBSCRIBE", 0xA2, b"")):
            yield bad(f"{name} empty", v, frame(first))
            yield bad(f"{name} packet id cut", v, frame(first, "01"))
            yield bad(f"{name} without filter", v, frame(first, "0001", none), PROTOCOL)
            yield bad(f"{name} packet id 0", v, frame(first, "0000", none, s("a"), option), PROTOCOL)
            yield bad(f"{name} filter cut", v, frame(first, "0001", none, "0002", b"a"))
            yield bad(f"{name} filter length cut", v, frame(first, "0001", none, "00"))
            yield bad(f"{name} second filter cut", v, frame(first, "0001", none, s("a"), option, "0001"))
            for text in BAD_TEXT:
                yield bad(f"{name} filter {text!r}", v, frame(first, "0001", none, s(text), option))
            for flags in range(16):
                if flags != 2 and not (v == 3 and flags == 10):
                    raw = frame(first & 0xF0 | flags, "0001", none, s("a"), option)
                    yield bad(f"{name} flags {flags}", v, raw)
        yield bad("SUBSCRIBE without options", v, frame(0x82, "0001", none, s("a")))
        yield bad("SUBSCRIBE second without options", v, frame(0x82, "0001", none, s("a"), "00", s("b")))
        yield bad("SUBSCRIBE QoS 3", v, frame(0x82, "0001", none, s("a"), "03"), PROTOCOL)
        for options in (0x40, 0x80, 0xC1):
            yield bad(f"SUBSCRIBE options {options:#x}", v, frame(0x82, "0001", none, s("a"), bytes((options,))))
    for v in (3, 4):
        for options in (0x04, 0x08, 0x10, 0x20):
            yield bad(f"SUBSCRIBE options {options:#x}", v, frame(0x82, "0001", s("a"), bytes((options,))))
    yield bad("SUBSCRIBE retain handling 3", 5, frame(0x82, "0001 00", s("a"), "30"), PROTOCOL)


def suback_cases() -> Iterator[Case]:
    sub_codes = (0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)
    unsub_codes = (0, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)
    yield good("SUBACK", 5, frame(0x90, "0001 00", bytes(sub_codes)), Suback(1, list(sub_codes)))
    yield good("UNSUBACK", 5, frame(0xB0, "0001 00", bytes(unsub_codes)), Unsuback(1, list(unsub_codes)))
    for code in range(256):
        one = bytes((code,))
        if code not in sub_codes:
            yield bad(f"SUBACK {code}", 5, frame(0x90, "0001 00", one), PROTOCOL)
        if code not in unsub_codes:
            yield bad(f"UNSUBACK {code}", 5, frame(0xB0, "0001 00", one), PROTOCOL)
        if code not in (0, 1, 2, 0x80):
            yield bad(f"SUBACK {code}", 4, frame(0x90, "0001", one), PROTOCOL)
    yield bad("UNSUBACK without reasons", 5, frame(0xB0, "0001 00"), PROTOCOL)
    for v in (3, 4):
        yield good("SUBACK", v, joined("90 06 0001 00 01 02 80"), Suback(1, [0, 1, 2, 0x80]))
        yield good("UNSUBACK", v, joined("b0 02 0001"), Unsuback(1))
        yield bad("UNSUBACK with reasons", v, joined("b0 03 0001 00"))
    for v in (3, 4, 5):
        none = b"\0" if v == 5 else b""
        yield bad("SUBACK without codes", v, frame(0x90, "0001", none), PROTOCOL)
        for first in (0x90, 0xB0):
            success = b"\0" if v == 5 or first == 0x90 else b""
            yield bad(f"answer {first:#x} packet id 0", v, frame(first, "0000", none, success), PROTOCOL)
            yield bad(f"answer {first:#x} empty", v, frame(first))
            yield bad(f"answer {first:#x} first byte", v, frame(first | 2, "0001", none, success))


# --- the rest -----------------------------------------------------------------------------------------------------


NOT_FOR_DISCONNECT = (0x84, 0x85, 0x86, 0x88, 0x8A, 0x8C, 0x91, 0x92)
DISCONNECT_CODES = {0x00, 0x04, *range(0x80, 0xA3)} - set(NOT_FOR_DISCONNECT)


def session_cases() -> Iterator[Case]:
    """PINGREQ, PINGRESP, DISCONNECT, AUTH and what is no packet type."""
    for v in (3, 4, 5):
        yield good("PINGREQ", v, joined("c0 00"), Pingreq())
        yield good("PINGRESP", v, joined("d0 00"), Pingresp())
        yield good("DISCONNECT", v, joined("e0 00"), Disconnect())
        yield bad("PINGREQ with more", v, joined("c0 01 00"))
        yield bad("PINGRESP with more", v, joined("d0 02 0000"))
        for flags in range(1, 16):
            for kind in (0xC0, 0xD0, 0xE0, 0xF0):
                yield bad(f"first byte {kind | flags:#x}", v, bytes((kind | flags, 0)))
        for flags in range(16):
            yield bad(f"packet type 0 flags {flags}", v, bytes((flags, 0)))
    for v in (3, 4):
        yield bad("DISCONNECT with reason", v, joined("e0 01 00"))
        yield bad("AUTH", v, joined("f0 00"))
    for code in range(256):
        raw = frame(0xE0, bytes((code,)))
        if code not in DISCONNECT_CODES:
            yield bad(f"DISCONNECT {code}", 5, raw, PROTOCOL)
        elif code:
            yield good(f"DISCONNECT {code}", 5, raw, Disconnect(code))
        named = frame(0xF0, bytes((code,)), props(encoded(0x15)))
        if code in (0, 0x18, 0x19):
            yield good(f"AUTH {code}", 5, named, Auth(code, {0x15: "SCRAM"}))
        else:
            yield bad(f"AUTH {code}", 5, named, PROTOCOL)
    yield good("AUTH", 5, joined("f0 00"), Auth())
    yield other("DISCONNECT success spelled out", 5, joined("e0 01 00"), Disconnect())
    yield other("DISCONNECT no properties spelled out", 5, joined("e0 02 00 00"), Disconnect())
    yield bad("DISCONNECT with more", 5, joined("e0 03 00 00 00"))
    yield bad("DISCONNECT property length unfinished", 5, joined("e0 02 00 80"))
    yield bad("AUTH without property length", 5, joined("f0 01 18"))
    yield bad("AUTH without method", 5, joined("f0 02 18 00"), PROTOCOL)
    yield bad("AUTH with data, without method", 5, frame(0xF0, "18", props(encoded(0x16))), PROTOCOL)
    yield bad("AUTH with more", 5, frame(0xF0, "18", props(encoded(0x15)), "00"))


def all_cases() -> Iterator[Case]:
    yield from connect_cases()
    yield from bad_connect_cases()
    yield from connack_cases()
    yield from publish_cases()
    yield from bad_publish_cases()
    yield from ack_cases()
    yield from subscribe_cases()
    yield from bad_subscribe_cases()
    yield from suback_cases()
    yield from session_cases()
    yield from property_cases()
    yield from all_properties_cases()
    yield from publish_property_cases()
    yield from bad_property_cases()


CASES = list(all_cases())
GOOD = [case for case in CASES if case.packet is not None]
BAD = [case for case in CASES if case.packet is None]
