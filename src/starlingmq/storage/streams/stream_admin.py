"""What can be asked of streams while a broker serves: made, listed, looked at, trimmed, deleted; and who reads them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from starlingmq.config.section_types import ConfigError
from starlingmq.config.streams_section import NAME_PATTERN, StreamConfig
from starlingmq.config.tree_builder import build
from starlingmq.core.broker import BrokerState
from starlingmq.names import NAME_BYTES_MAX, plain_name
from starlingmq.storage.directory_store import DirectoryStore
from starlingmq.storage.maintenance.storage_check import Report
from starlingmq.storage.segment.segment_journal import SegmentInfo
from starlingmq.storage.streams.stream_consumers import Consumer
from starlingmq.storage.streams.stream_files import StreamActionError, check_topics, definition_of
from starlingmq.storage.streams.stream_logs import StreamLog, StreamLogs, identity

STREAMS_MAX: Final = 1000
OFFSET_DIGITS_MAX: Final = 18  # below 2 ** 63
PIN_SECONDS: Final = 7 * 86400.0  # how long a consumer that is not heard of holds back retention

Result = dict[str, Any]
Action = Callable[[Report, dict[str, str]], Awaitable[Result]]


def description(log: StreamLog, now: float) -> Result:
    """A stream as this node has it."""
    definition = msgspec.to_builtins(log.definition)
    for own in ("number", "begin", "earlier"):
        del definition[own]
    definition["id"] = identity(log.definition)
    files = [file for file in log.journal.segments() if isinstance(file, SegmentInfo)]
    last = max(log.shown, 0)
    consumers = [
        {
            "name": one.name,
            "next": one.next,
            "lag": max(0, last - one.next),
            "pins": one.pins and one.until > now,
            "heard_seconds": max(0.0, now - one.heard),
        }
        for one in log.consumers.by_name.values()
    ]
    return {
        **definition,
        "first": min(log.journal.first, last),
        "next": last,
        "messages": last - min(log.journal.first, last),
        "bytes": log.journal.size,
        "files": len(files),
        "full": log.stream.full,
        "dropped": log.stream.dropped,
        "consumers": consumers,
    }


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= OFFSET_DIGITS_MAX


class StreamAdmin:
    """Of one store and the broker it stores. All but ``trim`` and ``delete`` are done in a moment."""

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

    def actions(self) -> dict[str, Action]:
        return {
            "stream.create": lambda _, arguments: self.create(arguments),
            "stream.list": lambda _, arguments: self.list(),
            "stream.show": lambda _, arguments: self.show(arguments),
            "stream.trim": lambda _, arguments: self.trim(arguments),
            "stream.delete": lambda _, arguments: self.delete(arguments),
            "stream.commit": lambda _, arguments: self.commit(arguments),
            "stream.nodes": lambda _, arguments: self.nodes(),
            "stream.forget": lambda _, arguments: self.forget(arguments),
        }

    def _find(self, arguments: dict[str, str]) -> StreamLog:
        name = arguments.get("name", "")
        found = self.logs.find(name)
        if found is None:
            known = ", ".join(sorted(log.stream.name for log in self.logs.by_number.values())) or "none"
            raise StreamActionError(f"there is no stream {name[:64]!r} on this node; existing: {known}")
        return found

    async def create(self, arguments: dict[str, str]) -> Result:
        """``arguments``: as StreamConfig; topics one a line."""
        tree: dict[str, Any] = {**arguments, "topics": arguments.get("topics", "").splitlines()}
        name = tree.get("name", "")
        if not re.match(NAME_PATTERN, name):
            raise StreamActionError(
                f"{name[:64]!r} is not a valid name; use 1 to 64 letters, digits, dots, dashes, underscores"
            )
        try:
            config = build(StreamConfig, tree)
        except ConfigError as error:
            raise StreamActionError(str(error)) from None
        if self.logs.find(config.name) is not None:
            raise StreamActionError(f"stream {config.name} exists already; delete it first, or use another name")
        if len(self.logs.by_number) >= STREAMS_MAX:
            raise StreamActionError(f"the limit of {STREAMS_MAX} streams is reached; delete some first")
        return description(self._make(config), time.time())

    def _make(self, config: StreamConfig) -> StreamLog:
        definition = definition_of(config, self.directory, None, time.time())
        self.directory.write(definition)
        log = self.directory.open(definition)
        log.show(log.stream.next)
        self.logs.add(log)
        self.state.router.add_stream(log.stream)
        return log

    def declare(self, wanted: Sequence[StreamConfig]) -> None:
        """Have all of them, as they are wanted from now on, as a start would; those that are not among them stay.
        Raises StreamError, and then nothing has changed, or OSError."""
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
                self.state.router.remove_stream(log.stream)
                log.stream.filters = [topic.encode() for topic in definition.topics]
                self.state.router.add_stream(log.stream)
        self.logs.weigh()

    async def list(self) -> Result:
        now = time.time()
        found = sorted(self.logs.by_number.values(), key=lambda log: log.stream.name)
        return {"node": self.node, "streams": [description(log, now) for log in found]}

    async def show(self, arguments: dict[str, str]) -> Result:
        return {"node": self.node, **description(self._find(arguments), time.time())}

    async def trim(self, arguments: dict[str, str]) -> Result:
        """Give up whole files before the offset ``before``; "" is the end."""
        log = self._find(arguments)
        text = arguments.get("before", "")
        if text and not _is_offset(text):
            raise StreamActionError(f"{text[:20]!r} is not an offset")
        before = int(text) if text else log.stream.next
        first = log.journal.first
        await self.store.hold()  # a backup is not taken of what goes meanwhile, nor does retention work beside
        try:
            log.journal.roll()
            await asyncio.to_thread(log.give_up, before)
        finally:
            self.store.release()
        self.logs.weigh()
        return {"name": log.stream.name, "first": log.journal.first, "trimmed": log.journal.first - first}

    async def delete(self, arguments: dict[str, str]) -> Result:
        log = self._find(arguments)
        await self.store.hold()
        try:
            if not log.stream.ended:
                self.state.router.remove_stream(log.stream)
                self.logs.remove(log)
                log.close()
                await asyncio.to_thread(self.directory.delete, log.stream.name, log.stream.next)
        finally:
            self.store.release()
        return {"name": log.stream.name}

    async def commit(self, arguments: dict[str, str]) -> Result:
        """A consumer has done with everything before ``next``."""
        log = self._find(arguments)
        name, text = arguments.get("consumer", ""), arguments.get("next", "")
        if not plain_name(name) or not _is_offset(text):
            raise StreamActionError(f"a consumer needs a name of 1 to {NAME_BYTES_MAX} printable bytes and an offset")
        now = time.time()
        pins = arguments.get("pins") == "true"
        log.consumers.heard(Consumer(name, int(text), now, pins, now + PIN_SECONDS if pins else 0.0))
        return {"name": log.stream.name, "lag": max(0, log.shown - int(text))}

    async def nodes(self) -> Result:
        """Where streams are read: all nodes that are registered; ``away``: those that are not connected now."""
        nodes = [{"name": name, "address": address, "away": away} for name, address, away in self._nodes()]
        return {"node": self.node, "cluster": self._clustered, "nodes": nodes}

    async def forget(self, arguments: dict[str, str]) -> Result:
        log = self._find(arguments)
        name = arguments.get("consumer", "")
        if not log.consumers.forget(name):
            raise StreamActionError(f"stream {log.stream.name} has no consumer {name!r}")
        return {"name": log.stream.name, "consumer": name}
