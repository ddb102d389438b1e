"""Encodes and decodes the envelopes that are frequent, without protobuf: messages, their acknowledgements, changes of
routes, and frames about owners.

The bytes are those of protobuf (net/proto/peers.proto). Everything unusual is left to ``net/peers/peer_codec.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from starlingmq.cluster.links.peer_frames import (
    Body,
    Data,
    DataAck,
    Envelope,
    RouteApplied,
    RouteRecord,
    RouteRecords,
    ShareFrame,
)
from starlingmq.cluster.routes.record_bytes import pack_records, unpack_records

# The fields of protobuf: number << 3 | type.
ENVELOPE: Final = 0x0A  # Dialler.envelopes
SOURCE: Final = 0x08  # Envelope ...
INCARNATION: Final = 0x10
TARGET: Final = 0x18
TARGET_INCARNATION: Final = 0x20
RELAYED: Final = 0x28
ROUTE_RECORDS: Final = 0x4A
ROUTE_APPLIED: Final = 0x52
DATA: Final = 0x6A
DATA_ACK: Final = 0x72
SHARE_FRAME: Final = 0xAA  # its first byte; the second one is 1
# Fields of bodies, and the bit that stands for each in the fields of a kind.
FIRST: Final = 0x08
SECOND: Final = 0x10
THIRD: Final = 0x18
FIFTH: Final = 0x28
THIRD_BYTES: Final = 0x1A
FOURTH_BYTES: Final = 0x22
FIFTH_BYTES: Final = 0x2A
TWO_NUMBERS: Final = 1 + 2
OF_ACK: Final = TWO_NUMBERS  # sequence, room
OF_DATA: Final = TWO_NUMBERS + 16  # sequence, count, blob
OF_APPLIED: Final = TWO_NUMBERS + 4  # epoch, version, retained
OF_RECORDS: Final = TWO_NUMBERS + 8 + 16  # epoch, first, quiet, records
OF_SHARES: Final = TWO_NUMBERS + 4 + 32 + 64  # version, sequence, taken, messages, table

UNUSUAL: Final = -1
SHIFT_MAX: Final = 56  # numbers of up to 63 bits


def encode_data(envelope: Envelope, body: Data) -> bytes:
    """``body`` is that of the envelope, and has neither ``waited`` nor been ``kept``."""
    blob = body.blob
    size = _numbers_size(body.sequence, body.count)
    out = _head(envelope, DATA, size + _bytes_size(blob))
    _put_number(out, FIRST, body.sequence)
    _put_number(out, SECOND, body.count)
    _put_bytes(out, THIRD_BYTES, blob)
    return out.getvalue()


def encode_ack(envelope: Envelope, body: DataAck) -> bytes:
    """``body`` is that of the envelope."""
    out = _head(envelope, DATA_ACK, _numbers_size(body.sequence, body.room))
    _put_number(out, FIRST, body.sequence)
    _put_number(out, SECOND, body.room)
    return out.getvalue()


def encode_applied(envelope: Envelope, body: RouteApplied) -> bytes:
    """``body`` is that of the envelope."""
    size = _numbers_size(body.epoch, body.version) + _field_size(body.retained)
    out = _head(envelope, ROUTE_APPLIED, size)
    _put_number(out, FIRST, body.epoch)
    _put_number(out, SECOND, body.version)
    _put_number(out, THIRD, body.retained)
    return out.getvalue()


def encode_records(envelope: Envelope, body: RouteRecords) -> bytes:
    """``body`` is that of the envelope, and has no ``history``."""
    records = packed(body.records)
    size = _numbers_size(body.epoch, body.first) + _bytes_size(records) + (2 if body.quiet else 0)
    out = _head(envelope, ROUTE_RECORDS, size)
    _put_number(out, FIRST, body.epoch)
    _put_number(out, SECOND, body.first)
    _put_bytes(out, THIRD_BYTES, records)
    _put_number(out, FIFTH, 1 if body.quiet else 0)
    return out.getvalue()


def encode_share(envelope: Envelope, body: ShareFrame) -> bytes:
    """``body`` is that of the envelope."""
    size = _numbers_size(body.version, body.sequence) + _field_size(body.taken)
    out = _head(envelope, SHARE_FRAME, size + _bytes_size(body.messages) + _bytes_size(body.table))
    _put_number(out, FIRST, body.version)
    _put_number(out, SECOND, body.sequence)
    _put_number(out, THIRD, body.taken)
    _put_bytes(out, FOURTH_BYTES, body.messages)
    _put_bytes(out, FIFTH_BYTES, body.table)
    return out.getvalue()


class _Packed:
    records: tuple[RouteRecord, ...]
    data: bytes

    def __init__(self) -> None:
        self.records = ()
        self.data = b""


_packed = _Packed()


def packed(records: tuple[RouteRecord, ...]) -> bytes:
    """The bytes of route records. The same records go to all nodes in turn, so the last ones are kept."""
    if _packed.records is not records:
        _packed.data = pack_records(records)
        _packed.records = records
    return _packed.data


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
    """Reads envelopes. Most attributes are the fields of the present body."""

    data: bytes
    at: i64
    first: i64
    second: i64
    third: i64
    fifth: i64
    third_bytes: bytes
    fourth_bytes: bytes
    fifth_bytes: bytes

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self._clear()

    def _clear(self) -> None:
        self.first = self.second = self.third = self.fifth = 0
        self.third_bytes = self.fourth_bytes = self.fifth_bytes = b""

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
            elif body is None:
                if field == SHARE_FRAME:
                    value = self.varint(end) if value == 1 else UNUSUAL
                if value < 0 or self.at + value > end:
                    return None
                body = self._body(field, self.at + value)
                if body is None:
                    return None
            else:
                return None
        if body is None:
            return None
        return Envelope(source, incarnation, target, target_incarnation, body, relayed != 0)

    def _body(self, kind: i64, end: i64) -> Body | None:
        """The body up to ``end``; None if it is unusual."""
        self._clear()
        if kind == DATA:
            return Data(self.first, self.second, self.third_bytes) if self._fields(OF_DATA, end) else None
        if kind == DATA_ACK:
            return DataAck(self.first, self.second) if self._fields(OF_ACK, end) else None
        if kind == SHARE_FRAME:
            if not self._fields(OF_SHARES, end):
                return None
            return ShareFrame(self.first, self.second, self.third, self.fourth_bytes, self.fifth_bytes)
        if kind == ROUTE_RECORDS:
            if not self._fields(OF_RECORDS, end):
                return None
            records = tuple(unpack_records(self.third_bytes))
            return RouteRecords(self.first, self.second, records, (), self.fifth != 0)
        if kind == ROUTE_APPLIED:
            return RouteApplied(self.first, self.second, self.third) if self._fields(OF_APPLIED, end) else None
        return None

    def _fields(self, known: i64, end: i64) -> bool:
        """Reads the fields of a body up to ``end``. Returns whether all are ``known``."""
        data = self.data
        while self.at < end:
            field: i64 = data[self.at]
            self.at += 1
            value = self.varint(end)
            if value < 0:
                return False
            bit: i64 = 0
            if field == FIRST:
                self.first, bit = value, 1
            elif field == SECOND:
                self.second, bit = value, 2
            elif field == THIRD:
                self.third, bit = value, 4
            elif field == FIFTH:
                self.fifth, bit = value, 8
            else:
                start = self.at
                if start + value > end:
                    return False
                self.at = start + value
                if field == THIRD_BYTES:
                    self.third_bytes, bit = data[start : self.at], 16
                elif field == FOURTH_BYTES:
                    self.fourth_bytes, bit = data[start : self.at], 32
                elif field == FIFTH_BYTES:
                    self.fifth_bytes, bit = data[start : self.at], 64
            if bit & known == 0:
                return False
        return True


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
    if field == SHARE_FRAME:
        out.append(1)
    _put_varint(out, size)
    return out


def _numbers_size(first: int, second: int) -> int:
    return _field_size(first) + _field_size(second)


def _field_size(value: int) -> int:
    return 0 if value == 0 else 1 + _varint_size(value)


def _bytes_size(value: bytes) -> int:
    return 0 if len(value) == 0 else 1 + _varint_size(len(value)) + len(value)


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


def _put_bytes(out: BytesWriter, field: int, value: bytes) -> None:
    """The same."""
    if len(value) != 0:
        out.append(field)
        _put_varint(out, len(value))
        out.write(value)


def _put_varint(out: BytesWriter, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
