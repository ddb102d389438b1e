"""MQTT 5 properties: identifiers, the table of where each is legal, and their encoding (MQTT 5, 2.2.2).

The table is the only source: decoding, encoding and every legality check read it, and none repeats it.
"""

from __future__ import annotations

from typing import Final

from .packet_types import (
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
)
from .primitives import (
    decode_text,
    decode_varint,
    encode_block,
    encode_text,
    encode_two,
    encode_varint,
    read_block,
    read_byte,
    read_four,
    read_two,
)
from .reasons import MalformedPacket, ProtocolError, Reason

PAYLOAD_FORMAT_INDICATOR: Final = 0x01
MESSAGE_EXPIRY_INTERVAL: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
SESSION_EXPIRY_INTERVAL: Final = 0x11
ASSIGNED_CLIENT_IDENTIFIER: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTHENTICATION_METHOD: Final = 0x15
AUTHENTICATION_DATA: Final = 0x16
REQUEST_PROBLEM_INFORMATION: Final = 0x17
WILL_DELAY_INTERVAL: Final = 0x18
REQUEST_RESPONSE_INFORMATION: Final = 0x19
RESPONSE_INFORMATION: Final = 0x1A
SERVER_REFERENCE: Final = 0x1C
REASON_STRING: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
TOPIC_ALIAS: Final = 0x23
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
USER_PROPERTY: Final = 0x26
MAXIMUM_PACKET_SIZE: Final = 0x27
WILDCARD_SUBSCRIPTION_AVAILABLE: Final = 0x28
SUBSCRIPTION_IDENTIFIER_AVAILABLE: Final = 0x29
SHARED_SUBSCRIPTION_AVAILABLE: Final = 0x2A

PropertyValue = int | str | bytes | list[int] | list[tuple[str, str]]
Properties = dict[int, PropertyValue]

WILL: Final = 0  # in place of a packet type: the will properties of a CONNECT

# Encodings of a value.
BIT: Final = 0  # one byte that is 0 or 1, as every one byte property of MQTT 5 is
TWO_BYTES: Final = 1
FOUR_BYTES: Final = 2
VARINT: Final = 3
TEXT: Final = 4
BINARY: Final = 5
TEXT_PAIR: Final = 6


class PropertyRule:
    """One line of the table: ``packets`` and ``repeatable`` are masks of packet types, 1 << type."""

    name: str
    kind: int
    packets: int
    repeatable: int
    minimum: int

    def __init__(self, name: str, kind: int, packets: int, repeatable: int = 0, minimum: int = 0) -> None:
        self.name = name
        self.kind = kind
        self.packets = packets
        self.repeatable = repeatable
        self.minimum = minimum


def _mask(*packets: int) -> int:
    return sum(1 << packet for packet in packets)


_MESSAGE: Final = _mask(PUBLISH, WILL)
_ACKS: Final = _mask(PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK)
_HANDSHAKE: Final = _mask(CONNECT, CONNACK)
_CONNACK: Final = _mask(CONNACK)
_EVERY: Final = _MESSAGE | _ACKS | _HANDSHAKE | _mask(SUBSCRIBE, UNSUBSCRIBE, DISCONNECT, AUTH)

# MQTT 5, table 2-4.
RULES: Final[dict[int, PropertyRule]] = {
    PAYLOAD_FORMAT_INDICATOR: PropertyRule("Payload Format Indicator", BIT, _MESSAGE),
    MESSAGE_EXPIRY_INTERVAL: PropertyRule("Message Expiry Interval", FOUR_BYTES, _MESSAGE),
    CONTENT_TYPE: PropertyRule("Content Type", TEXT, _MESSAGE),
    RESPONSE_TOPIC: PropertyRule("Response Topic", TEXT, _MESSAGE),
    CORRELATION_DATA: PropertyRule("Correlation Data", BINARY, _MESSAGE),
    SUBSCRIPTION_IDENTIFIER: PropertyRule(
        "Subscription Identifier", VARINT, _mask(PUBLISH, SUBSCRIBE), repeatable=_mask(PUBLISH), minimum=1
    ),
    SESSION_EXPIRY_INTERVAL: PropertyRule("Session Expiry Interval", FOUR_BYTES, _HANDSHAKE | _mask(DISCONNECT)),
    ASSIGNED_CLIENT_IDENTIFIER: PropertyRule("Assigned Client Identifier", TEXT, _CONNACK),
    SERVER_KEEP_ALIVE: PropertyRule("Server Keep Alive", TWO_BYTES, _CONNACK),
    AUTHENTICATION_METHOD: PropertyRule("Authentication Method", TEXT, _HANDSHAKE | _mask(AUTH)),
    AUTHENTICATION_DATA: PropertyRule("Authentication Data", BINARY, _HANDSHAKE | _mask(AUTH)),
    REQUEST_PROBLEM_INFORMATION: PropertyRule("Request Problem Information", BIT, _mask(CONNECT)),
    WILL_DELAY_INTERVAL: PropertyRule("Will Delay Interval", FOUR_BYTES, _mask(WILL)),
    REQUEST_RESPONSE_INFORMATION: PropertyRule("Request Response Information", BIT, _mask(CONNECT)),
    RESPONSE_INFORMATION: PropertyRule("Response Information", TEXT, _CONNACK),
    SERVER_REFERENCE: PropertyRule("Server Reference", TEXT, _mask(CONNACK, DISCONNECT)),
    REASON_STRING: PropertyRule("Reason String", TEXT, _ACKS | _mask(CONNACK, DISCONNECT, AUTH)),
    RECEIVE_MAXIMUM: PropertyRule("Receive Maximum", TWO_BYTES, _HANDSHAKE, minimum=1),
    TOPIC_ALIAS_MAXIMUM: PropertyRule("Topic Alias Maximum", TWO_BYTES, _HANDSHAKE),
    TOPIC_ALIAS: PropertyRule("Topic Alias", TWO_BYTES, _mask(PUBLISH), minimum=1),
    MAXIMUM_QOS: PropertyRule("Maximum QoS", BIT, _CONNACK),
    RETAIN_AVAILABLE: PropertyRule("Retain Available", BIT, _CONNACK),
    USER_PROPERTY: PropertyRule("User Property", TEXT_PAIR, _EVERY, repeatable=_EVERY),
    MAXIMUM_PACKET_SIZE: PropertyRule("Maximum Packet Size", FOUR_BYTES, _HANDSHAKE, minimum=1),
    WILDCARD_SUBSCRIPTION_AVAILABLE: PropertyRule("Wildcard Subscription Available", BIT, _CONNACK),
    SUBSCRIPTION_IDENTIFIER_AVAILABLE: PropertyRule("Subscription Identifier Available", BIT, _CONNACK),
    SHARED_SUBSCRIPTION_AVAILABLE: PropertyRule("Shared Subscription Available", BIT, _CONNACK),
}


PROPERTIES_MAX: Final = 2000  # in one section: each is checked, and a packet has room for hundreds of thousands
OWN_MAX: Final = 8  # further ones that brokers add to a message


def decode_properties(data: bytes, start: int, end: int, packet: int) -> tuple[Properties, int]:
    """Decode the properties whose length is at ``start``; return them and the position after them.

    ``packet`` is the packet type, WILL for will properties. Raises MalformedPacket for invalid encodings and for
    properties that this packet cannot have, ProtocolError for repetitions, forbidden values and too many properties.
    """
    length, pos = decode_varint(data, start, end)
    stop = pos + length
    if stop > end:
        raise MalformedPacket("the properties are longer than their packet")
    if length == 0:
        return {}, stop
    return _decode_section(data, pos, stop, packet), stop


def decode_property_bytes(raw: bytes) -> Properties:
    """Decode the message properties in ``raw``, without a length prefix: those of a Message or Publish, for hooks."""
    return _decode_section(raw, 0, len(raw), PUBLISH, PROPERTIES_MAX + OWN_MAX)


def has_room(raw: bytes) -> bool:
    """Whether brokers may add their own to the message properties in ``raw``, and a receiver still takes them."""
    most = PROPERTIES_MAX - OWN_MAX
    if len(raw) <= 2 * most:
        return True
    values = decode_property_bytes(raw).values()
    return sum(len(value) if isinstance(value, list) else 1 for value in values) <= most


def _decode_section(data: bytes, pos: int, stop: int, packet: int, most: int = PROPERTIES_MAX) -> Properties:
    properties: Properties = {}
    users: list[tuple[str, str]] = []
    identifiers: list[int] = []
    seen = count = 0
    while pos < stop:
        count += 1
        if count > most:
            raise _too_many()
        identifier = data[pos]
        rule = _rule(identifier, packet, seen)
        seen |= 1 << identifier
        pos += 1
        kind = rule.kind
        if kind == TEXT_PAIR:
            name = read_block(data, pos, stop)
            pos += 2 + len(name)
            value = read_block(data, pos, stop)
            pos += 2 + len(value)
            users.append((decode_text(name), decode_text(value)))
        elif kind == TEXT:
            raw = read_block(data, pos, stop)
            pos += 2 + len(raw)
            properties[identifier] = _text(rule, identifier, raw)
        elif kind == BINARY:
            raw = read_block(data, pos, stop)
            pos += 2 + len(raw)
            properties[identifier] = raw
        elif kind == VARINT:
            number, pos = decode_varint(data, pos, stop)
            identifiers.append(_in_range(rule, identifier, number))
        else:
            properties[identifier] = _in_range(rule, identifier, _read_number(kind, data, pos, stop))
            pos += _width(kind)
    if users:
        properties[USER_PROPERTY] = users
    if identifiers:
        properties[SUBSCRIPTION_IDENTIFIER] = identifiers
    return properties


def split_publish_properties(data: bytes, pos: int, stop: int) -> tuple[bytes, int, int, list[int] | None]:
    """Check the properties of a PUBLISH between ``pos`` and ``stop`` and separate those for the next hop only.

    Returns the encoded ones to forward, unaltered and in order, the message expiry interval (-1: none),
    the topic alias (0: none) and the subscription identifiers (None: none). Other values are not decoded.
    """
    expiry = -1
    alias = 0
    identifiers: list[int] | None = None
    forwarded = b""
    kept_from = pos  # the bytes from here to the current property are to be forwarded
    seen = count = 0
    while pos < stop:
        count += 1
        if count > PROPERTIES_MAX:
            raise _too_many()
        begin = pos
        identifier = data[pos]
        rule = _rule(identifier, PUBLISH, seen)
        seen |= 1 << identifier
        pos += 1
        kind = rule.kind
        if kind == TEXT_PAIR:
            raw = read_block(data, pos, stop)
            decode_text(raw)
            pos += 2 + len(raw)
            raw = read_block(data, pos, stop)
            decode_text(raw)
            pos += 2 + len(raw)
            continue
        if kind == TEXT:
            raw = read_block(data, pos, stop)
            _text(rule, identifier, raw)
            pos += 2 + len(raw)
            continue
        if kind == BINARY:
            pos += 2 + read_two(data, pos, stop)
            if pos > stop:
                raise MalformedPacket("a field is longer than its packet")
            continue
        if kind == VARINT:
            number, pos = decode_varint(data, pos, stop)
        else:
            number = _read_number(kind, data, pos, stop)
            pos += _width(kind)
        _in_range(rule, identifier, number)
        if identifier == PAYLOAD_FORMAT_INDICATOR:
            continue
        if identifier == MESSAGE_EXPIRY_INTERVAL:
            expiry = number
        elif identifier == TOPIC_ALIAS:
            alias = number
        elif identifiers is None:
            identifiers = [number]
        else:
            identifiers.append(number)
        if begin > kept_from:
            forwarded += data[kept_from:begin]
        kept_from = pos
    if stop > kept_from:
        forwarded += data[kept_from:stop]
    return forwarded, expiry, alias, identifiers


def _too_many() -> ProtocolError:
    return ProtocolError(f"the packet has more than {PROPERTIES_MAX} properties", Reason.QUOTA_EXCEEDED)


def _rule(identifier: int, packet: int, seen: int) -> PropertyRule:
    """Return the rule for the next property, after those in ``seen`` (a mask of identifiers)."""
    rule = RULES.get(identifier)
    if rule is None:
        raise MalformedPacket(f"unknown property 0x{identifier:02x}")
    if rule.packets >> packet & 1 == 0:
        raise MalformedPacket(f"{rule.name} is not a property of this packet")
    if seen >> identifier & 1 and rule.repeatable >> packet & 1 == 0:
        raise ProtocolError(f"{rule.name} is present twice")
    return rule


def _width(kind: int) -> int:
    if kind == FOUR_BYTES:
        return 4
    return 2 if kind == TWO_BYTES else 1


def _read_number(kind: int, data: bytes, pos: int, stop: int) -> int:
    if kind == FOUR_BYTES:
        return read_four(data, pos, stop)
    if kind == TWO_BYTES:
        return read_two(data, pos, stop)
    value = read_byte(data, pos, stop)
    if value > 1:
        raise ProtocolError("a property whose value must be 0 or 1 has another value")
    return value


def _in_range(rule: PropertyRule, identifier: int, value: int) -> int:
    if value < rule.minimum:
        # [MQTT-3.3.2-8] has a reason code of its own.
        reason = Reason.TOPIC_ALIAS_INVALID if identifier == TOPIC_ALIAS else Reason.PROTOCOL_ERROR
        raise ProtocolError(f"{rule.name} must not be 0", reason)
    return value


def _text(rule: PropertyRule, identifier: int, raw: bytes) -> str:
    text = decode_text(raw)
    # A response topic is a topic name [MQTT-3.3.2-13]: not empty, no wildcards [MQTT-3.3.2-14].
    if identifier == RESPONSE_TOPIC and (not text or "+" in text or "#" in text):
        raise ProtocolError(f"{rule.name} is not a valid topic name")
    return text


def encode_properties(properties: Properties) -> bytes:
    """Encode properties with their length before them, in the order of the dictionary."""
    raw = encode_property_bytes(properties)
    return encode_varint(len(raw)) + raw


def encode_property_bytes(properties: Properties) -> bytes:
    """Encode properties without their length: the form that Message and Publish carry.

    The caller ensures that the packet type allows them and that values are in range.
    """
    parts: list[bytes] = []
    for identifier, value in properties.items():
        rule = RULES.get(identifier)
        if rule is None:
            raise MalformedPacket(f"unknown property 0x{identifier:02x}")
        if isinstance(value, list):
            for item in value:
                parts.append(encode_varint(identifier))
                parts.append(_encode_item(rule, item))
        else:
            parts.append(encode_varint(identifier))
            parts.append(_encode_value(rule, value))
    return b"".join(parts)


def _encode_value(rule: PropertyRule, value: int | str | bytes) -> bytes:
    kind = rule.kind
    if kind == TEXT and isinstance(value, str):
        return encode_text(value)
    if kind == BINARY and isinstance(value, bytes):
        return encode_block(value)
    if isinstance(value, int) and kind < VARINT:
        return value.to_bytes(_width(kind), "big")
    raise TypeError(f"{rule.name} cannot be {type(value).__name__}")


def _encode_item(rule: PropertyRule, item: int | tuple[str, str]) -> bytes:
    if rule.kind == VARINT and isinstance(item, int):
        return encode_varint(item)
    if rule.kind == TEXT_PAIR and isinstance(item, tuple):
        name, value = item
        return encode_text(name) + encode_text(value)
    raise TypeError(f"{rule.name} cannot contain {type(item).__name__}")


def publish_properties(forwarded: bytes, expiry: int, topic_alias: int, subscription_ids: list[int] | None) -> bytes:
    """Encode all properties of a PUBLISH, without their length: the inverse of ``split_publish_properties``."""
    raw = forwarded
    if expiry >= 0:
        raw += b"\x02" + expiry.to_bytes(4, "big")
    if topic_alias > 0:
        raw += b"\x23" + encode_two(topic_alias)
    if subscription_ids is not None:
        for identifier in subscription_ids:
            raw += b"\x0b" + encode_varint(identifier)
    return raw
