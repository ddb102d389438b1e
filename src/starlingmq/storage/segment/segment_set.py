"""The segments of one journal, in order, and which of them are open."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from contextlib import suppress

from starlingmq.storage.file_calls import FileCalls, remove_if_there, write_whole
from starlingmq.storage.maintenance.damage_report import Damage, Damages
from starlingmq.storage.segment.segment_file import SegmentFile
from starlingmq.storage.segment.segment_format import (
    HEADER_SIZE,
    SegmentHeader,
    doubt_name,
    gone_name,
    index_name,
    log_name,
)
from starlingmq.storage.segment.segment_index import decode_index


class SegmentSet:
    """The state that appending, reading, syncing and deleting share. Callers hold ``lock``."""

    def __init__(self, files: FileCalls, directory: str, salt: int, open_max: int) -> None:
        self.files = files
        self.directory = directory
        self.salt = salt
        self.open_max = open_max
        self.lock = threading.Lock()
        self.damages = Damages()
        self.segments: list[SegmentFile] = []
        self.firsts: list[int] = []  # of each segment, for bisect
        self.dirty: dict[int, SegmentFile] = {}  # by first offset: segments with records that are not synced
        self.gone: list[tuple[int, int]] = []  # ranges of offsets deleted between segments, each with a marker
        self.unlisted = False  # names were created that a power failure may undo
        self.removals = 0  # number of names removed at the front,
        self.removals_synced = 0  # and how many of them a power failure cannot restore
        self.next = 0
        self.size = 0  # bytes of all segments
        self._open: OrderedDict[int, SegmentFile] = OrderedDict()  # clean segments, the least recently used first

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def insert(self, segment: SegmentFile) -> None:
        """Insert a segment in its place; one with the same first offset is replaced."""
        index = bisect_right(self.firsts, segment.first)
        if index and self.firsts[index - 1] == segment.first:
            self.forget(self.segments[index - 1])
            index -= 1
        self.segments.insert(index, segment)
        self.firsts.insert(index, segment.first)
        self.size += segment.size
        if segment.dirty:
            self.dirty[segment.first] = segment

    def forget(self, segment: SegmentFile) -> None:
        """Remove a segment from the set and close it; its file is left alone."""
        index = self.firsts.index(segment.first)
        del self.segments[index], self.firsts[index]
        self.size -= segment.size
        self.dirty.pop(segment.first, None)
        self._open.pop(segment.first, None)
        segment.gone = True
        self.unpin(segment, 0)

    def begin(self) -> SegmentFile:
        """Begin a segment at the end; it replaces an empty one.

        The last segment, if it is already sealed, may end in records that took no effect, with offsets that are now
        used again. The new name makes them void, so it is synced before anything else is written; otherwise they could
        come back after a power failure. (This wait for the disk is rare.)
        """
        last = self.segments[-1] if self.segments else None
        created = self.files.now()
        segment = SegmentFile(self.files, self.path(log_name(self.next)), self.next, self.salt, created)
        segment.written = True
        settle = last is not None and (last.sealed or last.first == self.next)
        header = SegmentHeader(self.next, created, self.salt).encode()
        segment.fd = write_whole(self.files, segment.path, header, sync=settle)
        self.unlisted = True
        self.insert(segment)
        if settle:
            self.settle_names()
            segment.listed = True
        if last is not None and last.torn:
            self._cut_torn(last)
        return segment

    def mark_torn(self, segment: SegmentFile) -> None:
        """An append stopped half way. Free its space. The marker keeps another process from appending to this segment:
        until the cut is synced, sectors that were cut off could come back among later records."""
        segment.torn = segment.sealed = True
        self._mark_doubt(segment)
        segment.cut_back()

    def _cut_torn(self, segment: SegmentFile) -> None:
        """Another segment has been begun, so the bytes after the records of this one are permanently void."""
        segment.torn = False
        if not segment.gone:
            with suppress(OSError):
                self.use(segment).cut_back()
        if not segment.doubted:
            self.unmark_doubt(segment)

    def seal(self, segment: SegmentFile) -> None:
        """The segment does not grow any more; the next sync completes it."""
        segment.sealed = True
        if not segment.gone:
            self.dirty[segment.first] = segment

    def index_of(self, offset: int) -> int:
        """The index of the segment that has ``offset``, or would have it; -1: before all of them."""
        return bisect_right(self.firsts, offset) - 1

    def use(self, segment: SegmentFile) -> SegmentFile:
        """Open a segment for reading, with its index."""
        first = segment.first
        if segment.fd < 0:
            segment.fd = self.files.open(segment.path)
        if segment.index is None:
            self._load_index(segment)
        if segment.sealed and not (segment.written and segment.dirty):
            self._open[first] = segment
            self._open.move_to_end(first)
            self._shut_unused()
        return segment

    def _shut_unused(self) -> None:
        """Close all but the ``open_max`` last used segments, and the one just used."""
        excess = len(self._open) - self.open_max
        if excess <= 0:
            return
        for segment in list(self._open.values())[:excess]:
            if not segment.pins:
                del self._open[segment.first]
                self.files.close(segment.fd)
                segment.fd = -1
                if segment.indexed:
                    segment.index = None

    def unpin(self, segment: SegmentFile, pins: int = 1) -> None:
        segment.pins -= pins
        if segment.gone and not segment.pins and segment.fd >= 0:
            self.files.let_go(segment.fd, segment.size)
            segment.fd = -1

    def _load_index(self, segment: SegmentFile) -> None:
        data = self._read_index(segment.first)
        found = decode_index(data, segment.first) if data else None
        if found is not None and found[1:] == (segment.next, segment.size):
            segment.index = found[0]
            return
        if data:
            self.report_index(segment)
        scan = segment.scan(segment.next)
        segment.learn(scan)
        segment.report(scan, segment.next, HEADER_SIZE, self.damages)
        segment.indexed = False

    def report_index(self, segment: SegmentFile) -> None:
        path = self.path(index_name(segment.first))
        what = "The index has a wrong checksum; it is rebuilt from the segment, nothing is lost."
        self.damages.add(Damage(path, segment.first, segment.first - 1, 0, what))

    def _read_index(self, first: int) -> bytes:
        """Content of the index file; empty if it does not exist."""
        return read_file(self.files, self.path(index_name(first)))

    def write_index(self, segment: SegmentFile) -> None:
        """Write the index file, so that the segment need not be scanned again. A failure is harmless, since the index
        can be made at any time."""
        if segment.index is None:
            return
        data = segment.index.encode(segment.first, segment.next, segment.size)
        try:
            self.files.close(write_whole(self.files, self.path(index_name(segment.first)), data, sync=False))
            segment.indexed = True
        except OSError:
            pass

    def unmark_doubt(self, segment: SegmentFile) -> None:
        with suppress(OSError):  # then the segment is copied once more
            self.files.remove(self.path(doubt_name(segment.first)))

    def sync_directory(self) -> None:
        """May be called without the lock. If it fails, the caller has to call ``doubt_names`` with the lock."""
        removals = self.removals
        self.files.sync_directory(self.directory)
        self.removals_synced = max(self.removals_synced, removals)

    def doubt_names(self) -> None:
        """Syncing the directory has failed: names in doubt are as bad as content in doubt, so their files are written
        again."""
        self.unlisted = True
        for segment in self.dirty.values():
            if not segment.listed:
                segment.synced_next, segment.synced_size = segment.first, HEADER_SIZE
                self.doubt(segment)

    def doubt(self, segment: SegmentFile) -> None:
        """A sync of this segment has failed. The marker is for the next process, if this one dies before the segment
        has been copied. A disk that does not take even this name takes nothing."""
        segment.doubted = segment.sealed = True
        self._mark_doubt(segment)

    def _mark_doubt(self, segment: SegmentFile) -> None:
        with suppress(OSError):
            self.files.close(self.files.open(self.path(doubt_name(segment.first)), create=True))

    def settle_names(self) -> None:
        """Sync the directory now. As for all methods but ``sync_directory``, the caller holds the lock."""
        try:
            self.sync_directory()
        except OSError:
            self.doubt_names()
            raise

    @property
    def removing(self) -> bool:
        return self.removals > self.removals_synced

    def remove(self, segment: SegmentFile) -> None:
        """Delete a segment that has another one after it, whose name is synced.

        After a power failure, names may come back in any order. So that a deleted segment is not reported as missing,
        only one removal at the front may be unsynced; a segment between others leaves a marker.
        """
        front = self.segments[0] is segment
        following = self.segments[self.firsts.index(segment.first) + 1].first
        if front:
            if self.removing:
                self.settle_names()
        else:
            self.mark_gone(segment.first, following)
        remove_if_there(self.files, self.path(index_name(segment.first)))
        remove_if_there(self.files, segment.path)
        if segment.doubted or segment.torn:
            self.unmark_doubt(segment)
        self.removals += front
        self.forget(segment)

    def mark_gone(self, first: int, following: int) -> None:
        """Note that the offsets from ``first`` to ``following`` - 1 are missing on purpose.

        The marker absorbs the one before it and those after it, so that there are never more markers than
        segments."""
        begin = next((known[0] for known in self.gone if known[1] == first), first)
        wanted = (begin, following)
        if wanted not in self.gone:
            self.files.close(self.files.open(self.path(gone_name(*wanted)), create=True))
            self.gone.append(wanted)
        self.settle_names()
        for known in [known for known in self.gone if known != wanted and begin <= known[0] < known[1] <= following]:
            self._remove_marker(known)

    def sweep(self) -> None:
        """Remove markers without a segment before them. Only allowed while no segment before them can come back."""
        for known in list(self.gone):
            if not self.removing and (not self.firsts or known[0] < self.firsts[0]):
                self._remove_marker(known)

    def _remove_marker(self, known: tuple[int, int]) -> None:
        with suppress(OSError):  # a later call removes it
            remove_if_there(self.files, self.path(gone_name(*known)))
            self.gone.remove(known)

    def close(self) -> None:
        for segment in self.segments:
            if segment.fd >= 0:
                self.files.close(segment.fd)
                segment.fd = -1
        self.segments, self.firsts = [], []
        self.dirty.clear()
        self._open.clear()
        self.size = 0


def read_file(files: FileCalls, path: str) -> bytes:
    """All of the file; b"" if it does not exist."""
    try:
        fd = files.open(path)
    except FileNotFoundError:
        return b""
    try:
        return files.read(fd, files.size(fd), 0)
    finally:
        files.close(fd)
