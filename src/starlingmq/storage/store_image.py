"""The sessions and retained messages of a store that is being opened: the checkpoint, and the journal since then.

Operations are applied in the order of the journal. Operations that the checkpoint of a session already contains (those
before its ``as_of``) are not applied again. Sessions are found by number, so the order within a turn does not matter.
What was applied is remembered, since the next checkpoint covers this part of the journal and has to write it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from starlingmq.core.context.ready import (
    FACT_DELETE,
    FACT_PUT,
    INBOUND_COMPLETED,
    INBOUND_DELETE,
    INBOUND_PUT,
    QUEUE_DELETE,
    QUEUE_PUT,
    RETAINED_DELETE,
    SESSION_DELETE,
    SESSION_PUT,
    SUBSCRIPTION_DELETE,
    SUBSCRIPTION_PUT,
    WINDOW_DELETE,
    WINDOW_PUT,
)
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.stored_messages import PROMISED, QOS_MASK, RETAIN, Reference, References
from starlingmq.core.publish.producers import PRODUCER_FACT, later_state
from starlingmq.core.session.production import STATE_SIZE
from starlingmq.storage.keys import fact_key, retained_key, session_key, subscription_key
from starlingmq.storage.kv import Batch
from starlingmq.storage.records import (
    FACT_ID,
    INBOUND,
    MESSAGE,
    OPERATIONS,
    PRODUCER,
    STREAM,
    RecordError,
    decode_message,
    decode_number,
    encode_retained,
    open_message,
    split_receivers,
)
from starlingmq.storage.session_values import (
    HoldingsValue,
    InboundValue,
    SessionValue,
    SubscriptionValue,
    WindowValue,
    decode_session,
    decode_subscription,
)
from starlingmq.storage.turn_operations import Operation, expires_of, split, split_fact

STAGE_SHIFT = 5
QUEUE_FLAGS: Final = QOS_MASK | RETAIN | PROMISED
PUBLISHED = 1


class SessionImage:
    """One session. ``value`` None: only references to it have been found so far.

    Its queue stays packed while it is changed at its ends only. Taking an entry out of the middle (an expired message)
    unpacks it into ``queue``.
    """

    number: int
    value: SessionValue | None
    as_of: int
    subscriptions: dict[bytes, SubscriptionValue]
    packed: References | None
    queue: dict[int, list[Reference]] | None  # by offset, in order
    window: dict[int, WindowValue]
    inbound: dict[int, InboundValue]

    def __init__(self, number: int) -> None:
        self.number = number
        self.value = None
        self.as_of = 0
        self.subscriptions = {}
        self.packed = None
        self.queue = None
        self.window = {}
        self.inbound = {}

    def hold(self, value: HoldingsValue) -> None:
        self.as_of = value.as_of
        self.packed = References.unpack(value.queue, value.ids)
        self.window = {entry.packet_id: entry for entry in value.window}
        self.inbound = {entry.packet_id: entry for entry in value.inbound}

    def put(self, offset: int, flags: int, expires: int, size: int, ids: bytes) -> None:
        if self.queue is not None:
            self.queue.setdefault(offset, []).append(Reference(offset, flags, expires, size, ids))
            return
        if self.packed is None:
            self.packed = References()
        self.packed.append(offset, flags, expires, size, ids)

    def delete(self, offset: int) -> None:
        packed = self.packed
        if packed is not None and len(packed) != 0 and packed.peek().offset == offset:
            packed.pop()
            return
        queue = self.unpacked()
        entries = queue.get(offset)
        if entries is not None:
            entries.pop(0)
            if not entries:
                del queue[offset]

    def unpacked(self) -> dict[int, list[Reference]]:
        if self.queue is None:
            self.queue = {}
            packed = self.packed
            self.packed = None
            if packed is not None:
                for index in range(len(packed)):
                    entry = packed.peek(index)
                    self.queue.setdefault(entry.offset, []).append(entry)
        return self.queue

    def references(self) -> References:
        if self.queue is None:
            return self.packed or References()
        whole = References()
        for entries in self.queue.values():
            for entry in entries:
                whole.append(entry.offset, entry.flags, entry.expires, entry.size, entry.ids)
        return whole


class StreamPut(NamedTuple):
    """The message belongs to the stream with this number, at this offset. ``gap``: so many empty records precede it."""

    number: int
    offset: int
    message: Message
    gap: int = 0


class StoreImage:
    sessions: dict[int, SessionImage]
    retained: dict[bytes, Message]
    next_number: int
    changes: Batch  # values of sessions and subscriptions that the journal changed
    touched: dict[int, None]  # sessions that it changed in any way
    topics: dict[bytes, None]  # topics whose retained message the journal changed
    facts: dict[bytes, bytes]
    highest: dict[int, int]  # highest sequence of a message from each node
    kept: list[StreamPut]  # messages of streams, in order; the caller removes them

    def __init__(self) -> None:
        self.sessions = {}
        self.retained = {}
        self.next_number = 1
        self.changes = Batch()
        self.touched = {}
        self.topics = {}
        self.facts = {}
        self.highest = {}
        self.kept = []

    def session(self, number: int) -> SessionImage:
        image = self.sessions.get(number)
        if image is None:
            image = self.sessions[number] = SessionImage(number)
            self.next_number = max(self.next_number, number + 1)
        return image

    def apply(self, offset: int, record: bytes) -> None:
        """Apply a journal record. Raises RecordError."""
        kind = record[0] if record else 0
        if kind == MESSAGE:
            self._message(offset, record)
        elif kind == OPERATIONS:
            for operation in split(record):
                self._operation(offset, operation)
        else:
            raise RecordError(f"unknown type of record {record[:1]!r}")

    def _message(self, offset: int, record: bytes) -> None:
        message, receivers, retained = open_message(record)
        message.offset = offset
        if message.sequence > self.highest.get(message.origin, 0):
            self.highest[message.origin] = message.sequence
        if retained:
            self.retained[message.topic] = message
            self.topics[message.topic] = None
        for number, packet_id, flags, ids in split_receivers(receivers):
            if flags & STREAM:
                self.kept.append(StreamPut(number, decode_number(ids), message, packet_id))
                continue
            if flags & PRODUCER and packet_id == FACT_ID:
                key, value = split_fact(ids)
                self.facts[key] = value
                self.changes.put(fact_key(key), value)
                continue
            if flags & PRODUCER:
                self._produced(PRODUCER_FACT + ids[STATE_SIZE:], ids[:STATE_SIZE])
                continue
            image = self.session(number)
            self.touched[number] = None
            if offset < image.as_of:
                continue
            if flags & INBOUND:
                image.inbound[packet_id] = InboundValue(packet_id, offset, message.published_at)
            elif packet_id:
                image.window[packet_id] = WindowValue(packet_id, offset, flags & 7, PUBLISHED, ids)
            else:
                image.put(offset, flags & QUEUE_FLAGS, expires_of(message), message.size(), ids)

    def _produced(self, fact: bytes, state: bytes) -> None:
        state = later_state(state, self.facts.get(fact, b""))
        self.facts[fact] = state
        self.changes.put(fact_key(fact), state)

    def _operation(self, offset: int, operation: Operation) -> None:
        kind = operation.kind
        if kind == RETAINED_DELETE:
            self.retained.pop(operation.data, None)
            self.topics[operation.data] = None
            return
        if kind == FACT_PUT:
            key, value = split_fact(operation.data)
            self.facts[key] = value
            self.changes.put(fact_key(key), value)
            return
        if kind == FACT_DELETE:
            self.facts.pop(operation.data, None)
            self.changes.delete(fact_key(operation.data))
            return
        number = operation.number
        self.touched[number] = None
        if kind == SESSION_DELETE:
            self.sessions.pop(number, None)
            return
        image = self.session(number)
        if kind == SESSION_PUT:
            image.value = decode_session(operation.data)
            self.changes.put(session_key(number), operation.data)
        elif kind == SUBSCRIPTION_PUT:
            subscription = decode_subscription(operation.data)
            image.subscriptions[subscription.whole] = subscription
            self.changes.put(subscription_key(number, subscription.whole), operation.data)
        elif kind == SUBSCRIPTION_DELETE:
            image.subscriptions.pop(operation.data, None)
            self.changes.delete(subscription_key(number, operation.data))
        elif offset >= image.as_of:
            self._holding(image, operation)

    def _holding(self, image: SessionImage, operation: Operation) -> None:
        kind = operation.kind
        packet_id = operation.packet_id
        if kind == QUEUE_PUT:
            image.put(operation.offset, operation.flags, operation.expires, operation.size, operation.data)
        elif kind == QUEUE_DELETE:
            image.delete(operation.offset)
        elif kind == WINDOW_PUT:
            flags = operation.flags
            image.window[packet_id] = WindowValue(
                packet_id, operation.offset, flags & 7, flags >> STAGE_SHIFT, operation.data
            )
        elif kind == WINDOW_DELETE:
            for first, count in operation.runs:
                for acknowledged in range(first, first + count):
                    image.window.pop(acknowledged, None)
        elif kind == INBOUND_PUT:
            image.inbound[packet_id] = InboundValue(packet_id, operation.offset, 0.0)
        elif kind == INBOUND_COMPLETED:
            image.inbound[packet_id] = InboundValue(packet_id, -1, operation.when)
        elif kind == INBOUND_DELETE:
            image.inbound.pop(packet_id, None)

    def retain(self, record: bytes) -> None:
        """Take over a retained message of the checkpoint."""
        message = decode_message(record)
        self.retained[message.topic] = message

    def replayed(self) -> Batch:
        """The values of sessions, subscriptions and retained messages that the next checkpoint has to write."""
        for topic in self.topics:
            message = self.retained.get(topic)
            if message is None:
                self.changes.delete(retained_key(topic))
            else:
                self.changes.put(retained_key(topic), encode_retained(message))
        return self.changes
