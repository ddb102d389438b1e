"""The file format of the segment journal.

A journal is a directory. Each segment is a file of consecutive records, named by the offset of the first one in 20
digits. All numbers are little-endian; offsets count records.

``FIRST.log``: a segment

    header      64 bytes: the same 32 bytes twice, so that a damaged byte costs nothing
                magic "SMQL", u32 version (1), u32 salt, u64 first offset, u64 created (microseconds since 1970),
                u32 CRC32 of the 28 bytes before
    records     one after the other up to the end of the file; each
                u32 length of the payload; bit 31 is set in the last record of an append
                u32 CRC32 of the payload, begun with (length word + salt + offset) mod 2**32
                u32 offset mod 2**32
                payload

``FIRST.idx``: the positions of some records, about one for every 4 KiB. It is written once all records of the segment
are on disk. So if it agrees with the size of the log, no record is torn; else it is ignored and made again.
``FIRST-NEXT.gone``: empty; the segments with offsets FIRST <= offset < NEXT were deleted on purpose. ``FIRST.doubt``:
empty; syncing the segment has failed, and what it shows may not be on disk. A later successful sync proves nothing; it
must be copied. (The marker need not survive a power failure: then the disk has the truth.) ``*.tmp``: being written;
``*.bad``: set aside because nothing in it could be checked.

Rules for readers:

- A segment ends where the next one begins: records at or after the first offset of the next segment are void. So the
  journal leaves a segment behind whose tail cannot be trusted, or not even be cut off, by beginning another one. A
  marker of deleted segments counts like the first of them.
- In the last segment, an append whose last record is missing did not take place and is cut off.
- A record with a wrong CRC is lost. The reader searches for the next one with a right CRC, so records after it are
  kept.

The CRC covers length and offset because it begins with them, which costs nothing, and with a salt that is drawn once
per journal: so after a crash, a payload that was made to look like records is not mistaken for records.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from struct import Struct

from zlib_ng.zlib_ng import crc32

VERSION = 1
MAGIC = b"SMQL"
HEADER_SIZE = 64
HEAD_SIZE = 12  # bytes in front of a payload
END = 0x80000000  # in the length word: the last record of an append
LENGTH = 0x7FFFFFFF
LOW = 0xFFFFFFFF
STRIDE = 4096  # bytes from one indexed record to the next, about

_HEADER = Struct("<4sIIQQI")
unpack_head = Struct("<III").unpack_from
unpack_word = Struct("<I").unpack_from


class UnknownFormat(OSError):
    """A file of a version that this program does not know. Nothing has been changed."""


class SegmentHeader:
    __slots__ = ("created", "first", "salt", "whole")

    def __init__(self, first: int, created: float, salt: int, whole: bool = True) -> None:
        self.first = first
        self.created = created  # seconds of the wall clock
        self.salt = salt
        self.whole = whole  # both copies can be read

    def encode(self) -> bytes:
        body = _HEADER.pack(MAGIC, VERSION, self.salt, self.first, int(self.created * 1e6), 0)[:-4]
        return (body + crc32(body).to_bytes(4, "little")) * 2


def decode_header(data: bytes) -> SegmentHeader | None:
    """Decode the beginning of a segment; None if both copies are damaged."""
    found = [copy for copy in (data[:32], data[32:64]) if _checks(copy)]
    if not found:
        return None
    _, version, salt, first, created, _ = _HEADER.unpack(found[0])
    if version != VERSION:
        raise UnknownFormat(0, f"has version {version}, but this program supports version {VERSION}")
    return SegmentHeader(first, created / 1e6, salt, len(found) == 2)


def _checks(copy: bytes) -> bool:
    return len(copy) == 32 and copy[:4] == MAGIC and crc32(copy[:28]) == int.from_bytes(copy[28:], "little")


class Gap:
    """Records ``first``..``last`` are lost; in their place are the bytes ``at`` <= position < ``end``."""

    __slots__ = ("at", "end", "first", "last")

    def __init__(self, first: int, last: int, at: int, end: int) -> None:
        self.first = first
        self.last = last
        self.at = at
        self.end = end


class Scan:
    """The result of reading a part of a segment. Positions count from the beginning of the segment."""

    __slots__ = (
        "data",
        "end",
        "first",
        "gaps",
        "group_end",
        "group_next",
        "indexed_at",
        "next",
        "offsets",
        "positions",
        "salt",
    )

    def __init__(self, data: bytes, offset: int, salt: int, limit: int | None = None) -> None:
        """``limit``: records at this offset and after it are void."""
        self.data = data
        self.first = offset
        self.salt = salt
        self.offsets = array("Q")  # of records about STRIDE apart, and of the first one after a gap
        self.positions = array("Q")
        self.indexed_at = -STRIDE
        self.gaps: list[Gap] = []
        self.next = offset  # after the last good record
        self.end = 0
        self.group_next = offset  # after the last whole append
        self.group_end = 0
        while self._run(LOW << 32 if limit is None else limit) and self._resume(limit):
            pass

    def _run(self, limit: int) -> bool:
        """Check good records; returns False when all have been checked."""
        data, offset, at = self.data, self.next, self.end
        seed = self.salt + offset
        size = len(data)
        index_at = self.indexed_at + STRIDE
        while at + HEAD_SIZE <= size and offset < limit:
            word, crc, low = unpack_head(data, at)
            begin = at + HEAD_SIZE
            end = begin + (word & LENGTH)
            if crc32(data[begin:end], word + seed) != crc or low != offset & LOW or end > size:
                break
            if at >= index_at:
                self.offsets.append(offset)
                self.positions.append(at)
                index_at = at + STRIDE
            at = end
            offset += 1
            seed += 1
            if word & END:
                self.group_next, self.group_end = offset, at
        self.next, self.end = offset, at
        self.indexed_at = index_at - STRIDE
        return at < size and offset < limit

    def _resume(self, limit: int | None) -> bool:
        """Find the next good record after a bad one; False if there is none."""
        for at, offset in candidates(self.data, self.end + 1, self.next, limit):
            word, crc, _ = unpack_head(self.data, at)
            payload = self.data[at + HEAD_SIZE : at + HEAD_SIZE + (word & LENGTH)]
            if crc32(payload, word + self.salt + offset) == crc:
                self.gaps.append(Gap(self.next, offset - 1, self.end, at))
                self.next, self.end = offset, at
                self.indexed_at = -STRIDE  # so that it is indexed
                return True
        return False

    def records(self) -> list[tuple[int, bytes]]:
        """The good records with their offsets. Reads them again, so that a scan of a whole file need not hold them."""
        found: list[tuple[int, bytes]] = []
        gaps = iter([*self.gaps, Gap(self.next, self.next, self.end, self.end)])
        gap = next(gaps)
        offset, at = self.first, 0
        while at < self.end:
            if at == gap.at:
                at, offset = gap.end, gap.last + 1
                gap = next(gaps)
                continue
            (word,) = unpack_word(self.data, at)
            end = at + HEAD_SIZE + (word & LENGTH)
            found.append((offset, self.data[at + HEAD_SIZE : end]))
            offset, at = offset + 1, end
        return found

    def ends_whole(self) -> bool:
        """Whether a bad record at the end was damaged later, rather than written in part: it is the last of its append,
        and as long as its head says."""
        if len(self.data) - self.end < HEAD_SIZE:
            return False
        (word,) = unpack_word(self.data, self.end)
        return bool(word & END) and self.end + HEAD_SIZE + (word & LENGTH) == len(self.data)


def candidates(data: bytes, at: int, lost: int, limit: int | None) -> Iterator[tuple[int, int]]:
    """Positions from ``at`` on where the head of a record after ``lost`` may be, and the offset that it would have.

    Each lost record took at least a head, so only few offsets are possible. A regular expression checks their upper
    bytes, which is fast enough for a whole segment of garbage; zeros, the most common kind, are skipped.
    """
    highest = lost + 1 + (len(data) - at) // HEAD_SIZE
    if limit is not None:
        highest = min(highest, limit - 1)
    tops = {(offset & LOW) >> 24 for offset in (*range(lost + 1, highest, 1 << 24), highest)}
    head = re.compile(rb"(?s)(?=.{11}[" + b"".join(b"\\x%02x" % top for top in sorted(tops)) + rb"])(?!\x00{12})")
    found = head.search(data, at)
    while found is not None:
        start = found.start()
        word, _, low = unpack_head(data, start)
        offset = lost + 1 + ((low - lost - 1) & LOW)
        if offset <= highest and start + HEAD_SIZE + (word & LENGTH) <= len(data):
            yield start, offset
        found = head.search(data, start + 1)


def log_name(first: int) -> str:
    return f"{first:020d}.log"


def index_name(first: int) -> str:
    return f"{first:020d}.idx"


def doubt_name(first: int) -> str:
    return f"{first:020d}.doubt"


def gone_name(first: int, following: int) -> str:
    return f"{first:020d}-{following:020d}.gone"


def parse_name(name: str, kind: str) -> int | None:
    """The offset in the name ``FIRST.kind``."""
    found = re.fullmatch(r"(\d{20})\.(\w+)", name)
    return int(found[1]) if found and found[2] == kind else None


def parse_gone_name(name: str) -> tuple[int, int] | None:
    found = re.fullmatch(r"(\d{20})-(\d{20})\.gone", name)
    return (int(found[1]), int(found[2])) if found else None
