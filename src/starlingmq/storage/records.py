"""The encoding of a turn's writes as journal records, and of checkpoint values.

A turn is one append to the journal: a MESSAGE record for each new message, with its receivers, then one OPERATIONS
record for everything else. Operations refer to messages by journal offset and to sessions by number; neither is ever
reused.

Numbers without a stated size are varints: seven bits per byte, low ones first, the high bit set in all bytes but the
last.

MESSAGE     u8 1, u8 QoS | retain << 2 | retained << 3 | expires << 4 | passed << 5 | named << 6, f64 published, f64
            expires (if set), length of the id and the id (if it has one: core.observe.audit), origin and sequence
            (if it was forwarded between nodes), lengths of topic, publisher, properties and receivers; those; the rest
            is payload.
            A receiver: session, u16 packet id (0: queued), u8 flags; with HAS_IDS: length, identifiers. A stream is
            a receiver, too (docs/STREAMS.md), and its own log has the same record without receivers. The state of a
            producer as of this message is also encoded as a receiver, so that both are stored atomically; so is
            a fact that goes with it (FACT_WITH).
OPERATIONS  u8 2, then operations: u8 kind (a number of core.context.ready), session, then as ``operations`` defines per
            kind.
"""

from __future__ import annotations

import struct
from typing import Final

from librt.strings import BytesWriter, write_f64_le
from mypy_extensions import i64, u8

from starlingmq.core.messages.message import Message
from starlingmq.core.messages.stored_messages import HAS_IDS
from starlingmq.wire.primitives import BYTE

MESSAGE: Final = 1
OPERATIONS: Final = 2

INBOUND: Final = 16  # receiver flags: the receiver is a QoS 2 handshake that holds the message,
STREAM: Final = 32  # a stream; the identifiers are the offset of the message in it; packet id: the gap before it
PRODUCER: Final = (
    64  # not a receiver but who published it: the identifiers are its state and its key (core.publish.producers)
)
FACT_ID: Final = 1  # the packet id with PRODUCER: the identifiers are a fact, as in FACT_PUT
RETAINED: Final = 8  # message flags: it becomes the retained message of its topic

EXPIRES: Final = 16
PASSED: Final = 32
NAMED: Final = 64

_DOUBLE: Final = struct.Struct("<d")


class RecordError(ValueError):
    """A record with a correct checksum that makes no sense: written by another version, or by a bug."""


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


def decode_number(data: bytes) -> int:
    return Reader(data).number()


class Reader:
    """Reads a record from its beginning. Raises RecordError for missing bytes."""

    data: bytes
    at: int

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def left(self) -> bool:
        return self.at < len(self.data)

    def byte(self) -> int:
        if self.at >= len(self.data):
            raise RecordError("the record is truncated")
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
            raise RecordError("the record is truncated")
        return self.data[self.at - length : self.at]


def put_number(out: BytesWriter, value: i64) -> None:
    """Append ``encode_number(value)``."""
    while value >= 128:
        out.append(u8(value & 127 | 128))
        value >>= 7
    out.append(u8(value))


def put_two(out: BytesWriter, value: int) -> None:
    out.append(value >> 8)
    out.append(value & 255)


def put_receiver(out: BytesWriter, number: int, packet_id: int, flags: int, ids: bytes) -> None:
    put_number(out, number)
    put_two(out, packet_id)
    if len(ids) == 0:
        out.append(flags)
        return
    out.append(flags | HAS_IDS)
    put_number(out, len(ids))
    out.write(ids)


def put_message(out: BytesWriter, message: Message, publisher: bytes, receivers: bytes, retained: bool) -> None:
    """Append a MESSAGE record. ``publisher`` is ``message.publisher`` encoded, which is the same for many messages in a
    row."""
    flags = message.qos
    if message.retain:
        flags |= 4
    if retained:
        flags |= RETAINED
    expires_at = message.expires_at
    if expires_at != 0.0:
        flags |= EXPIRES
    if message.sequence != 0:
        flags |= PASSED
    if len(message.id) != 0:
        flags |= NAMED
    out.append(MESSAGE)
    out.append(flags)
    write_f64_le(out, message.published_at)
    if expires_at != 0.0:
        write_f64_le(out, expires_at)
    if len(message.id) != 0:
        put_number(out, len(message.id))
        out.write(message.id)
    if message.sequence != 0:
        put_number(out, message.origin)
        put_number(out, message.sequence)
    put_number(out, len(message.topic))
    put_number(out, len(publisher))
    put_number(out, len(message.properties))
    put_number(out, len(receivers))
    out.write(message.topic)
    out.write(publisher)
    out.write(message.properties)
    out.write(receivers)
    out.write(message.payload)


def encode_message(message: Message) -> bytes:
    """The record of a message in the log of a stream."""
    out = BytesWriter()
    put_message(out, message, message.publisher.encode(), b"", False)
    return out.getvalue()


def encode_retained(message: Message) -> bytes:
    """The MESSAGE record of a retained message, without receivers."""
    out = BytesWriter()
    put_message(out, message, message.publisher.encode(), b"", True)
    return out.getvalue()


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
    id = reader.take(reader.number()) if flags & NAMED else b""
    origin = sequence = 0
    if flags & PASSED:
        origin = reader.number()
        sequence = reader.number()
    lengths = (reader.number(), reader.number(), reader.number(), reader.number())
    topic = reader.take(lengths[0])
    publisher = reader.take(lengths[1]).decode()
    properties = reader.take(lengths[2])
    receivers = reader.take(lengths[3])
    payload = reader.data[reader.at :]
    message = Message(topic, payload, flags & 3, flags & 4 != 0, properties, expires, publisher, published)
    message.origin = origin
    message.sequence = sequence
    message.id = id
    return message, receivers, flags & RETAINED != 0


def split_receivers(receivers: bytes) -> list[tuple[int, int, int, bytes]]:
    """(session number, packet id, flags, identifiers) of each."""
    found = []
    reader = Reader(receivers)
    while reader.left():
        number = reader.number()
        packet_id = reader.two()
        flags = reader.byte()
        ids = reader.take(reader.number()) if flags & HAS_IDS else b""
        found.append((number, packet_id, flags, ids))
    return found
