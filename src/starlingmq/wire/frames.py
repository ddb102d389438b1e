"""The most frequent frames, encoded and measured in as few steps as possible.

Compiled, ``b"%b%b" % (x, y)`` is one allocation and one copy per part. A frame is therefore written as one such
expression over parts that already exist; lengths and packet ids come from the tables in ``primitives``.
"""

from __future__ import annotations

from typing import Final

from .primitives import BYTE, LONG_FORM, SHORT_LENGTH, encode_two, encode_varint
from .reasons import MalformedPacket

# First byte and remaining length of a four byte acknowledgement, by first byte.
_ACK_HEAD: Final[list[bytes]] = [bytes((first, 2)) for first in range(256)]


def frame_length(data: bytes, pos: int, shortest: bool = True) -> int:
    """Return the size of the frame that begins at ``pos``, header included; 0 while its length is incomplete.

    The frame itself may be incomplete. Raises MalformedPacket for a remaining length of more than four bytes, and with
    ``shortest`` for one of more bytes than it needs: MQTT 5 forbids these [MQTT-1.5.5-1], 3.1 and 3.1.1 do not.
    """
    have = len(data)
    at = pos + 1
    if at >= have:
        return 0
    byte = data[at]
    if byte < 128:
        return byte + 2
    if at + 1 >= have:
        return 0
    length = byte - 128
    byte = data[at + 1]
    if byte < 128:
        if byte == 0 and shortest:
            raise MalformedPacket(LONG_FORM)
        return length + byte * 128 + 3
    if at + 2 >= have:
        return 0
    length += (byte - 128) * 128
    byte = data[at + 2]
    if byte < 128:
        if byte == 0 and shortest:
            raise MalformedPacket(LONG_FORM)
        return length + byte * 16_384 + 4
    if at + 3 >= have:
        return 0
    length += (byte - 128) * 16_384
    byte = data[at + 3]
    if byte < 128:
        if byte == 0 and shortest:
            raise MalformedPacket(LONG_FORM)
        return length + byte * 2_097_152 + 5
    raise MalformedPacket("the remaining length has more than four bytes")


def packet_id_bytes(packet_id: int) -> bytes:
    """Return ``packet_id`` (1..65535) as it is on the wire."""
    return b"%b%b" % (BYTE[packet_id >> 8], BYTE[packet_id & 255])


def ack_frame(first_byte: int, packet_id: int) -> bytes:
    """Return a PUBACK (0x40), PUBREC (0x50), PUBREL (0x62) or PUBCOMP (0x70) with success, for every version."""
    return b"%b%b%b" % (_ACK_HEAD[first_byte], BYTE[packet_id >> 8], BYTE[packet_id & 255])


def ack_run(first_byte: int, data: bytes, start: int, end: int) -> bytes:
    """Answer consecutive four-byte acknowledgements: the same packet ids with another first byte."""
    count = (end - start) >> 2
    if count == 1:
        return ack_frame(first_byte, data[start + 2] << 8 | data[start + 3])
    frames = bytearray(data[start:end])
    frames[::4] = BYTE[first_byte] * count
    return bytes(frames)


def publish_frame(
    topic: bytes, payload: bytes, qos: int, retain: bool, dup: bool, packet_id: int, version: int, properties: bytes
) -> bytes:
    """Return a whole PUBLISH. ``properties`` are all properties, encoded, without their length; 3.x omits them."""
    first = 0x30 | qos << 1
    if retain:
        first |= 1
    if dup:
        first |= 8
    topic_size = len(topic)
    remaining = 2 + topic_size + len(payload)
    if qos > 0:
        remaining += 2
    if version == 5:
        if len(properties) > 0:
            return _publish_with_properties(first, topic, payload, qos, packet_id, properties)
        remaining += 1
    length = BYTE[remaining] if remaining < 128 else encode_varint(remaining)
    size = SHORT_LENGTH[topic_size] if topic_size < 256 else _long_topic(topic_size)
    if qos == 0:
        if version == 5:
            return b"%b%b%b%b\0%b" % (BYTE[first], length, size, topic, payload)
        return b"%b%b%b%b%b" % (BYTE[first], length, size, topic, payload)
    high = BYTE[packet_id >> 8]
    low = BYTE[packet_id & 255]
    if version == 5:
        return b"%b%b%b%b%b%b\0%b" % (BYTE[first], length, size, topic, high, low, payload)
    return b"%b%b%b%b%b%b%b" % (BYTE[first], length, size, topic, high, low, payload)


def _publish_with_properties(
    first: int, topic: bytes, payload: bytes, qos: int, packet_id: int, properties: bytes
) -> bytes:
    own_length = encode_varint(len(properties))
    pid = packet_id_bytes(packet_id) if qos > 0 else b""
    remaining = 2 + len(topic) + len(pid) + len(own_length) + len(properties) + len(payload)
    size = _long_topic(len(topic))
    return b"%b%b%b%b%b%b%b%b" % (
        BYTE[first],
        encode_varint(remaining),
        size,
        topic,
        pid,
        own_length,
        properties,
        payload,
    )


def _long_topic(size: int) -> bytes:
    if size > 65_535:
        raise MalformedPacket(f"a topic of {size} bytes does not fit into a packet")
    return encode_two(size)


def publish_parts(
    topic: bytes, payload: bytes, qos: int, retain: bool, version: int, properties: bytes
) -> tuple[bytes, bytes]:
    """Return the parts of a QoS 1 or 2 PUBLISH that its receivers share: the frame is head + packet id + tail, without
    DUP.
    """
    tail = payload
    if version == 5:
        if len(properties) > 0:
            tail = b"%b%b%b" % (encode_varint(len(properties)), properties, payload)
        else:
            tail = b"\0%b" % (payload,)
    first = 0x30 | qos << 1
    if retain:
        first |= 1
    topic_size = len(topic)
    remaining = 4 + topic_size + len(tail)
    length = BYTE[remaining] if remaining < 128 else encode_varint(remaining)
    size = SHORT_LENGTH[topic_size] if topic_size < 256 else _long_topic(topic_size)
    return b"%b%b%b%b" % (BYTE[first], length, size, topic), tail


def frame_of_parts(head: bytes, packet_id: int, tail: bytes) -> bytes:
    """Join the result of ``publish_parts`` and a packet id to one frame."""
    return b"%b%b%b%b" % (head, BYTE[packet_id >> 8], BYTE[packet_id & 255], tail)
