"""Mirrors and sources: a stream that keeps the messages of another one.

::

    origin --next of the filters, what is stored--> Sourcing --as a source: with its place in the origin--> stream
                                                             --as a mirror: with the same sequence--------> stream

Invariants:

- A message of the origin is in the stream once, also over a crash: its place is a header of the message, so both are
  stored together, and a start reads the place of the last one from the log. A mirror has the place as its sequence.
- A message is copied once it is stored, so a crash of the origin takes back nothing that a copy has.
- A message that the stream has no room for is tried again. One that it can never take, because it, or its topic,
  is too long, is left out and counted.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.messages.message import Message
from starlingmq.core.streams.message_index import TopicSelection
from starlingmq.core.streams.sequenced_stream import GAP_MAX, SequencedStream, StreamWatcher
from starlingmq.core.streams.source_settings import SourceSettings
from starlingmq.wire.nats_headers import carried, properties_of
from starlingmq.wire.nats_subjects import subject_of

GAP_SHIFT: Final = 4  # sequences that are left out, for the work of a message
LEFT_OUT: Final = (b"Nats-Stream-Source:", b"Nats-Expected-", b"Nats-Batch-")


class Sourcing(StreamWatcher):
    """``active``: those of the hub that have something to do. Raises OSError where messages are read."""

    settings: SourceSettings
    target: SequencedStream
    origin: SequencedStream | None  # None: there is no such stream now
    active: dict[Sourcing, None]
    selection: TopicSelection
    next: int  # the sequence of the origin that is looked at next; 0: not known yet
    heard_at: float  # 0.0: not from this origin yet
    looked: int  # messages that the last ``fill`` has looked at
    is_far: bool  # the origin is at another node, which is reached (core.jetstream.far_sources) ...
    far_lag: int  # ... and has so many messages that are still to come
    left_out: tuple[bytes, ...]  # headers, also those that the stream would refuse for ever

    def __init__(self, settings: SourceSettings, target: SequencedStream, active: dict[Sourcing, None]) -> None:
        self.settings = settings
        self.target = target
        self.origin = None
        self.active = active
        self.selection = TopicSelection(settings.filters)
        self.next = 0
        self.heard_at = 0.0
        self.looked = 0
        self.is_far = False
        self.far_lag = 0
        self.left_out = LEFT_OUT
        if not target.policy.allow_ttl:
            self.left_out += (b"Nats-TTL:",)
        if not target.policy.allow_rollup or target.policy.deny_purge:
            self.left_out += (b"Nats-Rollup:",)

    def attach(self, origin: SequencedStream) -> None:
        """The origin is there: begin, or go on after the last message that the stream has of it."""
        self.origin = origin
        self.active[self] = None
        settings = self.settings
        origin.watch(self, settings.filters)
        self.next, origin_ident = self.place()
        if origin_ident == ident(origin.created):
            # Not beyond its end: a crash may have taken more of the origin than of its copy.
            self.next = min(self.next, origin.index.last + 1)
        elif origin_ident or self.next == 0:
            self.next = max(settings.start_seq, 1)
            if settings.start_time and not settings.start_seq:
                self.next = origin.index.since(settings.start_time)

    def place(self) -> tuple[int, bytes]:
        """The sequence that follows those that the stream has, and of which origin; b"": of any. 0: it has none."""
        if self.settings.mirror:
            return self.target.index.last + 1 if self.target.index.last > 0 else 0, b""
        place = self.target.places.get(self.settings.index)
        if place is None:
            return 0, b""
        there, _, origin_ident = place[1].partition(b" ")
        return int(there) + 1, origin_ident

    def detach(self) -> None:
        if self.origin is not None:
            self.origin.unwatch(self, self.settings.filters)
        self.origin = None
        self.active.pop(self, None)

    def fill(self, budget: int, now: float) -> bool:
        """Copy up to ``budget`` messages. Returns False if the stream has no room for one."""
        origin = self.origin
        self.looked = 0
        if origin is None:
            return True
        self.heard_at = now
        end = origin.end()
        while self.next <= end:
            if budget <= 0:
                self.active[self] = None
                return True
            budget -= 1
            self.looked += 1
            seq = origin.index.next_of(self.next, self.selection)
            if seq == 0 or seq > end:
                self.next = end + 1
                return True
            if self.settings.mirror:
                if self.target.is_behind(seq):
                    return True  # the hub wakes it once the log has all
                cost = min(seq - self.target.index.last - 1, GAP_MAX) >> GAP_SHIFT
                budget -= cost
                self.looked += cost
            message = origin.message(seq)
            if message is not None and not self.give(message, seq, ident(origin.created), now):
                self.next = seq
                return False
            self.next = seq + 1
        return True

    def lag(self) -> int:
        """Messages of the origin that are still to come."""
        if self.origin is None:
            return self.far_lag if self.is_far else 0
        return self.origin.index.waiting(max(self.next, 1), self.selection)

    def give(self, message: Message, seq: int, origin: bytes, now: float) -> bool:
        """A message of the origin with this ``ident``. Returns False if the stream cannot take it now."""
        target, settings = self.target, self.settings
        topic = settings.topic_of(message.topic)
        if settings.mirror:
            if seq <= target.index.last:
                return True  # of an origin that was made again
            if target.is_behind(seq):
                return False
            kept = Message(topic, message.payload, 0, False, message.properties, 0.0, "", message.published_at)
            return target.take_mirrored(kept, seq)
        block = carried(message.properties).headers if message.properties else b""
        lines = [line for line in block.split(b"\r\n")[1:] if line and not line.startswith(self.left_out)]
        index = settings.index.split(b" ")
        place = b"%b %d %b %b %b %b" % (index[0], seq, index[1], index[2], subject_of(message.topic), origin)
        lines.append(b"Nats-Stream-Source: " + place)
        try:
            properties = properties_of(b"NATS/1.0\r\n%b\r\n\r\n" % b"\r\n".join(lines), b"")
        except ValueError:  # its topic is too long for a header
            target.dropped += 1
            target.ctx.drop("stream_refused", target.client_id, 1, message.topic)
            return True
        return target.take_sourced(Message(topic, message.payload, 0, False, properties, 0.0, "", now))

    # As a watcher of the origin

    def wake(self) -> None:
        self.active[self] = None

    def removed(self, seq: int, topic: bytes) -> None:
        pass

    def purged(self) -> None:
        pass

    def needs(self, seq: int) -> bool:
        return False

    def counts(self) -> bool:
        return False


def ident(made: float) -> bytes:
    """Which stream of its name it is, by the time when it was made."""
    return b"%08x" % (int(made * 1e6) & 0xFFFFFFFF)
