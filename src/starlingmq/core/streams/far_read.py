"""Requests of a node to the home of a stream, on behalf of an MQTT session, and the answers."""

from __future__ import annotations

from starlingmq.core.messages.message import Message
from starlingmq.core.streams.stream_filters import Start


class FarRead:
    """``next`` 0: from ``start``. ``count`` and ``octets``: of the messages that may still be sent."""

    node: int  # that has asked; 0: this one
    reader: int  # its number for the reader
    number: int  # of the request; a later one of the same reader is in place of this one
    stream: str
    filter: bytes  # b"": all topics
    queue: bool
    group: bytes  # b"": none
    next: int
    start: Start
    made: float  # when the stream was made that ``next`` is of; 0.0: it is not known
    count: int
    octets: int
    skipped: int  # messages that were removed before they were read, and not told of yet

    def __init__(
        self,
        reader: int,
        number: int,
        stream: str,
        filter: bytes,
        queue: bool,
        next: int,
        start: Start,
        count: int,
        octets: int,
    ) -> None:
        self.node = 0
        self.reader = reader
        self.number = number
        self.stream = stream
        self.filter = filter
        self.queue = queue
        self.group = b""
        self.next = next
        self.start = start
        self.made = 0.0
        self.count = count
        self.octets = octets
        self.skipped = 0


class ReadTold:
    """One message, or none. ``after``: the position that it follows; 0, in the first answer: the position is ``next``
    from now on, whatever it was. ``left``: of the messages that were asked for; 0: the request is over; -1: so is the
    queue."""

    reader: int
    number: int
    after: int
    next: int
    made: float  # when the stream was made
    left: int
    skipped: int
    sequence: int
    message: Message | None
    reply: bytes  # of a queue: where it is acknowledged
    published: float
    waiting: int  # messages that are still to come; -1: they were not counted

    def __init__(self, read: FarRead, after: int, next: int) -> None:
        self.reader = read.reader
        self.number = read.number
        self.after = after
        self.next = next
        self.made = read.made
        self.left = read.count
        self.skipped = 0
        self.sequence = 0
        self.message = None
        self.reply = b""
        self.published = 0.0
        self.waiting = -1
