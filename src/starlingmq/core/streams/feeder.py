"""The position of one MQTT session or shared group in a stream: which message it is to get next.

The law:

- Messages are read in the order of their sequences, those that match ``filters``, each once.
- A message that is removed before it was read is left out, and counted (``skipped``).
- ``next`` rises only. It is stored together with the message that it follows, so a crash neither repeats nor omits one.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import trait

from starlingmq.core.groups.group import Group
from starlingmq.core.messages.message import Message
from starlingmq.core.session.session import Session, Subscription
from starlingmq.core.streams.far_read import FarRead
from starlingmq.core.streams.message_index import TopicSelection
from starlingmq.core.streams.sequenced_stream import TOPICS_SHIFT, SequencedStream, StreamWatcher
from starlingmq.core.streams.stream_filters import EARLIEST, LATEST, OFFSET, TIMESTAMP, Start
from starlingmq.wire.primitives import encode_two

POSITION_FACT: Final = b"js/p/"  # and the session or group; value: number of the stream, and ``next``
GROUP: Final = b"g/"
LOOKED: Final = 1024  # sequences or topics that a filter with wildcards is compared with at a time
REMEMBERED: Final = 32  # topics: a session may have many such filters
OFFSET_NAME: Final = b"\x26\x00\x06offset"  # a User Property


@trait
class Reading:
    """One read of a session, by its subscription."""

    waits: bool  # the session had no room for its next message

    def wake(self) -> None:
        """There may be something to do."""
        raise NotImplementedError


class Feeder(StreamWatcher, Reading):
    """``session`` and ``subscription``, ``group``, or ``far`` are the receiver."""

    stream: SequencedStream
    filters: list[bytes]
    selection: TopicSelection
    next: int
    skipped: int
    session: Session | None
    subscription: Subscription | None
    group: Group | None
    far: FarRead | None  # for a session of another node
    whole: bytes  # the filter as subscribed, of a session
    cost: int  # of the last search, as messages
    fact: bytes
    stored: bool  # the store has ``fact``
    moved: bool  # ``next`` is to be stored
    begins: bool  # the receiver is not stored before this turn ends
    active: dict[Feeder, None]  # those that have something to do

    def __init__(
        self, stream: SequencedStream, filters: list[bytes], next: int, fact: bytes, active: dict[Feeder, None]
    ) -> None:
        self.waits = False
        self.stream = stream
        self.filters = filters
        self.selection = TopicSelection(filters, REMEMBERED)
        self.next = next
        self.skipped = 0
        self.session = None
        self.subscription = None
        self.group = None
        self.far = None
        self.whole = b""
        self.cost = 0
        self.fact = POSITION_FACT + fact
        self.stored = False
        self.moved = False
        self.begins = False
        self.active = active

    def find(self, end: int) -> int:
        """The sequence of the next message up to ``end``; 0: there is none yet, or the next turn goes on."""
        index, selection = self.stream.index, self.selection
        self.cost = 0
        if not selection.everything and not selection.exact:
            if len(index.topics) > LOOKED:
                return self._walk(end)
            self.cost = len(index.topics) >> TOPICS_SHIFT
        found = index.next_of(self.next, selection)
        if found != 0 and found <= end:
            return found
        if self.next <= end:
            self.next = end + 1
        return 0

    def _walk(self, end: int) -> int:
        """The same, some sequences at a time: a filter with wildcards may match none of many topics."""
        index = self.stream.index
        seq = index.next(self.next)
        for _ in range(LOOKED):
            if seq == 0 or seq > end:
                self.next = max(self.next, end + 1)
                return 0
            topic = index.topic_of(seq)
            if topic is not None and self.selection.admits(topic):
                return seq
            self.next = seq + 1
            seq = index.next(seq + 1)
        self.cost = LOOKED >> TOPICS_SHIFT
        self.wake()
        return 0

    def value(self) -> bytes:
        return b"%d %d" % (self.stream.number, self.next)

    # As a watcher of the stream

    def wake(self) -> None:
        self.active[self] = None

    def removed(self, seq: int, topic: bytes) -> None:
        if seq >= self.next:
            self.skipped += 1

    def purged(self) -> None:
        pass

    def needs(self, seq: int) -> bool:
        return False

    def counts(self) -> bool:
        return False


def begin(stream: SequencedStream, selection: TopicSelection, start: Start) -> int:
    """The sequence with which a new subscription begins."""
    index = stream.index
    if start.kind == EARLIEST:
        return index.first
    if start.kind == LATEST:
        return max([each.last for each in index.matching(selection)], default=index.last + 1)
    if start.kind == OFFSET:
        return max(start.offset, index.first)
    if start.kind == TIMESTAMP:
        return max(index.since(start.time), index.first)
    return index.last + 1


def numbered(message: Message, seq: int, now: float, more: bytes = b"") -> Message:
    """A message of a stream as it goes to MQTT clients: with its sequence, and not stored. ``more`` properties.
    Those of the broker come before any of the publisher with such names."""
    digits = b"%d" % seq
    properties = b"%b%b%b%b%b" % (OFFSET_NAME, encode_two(len(digits)), digits, more, message.properties)
    return Message(
        message.topic, message.payload, message.qos, False, properties, message.expires_at, message.publisher, now
    )
