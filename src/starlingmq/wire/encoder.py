"""Packets to bytes: one writer per packet type, the same for all versions.

The content of a packet is not checked against its version; a length that fits no packet raises MalformedPacket.
"""

from __future__ import annotations

from .frames import packet_id_bytes, publish_frame
from .packet_types import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
)
from .packets import (
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
)
from .primitives import BYTE, encode_block, encode_text, encode_two, encode_varint
from .properties import Properties, encode_properties, publish_properties


def encode(packet: Packet, version: int) -> bytes:
    """Encode ``packet`` as a whole frame in protocol ``version`` (3, 4 or 5); a CONNECT uses its own version."""
    if isinstance(packet, Publish):
        return _publish(packet, version)
    if isinstance(packet, Ack):
        flags = 2 if packet.type == PUBREL else 0
        body = packet_id_bytes(packet.packet_id) + _outcome(packet.reason, packet.properties, version)
        return _frame(packet.type, flags, body)
    if isinstance(packet, Suback):
        return _frame(SUBACK, 0, _answer(packet.packet_id, packet.properties, packet.reasons, version))
    if isinstance(packet, Unsuback):
        reasons = packet.reasons if version == 5 else []
        return _frame(UNSUBACK, 0, _answer(packet.packet_id, packet.properties, reasons, version))
    if isinstance(packet, Connack):
        body = BYTE[1 if packet.session_present else 0] + BYTE[packet.reason]
        return _frame(CONNACK, 0, body + _properties(packet.properties, version))
    if isinstance(packet, Disconnect):
        return _frame(DISCONNECT, 0, _outcome(packet.reason, packet.properties, version))
    if isinstance(packet, Connect):
        return _frame(CONNECT, 0, _connect(packet))
    if isinstance(packet, Subscribe):
        lines = [encode_block(line.filter) + BYTE[_options(line, version)] for line in packet.subscriptions]
        return _frame(SUBSCRIBE, 2, _request(packet.packet_id, packet.properties, lines, version))
    if isinstance(packet, Unsubscribe):
        lines = [encode_block(topic_filter) for topic_filter in packet.filters]
        return _frame(UNSUBSCRIBE, 2, _request(packet.packet_id, packet.properties, lines, version))
    if isinstance(packet, Auth):
        return _frame(AUTH, 0, _auth(packet))
    if packet.type in (PINGREQ, PINGRESP):
        return _frame(packet.type, 0, b"")
    raise TypeError(f"not a packet: {packet!r}")


def _frame(kind: int, flags: int, body: bytes) -> bytes:
    return BYTE[kind << 4 | flags] + encode_varint(len(body)) + body


def _properties(properties: Properties, version: int) -> bytes:
    return encode_properties(properties) if version == 5 else b""


def _outcome(reason: int, properties: Properties, version: int) -> bytes:
    """Reason code and properties of an acknowledgement or DISCONNECT, left out where the specification allows it."""
    if version != 5 or (reason == 0 and not properties):
        return b""
    if not properties:
        return BYTE[reason]
    return BYTE[reason] + encode_properties(properties)


def _auth(packet: Auth) -> bytes:
    """Unlike DISCONNECT, an AUTH with a reason code always has a property length (3.15.2.1)."""
    if packet.reason == 0 and not packet.properties:
        return b""
    return BYTE[packet.reason] + encode_properties(packet.properties)


def _answer(packet_id: int, properties: Properties, reasons: list[int], version: int) -> bytes:
    return packet_id_bytes(packet_id) + _properties(properties, version) + bytes(reasons)


def _request(packet_id: int, properties: Properties, lines: list[bytes], version: int) -> bytes:
    return packet_id_bytes(packet_id) + _properties(properties, version) + b"".join(lines)


def _options(line: SubscribeRequest, version: int) -> int:
    if version != 5:
        return line.qos
    no_local = 4 if line.no_local else 0
    retain_as_published = 8 if line.retain_as_published else 0
    return line.qos | no_local | retain_as_published | line.retain_handling << 4


def _publish(packet: Publish, version: int) -> bytes:
    properties = b""
    if version == 5:
        properties = publish_properties(packet.properties, packet.expiry, packet.topic_alias, packet.subscription_ids)
    return publish_frame(
        packet.topic, packet.payload, packet.qos, packet.retain, packet.dup, packet.packet_id, version, properties
    )


def _connect(packet: Connect) -> bytes:
    flags = 0x02 if packet.clean_start else 0
    payload = encode_text(packet.client_id)
    will = packet.will
    if will is not None:
        flags |= 0x04 | will.qos << 3 | (0x20 if will.retain else 0)
        payload += _properties(will.properties, packet.version) + encode_block(will.topic) + encode_block(will.payload)
    if packet.username is not None:
        flags |= 0x80
        payload += encode_text(packet.username)
    if packet.password is not None:
        flags |= 0x40
        payload += encode_block(packet.password)
    level = packet.version | (0x80 if packet.bridge else 0)
    head = encode_text(packet.protocol_name) + BYTE[level] + BYTE[flags] + encode_two(packet.keep_alive)
    return head + _properties(packet.properties, packet.version) + payload
