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
    def __init__(self, segment_set: SegmentSet) -> None:
        self._segment_set = segment_set
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
            for segment in list(self._segment_set.dirty.values()):
                if segment.doubted:
                    self._write_again(segment)
            self._sync()

    def _sync(self) -> None:
        segment_set = self._segment_set
        with segment_set.lock:
            if segment_set.segments and segment_set.segments[-1].next < segment_set.next:
                segment_set.begin()  # the last offsets are lost; a name has to show that they were used
            wanted = [segment for segment in segment_set.dirty.values() if not segment.doubted]
        for start in range(0, len(wanted) or 1, SYNC_MAX):
            self._sync_some(wanted[start : start + SYNC_MAX])

    def _sync_some(self, segments: list[SegmentFile]) -> None:
        segment_set = self._segment_set
        with segment_set.lock:
            marks = [_Mark(segment) for segment in segments if not segment.gone and not segment.doubted]
            self._pin(marks)
            listing, segment_set.unlisted = segment_set.unlisted or segment_set.removing, False
        failure = self._sync_files(marks)
        if listing:
            failure = self._sync_names() or failure
        with segment_set.lock:
            finished = [mark.segment for mark in marks if self._settle(mark)]
        for segment in finished:
            if not segment.indexed and not segment.damaged:
                segment_set.write_index(segment)
        with segment_set.lock:
            for mark in marks:
                segment_set.unpin(mark.segment)
            for segment in finished:
                if not segment.gone:
                    segment_set.use(segment)
            segment_set.sweep()
        if failure is not None:
            raise failure

    def _pin(self, marks: list[_Mark]) -> None:
        """Pin all segments or none."""
        pinned: list[SegmentFile] = []
        try:
            for mark in marks:
                self._segment_set.use(mark.segment).pins += 1
                pinned.append(mark.segment)
        except OSError:
            for segment in pinned:
                self._segment_set.unpin(segment)
            raise

    def _sync_files(self, marks: list[_Mark]) -> OSError | None:
        failure: OSError | None = None
        for mark in marks:
            try:
                self._segment_set.files.sync(mark.segment.fd)
            except OSError as error:
                mark.failed = True
                failure = error
        return failure

    def _sync_names(self) -> OSError | None:
        try:
            self._segment_set.sync_directory()
        except OSError as error:
            with self._segment_set.lock:
                self._segment_set.doubt_names()
            return error
        return None

    def _settle(self, mark: _Mark) -> bool:
        """Record the progress. Returns whether the segment is complete: synced to its end, and it does not grow any
        more."""
        segment = mark.segment
        if segment.gone:
            return False
        if mark.failed:
            self._segment_set.doubt(segment)
        if segment.doubted:
            return False
        segment.listed = True
        segment.synced_next, segment.synced_size = mark.next, mark.size
        if segment.dirty:
            return False
        self._segment_set.dirty.pop(segment.first, None)
        return segment.sealed

    def _write_again(self, segment: SegmentFile) -> None:
        """Copy the part in doubt into a new segment. Records are bound to their offset, not to their place in a file,
        so they are copied unchanged. A second failure leaves everything as it was, for the next attempt."""
        segment_set = self._segment_set
        with segment_set.lock:
            if segment.gone or self._nothing_in_doubt(segment):
                return
            segment_set.use(segment).pins += 1
        try:
            first = segment.synced_next
            size = segment.size - segment.synced_size
            data, _ = read_what_can_be(segment_set.files, segment.fd, size, segment.synced_size)
            scan = Scan(data, first, segment.salt, segment.next)
            copy = SegmentFile(
                segment_set.files, segment_set.path(log_name(first)), first, segment.salt, segment.created
            )
            header = SegmentHeader(first, segment.created, segment.salt).encode()
            copy.fd = write_whole(segment_set.files, copy.path, header + data, sync=True)
            if (failure := self._sync_names()) is not None:
                segment_set.files.close(copy.fd)
                raise failure
            self._exchange(segment, copy, scan)
        finally:
            with segment_set.lock:
                segment_set.unpin(segment)

    def _nothing_in_doubt(self, segment: SegmentFile) -> bool:
        """Handle a segment of which no record is in doubt."""
        segment_set = self._segment_set
        if segment.next == segment.first and segment is segment_set.segments[-1]:
            segment_set.begin()  # in its place
        elif not segment.dirty:
            segment.doubted = False
            segment_set.unmark_doubt(segment)
            segment_set.dirty.pop(segment.first)
        elif segment.next == segment.first:
            segment_set.files.remove(segment.path)
            segment_set.forget(segment)
        else:
            return False
        return True

    def _exchange(self, segment: SegmentFile, copy: SegmentFile, scan: Scan) -> None:
        segment_set = self._segment_set
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
            segment_set.damages.add(Damage(copy.path, begin, end, 0, what))
        self._lost += lost
        with segment_set.lock:
            if segment.gone:  # deleted meanwhile
                segment_set.files.close(copy.fd)
                segment_set.files.remove(copy.path)
                return
            segment_set.dirty.pop(segment.first, None)
            segment_set.unmark_doubt(segment)
            if copy.first != segment.first:
                segment_set.size -= segment.size - segment.synced_size
                segment.next, segment.size = segment.synced_next, segment.synced_size
                segment.doubted = False
                if segment.index is not None:
                    segment.index.cut(segment.next)
                segment.cut_back()
            segment_set.insert(copy)
