"""The logs of streams that have one sequence: the offset of a message is its sequence less one."""

from __future__ import annotations

import logging
from typing import Final

from starlingmq.core.context.context import Context
from starlingmq.core.messages.message import Message
from starlingmq.core.streams.policies import StreamPolicy
from starlingmq.core.streams.sequenced_stream import SequencedStream, SequenceLog
from starlingmq.storage.records import RecordError, decode_message
from starlingmq.storage.streams.stream_logs import StreamLog

logger = logging.getLogger("starlingmq.storage")

READ_BYTES: Final = 1 << 20
BATCH: Final = 1000  # records that are read at a time at a start


class LogOfStream(SequenceLog):
    def __init__(self, log: StreamLog) -> None:
        self.log = log

    def stored(self) -> int:
        return max(self.log.shown, 0) + 1

    def given(self) -> int:
        return self.log.stream.next + 1

    def go_on_at(self, seq: int) -> None:
        log = self.log
        log.append()
        log.journal.go_on_at(seq - 1)
        log.stream.next = seq - 1
        log.show(log.stream.next)

    def read(self, seq: int, count: int) -> list[Message | None]:
        """Raises OSError."""
        offset = seq - 1
        found: list[Message | None] = []
        try:
            records = self.log.journal.read(offset, count, READ_BYTES)
        except OSError as error:
            logger.error("stream %s cannot be read at sequence %d: %s", self.log.definition.name, seq, error)
            raise
        for at, record in records:
            if at >= offset + count:
                found += [None] * (count - len(found))  # a wide gap
                break
            found += [None] * (at - offset - len(found))
            found.append(self.decoded(at, record))
        return found or [None]

    def decoded(self, at: int, record: bytes) -> Message | None:
        """The message of the record at this offset; None: it was removed, or is damaged."""
        if not record:
            return None
        try:
            return decode_message(record)
        except RecordError as error:
            logger.error("stream %s, sequence %d: %s", self.log.definition.name, at + 1, error)
            return None


def sequenced(log: StreamLog, ctx: Context) -> SequencedStream:
    """Make the stream of a log one with a sequence. Its settings are applied by JetStream."""
    definition = log.definition
    policy = StreamPolicy()
    policy.subjects = [topic.encode() for topic in definition.topics]
    first = max(definition.begin, log.journal.first) + 1
    stream = SequencedStream(
        ctx,
        definition.name,
        definition.number,
        policy,
        definition.jetstream.encode(),
        definition.created,
        LogOfStream(log),
        first,
    )
    stream.next = log.stream.next
    log.stream = stream
    return stream


def read_all(log: StreamLog, stream: SequencedStream) -> None:
    """Tell a stream, at a start, what its log has. Raises OSError."""
    source = LogOfStream(log)
    offset = stream.index.first - 1
    while records := log.journal.read(offset, BATCH, READ_BYTES):
        for at, record in records:
            if at > stream.index.last:
                stream.index.skip(at)  # those between were lost, or never given
            stream.restore(source.decoded(at, record))
        offset = records[-1][0] + 1
    if stream.next > stream.index.last:
        stream.index.skip(stream.next)  # its end was lost, or never given
