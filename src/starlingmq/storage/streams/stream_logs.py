"""The logs of streams, which follow the journal and are recovered from it (docs/STREAMS.md).

The store appends to the journal first; then ``append`` writes the turn's messages of streams to their logs. What a log
lacks after a crash is in the journal, which is kept since the last checkpoint; ``sync`` is called before each
checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Final, Protocol

import msgspec

from starlingmq.core.context.context import Context
from starlingmq.core.router.stream import Stream
from starlingmq.core.streams.sequenced_stream import SequencedStream
from starlingmq.storage.copies.stream_copies import StreamCopies
from starlingmq.storage.journal import Journal
from starlingmq.storage.records import encode_message
from starlingmq.storage.segment.retention import Retention
from starlingmq.storage.segment.segment_journal import SegmentInfo
from starlingmq.storage.segment.segment_sync import RecordsLost
from starlingmq.storage.store_image import StreamPut
from starlingmq.storage.streams.stream_consumers import Consumers
from starlingmq.storage.streams.stream_definition import Definition

logger = logging.getLogger("starlingmq.storage")

SPARSE_SECONDS: Final = 60.0  # between two looks for files of which most messages were removed
FILES_MIN: Final = 8  # files of a stream with a size limit: the oldest eighth is deleted at a time


class StreamJournal(Journal, Protocol):
    def go_on_at(self, offset: int) -> None:
        """Continue at this offset, which is above ``next``. The journal that this one is a copy of has given back what
        lies between."""
        ...

    def skip_to(self, offset: int) -> None:
        """Continue at this offset, which is not below ``next``. Offsets between are reported as lost."""
        ...

    def cut_to(self, offset: int) -> None:
        """Remove the records from this offset on, which is not above ``next``. The offset will be used again."""
        ...

    def thin(self, first: int, keeps: Callable[[int], bool]) -> bool:
        """Give back the room of records in the segment that begins with this offset, except those whose offsets
        ``keeps`` wants. Returns whether that was possible."""
        ...

    def roll(self) -> None:
        """Begin a new segment at the next append."""
        ...


class Position(Protocol):
    """Tells readers up to which offset they may read."""

    def show(self, next: int) -> None: ...
    def close(self) -> None: ...


class NoPosition:
    def show(self, next: int) -> None:
        pass

    def close(self) -> None:
        pass


class StreamLog:
    """A stream and its log. ``consumers``: its consumers, their positions and their pins."""

    def __init__(self, definition: Definition, journal: StreamJournal, position: Position | None = None) -> None:
        self.stream: Stream = Stream(
            definition.name, definition.number, [topic.encode() for topic in definition.topics]
        )
        self.stream.next = journal.next
        self.journal = journal
        self.position = position or NoPosition()
        self.consumers = Consumers()
        self.shown = -1
        self._sparse_at = 0.0  # the next look for sparse files
        self._live: dict[int, int] = {}  # messages of files that were thinned, then
        self.define(definition)

    def define(self, definition: Definition) -> None:
        """Apply a new definition, except for the topics, which the router has."""
        self.definition = definition
        self.retention = Retention(definition.retention_time, definition.retention_size)
        self.refuses = definition.when_full == "refuse"

    def append(self) -> None:
        """Write pending messages. Raises OSError, and then they stay pending."""
        self.journal.append(self.stream.pending)
        self.stream.pending = []

    def skip_to(self, offset: int) -> None:
        """Continue at an offset that the log has not reached. The offsets before it were used, and their records are
        lost."""
        self.append()
        self.journal.skip_to(offset)
        self.stream.next = offset

    def cut_to(self, offset: int) -> None:
        """Remove records that the journal does not know."""
        self.journal.cut_to(offset)
        self.stream.next = offset

    def show(self, next: int) -> None:
        if next > self.shown:
            self.shown = next
            self.position.show(next)

    def close(self) -> None:
        self.journal.close()
        self.position.close()

    def is_full(self) -> bool:
        return self.refuses and 0 < self.retention.size <= self.journal.size

    def cutoff(self, now: float) -> int:
        """The offset below which retention keeps nothing."""
        if isinstance(self.stream, SequencedStream):
            return self.stream.index.first - 1
        files = self.journal.segments()
        by_age = Retention(self.retention.seconds, 0).cutoff(files, now)
        by_size = 0 if self.refuses else Retention(0.0, self.retention.size).cutoff(files, now)
        return max(by_size, min(by_age, self.consumers.pinned(now, by_age)))

    def tidy(self, now: float) -> Callable[[], None] | None:
        """Begin a new file if the present one is old enough to be deleted separately later. Returns the work that
        deletes what retention no longer keeps, which may wait for the disk."""
        seconds = self.retention.seconds
        files = self.journal.segments()
        last = files[-1] if files else None
        begun = last.created if isinstance(last, SegmentInfo) and last.next > last.first else now
        if seconds and now - begun > seconds / FILES_MIN:
            self.journal.roll()
        cutoff = self.cutoff(now)
        sparse: list[tuple[int, int]] = []
        stream = self.stream
        if isinstance(stream, SequencedStream):
            looks = now >= self._sparse_at
            if looks:
                self._sparse_at = now + SPARSE_SECONDS
                stream.gave_back([(one.next + 1, two.first) for one, two in pairwise(files) if one.next < two.first])
            if looks or any(file.first < file.next <= cutoff for file in files):
                released = stream.released()
                cutoff = min(cutoff, released)
                sparse = self._sparse(stream, released) if looks else []
        if cutoff <= self.journal.first and not sparse:
            return None

        def work() -> None:
            self.give_up(cutoff)
            self._thin(sparse)

        return work

    def _sparse(self, stream: SequencedStream, released: int) -> list[tuple[int, int]]:
        """First offset, and number of messages, of the files that have at most half of those that they had. One that
        loses its first messages will go as a whole."""
        files = [file for file in self.journal.segments() if isinstance(file, SegmentInfo)]
        self._live = {file.first: self._live.get(file.first, file.next - file.first) for file in files}
        found = []
        for file in files:
            live = stream.index.live_between(file.first + 1, file.next)
            goes = file.first + 1 < stream.index.first <= file.next
            few = live * 2 <= self._live[file.first] > 0
            if few and not file.grows and not goes and file.next <= released:
                found.append((file.first, live))
        return found

    def _thin(self, sparse: list[tuple[int, int]]) -> None:
        """May wait for the disk. Raises OSError."""
        stream = self.stream
        if not isinstance(stream, SequencedStream):
            return
        index = stream.index
        for first, live in sparse:
            if live == 0:
                self.journal.drop(first)
            elif self.journal.thin(first, lambda offset: index.has(offset + 1)):
                self._live[first] = live

    def give_up(self, before: int) -> None:
        """Delete the files that end at this offset or before. May wait for the disk. Raises OSError."""
        for file in self.journal.segments():
            if file.next <= before and file.next > file.first:
                self.journal.drop(file.first)


class StreamLogs:
    """All streams of a node. ``ctx`` receives the number of full ones."""

    def __init__(self) -> None:
        self.by_number: dict[int, StreamLog] = {}
        self.ctx: Context | None = None
        self.copies: StreamCopies | None = None  # the followers that store everything, too
        self.lost = 0  # records lost by a failing disk
        self._waiting: dict[Stream, None] = {}  # streams with pending messages

    def attach(self, ctx: Context) -> None:
        self.ctx = ctx
        self._count_full()

    def add(self, log: StreamLog) -> None:
        self.by_number[log.stream.number] = log
        self._weigh(log)

    def remove(self, log: StreamLog) -> None:
        log.stream.ended = True
        self._tell_full(log.stream, False)
        self._waiting.pop(log.stream, None)
        del self.by_number[log.stream.number]

    def find(self, name: str) -> StreamLog | None:
        return next((log for log in self.by_number.values() if log.stream.name == name), None)

    def defined(self) -> None:
        """A stream was created, changed or deleted."""
        if self.copies is not None:
            self.copies.defined()

    def gave_back(self) -> None:
        """Records of streams were deleted."""
        if self.copies is not None:
            self.copies.gave_back()

    def consumed(self, log: StreamLog) -> None:
        """A consumer has reported, or was removed."""
        if self.copies is not None:
            self.copies.consumed(log.stream.number, log.consumers.encode())

    # Committing

    def take(self, streams: Iterable[Stream]) -> None:
        """These streams have pending messages."""
        self._waiting.update(dict.fromkeys(streams))

    def append(self) -> None:
        """Raises OSError if a log cannot be written; its messages wait for the next call."""
        for stream in list(self._waiting):
            log = self.by_number.get(stream.number)
            if log is not None:
                records = stream.pending
                log.append()
                if self.copies is not None and records:
                    self.copies.streamed(stream.number, log.journal.next - len(records), records)
                self._weigh(log)
            del self._waiting[stream]

    def tidy(self, now: float) -> list[Callable[[], None]]:
        """See StreamLog.tidy."""
        return [work for log in self.by_number.values() if (work := log.tidy(now)) is not None]

    def mark(self) -> list[tuple[StreamLog, int]]:
        """The end of each log whose end has not been shown to readers yet."""
        return [(log, log.journal.next) for log in self.by_number.values() if log.journal.next > log.shown]

    @staticmethod
    def show(marks: list[tuple[StreamLog, int]]) -> None:
        """The marked records are as durable as configured: show them to readers."""
        for log, next in marks:
            log.show(next)

    def sync(self) -> None:
        """Make appended records survive a power failure. Blocks. Raises OSError."""
        for log in list(self.by_number.values()):
            try:
                log.journal.sync()
            except RecordsLost as error:
                self.lost += sum(last - first + 1 for first, last in error.ranges)
                logger.error("stream %s: %s", log.stream.name, error)

    def positions(self) -> bytes:
        """The next offset of each stream, for a checkpoint."""
        return msgspec.msgpack.encode({number: log.stream.next for number, log in self.by_number.items()})

    # Being full

    def _weigh(self, log: StreamLog) -> None:
        full = log.is_full()
        if full != log.stream.full:
            self._tell_full(log.stream, full)

    def _tell_full(self, stream: Stream, full: bool) -> None:
        if stream.full != full:
            stream.full = full
            self._count_full()

    def _count_full(self) -> None:
        if self.ctx is not None:
            self.ctx.streams_full(sum(log.stream.full for log in self.by_number.values()))

    def weigh(self) -> None:
        """Find again which streams are full: records were deleted, or settings changed."""
        for log in self.by_number.values():
            self._weigh(log)

    # Recovery

    def replay(self, puts: list[StreamPut], ends: dict[int, int]) -> None:
        """Append what logs lack. Sets the offset after the last message of each stream in ``ends``. Raises OSError."""
        for put in puts:
            ends[put.number] = max(ends.get(put.number, 0), put.offset + 1)
            found = self.by_number.get(put.number)
            if found is None or put.offset < found.stream.next:
                continue
            if put.offset - put.gap > found.stream.next:
                found.skip_to(put.offset - put.gap)
            found.stream.pending += [b""] * (put.offset - found.stream.next)
            found.stream.pending.append(encode_message(put.message))
            found.stream.next = put.offset + 1
            self._waiting[found.stream] = None
        self.append()

    def recovered(self, ends: Mapping[int, int], careful: bool) -> None:
        """Replay is complete. ``ends``: the end of each stream by the journal and the checkpoint.
        With ``careful``, longer logs are cut to it: records that a power failure removed from the journal but not from
        the log were not acknowledged, and will be sent again. Raises OSError."""
        for found in self.by_number.values():
            end = max(found.definition.begin, ends.get(found.stream.number, 0))
            if careful and found.stream.next > end:
                found.cut_to(end)
            elif found.stream.next < end:
                found.skip_to(end)

    def show_all(self) -> None:
        """All that was recovered is as durable as configured: let readers read."""
        self.show(self.mark())

    def close(self) -> None:
        for log in self.by_number.values():
            log.close()


def decode_positions(value: bytes | None) -> Mapping[int, int]:
    return {} if value is None else msgspec.msgpack.decode(value, type=dict[int, int])
