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
AHEAD = 64  # offsets looked at to see whether they are a run
READ_MAX = 1 << 20  # bytes read at once


class SegmentFile:
    """Records ``first`` <= offset < ``next`` in the first ``size`` bytes of a file; what stands behind is void.

    ``synced_next`` and ``synced_size`` say how far it is known to survive a power failure, ``listed`` whether its name
    is. One that is ``spoiled`` may end in half an append; nothing is added to it, another segment is begun instead.
    One that is ``doubted`` failed to sync: what is not synced by now never can be, because the system may have thrown
    it away while it still shows it; it must be written again elsewhere. Both, and ``sealed`` ones, grow no more.

    It holds an open descriptor (``fd``, else -1) and its index only while it is used: see Shelf.
    """

    __slots__ = (
        "created",
        "damaged",
        "doubted",
        "fd",
        "files",
        "first",
        "gone",
        "index",
        "indexed",
        "listed",
        "modified",
        "next",
        "path",
        "pins",
        "salt",
        "sealed",
        "size",
        "spoiled",
        "synced_next",
        "synced_size",
        "written",
    )

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
        self.spoiled = False
        self.doubted = False
        self.damaged = False  # records are missing in it: it gets no index file, so that every opening reports them
        self.gone = False  # removed; closed as soon as nobody uses the descriptor
        self.fd = -1
        self.pins = 0  # users of the descriptor that do not hold the lock
        self.index: SparseIndex | None = SparseIndex()
        self.written = (
            False  # by this descriptor, which therefore is told of failures to write: it is kept until synced
        )
        self.indexed = False  # the index can be read from its file again

    @property
    def dirty(self) -> bool:
        return self.synced_next < self.next or not self.listed

    @property
    def ready(self) -> bool:
        """Whether it is open, with its index."""
        return self.fd >= 0 and self.index is not None

    def add(self, count: int, data: bytes, marks: list[int]) -> None:
        """Write ``count`` encoded records, of which the index notes ``marks``. After an OSError none of them is in, but
        the file may end in some."""
        write_all(self.files, self.fd, data, self.size)
        assert self.index is not None
        self.written = True
        self.index.note(marks, self.next, self.size)
        self.size += len(data)
        self.next += count

    def cut_back(self) -> None:
        """Remove what stands behind the records, if the disk lets us. It is void anyway."""
        with suppress(OSError):
            self.files.cut(self.fd, self.size)

    def scan(self, limit: int | None = None) -> Scan:
        """Check every record by reading the whole file."""
        return Scan(self.files.read(self.fd, self.size - HEADER_SIZE, HEADER_SIZE), self.first, self.salt, limit)

    def learn(self, scan: Scan) -> None:
        """Take the index from a scan of the whole file."""
        self.index = SparseIndex(scan.offsets, array("Q", [at + HEADER_SIZE for at in scan.positions]))

    def collect(self, offsets: Sequence[int], i: int, found: list[bytes | None], damages: Damages) -> int:
        """Add what stands at ``offsets[i]``, which is in this segment, and at those after it as long as they go on
        upwards in it. The index of the first one not looked up."""
        assert self.index is not None
        starts = self.index.offsets
        count = len(offsets)
        salt = self.salt
        j = bisect_right(starts, offsets[i]) - 1
        if j < 0:  # the first records of the segment are damaged
            found.append(None)
            return i + 1
        span = 1  # or as many as a run of neighbours needs
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
        """Records from ``offset`` on with their offsets, within the bounds, which count payload. It may be fewer than
        that before the end of the segment, but not none."""
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
            j = k  # nothing in there can be read
        return []

    def _block(self, j: int, k: int) -> bytes:
        """The bytes of the records from index entry j up to entry k."""
        assert self.index is not None
        positions = self.index.positions
        end = positions[k] if k < len(positions) else self.size
        return self.files.read(self.fd, end - positions[j], positions[j])

    def _salvage(self, j: int, k: int, damages: Damages) -> list[tuple[int, bytes]]:
        """What can be read from index entry j up to entry k, one after the other; report what can not."""
        assert self.index is not None
        starts = self.index.offsets
        block = self._block(j, k)
        until = starts[k] if k < len(starts) else self.next
        scan = Scan(block, starts[j], self.salt, until)
        self.report(scan, until, self.index.positions[j], damages)
        return scan.records()

    def report(self, scan: Scan, until: int, base: int, damages: Damages) -> None:
        """Report what a scan that began at position ``base`` and should have come to offset ``until`` did not find."""
        for gap in scan.gaps:
            self._report_lost(gap.first, gap.last, gap.end - gap.at, base + gap.at, damages)
        if scan.next < until:
            self._report_lost(scan.next, until - 1, len(scan.data) - scan.end, base + scan.end, damages)

    def _report_lost(self, first: int, last: int, size: int, at: int, damages: Damages) -> None:
        what = f"{records(first, last)} lost: {size} bytes from position {at} on have wrong checksums."
        damages.add(Damage(self.path, first, last, size, what))


def within(found: list[tuple[int, bytes]], max_records: int, max_bytes: int) -> list[tuple[int, bytes]]:
    """As many of them, from the first one on, as fit into both bounds, but always one."""
    for count, (_, payload) in enumerate(found):
        max_bytes -= len(payload)
        if count and (max_bytes < 0 or count >= max_records):
            return found[:count]
    return found


def records(first: int, last: int) -> str:
    return f"Record {first} is" if first == last else f"Records {first} to {last} are"
