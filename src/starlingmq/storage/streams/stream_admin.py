"""Operations on streams while the broker serves: create, list, show, trim, delete, and the positions of consumers."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from starlingmq.config.plain_names import NAME_BYTES_MAX, plain_name
from starlingmq.config.section_types import ConfigError
from starlingmq.config.streams_section import NAME_PATTERN, StreamConfig
from starlingmq.config.tree_builder import build
from starlingmq.core.broker import BrokerState
from starlingmq.core.streams.sequenced_stream import SequencedStream
from starlingmq.storage.directory_store import DirectoryStore
from starlingmq.storage.segment.segment_journal import SegmentInfo
from starlingmq.storage.streams.sequence_logs import sequenced
from starlingmq.storage.streams.stream_consumers import Consumer
from starlingmq.storage.streams.stream_definition import Definition, identity
from starlingmq.storage.streams.stream_files import StreamActionError, check_topics, definition_of
from starlingmq.storage.streams.stream_logs import StreamLog, StreamLogs
from starlingmq.storage.streams.stream_views import (
    ConsumerForgotten,
    ConsumerLag,
    ConsumerView,
    ReadableNode,
    ReadableNodes,
    StreamDeleted,
    StreamTrimmed,
    StreamView,
)

STREAMS_MAX: Final = 1000
PIN_SECONDS: Final = 7 * 86400.0  # how long a consumer that does not report holds back retention


def stream_view(log: StreamLog, now: float) -> StreamView:
    """A stream as this node has it."""
    definition = log.definition
    last = max(log.shown, 0)
    first = min(log.journal.first, last)
    return StreamView(
        name=definition.name,
        id=identity(definition),
        topics=list(definition.topics),
        retention_time=definition.retention_time,
        retention_size=definition.retention_size,
        when_full=definition.when_full,
        created=definition.created,
        first=first,
        next=last,
        messages=last - first,
        bytes=log.journal.size,
        files=sum(isinstance(file, SegmentInfo) for file in log.journal.segments()),
        full=log.stream.full,
        dropped=log.stream.dropped,
        consumers=[
            ConsumerView(
                name=one.name,
                next=one.next,
                lag=max(0, last - one.next),
                pins=one.pins and one.until > now,
                heard_seconds=max(0.0, now - one.heard),
            )
            for one in log.consumers.by_name.values()
        ],
    )


class StreamAdmin:
    """The streams of one store, and of the broker whose state it stores. All operations but ``trim`` and ``delete``
    are quick."""

    def __init__(
        self,
        store: DirectoryStore,
        state: BrokerState,
        node: str,
        nodes: Callable[[], list[tuple[str, str, bool]]],
        clustered: bool,
    ) -> None:
        self.store = store
        self.logs: StreamLogs = store.streams
        self.directory = store.stream_directory
        self.state = state
        self.node = node
        self._nodes = nodes
        self._clustered = clustered
        self.delete_sequenced: Callable[[SequencedStream], Awaitable[None]] | None = None  # of a member of a cluster

    def find(self, name: str) -> StreamLog:
        """Raises StreamActionError."""
        found = self.logs.find(name)
        if found is None:
            known = ", ".join(sorted(log.stream.name for log in self.logs.by_number.values())) or "none"
            raise StreamActionError(f"there is no stream {name[:64]!r} on this node; existing: {known}")
        return found

    def create(self, settings: dict[str, Any]) -> StreamView:
        """``settings`` are those of ``StreamConfig``, as in a settings file. Raises StreamActionError."""
        name = settings.get("name", "")
        if not re.match(NAME_PATTERN, name):
            raise StreamActionError(
                f"{name[:64]!r} is not a valid name; use 1 to 64 letters, digits, dots, dashes, underscores"
            )
        try:
            config = build(StreamConfig, settings)
        except ConfigError as error:
            raise StreamActionError(str(error)) from None
        if self.logs.find(config.name) is not None:
            raise StreamActionError(f"stream {config.name} exists already; delete it first, or use another name")
        if len(self.logs.by_number) >= STREAMS_MAX:
            raise StreamActionError(f"the limit of {STREAMS_MAX} streams is reached; delete some first")
        return stream_view(self._make(config), time.time())

    def _make(self, config: StreamConfig) -> StreamLog:
        definition = definition_of(config, self.directory, None, time.time())
        self.directory.write(definition)
        log = self.directory.open(definition)
        log.show(log.stream.next)
        self.logs.add(log)
        self.logs.defined()
        self.state.router.add_stream(log.stream)
        return log

    def create_sequenced(
        self, name: str, topics: list[bytes], settings: bytes, size: int, first: int
    ) -> SequencedStream:
        """A stream with one sequence, which begins with ``first``; ``settings``: JSON of JetStream. ``size``: the bytes
        that it will have at most, 0: any number. The router does not know it yet. Raises StreamActionError, OSError."""
        if not re.match(NAME_PATTERN, name):
            raise StreamActionError(f"{name[:64]!r} is not a name of letters, digits, dots, dashes, underscores")
        if self.logs.find(name) is not None:
            raise StreamActionError(f"stream {name} exists already")
        if len(self.logs.by_number) >= STREAMS_MAX:
            raise StreamActionError(f"the limit of {STREAMS_MAX} streams is reached; delete some first")
        definition = Definition(
            name=name,
            number=self.directory.number(),
            topics=tuple(topic.decode() for topic in topics),
            retention_size=size,
            created=time.time(),
            id=secrets.token_hex(8),
            begin=first - 1,
            jetstream=settings.decode(),
        )
        self.directory.write(definition)
        log = self.directory.open(definition)
        stream = sequenced(log, self.state.ctx)
        log.show(stream.next)
        self.logs.add(log)
        self.logs.defined()
        return stream

    def change_sequenced(self, stream: SequencedStream, topics: list[bytes], settings: bytes, size: int) -> None:
        """Store other settings. Raises OSError."""
        log = self.logs.by_number[stream.number]
        definition = msgspec.structs.replace(
            log.definition,
            topics=tuple(topic.decode() for topic in topics),
            retention_size=size,
            jetstream=settings.decode(),
        )
        self.directory.write(definition)
        log.define(definition)
        self.logs.defined()

    def declare(self, wanted: Sequence[StreamConfig]) -> None:
        """Create and change streams so that all of ``wanted`` exist as defined, as a start does. Other streams stay.
        Raises StreamActionError, and then nothing has changed, or OSError."""
        new = 0
        for config in wanted:
            check_topics(config)
            new += self.logs.find(config.name) is None
        if len(self.logs.by_number) + new > STREAMS_MAX:
            raise StreamActionError(f"this would exceed the limit of {STREAMS_MAX} streams; delete some first")
        for config in wanted:
            log = self.logs.find(config.name)
            if log is None:
                self._make(config)
                continue
            there = log.definition
            definition = definition_of(config, self.directory, there, there.created)
            if definition != there:
                self.directory.write(definition)
                log.define(definition)
                self.logs.defined()
                self.state.router.remove_stream(log.stream)
                log.stream.filters = [topic.encode() for topic in definition.topics]
                self.state.router.add_stream(log.stream)
        self.logs.weigh()

    def views(self) -> list[StreamView]:
        now = time.time()
        return [stream_view(log, now) for log in sorted(self.logs.by_number.values(), key=lambda log: log.stream.name)]

    def show(self, name: str) -> StreamView:
        return stream_view(self.find(name), time.time())

    async def trim(self, name: str, before: int | None) -> StreamTrimmed:
        """Delete whole segment files that end before the offset ``before``; None means the end of the stream."""
        log = self.find(name)
        if before is None:
            before = log.stream.next
        first = log.journal.first
        if isinstance(log.stream, SequencedStream):
            log.stream.purge(b"", 0, before + 1)
        await self.store.hold()  # neither a backup nor retention may work on files that are deleted here
        try:
            log.journal.roll()
            await asyncio.to_thread(log.give_up, before)
        finally:
            self.store.release()
        self.logs.gave_back()
        self.logs.weigh()
        return StreamTrimmed(log.stream.name, log.journal.first, log.journal.first - first)

    async def delete(self, name: str) -> StreamDeleted:
        log = self.find(name)
        if isinstance(log.stream, SequencedStream) and not log.stream.removed:
            if self.delete_sequenced is not None:
                await self.delete_sequenced(log.stream)
                return StreamDeleted(name)
            self.state.jetstream.remove(log.stream)
        await self.store.hold()
        try:
            if not log.stream.ended:
                if not log.stream.sequenced:
                    self.state.router.remove_stream(log.stream)
                self.logs.remove(log)
                log.close()
                await asyncio.to_thread(self.directory.delete, log.stream.name, log.stream.next)
                if isinstance(log.stream, SequencedStream):
                    log.stream.forget()
                self.logs.defined()
        finally:
            self.store.release()
        return StreamDeleted(log.stream.name)

    def commit(self, name: str, consumer: str, next: int | None, pins: bool) -> ConsumerLag:
        """Record that a consumer has processed all messages before the offset ``next``."""
        log = self.find(name)
        if not plain_name(consumer) or next is None:
            raise StreamActionError(f"a consumer needs a name of 1 to {NAME_BYTES_MAX} printable bytes and an offset")
        now = time.time()
        log.consumers.heard(Consumer(consumer, next, now, pins, now + PIN_SECONDS if pins else 0.0))
        self.logs.consumed(log)
        return ConsumerLag(log.stream.name, max(0, log.shown - next))

    def nodes(self) -> ReadableNodes:
        """The registered nodes, whose streams can be read unless they are away."""
        nodes = [ReadableNode(name, address, away) for name, address, away in self._nodes()]
        return ReadableNodes(self.node, self._clustered, nodes)

    def forget(self, name: str, consumer: str) -> ConsumerForgotten:
        log = self.find(name)
        if not log.consumers.forget(consumer):
            raise StreamActionError(f"stream {log.stream.name} has no consumer {consumer!r}")
        self.logs.consumed(log)
        return ConsumerForgotten(log.stream.name, consumer)
