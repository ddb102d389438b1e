"""Streams in a data directory: ``streams/NAME/`` with

    STREAM     JSON: what the stream is (``Definition``); written whole, or not at all
    POSITION   two equal u64 in the machine's order: the offset before which everything may be read. Shared memory: who
               reads maps it, and takes it for true when both agree. It is made again at each start
    RESTORED   empty: the directory was made of a backup, and no broker has opened it since
    CONSUMERS  JSON: who reads it and how far they are (storage/streams/stream_consumers.py)
    log/       the records, in segment files

A directory without STREAM was being created or deleted, and is removed.

``stream_ends.json`` beside ``streams/`` has the end of each stream that was deleted: one of the same name that is
created later begins there, so that a node never gives an offset of a name twice.
"""

from __future__ import annotations

import mmap
import os
import secrets
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from starlingmq.config.streams_section import StreamConfig
from starlingmq.core.topics.topics import valid_filter
from starlingmq.storage.maintenance.file_copy import sync_directory
from starlingmq.storage.segment.segment_journal import SegmentJournal
from starlingmq.storage.streams.stream_consumers import read_consumers
from starlingmq.storage.streams.stream_definition import Definition, identity
from starlingmq.storage.streams.stream_logs import FILES_MIN, StreamLog

POSITION_BYTES: Final = 16
SEGMENT_MIN: Final = 64 << 10
ENDS: Final = "stream_ends.json"
ENDS_MAX: Final = 10_000  # deleted streams whose end is remembered; the oldest is forgotten first
RESTORED: Final = "RESTORED"
EARLIER_MAX: Final = 16  # restores that a stream remembers


class StreamActionError(Exception):
    """The action on a stream is impossible; one line says why."""


class SharedPosition:
    """The broker's side of POSITION."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, POSITION_BYTES)
            self._map = mmap.mmap(fd, POSITION_BYTES)
        finally:
            os.close(fd)
        self._words = memoryview(self._map).cast("Q")

    def show(self, next: int) -> None:
        self._words[0] = next
        self._words[1] = next

    def close(self) -> None:
        self._words.release()
        self._map.close()


class StreamDirectory:
    """``streams/`` of a data directory. Only the owner of the directory changes it. ``segment_size``: maximum bytes of
    a file."""

    def __init__(self, path: Path, segment_size: int) -> None:
        self.path = path
        self.segment_size = segment_size
        self._last_number = 0

    def find(self) -> list[Definition]:
        """The definitions of all streams, ordered by name."""
        if not self.path.is_dir():
            return []
        found: list[Definition] = []
        for directory in sorted(self.path.iterdir()):
            try:
                text = (directory / "STREAM").read_bytes()
            except FileNotFoundError:
                shutil.rmtree(directory, ignore_errors=True)
                continue
            found.append(msgspec.json.decode(text, type=Definition))
            self._last_number = max(self._last_number, found[-1].number)
        return found

    def number(self) -> int:
        """An unused number for a new stream, higher than all before."""
        self._last_number = max(self._last_number + 1, int(time.time() * 1000))
        return self._last_number

    def write(self, definition: Definition) -> None:
        """Create a stream, or store its new definition."""
        directory = self.path / definition.name
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(directory / "STREAM", msgspec.json.encode(definition) + b"\n")
        for changed in (directory, self.path, self.path.parent):
            sync_directory(changed)

    def open(self, definition: Definition) -> StreamLog:
        directory = self.path / definition.name
        size = self.segment_size
        if definition.retention_size:
            size = max(SEGMENT_MIN, min(size, definition.retention_size // FILES_MIN))
        journal = SegmentJournal(str(directory / "log"), segment_bytes=size, begin=definition.begin)
        log = StreamLog(definition, journal, SharedPosition(directory / "POSITION"))
        log.consumers = read_consumers(directory / "CONSUMERS")
        return log

    def restored(self, log: StreamLog) -> None:
        """Where the directory comes from a backup, the offsets after its end are given again, to other messages: the
        stream is another one from there on. Raises OSError."""
        marker = self.path / log.definition.name / RESTORED
        if not marker.exists():
            return
        known = {**log.definition.earlier, identity(log.definition): log.stream.next}
        earlier = dict(list(known.items())[-EARLIER_MAX:])
        definition = msgspec.structs.replace(log.definition, id=secrets.token_hex(8), earlier=earlier)
        self.write(definition)
        log.define(definition)
        marker.unlink()

    def first_offset(self, name: str) -> int:
        """Where a stream that is created now begins. Raises OSError, msgspec.MsgspecError."""
        return self.ends().get(name, 0)

    def ends(self) -> dict[str, int]:
        """Where deleted streams ended, by name. Raises OSError, msgspec.MsgspecError."""
        try:
            return msgspec.json.decode(self.path.with_name(ENDS).read_bytes(), type=dict[str, int])
        except FileNotFoundError:
            return {}

    def write_ends(self, ends: dict[str, int]) -> None:
        _replace(self.path.with_name(ENDS), msgspec.json.encode(ends))
        sync_directory(self.path.parent)

    def delete(self, name: str, end: int) -> None:
        """``end``: its next offset. Once STREAM is gone, so is the stream. Raises OSError."""
        ends = self.ends()
        ends.pop(name, None)
        ends[name] = end
        while len(ends) > ENDS_MAX:
            del ends[next(iter(ends))]
        self.write_ends(ends)
        directory = self.path / name
        (directory / "STREAM").unlink()
        sync_directory(directory)
        shutil.rmtree(directory)


def _replace(path: Path, data: bytes) -> None:
    """The whole of it, or nothing."""
    new = path.with_name(f"{path.name}.new")
    with open(new, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)


def check_topics(config: StreamConfig) -> None:
    """Raises StreamActionError for topics that are no filters."""
    for topic in config.topics:
        if not valid_filter(topic.encode()) or topic.startswith("$share/"):
            raise StreamActionError(f"stream {config.name}: {topic!r} is not a topic filter")


def definition_of(config: StreamConfig, directory: StreamDirectory, there: Definition | None, now: float) -> Definition:
    """The new definition of a stream; ``there`` is the present one. Raises StreamActionError, OSError."""
    check_topics(config)
    if there is not None and there.jetstream:
        raise StreamActionError(f"stream {config.name} is one of JetStream; give this one another name")
    if there is None:
        there = Definition(
            name=config.name,
            number=directory.number(),
            topics=(),
            created=now,
            id=secrets.token_hex(8),
            begin=max(config.first_offset, directory.first_offset(config.name)),
        )
    return msgspec.structs.replace(
        there,
        topics=tuple(dict.fromkeys(config.topics)),
        retention_time=config.retention_time,
        retention_size=config.retention_size,
        when_full=config.when_full,
    )


def declare(directory: StreamDirectory, wanted: Iterable[StreamConfig], now: float) -> list[Definition]:
    """The streams after a start: the existing ones, changed as the settings want, and new ones of the settings. Blocks.
    Raises StreamActionError, OSError."""
    found = {definition.name: definition for definition in directory.find()}
    for config in wanted:
        there = found.get(config.name)
        definition = definition_of(config, directory, there, now)
        if definition != there:
            directory.write(definition)
            found[config.name] = definition
    return list(found.values())
