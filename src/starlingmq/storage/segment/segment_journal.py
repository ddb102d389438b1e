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
        self._shelf = recover(self._files, directory, open_max)
        self._syncer = Syncer(self._shelf)
        if begin and not self._shelf.firsts and not self._shelf.next:
            self.cut_to(begin)
        if at_least > self._shelf.next:
            self.skip_to(at_least)

    def skip_to(self, offset: int) -> None:
        """Continue at this offset, which is above ``next``. Offsets between are reported as lost."""
        shelf = self._shelf
        path = shelf.directory
        if shelf.segments:
            path = shelf.segments[-1].path
            shelf.seal(shelf.segments[-1])
        what = f"{text(shelf.next, offset - 1)} lost: they were written, but the journal ends before them."
        shelf.damages.add(Damage(path, shelf.next, offset - 1, 0, what))
        shelf.next = offset

    def cut_to(self, offset: int) -> None:
        """Remove the records from this offset on, which is not above ``next``. The offset will be used again. Raises
        OSError.

        The journal is reopened, so nothing else may use it meanwhile. The new segment is created first, so that after a
        power failure in between the journal either ends at ``offset``, or has to be cut once more.
        """
        shelf = self._shelf
        files, directory = self._files, shelf.directory
        header = SegmentHeader(offset, files.now(), shelf.salt).encode()
        later = [first for first in shelf.firsts if first > offset]
        self.close()
        for name in (index_name(offset), doubt_name(offset)):
            remove_if_there(files, shelf.path(name))
        files.close(write_whole(files, shelf.path(log_name(offset)), header, sync=True))
        files.sync_directory(directory)
        for first in reversed(later):
            for name in (log_name(first), index_name(first), doubt_name(first)):
                remove_if_there(files, shelf.path(name))
        files.sync_directory(directory)
        self._shelf = recover(files, directory, shelf.open_max)
        self._syncer = Syncer(self._shelf)

    @property
    def first(self) -> int:
        shelf = self._shelf
        with shelf.lock:
            return next((segment.first for segment in shelf.segments if segment.next > segment.first), shelf.next)

    @property
    def next(self) -> int:
        return self._shelf.next

    @property
    def size(self) -> int:
        return self._shelf.size

    @property
    def synced(self) -> int:
        """Records below this offset survive a power failure, except for those reported as lost."""
        with self._shelf.lock:
            waiting = [segment.synced_next for segment in self._shelf.dirty.values() if segment.dirty]
            return min(waiting, default=self._shelf.next)

    @property
    def damage(self) -> list[Damage]:
        """Everything that is broken, in the order of discovery; at most REPORTS_MAX."""
        return self._shelf.damages.all()

    def segments(self) -> list[SegmentInfo]:
        """All files, oldest first. Offsets between two files were dropped, or are lost."""
        with self._shelf.lock:
            return [
                SegmentInfo(one.first, one.next, one.size, one.created, one.modified, not one.sealed)
                for one in self._shelf.segments
            ]

    def append(self, records: Sequence[bytes]) -> int:
        """Append all records or none, with one write, also after a crash. Returns the offset of the first one.

        A record may have up to 2**31 - 1 bytes.
        """
        shelf = self._shelf
        if not records:
            return shelf.next
        with shelf.lock:
            offset = shelf.next
            marks: list[int] = []
            data = encode(records, offset, shelf.salt, marks)
            segment = shelf.segments[-1] if shelf.segments else None
            if segment is None or segment.sealed or not segment.ready or self._is_full(segment, len(data)):
                segment = self._active(len(data))
            if segment.synced_next == offset:
                shelf.dirty[segment.first] = segment
                segment.indexed = False  # its index file, if any, ends before this record
            try:
                segment.add(len(records), data, marks)
            except OSError:
                shelf.spoil(segment)
                raise
            segment.modified = self._files.now()
            shelf.next = segment.next
            shelf.size += len(data)
            crowded = len(shelf.dirty) > DIRTY_MAX
        if crowded and offset == segment.first:
            self._flush()
        return offset

    def _is_full(self, segment: SegmentFile, more: int) -> bool:
        return segment.size + more > self._segment_bytes and segment.next > segment.first

    def _active(self, more: int) -> SegmentFile:
        """The segment to append to."""
        shelf = self._shelf
        if shelf.segments:
            last = shelf.segments[-1]
            if not last.sealed and not self._is_full(last, more):
                return shelf.use(last)
            begun = shelf.begin()
            shelf.seal(last)
            return begun
        return shelf.begin()

    def _flush(self) -> None:
        with suppress(OSError):  # ``sync`` will fail, too, and report it
            self._syncer.flush()

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[tuple[int, bytes]]:
        """See Journal. Lost records are skipped. Raises OSError if the disk is unreadable."""
        found: list[tuple[int, bytes]] = []
        shelf = self._shelf
        with shelf.lock:
            index = max(0, shelf.index_of(offset))
            while index < len(shelf.segments) and (not found or (len(found) < max_records and max_bytes >= 0)):
                segment = shelf.segments[index]
                offset = max(offset, segment.first)
                if offset >= segment.next:
                    index += 1
                    continue
                more = shelf.use(segment).run(offset, max_records - len(found), max_bytes, shelf.damages)
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
        shelf = self._shelf
        i = 0
        with shelf.lock:
            while i < len(offsets):
                index = shelf.index_of(offsets[i])
                segment = shelf.segments[index] if index >= 0 else None
                if segment is None or offsets[i] >= segment.next:
                    found.append(None)
                    i += 1
                else:
                    i = shelf.use(segment).collect(offsets, i, found, shelf.damages)
        return found

    def roll(self) -> None:
        """Begin a new segment at the next append, so that the present one can be dropped later."""
        with self._shelf.lock:
            if self._shelf.segments and self._shelf.segments[-1].next > self._shelf.segments[-1].first:
                self._shelf.seal(self._shelf.segments[-1])

    def trim(self, before: int) -> None:
        """Delete segments from the front whose records are all below ``before``; never the last one."""
        self._remove(lambda segments: list(takewhile(lambda segment: segment.next <= before, segments)))

    def drop(self, first: int) -> None:
        """Delete the segment that begins with this offset, in any position; nothing happens if there is none. If it is
        being appended to, another one is begun. A drop that raised OSError may still take effect when the journal is
        opened again."""
        shelf = self._shelf
        with shelf.lock:
            if first not in shelf.firsts:
                return
            segment = shelf.segments[shelf.firsts.index(first)]
            if segment is shelf.segments[-1]:
                if segment.next == first:
                    return
                shelf.begin()
                shelf.seal(segment)
            end = segment.next
        self._remove(lambda segments: [one for one in segments if first <= one.first < end and one.next <= end])

    def _remove(self, choose: Callable[[list[SegmentFile]], list[SegmentFile]]) -> None:
        """Delete those that ``choose`` selects from all but the last one."""
        shelf = self._shelf
        with shelf.lock:
            if not choose(shelf.segments[:-1]):
                return
            listed = shelf.segments[-1].listed
        # The last name shows the next offset: it must survive a power failure before segments in front of it are
        # deleted.
        if not listed:
            self._syncer.flush()
        with shelf.lock:
            for segment in choose(shelf.segments[:-1]):  # again, since the flush may have copied some of them
                shelf.remove(segment)
            shelf.sweep()

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
        shelf = self._shelf
        with shelf.lock:
            if first not in shelf.firsts:
                return []
            segment = shelf.use(shelf.segments[shelf.firsts.index(first)])
            segment.pins += 1
            until, size = segment.next, segment.size
        found = Damages()
        try:
            if (header := decode_header(self._files.read(segment.fd, HEADER_SIZE, 0))) is None or not header.whole:
                found.add(Damage(segment.path, first, first - 1, HEADER_SIZE, "The header is damaged."))
            data = self._files.read(segment.fd, size - HEADER_SIZE, HEADER_SIZE)
            segment.report(Scan(data, first, segment.salt, until), until, HEADER_SIZE, found)
        finally:
            with shelf.lock:
                shelf.unpin(segment)
        for damage in found.all():
            shelf.damages.add(damage)
        return found.all()

    def close(self) -> None:
        """Sync, if the disk allows it, so that the next opening need not read everything, and release all resources."""
        shelf = self._shelf
        with shelf.lock:
            if shelf.segments and not shelf.segments[-1].indexed:
                shelf.seal(shelf.segments[-1])
        self._flush()
        with shelf.lock:
            shelf.close()
