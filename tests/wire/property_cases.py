"""Cases of MQTT 5 properties: the packets of each, and invalid ones."""

from __future__ import annotations

from collections.abc import Iterator

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
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from starlingmq.wire.properties import PropertyValue

from .case_builders import (
    ALIAS,
    BAD_TEXT,
    PROTOCOL,
    WILL,
    Case,
    bad,
    frame,
    good,
    joined,
    other,
    props,
    s,
    sized,
)

# --- properties ---------------------------------------------------------------------------------------------------

# MQTT 5, table 2-4: id -> name, an encoded value, its meaning, its packets.
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
    """Return the expected result of a PUBLISH with one property, or with FORWARDED ones only."""
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
