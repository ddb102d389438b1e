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
    """What appending, reading, syncing and throwing away share. ``lock`` is held by whoever uses it."""

    def __init__(self, files: FileCalls, directory: str, salt: int, open_max: int) -> None:
        self.files = files
        self.directory = directory
        self.salt = salt
        self.open_max = open_max
        self.lock = threading.Lock()
        self.damages = Damages()
        self.segments: list[SegmentFile] = []
        self.firsts: list[int] = []  # of each, for bisect
        self.dirty: dict[int, SegmentFile] = {}  # by first: those of which something is not synced
        self.gone: list[tuple[int, int]] = []  # ranges of offsets thrown away between segments, each with a marker
        self.unlisted = False  # names were made that a power failure may undo
        self.removals = 0  # names removed in front, so far,
        self.removals_synced = 0  # and how many of them a power failure can not bring back
        self.next = 0
        self.size = 0  # bytes of all segments
        self._open: OrderedDict[int, SegmentFile] = OrderedDict()  # clean ones, the longest unused first

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def insert(self, segment: SegmentFile) -> None:
        """Put it in its place; what has the same first offset goes."""
        place = bisect_right(self.firsts, segment.first)
        if place and self.firsts[place - 1] == segment.first:
            self.forget(self.segments[place - 1])
            place -= 1
        self.segments.insert(place, segment)
        self.firsts.insert(place, segment.first)
        self.size += segment.size
        if segment.dirty:
            self.dirty[segment.first] = segment

    def forget(self, segment: SegmentFile) -> None:
        """Take it off the shelf and close it; its file is not our business."""
        place = self.firsts.index(segment.first)
        del self.segments[place], self.firsts[place]
        self.size -= segment.size
        self.dirty.pop(segment.first, None)
        self._open.pop(segment.first, None)
        segment.gone = True
        self.unpin(segment, 0)

    def begin(self) -> SegmentFile:
        """A new segment at the end; it takes the place of an empty one.

        The last one, if it is sealed already, may end in records that took no effect, with offsets that are now given
        again. What makes them void is the new name, so that is synced before anything else is written: otherwise they
        could come back when the power fails. (That it also waits for the disk is rare enough.)
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
        if last is not None and last.spoiled:
            self._forgive(last)
        return segment

    def spoil(self, segment: SegmentFile) -> None:
        """An append to it stopped half way. Give the space back. The marker keeps another process from appending to it:
        until the cut is synced, sectors of what was cut off could come back among later records."""
        segment.spoiled = segment.sealed = True
        self._mark_doubt(segment)
        segment.cut_back()

    def _forgive(self, segment: SegmentFile) -> None:
        """Another one has been begun: what stands behind its records is void for good."""
        segment.spoiled = False
        if not segment.gone:
            with suppress(OSError):
                self.use(segment).cut_back()
        if not segment.doubted:
            self.unmark_doubt(segment)

    def seal(self, segment: SegmentFile) -> None:
        """It grows no more; the next sync finishes it."""
        segment.sealed = True
        if not segment.gone:
            self.dirty[segment.first] = segment

    def place(self, offset: int) -> int:
        """Where the segment is that has ``offset``, or should have; -1: before all of them."""
        return bisect_right(self.firsts, offset) - 1

    def use(self, segment: SegmentFile) -> SegmentFile:
        """Make it ready to be read: opened, with its index."""
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
        """All but the ``open_max`` last used, and the one just used."""
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
        """Content of the index file; empty when it is not there."""
        return read_file(self.files, self.path(index_name(first)))

    def write_index(self, segment: SegmentFile) -> None:
        """So that the segment need not be scanned again. That it fails does no harm: it can be made at any time."""
        if segment.index is None:
            return
        data = segment.index.encode(segment.first, segment.next, segment.size)
        try:
            self.files.close(write_whole(self.files, self.path(index_name(segment.first)), data, sync=False))
            segment.indexed = True
        except OSError:
            pass

    def unmark_doubt(self, segment: SegmentFile) -> None:
        with suppress(OSError):  # then it is copied once more
            self.files.remove(self.path(doubt_name(segment.first)))

    def sync_directory(self) -> None:
        """May be called without the lock. Who does has to call ``doubt_names`` with it when this fails."""
        removals = self.removals
        self.files.sync_directory(self.directory)
        self.removals_synced = max(self.removals_synced, removals)

    def doubt_names(self) -> None:
        """The directory has failed to sync: names in doubt are as bad as content, their files are written again."""
        self.unlisted = True
        for segment in self.dirty.values():
            if not segment.listed:
                segment.synced_next, segment.synced_size = segment.first, HEADER_SIZE
                self.doubt(segment)

    def doubt(self, segment: SegmentFile) -> None:
        """A sync of it has failed. The marker is for the next process, should this one die before the segment has been
        copied; a disk that does not even take this name takes nothing."""
        segment.doubted = segment.sealed = True
        self._mark_doubt(segment)

    def _mark_doubt(self, segment: SegmentFile) -> None:
        with suppress(OSError):
            self.files.close(self.files.open(self.path(doubt_name(segment.first)), create=True))

    def settle_names(self) -> None:
        """Sync the directory now. Like everything but ``sync_directory``, with the lock."""
        try:
            self.sync_directory()
        except OSError:
            self.doubt_names()
            raise

    @property
    def removing(self) -> bool:
        return self.removals > self.removals_synced

    def remove(self, segment: SegmentFile) -> None:
        """Delete a segment that has another one behind it, which is listed.

        Names may come back in any order after a power failure. So that a segment thrown away is not taken for one that
        is missing, in front of the others only one may be on its way out; between others it leaves a marker.
        """
        front = self.segments[0] is segment
        following = self.segments[self.firsts.index(segment.first) + 1].first
        if front:
            if self.removing:
                self.settle_names()
        else:
            self._mark_gone(segment.first, following)
        remove_if_there(self.files, self.path(index_name(segment.first)))
        remove_if_there(self.files, segment.path)
        if segment.doubted or segment.spoiled:
            self.unmark_doubt(segment)
        self.removals += front
        self.forget(segment)

    def _mark_gone(self, first: int, following: int) -> None:
        """The marker takes in the one before it and those behind it, so that there are never more than segments."""
        begin = next((known[0] for known in self.gone if known[1] == first), first)
        wanted = (begin, following)
        if wanted not in self.gone:
            self.files.close(self.files.open(self.path(gone_name(*wanted)), create=True))
            self.gone.append(wanted)
        self.settle_names()
        for known in [known for known in self.gone if known != wanted and begin <= known[0] < known[1] <= following]:
            self._remove_marker(known)

    def sweep(self) -> None:
        """Remove markers that no segment stands before. Only while no segment before them can come back."""
        for known in list(self.gone):
            if not self.removing and (not self.firsts or known[0] < self.firsts[0]):
                self._remove_marker(known)

    def _remove_marker(self, known: tuple[int, int]) -> None:
        with suppress(OSError):  # another time
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
    """All of it; nothing when it is not there."""
    try:
        fd = files.open(path)
    except FileNotFoundError:
        return b""
    try:
        return files.read(fd, files.size(fd), 0)
    finally:
        files.close(fd)
