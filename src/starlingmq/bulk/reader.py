"""Reads a stream's files while the broker writes them; only the files are shared with it.

POSITION holds the readable end; data before it never changes, except that whole files are deleted, or replaced by ones
without the content of messages that were removed. After a record with
a wrong checksum, reading resumes at the next valid record, and those between count as lost.
"""

from __future__ import annotations

import mmap
import os
import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from starlingmq.bulk.columns import DAMAGED, DONE, SHORT, Columns, TopicFilter, gather, skip
from starlingmq.storage.records import RecordError
from starlingmq.storage.segment.segment_format import (
    HEADER_SIZE,
    Scan,
    decode_header,
    index_name,
    log_name,
    parse_gone_name,
    parse_name,
)
from starlingmq.storage.segment.segment_index import decode_index
from starlingmq.storage.streams.stream_definition import Definition, identity
from starlingmq.storage.streams.stream_files import POSITION_BYTES

CHUNK_BYTES: Final = 4 << 20  # bytes of a file per read
BATCH_ROWS: Final = 65536
BATCH_BYTES: Final = 8 << 20
MARKS_MAX: Final = 4096  # known positions in one file


class StreamMissing(Exception):
    """This node has no such stream."""


class Trimmed(Exception):
    """Retention has deleted the requested rows. ``first``: the oldest offset kept."""

    def __init__(self, name: str, offset: int, first: int) -> None:
        super().__init__(f"stream {name}: offset {offset} has been deleted by retention; the oldest is {first}")
        self.first = first


class Replaced(Exception):
    """The stream has another id than requested: it is another stream of the same name."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"stream {name} is not the one that was read before: it was deleted and created again, or the node has "
            "lost its disk, or was restored from a backup"
        )


class View:
    """A file with known start positions of some of its records."""

    def __init__(self, path: Path, first: int) -> None:
        self.path = path
        self.first = first
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        header = decode_header(os.pread(self.fd, HEADER_SIZE, 0))
        self.salt = header.salt if header is not None else 0
        self.offsets = array("Q", [first])
        self.positions = array("Q", [HEADER_SIZE])
        self._lock = threading.Lock()
        self._indexed = False

    def __del__(self) -> None:
        os.close(self.fd)

    def is_current(self) -> bool:
        """Whether it was not replaced. Raises FileNotFoundError."""
        return os.stat(self.path).st_ino == os.fstat(self.fd).st_ino

    def nearest_record(self, offset: int) -> tuple[int, int]:
        """Return offset and position of a known record at this offset or before it."""
        if not self._indexed:
            self._take_index()
        with self._lock:
            at = bisect_right(self.offsets, offset) - 1
            return self.offsets[at], self.positions[at]

    def _take_index(self) -> None:
        """Load the index of a file that is complete."""
        try:
            data = (self.path.parent / index_name(self.first)).read_bytes()
        except FileNotFoundError:
            return
        found = decode_index(data, self.first)
        if found is None or found[2] != os.fstat(self.fd).st_size:
            return
        with self._lock:
            self.offsets, self.positions = found[0].offsets, found[0].positions
            self._indexed = True

    def note(self, offset: int, position: int) -> None:
        """Remember that a record begins there."""
        with self._lock:
            if not self._indexed and offset > self.offsets[-1] and len(self.offsets) < MARKS_MAX:
                self.offsets.append(offset)
                self.positions.append(position)


class StreamReader:
    """One stream; several threads may read it at once. Raises StreamMissing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.name = directory.name
        try:
            self.definition = msgspec.json.decode((directory / "STREAM").read_bytes(), type=Definition)
            fd = os.open(directory / "POSITION", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise StreamMissing(f"there is no stream {self.name} on this node") from None
        try:
            self._map = mmap.mmap(fd, POSITION_BYTES, prot=mmap.PROT_READ)
            self._made = os.fstat(fd).st_ino
        finally:
            os.close(fd)
        self._words = memoryview(self._map).cast("Q")
        self._views: dict[int, View] = {}
        self._firsts: list[int] = []
        self._gone: list[tuple[int, int]] = []  # offsets of files between others that were deleted on purpose
        self._lock = threading.Lock()  # guards these two

    def expect(self, id: str, offset: int) -> None:
        """Raises Replaced unless the stream of this id ("": any stream) has the same rows before ``offset``."""
        if id and id != identity(self.definition) and offset > self.definition.earlier.get(id, -1):
            raise Replaced(self.name)

    def current(self) -> bool:
        """Whether the stream was neither deleted nor created again since."""
        try:
            return os.stat(self.directory / "POSITION").st_ino == self._made
        except FileNotFoundError:
            return False

    @property
    def next(self) -> int:
        """Return the readable end: the offset after the last readable record."""
        while (one := self._words[0]) != self._words[1]:  # the broker is writing it
            pass
        return one

    @property
    def first(self) -> int:
        firsts = self._list()
        return min(firsts[0], self.next) if firsts else self.next

    def _list(self) -> list[int]:
        names = os.listdir(self.directory / "log")
        self._gone = sorted(found for name in names if (found := parse_gone_name(name)) is not None)
        firsts = sorted(first for name in names if (first := parse_name(name, "log")) is not None)
        with self._lock:
            if firsts != self._firsts:
                self._firsts = firsts
                for gone in set(self._views).difference(firsts):
                    del self._views[gone]
        return firsts

    def _view(self, first: int) -> View | None:
        with self._lock:
            view = self._views.get(first)
            try:
                if view is None or not view.is_current():
                    view = self._views[first] = View(self.directory / "log" / log_name(first), first)
            except FileNotFoundError:
                return None
            return view

    def read(self, start: int, end: int, wanted: TopicFilter) -> Iterator[Columns]:
        """Yield the rows from ``start`` to before ``end``, up to the readable end, in batches. Columns may be empty:
        ``next`` is the progress; rows neither returned nor filtered out are lost. Raises Trimmed.
        """
        end = min(end, self.next)
        offset = start
        while offset < end:
            firsts = self._list()
            index = bisect_right(firsts, offset) - 1
            view = self._view(firsts[index]) if index >= 0 else None
            if view is None:
                raise Trimmed(self.name, offset, self.first)
            stop = min(end, firsts[index + 1]) if index + 1 < len(firsts) else end
            for begin, after in self._gone:
                if begin <= offset < after:
                    offset = min(after, stop)
                    yield Columns(0, offset)
                elif offset < begin:
                    stop = min(stop, begin)
            if offset >= stop:
                continue
            for columns in _rows(view, offset, stop, wanted):
                offset = columns.next
                yield columns

    def offset_at(self, when: float) -> int:
        """Return the first offset published at ``when`` (Unix seconds) or later; the end if there is none."""
        firsts = [first for first in self._list() if first < self.next]
        index = 0
        for number, first in enumerate(firsts):
            found = next(iter(self.read(first, first + 1, TopicFilter([]))), None)
            if found is None or not found.count or array("q", found.times.getvalue())[0] > when * 1e6:
                break
            index = number
        offset = firsts[index] if firsts else self.next
        for columns in self.read(offset, self.next, TopicFilter([])):
            times = array("q", columns.times.getvalue())
            for row, time in enumerate(times):
                if time >= when * 1e6:
                    return array("q", columns.offsets.getvalue())[row]
        return self.next

    def limit(self, start: int, bytes_max: int) -> int:
        """Return the offset after about so many bytes of files, at least one record after ``start``."""
        end = self.next
        firsts = self._list()
        index = max(0, bisect_right(firsts, start) - 1)
        left = bytes_max
        offset = start
        for number in range(index, len(firsts)):
            view = self._view(firsts[number])
            if view is None:
                continue
            stop = min(end, firsts[number + 1]) if number + 1 < len(firsts) else end
            offset = max(offset, view.first)
            known, position = view.nearest_record(offset)
            begin, stop_position = position, os.fstat(view.fd).st_size
            if stop_position - begin <= left:
                left -= stop_position - begin
                offset = stop
                continue
            data = os.pread(view.fd, left, begin)
            return max(start + 1, min(end, skip(data, 0, known, stop)[1]))
        return max(min(offset, end), min(start + 1, end))


def _rows(view: View, offset: int, stop: int, wanted: TopicFilter) -> Iterator[Columns]:
    """Yield the rows of one file."""
    position = _find(view, offset)
    data, at, size = b"", 0, CHUNK_BYTES
    while offset < stop:
        columns = Columns(at, offset)
        try:
            why = gather(data, view.salt, stop, BATCH_ROWS, BATCH_BYTES, wanted, columns)
        except RecordError:
            why = DAMAGED
        at, offset = columns.at, columns.next
        if columns.count or why == DONE:
            yield columns
        if why == SHORT:
            at_end = at == 0 and 0 < len(data) < size
            size = CHUNK_BYTES if at or not data else size * 2  # the record is longer than the data read
            position += at
            data, at = os.pread(view.fd, size, position), 0
            view.note(offset, position)
            if at_end or not data:
                why = DAMAGED
        if why == DAMAGED:
            position += at
            first = offset
            offset, position = _resume(view, position, offset, stop)
            columns = Columns(0, offset)
            columns.lost = offset - first
            yield columns
            data, at, size = b"", 0, CHUNK_BYTES
    view.note(offset, position + at)


def _find(view: View, offset: int) -> int:
    """Return the position of a record, or where it should be."""
    known, position = view.nearest_record(offset)
    size = CHUNK_BYTES
    while known < offset:
        data = os.pread(view.fd, size, position)
        at, known = skip(data, 0, known, offset)
        if at == 0 and len(data) < size:
            scan = _resume(view, position, known, offset + 1)
            return scan[1]
        size = CHUNK_BYTES if at else size * 2
        position += at
    return position


def _resume(view: View, position: int, offset: int, stop: int) -> tuple[int, int]:
    """Return offset and position of the next valid record; ``stop`` if there is none."""
    data = os.pread(view.fd, os.fstat(view.fd).st_size - position, position)
    scan = Scan(data, offset, view.salt, stop)
    if not scan.gaps or scan.gaps[0].last + 1 >= stop:
        return stop, position
    return scan.gaps[0].last + 1, position + scan.gaps[0].end
