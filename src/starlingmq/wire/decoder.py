"""Bytes to packets: one reader per packet type, the same for all versions.

Every reader gets the body as ``data[start:end]`` without a copy, consumes it exactly, and either returns a packet or
raises an MqttError: 0x81 for bytes that cannot be this packet, 0x82 or a more exact code for content that is not
allowed. The core checks the rules that depend on earlier packets of the connection (a second CONNECT, a topic alias, a
packet id in use).
"""

from __future__ import annotations

from typing import Final

from starlingmq.wire.characters import HASH, PLUS

from .packets import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
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
from .primitives import decode_text, decode_varint, read_block, read_byte, read_packet_id, read_two, read_utf8
from .properties import (
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    WILL,
    Properties,
    decode_properties,
    split_publish_properties,
)
from .reasons import MalformedPacket, ProtocolError, Reason

_DUP: Final = 8
FILTERS_MAX: Final = 16_384  # of one packet: they are decoded and checked at once
BRIDGE: Final = 0x80  # in the protocol level

# Reason codes by packet type (MQTT 5, table 2-6; SUBACK and UNSUBACK too).
_REASONS: Final[dict[int, frozenset[int]]] = {
    CONNACK: frozenset((0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F)),
    PUBACK: frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)),
    PUBREC: frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)),
    PUBREL: frozenset((0x00, 0x92)),
    PUBCOMP: frozenset((0x00, 0x92)),
    SUBACK: frozenset((0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)),
    UNSUBACK: frozenset((0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)),
    DISCONNECT: frozenset((0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, 0x8B, *range(0x8D, 0x91), *range(0x93, 0xA3))),
    AUTH: frozenset((0x00, 0x18, 0x19)),
}


def decode(first: int, data: bytes, start: int, end: int, version: int) -> Packet:
    """Decode the packet with first byte ``first`` and body ``data[start:end]``, in protocol ``version`` (3, 4 or 5).

    Packets of both directions are read. CONNECT contains its own version; the argument is ignored for it. Raises
    MqttError only.
    """
    kind = first >> 4
    if kind == PUBLISH:
        return decode_publish(first, data, start, end, version)
    _check_flags(kind, first & 15, version)
    if PUBACK <= kind <= PUBCOMP:
        return _ack(kind, data, start, end, version)
    if kind in (PINGREQ, PINGRESP):
        _at_end(start, end)
        return Pingreq() if kind == PINGREQ else Pingresp()
    if kind == SUBSCRIBE:
        return _subscribe(data, start, end, version)
    if kind == UNSUBSCRIBE:
        return _unsubscribe(data, start, end, version)
    if kind == CONNECT:
        return _connect(data, start, end)
    if kind == DISCONNECT:
        return _disconnect(data, start, end, version)
    if kind == CONNACK:
        return _connack(data, start, end, version)
    if kind == SUBACK:
        return _suback(data, start, end, version)
    if kind == UNSUBACK:
        return _unsuback(data, start, end, version)
    return _auth(data, start, end, version)


def _check_flags(kind: int, flags: int, version: int) -> None:
    """Check the lower half of the first byte, for all packets but PUBLISH [MQTT-2.1.3-1]."""
    if kind == 0 or (kind == AUTH and version != 5):
        raise MalformedPacket(f"packet type {kind} is reserved")
    if kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE):
        # MQTT 3.1 sends these packets "at QoS 1" and marks a retransmission with DUP.
        if flags == 2 or (version == 3 and flags == 2 | _DUP):
            return
    elif flags == 0:
        return
    raise MalformedPacket(f"reserved bits 0x{flags:x} in the first byte of packet type {kind}")


def _at_end(pos: int, end: int) -> None:
    if pos != end:
        raise MalformedPacket("the packet is longer than its content")


def _properties(data: bytes, pos: int, end: int, version: int, packet: int) -> tuple[Properties, int]:
    if version != 5:
        return {}, pos
    return decode_properties(data, pos, end, packet)


def _reason(packet: int, reason: int) -> int:
    if reason not in _REASONS[packet]:
        raise ProtocolError(f"reason code 0x{reason:02x} is not valid for packet type {packet}")
    return reason


def decode_publish(first: int, data: bytes, start: int, end: int, version: int) -> Publish:
    """Decode the PUBLISH with body ``data[start:end]``.

    The topic is returned unchecked: the core checks once per topic that it is valid UTF-8 and a topic name. It is not
    empty, except in MQTT 5 where a topic alias stands for it.
    """
    qos = first >> 1 & 3
    dup = first & _DUP != 0
    if qos == 0:
        if dup:
            raise MalformedPacket("DUP is set in a PUBLISH with QoS 0")  # [MQTT-3.3.1-2]
    elif qos == 3:
        raise MalformedPacket("PUBLISH with QoS 3")  # [MQTT-3.3.1-4]
    pos = start + 2
    if pos > end:
        raise MalformedPacket("the packet ends inside the topic")
    stop = pos + (data[start] << 8 | data[start + 1])
    if stop > end:
        raise MalformedPacket("the packet ends inside the topic")
    topic = data[pos:stop]
    pos = stop
    packet_id = 0
    if qos > 0:
        pos += 2
        if pos > end:
            raise MalformedPacket("the packet ends inside the packet identifier")
        packet_id = data[stop] << 8 | data[stop + 1]
        if packet_id == 0:
            raise ProtocolError("packet identifier 0")  # [MQTT-2.2.1-3]
    if version == 5:
        if pos >= end or data[pos] != 0:
            return _publish_with_properties(first, data, pos, end, topic, packet_id)
        pos += 1
    if len(topic) == 0:
        raise ProtocolError("PUBLISH without a topic")  # [MQTT-4.7.3-1]
    return Publish(topic, data[pos:end], qos, first & 1 != 0, dup, packet_id)


def _publish_with_properties(first: int, data: bytes, pos: int, end: int, topic: bytes, packet_id: int) -> Publish:
    length, pos = decode_varint(data, pos, end)
    stop = pos + length
    if stop > end:
        raise MalformedPacket("the properties are longer than their packet")
    forwarded, expiry, alias, identifiers = split_publish_properties(data, pos, stop)
    if len(topic) == 0 and alias == 0:
        raise ProtocolError("PUBLISH without a topic and without a topic alias")
    return Publish(
        topic,
        data[stop:end],
        first >> 1 & 3,
        first & 1 != 0,
        first & _DUP != 0,
        packet_id,
        forwarded,
        expiry,
        alias,
        identifiers,
    )


def _ack(kind: int, data: bytes, start: int, end: int, version: int) -> Ack:
    packet_id = read_packet_id(data, start, end)
    pos = start + 2
    if pos == end:
        return Ack(kind, packet_id)
    if version != 5:
        raise MalformedPacket("the packet is longer than its content")
    reason = _reason(kind, data[pos])
    pos += 1
    if pos == end:  # the property length may be left out too (3.4.2.2.1)
        return Ack(kind, packet_id, reason)
    properties, pos = decode_properties(data, pos, end, kind)
    _at_end(pos, end)
    return Ack(kind, packet_id, reason, properties)


def _subscribe(data: bytes, start: int, end: int, version: int) -> Subscribe:
    packet_id = read_packet_id(data, start, end)
    properties, pos = _properties(data, start + 2, end, version, SUBSCRIBE)
    if pos == end:
        raise ProtocolError("SUBSCRIBE without a topic filter")  # [MQTT-3.8.3-2]
    subscriptions: list[SubscribeRequest] = []
    while pos < end:
        topic_filter = read_utf8(data, pos, end)
        pos += 2 + len(topic_filter)
        subscriptions.append(_subscribe_request(topic_filter, read_byte(data, pos, end), version))
        pos += 1
        if len(subscriptions) > FILTERS_MAX:
            raise _too_many_filters()
    return Subscribe(packet_id, subscriptions, properties)


def _subscribe_request(topic_filter: bytes, options: int, version: int) -> SubscribeRequest:
    if options >> (6 if version == 5 else 2):
        raise MalformedPacket("reserved bits in the subscription options")  # [MQTT-3.8.3-5]
    qos = options & 3
    if qos == 3:
        raise ProtocolError("subscription with QoS 3")
    handling = options >> 4
    if handling == 3:
        raise ProtocolError("subscription with Retain Handling 3")
    return SubscribeRequest(topic_filter, qos, options & 4 != 0, options & 8 != 0, handling)


def _unsubscribe(data: bytes, start: int, end: int, version: int) -> Unsubscribe:
    packet_id = read_packet_id(data, start, end)
    properties, pos = _properties(data, start + 2, end, version, UNSUBSCRIBE)
    if pos == end:
        raise ProtocolError("UNSUBSCRIBE without a topic filter")  # [MQTT-3.10.3-2]
    filters: list[bytes] = []
    while pos < end:
        topic_filter = read_utf8(data, pos, end)
        pos += 2 + len(topic_filter)
        filters.append(topic_filter)
        if len(filters) > FILTERS_MAX:
            raise _too_many_filters()
    return Unsubscribe(packet_id, filters, properties)


def _too_many_filters() -> ProtocolError:
    return ProtocolError(f"the packet has more than {FILTERS_MAX} topic filters", Reason.QUOTA_EXCEEDED)


def _connect(data: bytes, start: int, end: int) -> Connect:
    name = read_utf8(data, start, end)
    pos = start + 2 + len(name)
    level = read_byte(data, pos, end)
    version = _protocol_version(name, level)
    flags = read_byte(data, pos + 1, end)
    _check_connect_flags(flags, version)
    keep_alive = read_two(data, pos + 2, end)
    properties, pos = _properties(data, pos + 4, end, version, CONNECT)
    _check_authentication(properties)
    client_id = read_block(data, pos, end)
    pos += 2 + len(client_id)
    packet = Connect(
        version,
        decode_text(client_id),
        flags & 0x02 != 0,
        keep_alive,
        properties=properties,
        protocol_name=name.decode(),
        bridge=level & BRIDGE != 0,
    )
    if flags & 0x04:
        pos = _will(packet, flags, data, pos, end)
    # MQTT 3.1, 3.1: the remaining length decides. A user name or password that the flags announce may be absent.
    may_miss = version == 3
    if flags & 0x80 and not (may_miss and pos == end):
        username = read_block(data, pos, end)
        pos += 2 + len(username)
        packet.username = decode_text(username)
    if flags & 0x40 and not (may_miss and pos == end):
        packet.password = read_block(data, pos, end)
        pos += 2 + len(packet.password)
    _at_end(pos, end)
    return packet


def _protocol_version(name: bytes, level: int) -> int:
    """3, 4 or 5; ``BRIDGE`` does not change it."""
    version = level & ~BRIDGE
    if (name == b"MQTT" and version in (4, 5)) or (name == b"MQIsdp" and version == 3):
        return version
    # [MQTT-3.1.2-1] [MQTT-3.1.2-2]
    raise ProtocolError(f"protocol {name!r} level {level} is not supported", Reason.UNSUPPORTED_PROTOCOL_VERSION)


def _check_connect_flags(flags: int, version: int) -> None:
    old = version == 3  # bit 0 is "not used", and will flags without a will are ignored
    if flags & 0x01 and not old:
        raise MalformedPacket("the reserved flag of CONNECT is set")  # [MQTT-3.1.2-3]
    will = flags & 0x04 != 0
    if flags >> 3 & 3 == 3 and (will or not old):
        raise MalformedPacket("will with QoS 3")  # [MQTT-3.1.2-12]
    if not will and flags & 0x38 and not old:
        raise MalformedPacket("QoS or RETAIN is set without a will")  # [MQTT-3.1.2-11] [MQTT-3.1.2-13]
    if version != 5 and flags & 0xC0 == 0x40:
        raise MalformedPacket("password without user name")  # [MQTT-3.1.2-22] of 3.1.1


def _check_authentication(properties: Properties) -> None:
    if AUTHENTICATION_DATA in properties and AUTHENTICATION_METHOD not in properties:
        raise ProtocolError("Authentication Data without Authentication Method")  # 3.1.2.11.10


def _will(packet: Connect, flags: int, data: bytes, pos: int, end: int) -> int:
    properties, pos = _properties(data, pos, end, packet.version, WILL)
    topic = read_utf8(data, pos, end)
    pos += 2 + len(topic)
    if len(topic) == 0 or PLUS in topic or HASH in topic:  # [MQTT-4.7.1-1] [MQTT-4.7.3-1]
        raise ProtocolError("the will topic is not a valid topic name", Reason.TOPIC_NAME_INVALID)
    payload = read_block(data, pos, end)
    pos += 2 + len(payload)
    packet.will = Will(topic, payload, flags >> 3 & 3, flags & 0x20 != 0, properties)
    return pos


def _disconnect(data: bytes, start: int, end: int, version: int) -> Disconnect:
    if start == end:
        return Disconnect()
    if version != 5:
        raise MalformedPacket("the packet is longer than its content")
    reason = _reason(DISCONNECT, data[start])
    pos = start + 1
    if pos == end:
        return Disconnect(reason)
    properties, pos = decode_properties(data, pos, end, DISCONNECT)
    _at_end(pos, end)
    return Disconnect(reason, properties)


def _auth(data: bytes, start: int, end: int, version: int) -> Auth:
    if start == end:
        return Auth()
    reason = _reason(AUTH, data[start])
    properties, pos = decode_properties(data, start + 1, end, AUTH)
    _at_end(pos, end)
    if AUTHENTICATION_METHOD not in properties:
        raise ProtocolError("AUTH without Authentication Method")  # 3.15.2.2.2
    return Auth(reason, properties)


def _connack(data: bytes, start: int, end: int, version: int) -> Connack:
    flags = read_byte(data, start, end)
    if flags > 1:
        raise MalformedPacket("reserved flags of CONNACK are set")  # [MQTT-3.2.2-1]
    reason = read_byte(data, start + 1, end)
    if version == 5:
        _reason(CONNACK, reason)
    elif reason > 5:
        raise ProtocolError(f"CONNACK return code {reason} is reserved")
    if flags == 1 and reason != 0:
        raise ProtocolError("session present in a CONNACK that refuses the connection")  # [MQTT-3.2.2-6]
    properties, pos = _properties(data, start + 2, end, version, CONNACK)
    _at_end(pos, end)
    return Connack(flags == 1, reason, properties)


def _suback(data: bytes, start: int, end: int, version: int) -> Suback:
    packet_id = read_packet_id(data, start, end)
    properties, pos = _properties(data, start + 2, end, version, SUBACK)
    return Suback(packet_id, _reasons(data, pos, end, version, SUBACK), properties)


def _unsuback(data: bytes, start: int, end: int, version: int) -> Unsuback:
    packet_id = read_packet_id(data, start, end)
    if version != 5:
        _at_end(start + 2, end)
        return Unsuback(packet_id)
    properties, pos = decode_properties(data, start + 2, end, UNSUBACK)
    return Unsuback(packet_id, _reasons(data, pos, end, version, UNSUBACK), properties)


def _reasons(data: bytes, pos: int, end: int, version: int, packet: int) -> list[int]:
    if pos == end:
        raise ProtocolError("acknowledgement without a reason code")
    reasons: list[int] = []
    while pos < end:
        reason = _reason(packet, data[pos])
        if version != 5 and 2 < reason != 0x80:
            raise ProtocolError(f"SUBACK return code 0x{reason:02x} is reserved")  # [MQTT-3.9.3-2] of 3.1.1
        reasons.append(reason)
        pos += 1
    return reasons
