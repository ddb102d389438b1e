"""One file of the segment journal: consecutive records, added at its end and read by offset."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import suppress
from struct import error as OutOfBlock

from zlib_ng.zlib_ng import crc32

from starlingmq.storage.file_calls import FileCalls, write_all
from starlingmq.storage.maintenance.damage_report import Damage, Damages
from starlingmq.storage.segment.segment_format import (
    HEAD_SIZE,
    HEADER_SIZE,
    LENGTH,
    LOW,
    Scan,
    unpack_head,
    unpack_word,
)
from starlingmq.storage.segment.segment_index import SparseIndex

SPAN_MAX = 16  # index entries (64 KiB) read at once when reading goes on in order
AHEAD = 64  # offsets looked at to find a run
READ_MAX = 1 << 20  # bytes read at once


class SegmentFile:
    """Records ``first`` <= offset < ``next`` in the first ``size`` bytes of a file; bytes after that are void.

    ``synced_next`` and ``synced_size`` say how much is known to survive a power failure, ``listed`` whether the name
    is. A ``torn`` segment may end in half an append; nothing is added to it, another segment is begun instead. A
    ``doubted`` segment failed to sync: what is not synced by now never can be, because the system may have discarded it
    while it still shows it; it must be written again elsewhere. Both, and ``sealed`` segments, do not grow. A segment
    has an open descriptor (``fd``, else -1) and its index only while it is used: see SegmentSet.
    """

    def __init__(self, files: FileCalls, path: str, first: int, salt: int, created: float) -> None:
        self.files = files
        self.path = path
        self.first = first
        self.next = first
        self.size = HEADER_SIZE
        self.salt = salt
        self.created = created
        self.modified = created  # both in seconds of the wall clock
        self.synced_next = first
        self.synced_size = HEADER_SIZE
        self.listed = False
        self.sealed = False
        self.torn = False
        self.doubted = False
        self.damaged = False  # records are missing in it: it gets no index file, so that each opening reports them
        self.gone = False  # deleted; closed as soon as the descriptor is unused
        self.fd = -1
        self.pins = 0  # users of the descriptor that do not hold the lock
        self.index: SparseIndex | None = SparseIndex()
        self.written = (
            False  # by this descriptor, which therefore receives errors of later writes: it is kept until synced
        )
        self.indexed = False  # the index can be read again from its file

    @property
    def dirty(self) -> bool:
        return self.synced_next < self.next or not self.listed

    @property
    def ready(self) -> bool:
        """Whether it is open and has its index."""
        return self.fd >= 0 and self.index is not None

    def add(self, count: int, data: bytes, marks: list[int]) -> None:
        """Write ``count`` encoded records; the index notes ``marks``. After an OSError none of them is in the segment,
        but the file may end in some."""
        write_all(self.files, self.fd, data, self.size)
        assert self.index is not None
        self.written = True
        self.index.note(marks, self.next, self.size)
        self.size += len(data)
        self.next += count

    def cut_back(self) -> None:
        """Remove the bytes after the records, if the disk allows it. They are void in any case."""
        with suppress(OSError):
            self.files.cut(self.fd, self.size)

    def scan(self, limit: int | None = None) -> Scan:
        """Check each record by reading the whole file."""
        return Scan(self.files.read(self.fd, self.size - HEADER_SIZE, HEADER_SIZE), self.first, self.salt, limit)

    def learn(self, scan: Scan) -> None:
        """Take over the index from a scan of the whole file."""
        self.index = SparseIndex(scan.offsets, array("Q", [at + HEADER_SIZE for at in scan.positions]))

    def collect(self, offsets: Sequence[int], i: int, found: list[bytes | None], damages: Damages) -> int:
        """Add the record at ``offsets[i]``, which is in this segment, and those at later offsets as long as they rise
        and are in this segment. Returns the index of the first offset that was not looked up."""
        assert self.index is not None
        starts = self.index.offsets
        count = len(offsets)
        salt = self.salt
        j = bisect_right(starts, offsets[i]) - 1
        if j < 0:  # the first records of the segment are damaged
            found.append(None)
            return i + 1
        span = 1  # or as many as a run of consecutive offsets needs
        ahead = min(count - 1, i + AHEAD)
        if ahead > i and offsets[ahead] - offsets[i] == ahead - i:
            span = min(SPAN_MAX, 1 + bisect_right(starts, offsets[ahead], j) - 1 - j)
        while True:
            k = min(j + span, len(starts))
            until = starts[k] if k < len(starts) else self.next
            block = self._block(j, k)
            offset = starts[j]
            at = 0
            try:
                while i < count and offset <= (wanted := offsets[i]) < until:
                    while offset < wanted:
                        at += HEAD_SIZE + (unpack_word(block, at)[0] & LENGTH)
                        offset += 1
                    word, crc, low = unpack_head(block, at)
                    at += HEAD_SIZE
                    payload = block[at : at + (word & LENGTH)]
                    if crc32(payload, word + salt + wanted) != crc or low != wanted & LOW:
                        raise OutOfBlock
                    found.append(payload)
                    at += len(payload)
                    offset += 1
                    i += 1
            except OutOfBlock:
                i = self._collect_around_damage(offsets, i, found, self._salvage(j, k, damages), until)
            if i == count or not until <= offsets[i] < self.next:
                return i
            j = bisect_right(starts, offsets[i], k) - 1
            span = min(2 * span, SPAN_MAX) if j == k else 1

    def _collect_around_damage(
        self, offsets: Sequence[int], i: int, found: list[bytes | None], intact: list[tuple[int, bytes]], until: int
    ) -> int:
        payloads = dict(intact)
        previous = offsets[i]
        while i < len(offsets) and previous <= offsets[i] < until:
            previous = offsets[i]
            found.append(payloads.get(previous))
            i += 1
        return i

    def run(self, offset: int, max_records: int, max_bytes: int, damages: Damages) -> list[tuple[int, bytes]]:
        """Records from ``offset`` on with their offsets, within the bounds, which count payload. It may return fewer
        before the end of the segment, but at least one."""
        assert self.index is not None
        max_records = max(1, max_records)
        starts, positions = self.index.offsets, self.index.positions
        j = max(0, bisect_right(starts, offset) - 1)
        salt = self.salt
        while j < len(starts):
            room = min(max_bytes, READ_MAX) + HEAD_SIZE
            k = max(j + 1, min(len(starts), bisect_left(positions, positions[j] + room, j)))
            k = min(k, max(j + 1, bisect_left(starts, offset + max_records, j)))
            until = starts[k] if k < len(starts) else self.next
            block = self._block(j, k)
            found: list[tuple[int, bytes]] = []
            current = starts[j]
            at = 0
            left = max_bytes
            try:
                while current < offset:
                    at += HEAD_SIZE + (unpack_word(block, at)[0] & LENGTH)
                    current += 1
                while current < until and len(found) < max_records:
                    word, crc, low = unpack_head(block, at)
                    at += HEAD_SIZE
                    payload = block[at : at + (word & LENGTH)]
                    if crc32(payload, word + salt + current) != crc or low != current & LOW:
                        raise OutOfBlock
                    left -= len(payload)
                    if left < 0 and found:
                        break
                    found.append((current, payload))
                    at += len(payload)
                    current += 1
            except OutOfBlock:
                intact = [item for item in self._salvage(j, k, damages) if item[0] >= offset]
                found = within(intact, max_records, max_bytes)
            if found:
                return found
            j = k  # nothing there is readable
        return []

    def _block(self, j: int, k: int) -> bytes:
        """The bytes of the records from index entry j up to entry k."""
        assert self.index is not None
        positions = self.index.positions
        end = positions[k] if k < len(positions) else self.size
        return self.files.read(self.fd, end - positions[j], positions[j])

    def _salvage(self, j: int, k: int, damages: Damages) -> list[tuple[int, bytes]]:
        """The readable records from index entry j up to entry k, read one by one. Reports the unreadable ones."""
        assert self.index is not None
        starts = self.index.offsets
        block = self._block(j, k)
        until = starts[k] if k < len(starts) else self.next
        scan = Scan(block, starts[j], self.salt, until)
        self.report(scan, until, self.index.positions[j], damages)
        return scan.records()

    def report(self, scan: Scan, until: int, base: int, damages: Damages) -> None:
        """Report records that a scan did not find. The scan began at position ``base`` and should have reached offset
        ``until``."""
        for gap in scan.gaps:
            self._report_lost(gap.first, gap.last, gap.end - gap.at, base + gap.at, damages)
        if scan.next < until:
            self._report_lost(scan.next, until - 1, len(scan.data) - scan.end, base + scan.end, damages)

    def _report_lost(self, first: int, last: int, size: int, at: int, damages: Damages) -> None:
        what = f"{records(first, last)} lost: {size} bytes from position {at} on have wrong checksums."
        damages.add(Damage(self.path, first, last, size, what))


def within(found: list[tuple[int, bytes]], max_records: int, max_bytes: int) -> list[tuple[int, bytes]]:
    """The first records that fit into both bounds, at least one."""
    for count, (_, payload) in enumerate(found):
        max_bytes -= len(payload)
        if count and (max_bytes < 0 or count >= max_records):
            return found[:count]
    return found


def records(first: int, last: int) -> str:
    return f"Record {first} is" if first == last else f"Records {first} to {last} are"
