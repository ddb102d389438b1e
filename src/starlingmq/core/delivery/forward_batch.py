"""The encoding of messages between nodes, many in a row in one blob.

One message: u8 flags (QoS | RETAIN | EXPIRES | GROUP | TRACKED | NAMED | AGED), i64 sequence, f64 seconds until it
expires (EXPIRES), f64 seconds since it was published (AGED), u8 length of the id and the id (NAMED), varint lengths of
topic, publisher, properties, group and payload, then those. Big-endian. Seconds count from when the blob was made. The
origin is the sender of the blob: only the node where messages entered forwards them. A message for the node itself has
an empty group (with GROUP) and no topic.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_f64_be, read_i64_be, write_f64_be, write_i64_be

from starlingmq.core.delivery.stale_requests import stale
from starlingmq.core.messages.message import Message

AGE_TOLD: Final = 0.5  # seconds that a NATS client's message has waited, from which on the next node is told

QOS: Final = 3
RETAIN: Final = 4
EXPIRES: Final = 8
GROUP: Final = 16  # only for a member of this shared group
FOR_THE_NODE: Final = b"$node"  # in place of a group: only for the node itself (see core.peers.peer_receivers)
TRACKED: Final = 32  # the sender keeps it in its window for this peer until it is acknowledged
NAMED: Final = 64  # it has events (core.observe.audit)
AGED: Final = 128  # of a NATS client, and it has waited where it entered (core.delivery.stale_requests)


class ForwardError(ValueError):
    """Invalid data in place of a blob: sent by another version, or by a bug."""


class Forward:
    """One message of a blob; ``group`` is ``$share/name/filter``, or b"" for ordinary subscribers."""

    message: Message
    group: bytes

    def __init__(self, message: Message, group: bytes) -> None:
        self.message = message
        self.group = group


def _put_length(out: BytesWriter, value: int) -> None:
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def encode_forward(message: Message, group: bytes, tracked: bool, now: float) -> bytes:
    """One message of a blob."""
    out = BytesWriter()
    flags = message.qos
    if message.retain:
        flags |= RETAIN
    if message.expires_at != 0.0:
        flags |= EXPIRES
    if len(group) != 0:
        flags |= GROUP
    if tracked:
        flags |= TRACKED
    if len(message.id) != 0:
        flags |= NAMED
    aged = stale(message, now, AGE_TOLD)
    if aged:
        flags |= AGED
    out.append(flags)
    write_i64_be(out, message.sequence)
    if message.expires_at != 0.0:
        write_f64_be(out, message.expires_at - now)
    if aged:
        write_f64_be(out, now - message.published_at)
    if len(message.id) != 0:
        out.append(len(message.id))
        out.write(message.id)
    publisher = message.publisher.encode()
    topic = message.topic
    if group == FOR_THE_NODE:
        topic = group = b""
    _put_length(out, len(topic))
    _put_length(out, len(publisher))
    _put_length(out, len(message.properties))
    _put_length(out, len(group))
    _put_length(out, len(message.payload))
    out.write(topic)
    out.write(publisher)
    out.write(message.properties)
    out.write(group)
    out.write(message.payload)
    return out.getvalue()


class ForwardReader:
    """Decodes a blob, message by message. ``made_at``: the time when the blob was made, by this node's clock. Raises
    ForwardError."""

    data: bytes
    at: int
    origin: int
    made_at: float
    kept: bool  # its messages waited at their node while that was not connected to this one

    def __init__(self, data: bytes, origin: int, made_at: float) -> None:
        self.data = data
        self.at = 0
        self.origin = origin
        self.made_at = made_at
        self.kept = False

    def left(self) -> bool:
        return self.at < len(self.data)

    def _length(self) -> int:
        data = self.data
        value = 0
        shift = 0
        while self.at < len(data):
            byte = data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ForwardError("a batch of messages is truncated")

    def _take(self, length: int) -> bytes:
        start = self.at
        self.at = start + length
        if self.at > len(self.data):
            raise ForwardError("a batch of messages is truncated")
        return self.data[start : start + length]

    def _text(self, length: int) -> str:
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise ForwardError("a publisher's name is not UTF-8") from None

    def _seconds(self) -> float:
        if self.at + 8 > len(self.data):
            raise ForwardError("a batch of messages is truncated")
        self.at += 8
        return read_f64_be(self.data, self.at - 8)

    def next(self) -> Forward:
        data = self.data
        if self.at + 9 > len(data):
            raise ForwardError("a batch of messages is truncated")
        flags = data[self.at]
        sequence = read_i64_be(data, self.at + 1)
        self.at += 9
        expires_at = self.made_at + self._seconds() if flags & EXPIRES else 0.0
        published_at = self.made_at - self._seconds() if flags & AGED else self.made_at
        id = self._take(self._length()) if flags & NAMED else b""
        topic_length = self._length()
        publisher_length = self._length()
        properties_length = self._length()
        group_length = self._length()
        payload_length = self._length()
        topic = self._take(topic_length)
        publisher = self._text(publisher_length)
        properties = self._take(properties_length)
        group = self._take(group_length)
        payload = self._take(payload_length)
        message = Message(
            topic, payload, flags & QOS, flags & RETAIN != 0, properties, expires_at, publisher, published_at
        )
        message.origin = self.origin
        message.sequence = sequence
        message.id = id
        if group_length == 0 and flags & GROUP:
            group = FOR_THE_NODE
        return Forward(message, group)


def first_sequence(blob: bytes) -> int:
    """The lowest sequence of the messages in a blob, which has one at least."""
    return read_i64_be(blob, 1)


def count_tracked(blob: bytes) -> int:
    """The number of messages in a blob that the sender keeps until they are acknowledged."""
    reader = ForwardReader(blob, 0, 0.0)
    count = 0
    while reader.left():
        flags = blob[reader.at]
        reader.at += 17 if flags & EXPIRES else 9
        if flags & AGED:
            reader.at += 8
        if flags & NAMED:
            reader._take(reader._length())
        skip = reader._length() + reader._length() + reader._length() + reader._length() + reader._length()
        reader.at += skip
        if flags & TRACKED:
            count += 1
    return count
