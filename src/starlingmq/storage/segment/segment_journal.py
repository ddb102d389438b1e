"""The ``segment`` journal engine: append-only files, rolled by size. segment_format.py has the format.

Nothing is allocated ahead: on ext4, reserving space after the end of a file made an fsync 3 % cheaper, which does not
pay for reserving and freeing it. (Overwriting files full of zeros made it 30 % cheaper, but then each byte is written
twice.)

Blocking: ``append`` and the reads work in the page cache. ``sync``, and now and then ``trim`` and ``drop``, wait for
the disk; they may be called from another thread, and appends continue meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile

from starlingmq.storage.file_calls import FileCalls, remove_if_there, write_whole
from starlingmq.storage.maintenance.damage_report import Damage, Damages
from starlingmq.storage.segment.segment_encoding import encode
from starlingmq.storage.segment.segment_file import SegmentFile
from starlingmq.storage.segment.segment_file import records as text
from starlingmq.storage.segment.segment_format import (
    HEADER_SIZE,
    Scan,
    SegmentHeader,
    decode_header,
    doubt_name,
    gone_name,
    index_name,
    log_name,
)
from starlingmq.storage.segment.segment_recovery import recover
from starlingmq.storage.segment.segment_sync import RecordsLost, Syncer

__all__ = ["RecordsLost", "SegmentInfo", "SegmentJournal"]

SEGMENT_BYTES = 64 << 20
OPEN_MAX = 64  # segments that are kept open for reading
DIRTY_MAX = 8  # finished segments that wait for a sync; at this number one is made, since each keeps a descriptor open


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    first: int  # offset of its first record
    next: int  # offset after its last record
    bytes: int  # of the file
    created: float  # seconds of the wall clock, both
    last_written: float
    grows: bool  # it is being appended to


class SegmentJournal:
    """A Journal in a directory of its own.

    An ``append`` that raised OSError has added nothing and can be repeated, even with the same records; it works again
    when there is space. ``damage`` has what was found broken, at opening and since.
    """

    def __init__(
        self,
        directory: str,
        files: FileCalls | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        open_max: int = OPEN_MAX,
        at_least: int = 0,
        begin: int = 0,
    ) -> None:
        """Open or create it. ``at_least``: the next offset is not below this, because the owner has seen offsets below
        it given; that records below it are missing is reported. ``begin``: the first offset of a journal that is
        created now.

        Raises OSError; UnknownFormat if a newer version wrote the files.
        """
        if not 0 < segment_bytes <= 1 << 31:
            raise ValueError(f"segment size of {segment_bytes} bytes: must be 1 to 2**31")
        self._files = files or FileCalls()
        self._segment_bytes = segment_bytes
        self._segment_set = recover(self._files, directory, open_max)
        self._syncer = Syncer(self._segment_set)
        if begin and not self._segment_set.firsts and not self._segment_set.next:
            self.cut_to(begin)
        if at_least > self._segment_set.next:
            self.skip_to(at_least)

    def skip_to(self, offset: int) -> None:
        """Continue at this offset, which is above ``next``. Offsets between are reported as lost."""
        segment_set = self._segment_set
        path = segment_set.directory
        if segment_set.segments:
            path = segment_set.segments[-1].path
            segment_set.seal(segment_set.segments[-1])
        what = f"{text(segment_set.next, offset - 1)} lost: they were written, but the journal ends before them."
        segment_set.damages.add(Damage(path, segment_set.next, offset - 1, 0, what))
        segment_set.next = offset

    def go_on_at(self, offset: int) -> None:
        """Continue at this offset, which is above ``next``. The journal that this one is a copy of has given back what
        lies between. Raises OSError."""
        segment_set = self._segment_set
        if not segment_set.segments:
            self.cut_to(offset)
            return
        with segment_set.lock:
            last = segment_set.segments[-1]
            segment_set.mark_gone(segment_set.next, offset)
            segment_set.next = offset
            segment_set.begin()  # at once: the marker is true only with a segment behind it
            segment_set.seal(last)

    def cut_to(self, offset: int) -> None:
        """Remove the records from this offset on, which is not above ``next``. The offset will be used again. Raises
        OSError.

        The journal is reopened, so nothing else may use it meanwhile. The new segment is created first, so that after a
        power failure in between the journal either ends at ``offset``, or has to be cut once more.
        """
        segment_set = self._segment_set
        files, directory = self._files, segment_set.directory
        header = SegmentHeader(offset, files.now(), segment_set.salt).encode()
        later = [first for first in segment_set.firsts if first > offset]
        skipped = [span for span in segment_set.gone if span[1] > offset]
        self.close()
        for span in skipped:  # these offsets are given again: segments that begin there are not to be thrown away
            remove_if_there(files, segment_set.path(gone_name(*span)))
        if skipped:
            files.sync_directory(directory)
        for name in (index_name(offset), doubt_name(offset)):
            remove_if_there(files, segment_set.path(name))
        files.close(write_whole(files, segment_set.path(log_name(offset)), header, sync=True))
        files.sync_directory(directory)
        for first in reversed(later):
            for name in (log_name(first), index_name(first), doubt_name(first)):
                remove_if_there(files, segment_set.path(name))
        files.sync_directory(directory)
        self._segment_set = recover(files, directory, segment_set.open_max)
        self._syncer = Syncer(self._segment_set)

    @property
    def first(self) -> int:
        segment_set = self._segment_set
        with segment_set.lock:
            return next(
                (segment.first for segment in segment_set.segments if segment.next > segment.first), segment_set.next
            )

    @property
    def next(self) -> int:
        return self._segment_set.next

    @property
    def size(self) -> int:
        return self._segment_set.size

    @property
    def synced(self) -> int:
        """Records below this offset survive a power failure, except for those reported as lost."""
        with self._segment_set.lock:
            waiting = [segment.synced_next for segment in self._segment_set.dirty.values() if segment.dirty]
            return min(waiting, default=self._segment_set.next)

    @property
    def damage(self) -> list[Damage]:
        """Everything that is broken, in the order of discovery; at most REPORTS_MAX."""
        return self._segment_set.damages.all()

    def segments(self) -> list[SegmentInfo]:
        """All files, oldest first. Offsets between two files were dropped, or are lost."""
        with self._segment_set.lock:
            return [
                SegmentInfo(one.first, one.next, one.size, one.created, one.modified, not one.sealed)
                for one in self._segment_set.segments
            ]

    def append(self, records: Sequence[bytes]) -> int:
        """Append all records or none, with one write, also after a crash. Returns the offset of the first one.

        A record may have up to 2**31 - 1 bytes.
        """
        segment_set = self._segment_set
        if not records:
            return segment_set.next
        with segment_set.lock:
            offset = segment_set.next
            marks: list[int] = []
            data = encode(records, offset, segment_set.salt, marks)
            segment = segment_set.segments[-1] if segment_set.segments else None
            if segment is None or segment.sealed or not segment.ready or self._is_full(segment, len(data)):
                segment = self._active(len(data))
            if segment.synced_next == offset:
                segment_set.dirty[segment.first] = segment
                segment.indexed = False  # its index file, if any, ends before this record
            try:
                segment.add(len(records), data, marks)
            except OSError:
                segment_set.mark_torn(segment)
                raise
            segment.modified = self._files.now()
            segment_set.next = segment.next
            segment_set.size += len(data)
            crowded = len(segment_set.dirty) > DIRTY_MAX
        if crowded and offset == segment.first:
            self._flush()
        return offset

    def _is_full(self, segment: SegmentFile, more: int) -> bool:
        return segment.size + more > self._segment_bytes and segment.next > segment.first

    def _active(self, more: int) -> SegmentFile:
        """The segment to append to."""
        segment_set = self._segment_set
        if segment_set.segments:
            last = segment_set.segments[-1]
            if not last.sealed and not self._is_full(last, more):
                return segment_set.use(last)
            begun = segment_set.begin()
            segment_set.seal(last)
            return begun
        return segment_set.begin()

    def _flush(self) -> None:
        with suppress(OSError):  # ``sync`` will fail, too, and report it
            self._syncer.flush()

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[tuple[int, bytes]]:
        """See Journal. Lost records are skipped. Raises OSError if the disk is unreadable."""
        found: list[tuple[int, bytes]] = []
        segment_set = self._segment_set
        with segment_set.lock:
            index = max(0, segment_set.index_of(offset))
            while index < len(segment_set.segments) and (not found or (len(found) < max_records and max_bytes >= 0)):
                segment = segment_set.segments[index]
                offset = max(offset, segment.first)
                if offset >= segment.next:
                    index += 1
                    continue
                more = segment_set.use(segment).run(offset, max_records - len(found), max_bytes, segment_set.damages)
                if not more:
                    index += 1
                    continue
                size = sum(len(record) for _, record in more)
                if found and size > max_bytes:  # a run has at least one record, which may not fit
                    break
                found += more
                max_bytes -= size
                offset = more[-1][0] + 1
        return found

    def read_at(self, offsets: Sequence[int]) -> list[bytes | None]:
        """The records at these offsets; None for each that is deleted, lost, or never existed. Consecutive offsets in
        rising order are read together. Raises OSError if the disk is unreadable."""
        found: list[bytes | None] = []
        segment_set = self._segment_set
        i = 0
        with segment_set.lock:
            while i < len(offsets):
                index = segment_set.index_of(offsets[i])
                segment = segment_set.segments[index] if index >= 0 else None
                if segment is None or offsets[i] >= segment.next:
                    found.append(None)
                    i += 1
                else:
                    i = segment_set.use(segment).collect(offsets, i, found, segment_set.damages)
        return found

    def roll(self) -> None:
        """Begin a new segment at the next append, so that the present one can be dropped later."""
        with self._segment_set.lock:
            if (
                self._segment_set.segments
                and self._segment_set.segments[-1].next > self._segment_set.segments[-1].first
            ):
                self._segment_set.seal(self._segment_set.segments[-1])

    def trim(self, before: int) -> None:
        """Delete segments from the front whose records are all below ``before``; never the last one."""
        self._remove(lambda segments: list(takewhile(lambda segment: segment.next <= before, segments)))

    def drop(self, first: int) -> None:
        """Delete the segment that begins with this offset, in any position; nothing happens if there is none. If it is
        being appended to, another one is begun. A drop that raised OSError may still take effect when the journal is
        opened again."""
        segment_set = self._segment_set
        with segment_set.lock:
            if first not in segment_set.firsts:
                return
            segment = segment_set.segments[segment_set.firsts.index(first)]
            if segment is segment_set.segments[-1]:
                if segment.next == first:
                    return
                segment_set.begin()
                segment_set.seal(segment)
            end = segment.next
        self._remove(lambda segments: [one for one in segments if first <= one.first < end and one.next <= end])

    def thin(self, first: int, keeps: Callable[[int], bool]) -> bool:
        """Write the segment that begins with this offset again, with empty records in place of those whose offsets
        ``keeps`` refuses. Returns whether it was: one that is damaged, not synced or still grows stays as it is. May
        wait for the disk. Raises OSError, and then nothing has changed."""
        segment_set = self._segment_set
        with segment_set.lock:
            if first not in segment_set.firsts:
                return False
            segment = segment_set.segments[segment_set.firsts.index(first)]
            if not segment.sealed or segment.dirty or segment.torn or segment.doubted or segment.damaged:
                return False
            segment_set.use(segment).pins += 1
        try:
            scan = segment.scan(segment.next)
            if scan.gaps or scan.next < segment.next:
                return False
            marks: list[int] = []
            records = scan.records()
            content = [record if keeps(offset) else b"" for offset, record in records]
            if sum(map(len, content)) == sum(len(record) for _, record in records):
                return True  # it has empty records already, such as those of a mirror
            data = encode(content, first, segment.salt, marks)
            with segment_set.lock:
                return self._put_in_place(segment, data, marks)
        finally:
            with segment_set.lock:
                segment_set.unpin(segment)

    def _put_in_place(self, segment: SegmentFile, data: bytes, marks: list[int]) -> bool:
        segment_set = self._segment_set
        if segment.gone:
            return False
        remove_if_there(self._files, segment_set.path(index_name(segment.first)))  # it would not agree with the file
        segment_set.sync_directory()
        copy = SegmentFile(self._files, segment.path, segment.first, segment.salt, segment.created)
        header = SegmentHeader(segment.first, segment.created, segment.salt).encode()
        copy.fd = write_whole(self._files, segment.path, header + data, sync=True)
        assert copy.index is not None
        copy.index.note(marks, segment.first, HEADER_SIZE)
        copy.next = copy.synced_next = segment.next
        copy.size = copy.synced_size = HEADER_SIZE + len(data)
        copy.listed = copy.sealed = True
        copy.modified = segment.modified
        segment_set.insert(copy)
        segment_set.write_index(copy)
        segment_set.settle_names()
        return True

    def _remove(self, choose: Callable[[list[SegmentFile]], list[SegmentFile]]) -> None:
        """Delete those that ``choose`` selects from all but the last one."""
        segment_set = self._segment_set
        with segment_set.lock:
            if not choose(segment_set.segments[:-1]):
                return
            listed = segment_set.segments[-1].listed
        # The last name shows the next offset: it must survive a power failure before segments in front of it are
        # deleted.
        if not listed:
            self._syncer.flush()
        with segment_set.lock:
            for segment in choose(segment_set.segments[:-1]):  # again, since the flush may have copied some of them
                segment_set.remove(segment)
            segment_set.sweep()

    def sync(self) -> None:
        """Make records that were appended before this call survive a power failure.

        Raises OSError if that fails: then all records from ``synced`` on are in doubt, although they can be read. Call
        it again until it returns: the records in doubt are then written again, to other files. Records that could not
        be read for that are reported by RecordsLost, once. Nothing else is in doubt then, but the owner has to append
        those again, or report the loss.
        """
        self._syncer.sync()

    def check(self, first: int) -> list[Damage]:
        """Read the whole segment that begins with this offset. Returns what is broken in it. Takes about 0.4 us per
        record, and may be called from another thread while appends continue. Raises OSError if the disk is unreadable.
        """
        segment_set = self._segment_set
        with segment_set.lock:
            if first not in segment_set.firsts:
                return []
            segment = segment_set.use(segment_set.segments[segment_set.firsts.index(first)])
            segment.pins += 1
            until, size = segment.next, segment.size
        found = Damages()
        try:
            if (header := decode_header(self._files.read(segment.fd, HEADER_SIZE, 0))) is None or not header.whole:
                found.add(Damage(segment.path, first, first - 1, HEADER_SIZE, "The header is damaged."))
            data = self._files.read(segment.fd, size - HEADER_SIZE, HEADER_SIZE)
            segment.report(Scan(data, first, segment.salt, until), until, HEADER_SIZE, found)
        finally:
            with segment_set.lock:
                segment_set.unpin(segment)
        for damage in found.all():
            segment_set.damages.add(damage)
        return found.all()

    def close(self) -> None:
        """Sync, if the disk allows it, so that the next opening need not read everything, and release all resources."""
        segment_set = self._segment_set
        with segment_set.lock:
            if segment_set.segments and not segment_set.segments[-1].indexed:
                segment_set.seal(segment_set.segments[-1])
        self._flush()
        with segment_set.lock:
            segment_set.close()
