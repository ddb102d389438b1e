"""Syncing segments, and what to do when that fails.

When fsync fails, the system may mark what it could not write as written, and the next fsync of the same file then
succeeds without it ("fsyncgate"). So a file whose fsync failed once is never synced again: what it had not synced by
then is in doubt. The next attempt copies it, checked record by record, into a new file with the same first offset, and
syncs that.
"""

from __future__ import annotations

import errno
import threading

from starlingmq.storage.file_calls import read_what_can_be, write_whole
from starlingmq.storage.maintenance.damage_report import Damage
from starlingmq.storage.segment.segment_file import SegmentFile, records
from starlingmq.storage.segment.segment_format import HEADER_SIZE, Scan, SegmentHeader, log_name
from starlingmq.storage.segment.segment_set import SegmentSet

SYNC_MAX = 16  # segments that are synced, and therefore open, at once


class RecordsLost(OSError):
    """Records that were appended could not be written, and are not readable any more: those from the first to the last
    offset of each of ``ranges``. All others are synced."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        which = ", ".join(f"{first} to {last}" for first, last in ranges)
        super().__init__(errno.EIO, f"records lost, because the disk failed to write them: {which}")
        self.ranges = ranges


class _Mark:
    """How far a segment will be synced when the call returns."""

    __slots__ = ("failed", "next", "segment", "size")

    def __init__(self, segment: SegmentFile) -> None:
        self.segment = segment
        self.next = segment.next
        self.size = segment.size
        self.failed = False


class Syncer:
    def __init__(self, shelf: SegmentSet) -> None:
        self._shelf = shelf
        self._turn = threading.Lock()
        self._lost: list[tuple[int, int]] = []  # not reported yet

    def sync(self) -> None:
        """See SegmentJournal.sync."""
        self.flush()
        if self._lost:
            lost, self._lost = self._lost, []
            raise RecordsLost(lost)

    def flush(self) -> None:
        """Sync without reporting lost records; the next ``sync`` reports them."""
        with self._turn:
            for segment in list(self._shelf.dirty.values()):
                if segment.doubted:
                    self._write_again(segment)
            self._sync()

    def _sync(self) -> None:
        shelf = self._shelf
        with shelf.lock:
            if shelf.segments and shelf.segments[-1].next < shelf.next:
                shelf.begin()  # the last offsets are lost; a name has to show that they were used
            wanted = [segment for segment in shelf.dirty.values() if not segment.doubted]
        for start in range(0, len(wanted) or 1, SYNC_MAX):
            self._sync_some(wanted[start : start + SYNC_MAX])

    def _sync_some(self, segments: list[SegmentFile]) -> None:
        shelf = self._shelf
        with shelf.lock:
            marks = [_Mark(segment) for segment in segments if not segment.gone and not segment.doubted]
            self._pin(marks)
            listing, shelf.unlisted = shelf.unlisted or shelf.removing, False
        failure = self._sync_files(marks)
        if listing:
            failure = self._sync_names() or failure
        with shelf.lock:
            finished = [mark.segment for mark in marks if self._settle(mark)]
        for segment in finished:
            if not segment.indexed and not segment.damaged:
                shelf.write_index(segment)
        with shelf.lock:
            for mark in marks:
                shelf.unpin(mark.segment)
            for segment in finished:
                if not segment.gone:
                    shelf.use(segment)
            shelf.sweep()
        if failure is not None:
            raise failure

    def _pin(self, marks: list[_Mark]) -> None:
        """Pin all segments or none."""
        pinned: list[SegmentFile] = []
        try:
            for mark in marks:
                self._shelf.use(mark.segment).pins += 1
                pinned.append(mark.segment)
        except OSError:
            for segment in pinned:
                self._shelf.unpin(segment)
            raise

    def _sync_files(self, marks: list[_Mark]) -> OSError | None:
        failure: OSError | None = None
        for mark in marks:
            try:
                self._shelf.files.sync(mark.segment.fd)
            except OSError as error:
                mark.failed = True
                failure = error
        return failure

    def _sync_names(self) -> OSError | None:
        try:
            self._shelf.sync_directory()
        except OSError as error:
            with self._shelf.lock:
                self._shelf.doubt_names()
            return error
        return None

    def _settle(self, mark: _Mark) -> bool:
        """Record the progress. Returns whether the segment is complete: synced to its end, and it does not grow any
        more."""
        segment = mark.segment
        if segment.gone:
            return False
        if mark.failed:
            self._shelf.doubt(segment)
        if segment.doubted:
            return False
        segment.listed = True
        segment.synced_next, segment.synced_size = mark.next, mark.size
        if segment.dirty:
            return False
        self._shelf.dirty.pop(segment.first, None)
        return segment.sealed

    def _write_again(self, segment: SegmentFile) -> None:
        """Copy the part in doubt into a new segment. Records are bound to their offset, not to their place in a file,
        so they are copied unchanged. A second failure leaves everything as it was, for the next attempt."""
        shelf = self._shelf
        with shelf.lock:
            if segment.gone or self._nothing_in_doubt(segment):
                return
            shelf.use(segment).pins += 1
        try:
            first = segment.synced_next
            size = segment.size - segment.synced_size
            data, _ = read_what_can_be(shelf.files, segment.fd, size, segment.synced_size)
            scan = Scan(data, first, segment.salt, segment.next)
            copy = SegmentFile(shelf.files, shelf.path(log_name(first)), first, segment.salt, segment.created)
            header = SegmentHeader(first, segment.created, segment.salt).encode()
            copy.fd = write_whole(shelf.files, copy.path, header + data, sync=True)
            if (failure := self._sync_names()) is not None:
                shelf.files.close(copy.fd)
                raise failure
            self._exchange(segment, copy, scan)
        finally:
            with shelf.lock:
                shelf.unpin(segment)

    def _nothing_in_doubt(self, segment: SegmentFile) -> bool:
        """Handle a segment of which no record is in doubt."""
        shelf = self._shelf
        if segment.next == segment.first and segment is shelf.segments[-1]:
            shelf.begin()  # in its place
        elif not segment.dirty:
            segment.doubted = False
            shelf.unmark_doubt(segment)
            shelf.dirty.pop(segment.first)
        elif segment.next == segment.first:
            shelf.files.remove(segment.path)
            shelf.forget(segment)
        else:
            return False
        return True

    def _exchange(self, segment: SegmentFile, copy: SegmentFile, scan: Scan) -> None:
        shelf = self._shelf
        copy.learn(scan)
        copy.next = copy.synced_next = scan.next
        copy.size = copy.synced_size = HEADER_SIZE + len(scan.data)
        copy.listed = copy.sealed = True
        copy.modified = segment.modified
        lost = [(gap.first, gap.last) for gap in scan.gaps]
        if scan.next < segment.next:
            lost.append((scan.next, segment.next - 1))
        copy.damaged = bool(lost)
        for begin, end in lost:
            what = f"{records(begin, end)} lost: the disk failed to write them and they cannot be read."
            shelf.damages.add(Damage(copy.path, begin, end, 0, what))
        self._lost += lost
        with shelf.lock:
            if segment.gone:  # deleted meanwhile
                shelf.files.close(copy.fd)
                shelf.files.remove(copy.path)
                return
            shelf.dirty.pop(segment.first, None)
            shelf.unmark_doubt(segment)
            if copy.first != segment.first:
                shelf.size -= segment.size - segment.synced_size
                segment.next, segment.size = segment.synced_next, segment.synced_size
                segment.doubted = False
                if segment.index is not None:
                    segment.index.cut(segment.next)
                segment.cut_back()
            shelf.insert(copy)
