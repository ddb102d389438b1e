"""Envelopes as bytes, and back. Every input that cannot be decoded raises FrameError.

A message has several envelopes, each behind its length. An envelope is: u8 kind of its body (RELAYED is added), varints
of source, incarnation, target and target incarnation, and the body. The bodies of ``peer_frames`` are varints, in the
order of their fields, and bytes up to the end; ``control_frames`` says what all others are. A node ignores a kind or a
tag that it does not know: that of a later version.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from librt.strings import BytesWriter, read_f64_be, write_f64_be
from mypy_extensions import i64, u8

from starlingmq.cluster.links.control_frames import Control
from starlingmq.cluster.links.peer_frames import Body, Data, DataAck, Envelope, RouteApplied, RouteRecords, ShareFrame
from starlingmq.cluster.links.record_bytes import PackedRecords, RouteRecordError, unpack_records

CONTROL: Final = 0
DATA: Final = 1
DATA_ACK: Final = 2
SHARE_FRAME: Final = 3
ROUTE_RECORDS: Final = 4
ROUTE_APPLIED: Final = 5
RELAYED: Final = 0x80

KEPT: Final = 1  # of Data
WAITED: Final = 2  # then f64 seconds
QUIET: Final = 1  # of RouteRecords

SHIFT_MAX: Final = 56  # numbers have up to 63 bits
TAGS: Final = frozenset([kind.__struct_config__.tag for kind in Control.__args__])


class FrameError(Exception):
    """The bytes are not a frame of any version that this node knows."""


def _pack(value: Any) -> bytes:
    if isinstance(value, PackedRecords):
        return value.packed()
    raise NotImplementedError(f"{type(value).__name__} is no part of a frame")


def _unpack(kind: type, value: Any) -> PackedRecords:
    if kind is not PackedRecords or not isinstance(value, bytes):
        raise ValueError("route records are bytes")
    return PackedRecords(unpack_records(value))


_encode_control = msgspec.msgpack.Encoder(enc_hook=_pack).encode
_decode_control: Any = msgspec.msgpack.Decoder(Control, dec_hook=_unpack).decode
_decode_any = msgspec.msgpack.Decoder(list[Any]).decode


def encode(envelope: Envelope) -> bytes:
    body = envelope.body
    out = BytesWriter()
    if isinstance(body, Data):
        _head(out, DATA, envelope)
        _put(out, body.sequence)
        _put(out, body.count)
        out.append((KEPT if body.kept else 0) | (WAITED if body.waited != 0.0 else 0))
        if body.waited != 0.0:
            write_f64_be(out, body.waited)
        out.write(body.blob)
    elif isinstance(body, DataAck):
        _head(out, DATA_ACK, envelope)
        _put(out, body.sequence)
        _put(out, body.room)
    elif isinstance(body, ShareFrame):
        _head(out, SHARE_FRAME, envelope)
        _put(out, body.version)
        _put(out, body.sequence)
        _put(out, body.taken)
        _put(out, len(body.messages))
        out.write(body.messages)
        out.write(body.table)
    elif isinstance(body, RouteRecords):
        _head(out, ROUTE_RECORDS, envelope)
        _put(out, body.epoch)
        _put(out, body.first)
        out.append(QUIET if body.quiet else 0)
        _put(out, len(body.history))
        for epoch, first in body.history:
            _put(out, epoch)
            _put(out, first)
        out.write(body.records.packed())
    elif isinstance(body, RouteApplied):
        _head(out, ROUTE_APPLIED, envelope)
        _put(out, body.epoch)
        _put(out, body.version)
        _put(out, body.retained)
    else:
        _head(out, CONTROL, envelope)
        out.write(_encode_control(body))
    return out.getvalue()


def _head(out: BytesWriter, kind: i64, envelope: Envelope) -> None:
    out.append(u8(kind | RELAYED if envelope.relayed else kind))
    _put(out, envelope.source)
    _put(out, envelope.incarnation)
    _put(out, envelope.target)
    _put(out, envelope.target_incarnation)


def _put(out: BytesWriter, value: i64) -> None:
    while value > 127:
        out.append(u8(value & 127 | 128))
        value >>= 7
    out.append(u8(value))


def join(encoded: Iterable[bytes]) -> bytes:
    """One message of encoded envelopes."""
    out = BytesWriter()
    for data in encoded:
        _put(out, len(data))
        out.write(data)
    return out.getvalue()


def split(data: bytes) -> list[Envelope]:
    """The envelopes of one message, in order, without kinds that only later versions know. Raises FrameError."""
    reader = _Reader(data)
    envelopes: list[Envelope] = []
    try:
        while reader.at < len(data):
            envelope = reader.envelope()
            if envelope is not None:
                envelopes.append(envelope)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, RouteRecordError, FrameError) as error:
        raise FrameError(f"a message of {len(data)} bytes is malformed: {error}") from error
    return envelopes


class _Reader:
    data: bytes
    at: i64
    end: i64  # of the envelope

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.end = len(data)

    def number(self) -> i64:
        data = self.data
        at = self.at
        end = self.end
        value: i64 = 0
        shift: i64 = 0
        while at < end and shift <= SHIFT_MAX:
            byte: i64 = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                self.at = at
                return value
            shift += 7
        raise FrameError("a number is truncated")

    def byte(self) -> i64:
        if self.at >= self.end:
            raise FrameError("an envelope is truncated")
        self.at += 1
        return self.data[self.at - 1]

    def part(self, size: i64) -> bytes:
        start = self.at
        if size > self.end - start:  # their sum may not fit into 64 bits
            raise FrameError("an envelope is truncated")
        self.at = start + size
        return self.data[start : self.at]

    def rest(self) -> bytes:
        return self.part(self.end - self.at)

    def envelope(self) -> Envelope | None:
        """The next one; None if only a later version knows its kind."""
        self.end = len(self.data)
        size = self.number()
        if size > self.end - self.at:
            raise FrameError("an envelope is truncated")
        self.end = self.at + size
        kind = self.byte()
        source = self.number()
        incarnation = self.number()
        target = self.number()
        target_incarnation = self.number()
        body = self._body(kind & ~RELAYED)
        self.at = self.end  # a later version may have added something
        if body is None:
            return None
        return Envelope(source, incarnation, target, target_incarnation, body, kind >= RELAYED)

    def _body(self, kind: i64) -> Body | None:
        if kind == DATA:
            return self._data()
        if kind == DATA_ACK:
            sequence = self.number()
            return DataAck(sequence, self.number())
        if kind == SHARE_FRAME:
            version = self.number()
            sequence = self.number()
            taken = self.number()
            messages = self.part(self.number())
            return ShareFrame(version, sequence, taken, messages, self.rest())
        if kind == ROUTE_RECORDS:
            return self._records()
        if kind == ROUTE_APPLIED:
            epoch = self.number()
            version = self.number()
            return RouteApplied(epoch, version, self.number())
        return self._control() if kind == CONTROL else None

    def _data(self) -> Data:
        sequence = self.number()
        count = self.number()
        flags = self.byte()
        waited = read_f64_be(self.part(8), 0) if flags & WAITED else 0.0
        return Data(sequence, count, self.rest(), waited, flags & KEPT != 0)

    def _records(self) -> RouteRecords:
        epoch = self.number()
        first = self.number()
        quiet = self.byte() & QUIET != 0
        history: list[tuple[int, int]] = []
        for _ in range(self.number()):
            began = self.number()
            history.append((began, self.number()))
        return RouteRecords(epoch, first, PackedRecords(unpack_records(self.rest())), tuple(history), quiet)

    def _control(self) -> Control | None:
        data = self.rest()
        try:
            frame: Control = _decode_control(data)
        except msgspec.ValidationError:
            values = _decode_any(data)
            if values and isinstance(values[0], int) and values[0] not in TAGS:
                return None
            raise
        return frame
