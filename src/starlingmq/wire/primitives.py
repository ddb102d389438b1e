"""The data types that MQTT packets are made of (MQTT 5, 1.5): integers, strings, binary data.

Every reader gets ``data``, a position and the ``end`` of the packet: ``data`` usually contains the following frames as
well. A field that extends beyond ``end`` raises MalformedPacket.
"""

from __future__ import annotations

from typing import Final

from .reasons import MalformedPacket, ProtocolError, Reason

MAX_VARINT: Final = 268_435_455  # four bytes of seven bits; also the greatest remaining length
MAX_BLOCK: Final = 65_535  # bytes in a string or in binary data
LONG_FORM: Final = "a length or variable byte integer has more bytes than it needs"  # [MQTT-1.5.5-1]

# One object per byte value: frames are joined from these instead of converting integers each time.
BYTE: Final[list[bytes]] = [bytes((value,)) for value in range(256)]
# The two length bytes of blocks shorter than 256, as nearly all topics are.
SHORT_LENGTH: Final[list[bytes]] = [bytes((0, value)) for value in range(256)]


def decode_varint(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """Return the variable byte integer at ``pos`` and the position after it: at most four bytes, and no more than its
    value needs [MQTT-1.5.5-1].
    """
    value = 0
    shift = 0
    while pos < end:
        byte = data[pos]
        pos += 1
        if byte < 128:
            if byte == 0 and shift != 0:
                raise MalformedPacket(LONG_FORM)
            return value | (byte << shift), pos
        value |= (byte & 127) << shift
        shift += 7
        if shift == 28:
            raise MalformedPacket("a variable byte integer has more than four bytes")
    raise MalformedPacket("the packet ends inside a variable byte integer")


def encode_varint(value: int) -> bytes:
    """Encode ``value`` (0..MAX_VARINT) in as few bytes as possible [MQTT-1.5.5-1]."""
    if value < 128:
        if value < 0:
            raise ValueError("a variable byte integer must not be negative")
        return BYTE[value]
    if value < 16_384:
        return BYTE[value & 127 | 128] + BYTE[value >> 7]
    if value > MAX_VARINT:
        raise MalformedPacket(f"{value} does not fit into a variable byte integer", Reason.PACKET_TOO_LARGE)
    head = BYTE[value & 127 | 128] + BYTE[value >> 7 & 127 | 128]
    if value < 2_097_152:
        return head + BYTE[value >> 14]
    return head + BYTE[value >> 14 & 127 | 128] + BYTE[value >> 21]


def read_byte(data: bytes, pos: int, end: int) -> int:
    if pos >= end:
        raise MalformedPacket("the packet is truncated")
    return data[pos]


def read_two(data: bytes, pos: int, end: int) -> int:
    if pos + 2 > end:
        raise MalformedPacket("the packet ends inside a two byte integer")
    return data[pos] << 8 | data[pos + 1]


def read_four(data: bytes, pos: int, end: int) -> int:
    if pos + 4 > end:
        raise MalformedPacket("the packet ends inside a four byte integer")
    return data[pos] << 24 | data[pos + 1] << 16 | data[pos + 2] << 8 | data[pos + 3]


def read_packet_id(data: bytes, pos: int, end: int) -> int:
    packet_id = read_two(data, pos, end)
    if packet_id == 0:
        raise ProtocolError("packet identifier 0")  # [MQTT-2.2.1-3] [MQTT-2.2.1-4]
    return packet_id


def read_block(data: bytes, pos: int, end: int) -> bytes:
    """Read binary data: a two byte length and as many bytes. The next field begins at ``pos + 2 + len(result)``."""
    start = pos + 2
    stop = start + read_two(data, pos, end)
    if stop > end:
        raise MalformedPacket("a field is longer than its packet")
    return data[start:stop]


def decode_text(raw: bytes) -> str:
    """Decode the string in ``raw``: well-formed UTF-8 without surrogates [MQTT-1.5.4-1] and U+0000 [MQTT-1.5.4-2]."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedPacket("a string is not valid UTF-8") from None
    if "\0" in text:
        raise MalformedPacket("a string contains U+0000")
    return text


def read_utf8(data: bytes, pos: int, end: int) -> bytes:
    """Read a string: checked, returned as bytes."""
    raw = read_block(data, pos, end)
    decode_text(raw)
    return raw


def encode_two(value: int) -> bytes:
    return BYTE[value >> 8] + BYTE[value & 255]


def encode_block(raw: bytes) -> bytes:
    """Encode ``raw`` (up to MAX_BLOCK bytes) with its two length bytes."""
    if len(raw) > MAX_BLOCK:
        raise MalformedPacket(f"a field of {len(raw)} bytes does not fit into a packet")
    return encode_two(len(raw)) + raw


def encode_text(text: str) -> bytes:
    return encode_block(text.encode("utf-8"))
