"""Encodes and decodes the envelopes of messages and of their acknowledgements, without protobuf.

The bytes are those of protobuf (net/proto/peers.proto). Everything unusual is left to ``net/peers/peer_codec.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from starlingmq.cluster.links.peer_frames import Body, Data, DataAck, Envelope

# The fields of protobuf: number << 3 | type.
ENVELOPE: Final = 0x0A  # Dialler.envelopes
SOURCE: Final = 0x08  # Envelope ...
INCARNATION: Final = 0x10
TARGET: Final = 0x18
TARGET_INCARNATION: Final = 0x20
RELAYED: Final = 0x28
DATA: Final = 0x6A
DATA_ACK: Final = 0x72
FIRST: Final = 0x08  # Data.sequence, DataAck.sequence
SECOND: Final = 0x10  # Data.count, DataAck.room
BLOB: Final = 0x1A

UNUSUAL: Final = -1
SHIFT_MAX: Final = 56  # numbers of up to 63 bits


def encode_data(envelope: Envelope, body: Data) -> bytes:
    """``body`` is that of the envelope, and has not ``waited``."""
    blob = body.blob
    size = _numbers_size(body.sequence, body.count)
    if len(blob) != 0:
        size += 1 + _varint_size(len(blob)) + len(blob)
    out = _head(envelope, DATA, size)
    _put_number(out, FIRST, body.sequence)
    _put_number(out, SECOND, body.count)
    if len(blob) != 0:
        out.append(BLOB)
        _put_varint(out, len(blob))
        out.write(blob)
    return out.getvalue()


def encode_ack(envelope: Envelope, body: DataAck) -> bytes:
    """``body`` is that of the envelope."""
    out = _head(envelope, DATA_ACK, _numbers_size(body.sequence, body.room))
    _put_number(out, FIRST, body.sequence)
    _put_number(out, SECOND, body.room)
    return out.getvalue()


def join(encoded: Iterable[bytes]) -> bytes:
    """One message of encoded envelopes."""
    out = BytesWriter()
    for data in encoded:
        out.append(ENVELOPE)
        _put_varint(out, len(data))
        out.write(data)
    return out.getvalue()


def split_usual(data: bytes, other: Callable[[bytes], Envelope | None]) -> list[Envelope] | None:
    """The envelopes of one message; ``other`` decodes those with another content, or returns None for one that is to be
    left out. Returns None if the message itself is unusual."""
    reader = _Reader(data)
    end: i64 = len(data)
    found: list[Envelope] = []
    while reader.at < end:
        if data[reader.at] != ENVELOPE:
            return None
        reader.at += 1
        size = reader.varint(end)
        start = reader.at
        if size < 0 or start + size > end:
            return None
        envelope = reader.envelope(start + size)
        if envelope is None:
            envelope = other(data[start : start + size])
            reader.at = start + size
        if envelope is not None:
            found.append(envelope)
    return found


class _Reader:
    data: bytes
    at: i64

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self, end: i64) -> i64:
        """A number before ``end``, or ``UNUSUAL``."""
        data = self.data
        value: i64 = 0
        shift: i64 = 0
        while self.at < end and shift <= SHIFT_MAX:
            byte: i64 = data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        return UNUSUAL

    def envelope(self, end: i64) -> Envelope | None:
        """The envelope up to ``end``; None if it is unusual."""
        data = self.data
        source: i64 = 0
        incarnation: i64 = 0
        target: i64 = 0
        target_incarnation: i64 = 0
        relayed: i64 = 0
        body: Body | None = None
        while self.at < end:
            field: i64 = data[self.at]
            self.at += 1
            value = self.varint(end)
            if value < 0:
                return None
            if field == SOURCE:
                source = value
            elif field == INCARNATION:
                incarnation = value
            elif field == TARGET:
                target = value
            elif field == TARGET_INCARNATION:
                target_incarnation = value
            elif field == RELAYED:
                relayed = value
            elif field in (DATA, DATA_ACK) and body is None and self.at + value <= end:
                body = self._body(self.at + value, field == DATA)
                if body is None:
                    return None
            else:
                return None
        if body is None:
            return None
        return Envelope(source, incarnation, target, target_incarnation, body, relayed != 0)

    def _body(self, end: i64, has_blob: bool) -> Body | None:
        data = self.data
        first: i64 = 0
        second: i64 = 0
        blob = b""
        while self.at < end:
            field: i64 = data[self.at]
            self.at += 1
            value = self.varint(end)
            if value < 0:
                return None
            if field == FIRST:
                first = value
            elif field == SECOND:
                second = value
            elif field == BLOB and has_blob and self.at + value <= end:
                blob = data[self.at : self.at + value]
                self.at += value
            else:
                return None
        return Data(first, second, blob) if has_blob else DataAck(first, second)


def _head(envelope: Envelope, field: int, size: int) -> BytesWriter:
    """An envelope up to the content of its body, which has ``size`` bytes."""
    out = BytesWriter()
    _put_number(out, SOURCE, envelope.source)
    _put_number(out, INCARNATION, envelope.incarnation)
    _put_number(out, TARGET, envelope.target)
    _put_number(out, TARGET_INCARNATION, envelope.target_incarnation)
    if envelope.relayed:
        _put_number(out, RELAYED, 1)
    out.append(field)
    _put_varint(out, size)
    return out


def _numbers_size(first: int, second: int) -> int:
    size = 0
    if first != 0:
        size += 1 + _varint_size(first)
    if second != 0:
        size += 1 + _varint_size(second)
    return size


def _varint_size(value: int) -> int:
    size = 1
    while value > 127:
        value >>= 7
        size += 1
    return size


def _put_number(out: BytesWriter, field: int, value: int) -> None:
    """A field; protobuf leaves out those that are 0."""
    if value != 0:
        out.append(field)
        _put_varint(out, value)


def _put_varint(out: BytesWriter, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
