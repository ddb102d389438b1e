"""Mirrors and sources of streams of other nodes.

::

    node of the copy                                   home of the origin (core.jetstream.stream_readers)
    no request is open --ReadAsked: from ``next``----> messages that match, and those that come later,
    to the copy <--------ReadTold, one by one--------- until there are as many as asked for

The law is that of core.jetstream.far_readers: ``ReadTold`` says what it follows, so each frame may be lost, doubled or
late. The position is what the copy has; a request goes on after it, and is made again after ``AGAIN_SECONDS``. Only the
first answer to a request may say where it begins. Until a message, or what is left out, follows, there is no position:
a start may be beyond the end of the origin.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.context.context import Context
from starlingmq.core.jetstream.far_streams import STAYS, FarStreams
from starlingmq.core.messages.message import Message
from starlingmq.core.streams.far_read import FarRead, ReadTold
from starlingmq.core.streams.sourcing import Sourcing, ident
from starlingmq.core.streams.stream_filters import OFFSET, TIMESTAMP, Start

AGAIN_SECONDS: Final = 10.0
COUNT: Final = 256  # messages of a request
OCTETS: Final = 1 << 20


class FarSource:
    """``left``: messages that the open request may still bring; 0: none is open."""

    sourcing: Sourcing
    number: int
    next: int  # 0: it begins at the start
    ident: bytes  # of the origin that ``next`` is about; b"": of any
    home: int
    asked: int
    follows: int  # the position that the next answer follows
    begun: bool  # the open request has been answered
    left: int
    heard_at: float

    def __init__(self, sourcing: Sourcing, number: int) -> None:
        self.sourcing = sourcing
        self.number = number
        self.next, self.ident = sourcing.place()
        self.home = 0
        self.asked = 0
        self.follows = 0
        self.begun = False
        self.left = 0
        self.heard_at = 0.0


class FarSources:
    ctx: Context
    by_number: dict[int, FarSource]
    _sources: dict[Sourcing, FarSource]
    _last: int  # numbers fall: those of sessions that read rise

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.by_number = {}
        self._sources = {}
        self._last = 0

    def ask(self, sourcing: Sourcing, far: FarStreams) -> None:
        """At least once a second: the home of the origin may be another one, or may not be heard of."""
        source = self._sources.get(sourcing)
        if source is None:
            self._last -= 1
            source = self._sources[sourcing] = self.by_number[self._last] = FarSource(sourcing, self._last)
        settings, now = sourcing.settings, self.ctx.now
        if source.left != 0 and now < source.heard_at + AGAIN_SECONDS and far.home_of(settings.name) == source.home:
            return
        source.asked += 1
        source.follows, source.begun = source.next, False
        source.heard_at = now
        from_seq = settings.start_seq != 0 or settings.start_time == 0.0
        read = FarRead(
            source.number,
            source.asked,
            settings.name,
            settings.filters[0] if len(settings.filters) == 1 else b"",
            False,
            source.next,
            Start(OFFSET, settings.start_seq) if from_seq else Start(TIMESTAMP, 0, settings.start_time),
            COUNT,
            OCTETS,
        )
        source.home = far.ask_read(read)
        source.left = COUNT if source.home != 0 else 0
        sourcing.is_far = source.home != 0

    def end(self, sourcing: Sourcing, far: FarStreams) -> None:
        """It ends, or its origin is here."""
        source = self._sources.pop(sourcing, None)
        sourcing.is_far = False
        if source is not None:
            del self.by_number[source.number]
            if source.left != 0:
                far.end_read(source.home, source.number, STAYS)

    def told(self, told: ReadTold) -> bool:
        """Returns False if the request is to end."""
        source = self.by_number[told.reader]
        if told.number != source.asked or source.left == 0:
            return source.left != 0
        begins = told.after == 0 and told.message is None
        sourcing = source.sourcing
        fits = not source.begun if begins else told.after == source.follows
        if source.ident and ident(told.made) != source.ident:  # it was deleted, and made again
            source.next, source.ident, source.left = 0, b"", 0
            sourcing.wake()
        elif fits and self._take(source, told):
            source.heard_at = self.ctx.now
            source.left = told.left
            source.follows, source.begun = told.next, True
            if not begins or source.next != 0:
                source.next = told.next
            if not sourcing.settings.mirror:
                source.ident = ident(told.made)
            if source.left == 0:
                sourcing.wake()
            return True
        source.left = 0  # the hub asks again
        return False

    def _take(self, source: FarSource, told: ReadTold) -> bool:
        """Returns False if the copy cannot take the message now."""
        sourcing, seq = source.sourcing, told.sequence
        sourcing.far_lag = told.waiting if told.waiting >= 0 else max(sourcing.far_lag - 1, 0)
        message = told.message
        if message is None or not sourcing.selection.admits(message.topic):
            return True
        if self.ctx.isolated:
            return False
        sourcing.heard_at = self.ctx.now
        message = Message(message.topic, message.payload, 0, False, message.properties, 0.0, "", told.published)
        try:
            return sourcing.give(message, seq, ident(told.made), self.ctx.now)
        except OSError:  # the disk, where a mirror has a wide gap
            return False
