"""How what a turn commits is written down: journal records, and the values of the checkpoint.

A turn is one append to the journal: a MESSAGE record for each message that something wants for the first time, with
those that want it, then one OPERATIONS record with everything else. Operations name messages by their journal offset
and sessions by number (unique for ever, so that neither can be mistaken).

All numbers without a size are varints: seven bits a byte, low ones first, the high bit set in all but the last.

MESSAGE     u8 1, u8 QoS | retain << 2 | retained << 3 | expires << 4, f64 published, f64 expires (if it does),
            lengths of topic, publisher, properties and receivers; those; the rest is payload.
            A receiver: session, u16 packet id (0: queued), u8 flags; with HAS_IDS: u8 length, identifiers.
OPERATIONS  u8 2, then operations: u8 kind (a number of core.ready), session, and what ``operations`` says for each.
"""

from __future__ import annotations

import struct
from typing import Final

from starlingmq.core.message import Message
from starlingmq.core.stored import HAS_IDS
from starlingmq.wire.primitives import BYTE, encode_two

MESSAGE: Final = 1
OPERATIONS: Final = 2

INBOUND: Final = 16  # receiver flags: not a delivery but a QoS 2 handshake that holds the message
RETAINED: Final = 8  # message flags: it is its topic's retained message from now on

EXPIRES: Final = 16

_DOUBLE: Final = struct.Struct("<d")


class RecordError(ValueError):
    """A record that passed its checksum does not make sense: written by another version, or by a fault."""


def encode_number(value: int) -> bytes:
    """A varint of any size."""
    if value < 128:
        return BYTE[value]
    if value < 16384:
        return b"%b%b" % (BYTE[value & 127 | 128], BYTE[value >> 7])
    parts: list[bytes] = []
    while value >= 128:
        parts.append(BYTE[value & 127 | 128])
        value >>= 7
    parts.append(BYTE[value])
    return b"".join(parts)


class Reader:
    """Takes a record apart from its beginning on. What is not there raises RecordError."""

    data: bytes
    at: int

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def left(self) -> bool:
        return self.at < len(self.data)

    def byte(self) -> int:
        if self.at >= len(self.data):
            raise RecordError("the record is cut short")
        self.at += 1
        return self.data[self.at - 1]

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def two(self) -> int:
        return self.byte() << 8 | self.byte()

    def double(self) -> float:
        value: float = _DOUBLE.unpack(self.take(8))[0]
        return value

    def take(self, length: int) -> bytes:
        self.at += length
        if self.at > len(self.data):
            raise RecordError("the record is cut short")
        return self.data[self.at - length : self.at]


def encode_double(value: float) -> bytes:
    return _DOUBLE.pack(value)


def receiver(number: int, packet_id: int, flags: int, ids: bytes) -> bytes:
    if len(ids) != 0:
        return b"%b%b%b%b%b" % (
            encode_number(number),
            encode_two(packet_id),
            BYTE[flags | HAS_IDS],
            BYTE[len(ids)],
            ids,
        )
    return b"%b%b%b" % (encode_number(number), encode_two(packet_id), BYTE[flags])


def encode_message(message: Message, receivers: bytes, retained: bool, published: bytes) -> bytes:
    """``published`` is ``message.published_at`` encoded: the same for many messages in a row."""
    flags = message.qos
    if message.retain:
        flags |= 4
    if retained:
        flags |= RETAINED
    expires = b""
    if message.expires_at != 0.0:
        flags |= EXPIRES
        expires = encode_double(message.expires_at)
    publisher = message.publisher.encode()
    return b"\1%b%b%b%b%b%b%b%b%b%b%b%b" % (
        BYTE[flags],
        published,
        expires,
        encode_number(len(message.topic)),
        encode_number(len(publisher)),
        encode_number(len(message.properties)),
        encode_number(len(receivers)),
        message.topic,
        publisher,
        message.properties,
        receivers,
        message.payload,
    )


def decode_message(record: bytes) -> Message:
    """The message of a MESSAGE record. Raises RecordError."""
    message, _, _ = open_message(record)
    return message


def open_message(record: bytes) -> tuple[Message, bytes, bool]:
    """Message, encoded receivers, and whether it is retained. Raises RecordError."""
    reader = Reader(record)
    kind = reader.byte()
    if kind != MESSAGE:
        raise RecordError(f"record of type {kind} where a message was expected")
    flags = reader.byte()
    published = reader.double()
    expires = reader.double() if flags & EXPIRES else 0.0
    lengths = (reader.number(), reader.number(), reader.number(), reader.number())
    topic = reader.take(lengths[0])
    publisher = reader.take(lengths[1]).decode()
    properties = reader.take(lengths[2])
    receivers = reader.take(lengths[3])
    payload = reader.data[reader.at :]
    message = Message(topic, payload, flags & 3, flags & 4 != 0, properties, expires, publisher, published)
    return message, receivers, flags & RETAINED != 0


def split_receivers(receivers: bytes) -> list[tuple[int, int, int, bytes]]:
    """(session number, packet id, flags, identifiers) of each."""
    found = []
    reader = Reader(receivers)
    while reader.left():
        number = reader.number()
        packet_id = reader.two()
        flags = reader.byte()
        ids = reader.take(reader.byte()) if flags & HAS_IDS else b""
        found.append((number, packet_id, flags, ids))
    return found
