"""The logs of streams: what follows the journal, and comes back from it (docs/STREAMS.md).

The store appends to the journal first; then ``append`` brings what the turn put into streams to their logs. What a log
lacks after a crash, the journal still has: everything since the checkpoint, before which ``sync`` was called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, Protocol

import msgspec

from starlingmq.core.context import Context
from starlingmq.core.routing.stream import Stream
from starlingmq.storage.journal import Journal
from starlingmq.storage.records import encode_message
from starlingmq.storage.segment.retention import Retention
from starlingmq.storage.segment.segment_journal import SegmentInfo
from starlingmq.storage.segment.segment_sync import RecordsLost
from starlingmq.storage.store_image import StreamPut
from starlingmq.storage.streams.stream_consumers import Consumers

logger = logging.getLogger("starlingmq.storage")

FILES_MIN: Final = 8  # that a stream with a size has: what is oldest goes in eighths of it


class StreamJournal(Journal, Protocol):
    def skip_to(self, offset: int) -> None:
        """Go on at this offset, which is not below ``next``: what lies between is reported as lost."""
        ...

    def cut_to(self, offset: int) -> None:
        """Forget the records from this offset on, which is not above ``next``. It is given again."""
        ...

    def roll(self) -> None:
        """Begin a new segment with the next append."""
        ...


class Position(Protocol):
    """Where those who read hear how far they may."""

    def show(self, next: int) -> None: ...
    def close(self) -> None: ...


class NoPosition:
    def show(self, next: int) -> None:
        pass

    def close(self) -> None:
        pass


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream is. ``retention_time`` in seconds and ``retention_size`` in bytes of files, 0: no bound.
    ``created`` in Unix seconds. ``id`` is random: a stream of the same name that is created again has another one, and
    so has one that was restored. ``begin``: its first offset. ``earlier``: ids that it had before a restore, each with
    the offset at which its rows end; up to there they are this stream's rows too."""

    name: str
    number: int
    topics: tuple[str, ...]
    retention_time: float = 0.0
    retention_size: int = 0
    when_full: Literal["drop_oldest", "refuse"] = "drop_oldest"
    created: float = 0.0
    id: str = ""
    begin: int = 0
    earlier: dict[str, int] = {}


def identity(definition: Definition) -> str:
    """The stream's id; streams of earlier versions have none, and their number is as unique in practice."""
    return definition.id or f"{definition.number:x}"


class StreamLog:
    """A stream and its log. ``consumers``: who reads it, how far they are, and whether what they have not read is to
    be kept whatever its age."""

    def __init__(self, definition: Definition, journal: StreamJournal, position: Position | None = None) -> None:
        self.stream = Stream(definition.name, definition.number, [topic.encode() for topic in definition.topics])
        self.stream.next = journal.next
        self.journal = journal
        self.position = position or NoPosition()
        self.consumers = Consumers()
        self.shown = -1
        self.define(definition)

    def define(self, definition: Definition) -> None:
        """Take new settings; topics are the router's business."""
        self.definition = definition
        self.retention = Retention(definition.retention_time, definition.retention_size)
        self.refuses = definition.when_full == "refuse"

    def append(self) -> None:
        """Raises OSError; then everything waits as it did."""
        self.journal.append(self.stream.pending)
        self.stream.pending = []

    def skip_to(self, offset: int) -> None:
        """Go on at an offset that the log has not come to: what is before it was given, and is lost."""
        self.append()
        self.journal.skip_to(offset)
        self.stream.next = offset

    def cut_to(self, offset: int) -> None:
        """Forget what the journal does not know of."""
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
        """The offset below which nothing is to be kept."""
        files = self.journal.segments()
        by_age = Retention(self.retention.seconds, 0).cutoff(files, now)
        by_size = 0 if self.refuses else Retention(0.0, self.retention.size).cutoff(files, now)
        return max(by_size, min(by_age, self.consumers.pinned(now, by_age)))

    def tidy(self, now: float) -> Callable[[], None] | None:
        """Begin another file where this one is old enough to be given up by itself one day. What is to be done to give
        up what is not kept any longer; it may wait for the disk."""
        seconds = self.retention.seconds
        files = self.journal.segments()
        last = files[-1] if files else None
        begun = last.created if isinstance(last, SegmentInfo) and last.next > last.first else now
        if seconds and now - begun > seconds / FILES_MIN:
            self.journal.roll()
        cutoff = self.cutoff(now)
        if cutoff <= self.journal.first:
            return None
        return lambda: self.give_up(cutoff)

    def give_up(self, before: int) -> None:
        """Delete the files that end at this offset or before it. May wait for the disk. Raises OSError."""
        for file in self.journal.segments():
            if file.next <= before and file.next > file.first:
                self.journal.drop(file.first)


class StreamLogs:
    """All of a node. ``ctx`` is told how many are full."""

    def __init__(self) -> None:
        self.by_number: dict[int, StreamLog] = {}
        self.ctx: Context | None = None
        self.lost = 0  # records that a failing disk took
        self._waiting: dict[Stream, None] = {}  # have something pending

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

    # Committing

    def take(self, streams: Iterable[Stream]) -> None:
        """These have something to be appended."""
        self._waiting.update(dict.fromkeys(streams))

    def append(self) -> None:
        """Raises OSError when a log can not be written; what it lacks waits for the next call."""
        for stream in list(self._waiting):
            log = self.by_number.get(stream.number)
            if log is not None:
                log.append()
                self._weigh(log)
            del self._waiting[stream]

    def tidy(self, now: float) -> list[Callable[[], None]]:
        """See StreamLog.tidy."""
        return [work for log in self.by_number.values() if (work := log.tidy(now)) is not None]

    def mark(self) -> list[tuple[StreamLog, int]]:
        """How far each log has come that is not shown that far."""
        return [(log, log.journal.next) for log in self.by_number.values() if log.journal.next > log.shown]

    @staticmethod
    def show(marks: list[tuple[StreamLog, int]]) -> None:
        """What was marked is as durable as it is to be."""
        for log, next in marks:
            log.show(next)

    def sync(self) -> None:
        """Make what was appended survive a power failure. Blocks. Raises OSError."""
        for log in list(self.by_number.values()):
            try:
                log.journal.sync()
            except RecordsLost as error:
                self.lost += sum(last - first + 1 for first, last in error.ranges)
                logger.error("stream %s: %s", log.stream.name, error)

    def positions(self) -> bytes:
        """The next offset of each, for a checkpoint."""
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
        """Look again which are full: something was given up, or settings are new."""
        for log in self.by_number.values():
            self._weigh(log)

    # Recovery

    def replay(self, puts: list[StreamPut], ends: dict[int, int]) -> None:
        """Append what logs lack. ``ends`` gets the offset after the last one of each stream. Raises OSError."""
        for put in puts:
            ends[put.number] = max(ends.get(put.number, 0), put.offset + 1)
            found = self.by_number.get(put.number)
            if found is None or put.offset < found.stream.next:
                continue
            if put.offset > found.stream.next:
                found.skip_to(put.offset)
            found.stream.pending.append(encode_message(put.message))
            found.stream.next += 1
            self._waiting[found.stream] = None
        self.append()

    def recovered(self, ends: Mapping[int, int], careful: bool) -> None:
        """Everything was replayed: let it be read. ``ends``: where each stream ends by what the journal and the
        checkpoint know. With ``careful`` a log does not end later: what a power failure took of the journal and left
        of the log was not acknowledged, and comes again. Raises OSError."""
        for found in self.by_number.values():
            end = max(found.definition.begin, ends.get(found.stream.number, 0))
            if careful and found.stream.next > end:
                found.cut_to(end)
            elif found.stream.next < end:
                found.skip_to(end)
            found.show(found.stream.next)

    def close(self) -> None:
        for log in self.by_number.values():
            log.close()


def decode_positions(value: bytes | None) -> Mapping[int, int]:
    return {} if value is None else msgspec.msgpack.decode(value, type=dict[int, int])
