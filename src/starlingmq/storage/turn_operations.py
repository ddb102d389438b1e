"""The writes of a turn as journal records, and back.

``TurnEncoder`` is the hot path: a message with all its receivers becomes one record; everything else becomes one record
per turn, or a few, since operations that queue, send or retain precede the records of messages that came later. A
message that is already in the journal is referred to by its offset. Only to become retained it is written again,
because a retained message has no reference that keeps the first record from being deleted. ``split`` decodes operations
for recovery.

An operation is u8 kind, session, then by kind (numbers are varints, see ``records``):

    QUEUE_PUT            offset, u8 flags, expires, size, n, n bytes of identifiers
    QUEUE_DELETE         offset
    WINDOW_PUT           u16 packet id, offset, u8 flags | stage << 5, n, n bytes of identifiers
    WINDOW_DELETE        n, n runs of packet ids: u16 first, how many
    INBOUND_PUT          u16 packet id, offset
    INBOUND_COMPLETED    u16 packet id, f64 when
    INBOUND_DELETE       u16 packet id
    FACT_PUT             n, n bytes: length of the key, the key, the value
    all others           n, n bytes: see ``storage.session_values``
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from librt.strings import BytesWriter, write_f64_le

from starlingmq.core.context.ready import (
    FACT_DELETE,
    FACT_PUT,
    FACT_WITH,
    INBOUND_COMPLETED,
    INBOUND_DELETE,
    INBOUND_PUT,
    PRODUCER_PUT,
    QUEUE_DELETE,
    QUEUE_PUT,
    RETAINED_DELETE,
    RETAINED_PUT,
    SESSION_DELETE,
    SESSION_PUT,
    STREAM_PUT,
    SUBSCRIPTION_DELETE,
    SUBSCRIPTION_PUT,
    WINDOW_DELETE,
    WINDOW_PUT,
    Deliveries,
    Write,
)
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import PUBLISHED, Outgoing
from starlingmq.core.messages.stored_messages import PROMISED, RETAIN
from starlingmq.core.router.stream import Stream
from starlingmq.core.session.session import Session
from starlingmq.storage.records import (
    FACT_ID,
    INBOUND,
    OPERATIONS,
    PRODUCER,
    STREAM,
    Reader,
    RecordError,
    encode_number,
    put_message,
    put_number,
    put_receiver,
    put_two,
)
from starlingmq.storage.session_values import encode_session, encode_subscription


def flags_of(outgoing: Outgoing) -> int:
    return outgoing.qos | RETAIN if outgoing.retain else outgoing.qos


def queue_flags_of(outgoing: Outgoing) -> int:
    return flags_of(outgoing) | PROMISED if outgoing.promised else flags_of(outgoing)


def expires_of(message: Message) -> int:
    return 0 if message.expires_at == 0.0 else int(message.expires_at) + 1


def runs(packet_ids: list[int]) -> list[tuple[int, int]]:
    """First id and length of each run of consecutive ids."""
    found: list[tuple[int, int]] = []
    first = -1
    last = -2
    for packet_id in packet_ids:
        if packet_id == last + 1:
            last = packet_id
            continue
        if first >= 0:
            found.append((first, last - first + 1))
        first = last = packet_id
    if first >= 0:
        found.append((first, last - first + 1))
    return found


class TurnEncoder:
    """Encodes the writes of a turn. ``kept`` tells whether the journal still has the record at an offset.

    ``changed`` are the sessions whose queue, window or handshakes changed; ``rare`` the other writes; ``streams`` those
    with new entries in ``pending``.
    """

    records: list[bytes]
    streams: dict[Stream, None]
    changed: dict[Session, None]
    rare: list[Write]
    _first: int
    _kept: Callable[[int], bool]
    _now: float
    _record: BytesWriter  # empty unless a record is being built
    _operations: BytesWriter  # an open record of operations; empty if there is none
    _ordered: bool  # it has an operation that must precede the record of the next message
    _message: Message | None  # the message whose record is being built ...
    _receivers: BytesWriter
    _retained: bool
    _session: Session | None  # the last session added to ``changed``
    _publisher: str  # as encoded last
    _encoded: bytes

    def __init__(self, first_offset: int, kept: Callable[[int], bool], now: float) -> None:
        self.records = []
        self.streams = {}
        self.changed = {}
        self.rare = []
        self._first = first_offset
        self._kept = kept
        self._now = now
        self._record = BytesWriter()
        self._operations = BytesWriter()
        self._ordered = False
        self._message = None
        self._receivers = BytesWriter()
        self._retained = False
        self._session = None
        self._publisher = ""
        self._encoded = b""

    def encode(self, writes: list[Write]) -> list[bytes]:
        """The records of a turn, in order."""
        for write in writes:
            if isinstance(write, Deliveries):
                kinds, sessions = write.kinds, write.sessions
                for index, outgoing in enumerate(write.outgoings):
                    self._delivery(kinds[index], sessions[index], outgoing)
            else:
                self._add(write)
        self._close()
        self._flush()
        return self.records

    def _flush(self) -> None:
        if len(self._operations) != 0:
            self.records.append(self._operations.getvalue())
            self._operations.truncate(0)
        self._ordered = False

    def _close(self) -> None:
        message = self._message
        if message is None:
            return
        out = self._record
        put_message(out, message, self._publisher_of(message), self._receivers.getvalue(), self._retained)
        self.records.append(out.getvalue())
        out.truncate(0)
        self._receivers.truncate(0)
        self._message = None

    def _publisher_of(self, message: Message) -> bytes:
        if message.publisher is not self._publisher:
            self._publisher = message.publisher
            self._encoded = message.publisher.encode()
        return self._encoded

    def _begin(self, message: Message) -> bool:
        """Begin the record of a message unless it has one. Returns whether the record that is being built is that of
        this message."""
        if message is self._message:
            return True
        if message.offset >= 0:
            return False
        self._close()
        if self._ordered:
            self._flush()
        message.offset = self._first + len(self.records)
        self._message = message
        self._retained = False
        return True

    def _change(self, session: Session) -> None:
        if session is not self._session:
            self._session = session
            self.changed[session] = None

    def _add(self, write: Write) -> None:
        kind = write.kind
        session = write.session
        if kind == RETAINED_PUT:
            self.rare.append(write)
            message = write.message
            assert message is not None
            self._begin(message if message is self._message or message.offset < 0 else message.copy())
            self._retained = True
            return
        if kind == PRODUCER_PUT:
            self.rare.append(write)
            message = write.message
            assert message is not None
            if message.offset >= 0 and message is not self._message:
                message = message.copy()
            self._begin(message)
            put_receiver(self._receivers, 0, 0, PRODUCER, write.value + write.topic)
            return
        if kind == FACT_WITH:
            self.rare.append(write)
            message = write.message
            assert message is not None
            if message.offset >= 0 and message is not self._message:
                message = message.copy()
            self._begin(message)
            fact = encode_number(len(write.topic)) + write.topic + write.value
            put_receiver(self._receivers, 0, FACT_ID, PRODUCER, fact)
            return
        if session is None:
            self._other(write, 0)
            return
        number = session.number
        if kind == WINDOW_DELETE:
            self._change(session)
            self._window_delete(number, write.packet_ids)
        elif kind >= INBOUND_PUT and kind <= INBOUND_DELETE:
            self._change(session)
            self._inbound(kind, number, write)
        else:
            self._other(write, number)

    def _operation(self, kind: int, number: int) -> BytesWriter:
        """Begin an operation. The caller appends the rest to the returned writer."""
        out = self._operations
        if len(out) == 0:
            out.append(OPERATIONS)
        out.append(kind)
        put_number(out, number)
        return out

    def _window_delete(self, number: int, packet_ids: list[int] | None) -> None:
        assert packet_ids is not None
        found = runs(packet_ids)
        out = self._operation(WINDOW_DELETE, number)
        put_number(out, len(found))
        for first, count in found:
            put_two(out, first)
            put_number(out, count)

    def _inbound(self, kind: int, number: int, write: Write) -> None:
        message = write.message
        if kind == INBOUND_PUT:
            assert message is not None
            if self._begin(message):
                put_receiver(self._receivers, number, write.packet_id, INBOUND, b"")
                return
        out = self._operation(kind, number)
        put_two(out, write.packet_id)
        if kind == INBOUND_PUT:
            assert message is not None
            put_number(out, message.offset)
        elif kind == INBOUND_COMPLETED:
            write_f64_le(out, self._now)

    def _keep(self, stream: Stream, message: Message, gap: int) -> None:
        """Add a message to a stream: to its log, behind ``gap`` empty records, and to the journal, with its offset in
        the stream. A message that is in the journal already (held for a handshake) is written again: its first record
        is kept only as long as the handshake, and a start may need it afterwards."""
        if stream.ended:
            return
        offset = stream.next + gap
        stream.next = offset + 1
        if gap != 0:
            stream.pending += [b""] * gap
        out = self._record
        put_message(out, message, self._publisher_of(message), b"", False)
        stream.pending.append(out.getvalue())
        out.truncate(0)
        self.streams[stream] = None
        if message is not self._message and message.offset >= 0:
            message = message.copy()
        self._begin(message)
        put_receiver(self._receivers, stream.number, gap, STREAM, encode_number(offset))

    def _delivery(self, kind: int, session: Session, outgoing: Outgoing) -> None:
        message = outgoing.message
        if kind == STREAM_PUT:
            self._keep(cast(Stream, session), message, outgoing.packet_id)
            return
        number = session.number
        if kind == QUEUE_DELETE:
            if message.offset >= 0:
                self._change(session)
                put_number(self._operation(kind, number), message.offset)
            return
        self._change(session)
        ids = outgoing.ids
        packet_id = outgoing.packet_id if kind == WINDOW_PUT else 0
        if outgoing.stage <= PUBLISHED:
            if message.offset >= 0 and message is not self._message and not self._kept(message.offset):
                # its record is deleted; others may still use the old offset
                message = outgoing.message = message.copy()
            if self._begin(message):
                flags = queue_flags_of(outgoing) if kind == QUEUE_PUT else flags_of(outgoing)
                put_receiver(self._receivers, number, packet_id, flags, ids)
                return
            self._ordered = True
        out = self._operation(kind, number)
        if kind == QUEUE_PUT:
            put_number(out, message.offset)
            out.append(queue_flags_of(outgoing))
            put_number(out, expires_of(message))
            put_number(out, message.size())
        else:
            put_two(out, packet_id)
            put_number(out, max(message.offset, 0))
            out.append(flags_of(outgoing) | outgoing.stage << 5)
        put_number(out, len(ids))
        out.write(ids)

    def _other(self, write: Write, number: int) -> None:
        kind = write.kind
        self.rare.append(write)
        data = b""
        if kind == SESSION_PUT:
            assert write.session is not None
            data = encode_session(write.session)
        elif kind == SUBSCRIPTION_PUT:
            assert write.subscription is not None
            data = encode_subscription(write.topic, write.subscription)
        elif kind in (SUBSCRIPTION_DELETE, RETAINED_DELETE):
            data = write.topic
            self._ordered = self._ordered or kind == RETAINED_DELETE
        elif kind == FACT_PUT:
            data = encode_number(len(write.topic)) + write.topic + write.value
        elif kind == FACT_DELETE:
            data = write.topic
            self._ordered = True  # a message after it needs a new record
        elif kind != SESSION_DELETE:
            raise ValueError(f"unknown kind of write: {kind}")
        out = self._operation(kind, number)
        put_number(out, len(data))
        out.write(data)


class Operation:
    """One decoded operation, with the fields of its kind."""

    kind: int
    number: int
    packet_id: int
    offset: int
    flags: int
    expires: int
    size: int
    when: float
    data: bytes
    runs: list[tuple[int, int]]

    def __init__(self, kind: int, number: int) -> None:
        self.kind = kind
        self.number = number
        self.packet_id = 0
        self.offset = 0
        self.flags = 0
        self.expires = 0
        self.size = 0
        self.when = 0.0
        self.data = b""
        self.runs = []


def split_fact(data: bytes) -> tuple[bytes, bytes]:
    """Key and value of a FACT_PUT. Raises RecordError."""
    reader = Reader(data)
    key = reader.take(reader.number())
    return key, data[reader.at :]


def split(record: bytes) -> list[Operation]:
    """The operations of an OPERATIONS record. Raises RecordError."""
    if record[:1] != bytes((OPERATIONS,)):
        raise RecordError("not a record of operations")
    reader = Reader(record, 1)
    found: list[Operation] = []
    while reader.left():
        operation = Operation(reader.byte(), reader.number())
        _read(operation, reader)
        found.append(operation)
    return found


def _read(operation: Operation, reader: Reader) -> None:
    kind = operation.kind
    if kind == QUEUE_PUT:
        operation.offset = reader.number()
        operation.flags = reader.byte()
        operation.expires = reader.number()
        operation.size = reader.number()
        operation.data = reader.take(reader.number())
    elif kind == QUEUE_DELETE:
        operation.offset = reader.number()
    elif kind == WINDOW_PUT:
        operation.packet_id = reader.two()
        operation.offset = reader.number()
        operation.flags = reader.byte()
        operation.data = reader.take(reader.number())
    elif kind == WINDOW_DELETE:
        for _ in range(reader.number()):
            first = reader.two()
            operation.runs.append((first, reader.number()))
    elif INBOUND_PUT <= kind <= INBOUND_DELETE:
        operation.packet_id = reader.two()
        if kind == INBOUND_PUT:
            operation.offset = reader.number()
        elif kind == INBOUND_COMPLETED:
            operation.when = reader.double()
    elif SESSION_PUT <= kind <= FACT_DELETE and kind != RETAINED_PUT:  # RETAINED_PUT is never an operation
        operation.data = reader.take(reader.number())
    else:
        raise RecordError(f"unknown kind of operation {kind}")
