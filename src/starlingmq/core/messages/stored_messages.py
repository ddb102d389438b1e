"""References to messages that are in the journal but not in memory: the content of a long queue.

A reference takes 16 bytes: offset in the journal and flags in the first eight, then the expiry of the message (Unix
seconds, 0: never) and its size in bytes. Subscription Identifiers are rare and kept separately.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import Final

ENTRY: Final = struct.Struct("<QII")
QOS_MASK: Final = 3  # flags: QoS of the delivery,
RETAIN: Final = 4  # Retain As Published,
HAS_IDS: Final = 8  # Subscription Identifiers are kept separately
PROMISED: Final = 128  # it is one of those that the limits of its queue do not count (core.session.queue)
LOAD_BATCH: Final = 128  # messages read back at once
COMPACT_BYTES: Final = 65536  # consumed entries are freed when they take this many bytes


class Reference:
    offset: int
    flags: int
    expires: int
    size: int
    ids: bytes

    def __init__(self, offset: int, flags: int, expires: int, size: int, ids: bytes) -> None:
        self.offset = offset
        self.flags = flags
        self.expires = expires
        self.size = size
        self.ids = ids


class References:
    """A FIFO of references. ``total`` (bytes) and ``qos0`` count the messages."""

    _packed: bytearray
    _at: int  # position of the first entry
    _ids: dict[int, bytes]  # by index, counted from the first entry ever
    _popped: int  # number of removed entries
    _last: int  # the highest offset so far
    _rising: bool  # offsets never fall: the normal case, as a queue is filled in the order of the journal
    total: int
    qos0: int

    def __init__(self) -> None:
        self._packed = bytearray()
        self._at = 0
        self._ids = {}
        self._popped = 0
        self._last = 0
        self._rising = True
        self.total = 0
        self.qos0 = 0

    def __len__(self) -> int:
        return (len(self._packed) - self._at) // 16

    def append(self, offset: int, flags: int, expires: int, size: int, ids: bytes) -> None:
        if ids:
            flags |= HAS_IDS
            self._ids[self._popped + len(self)] = ids  # by index, since shared groups may give one message twice
        if offset < self._last:
            self._rising = False
        else:
            self._last = offset
        self._packed += ENTRY.pack(offset << 8 | flags, expires, size)
        self.total += size
        if flags & QOS_MASK == 0:
            self.qos0 += 1

    def peek(self, index: int = 0) -> Reference:
        word, expires, size = ENTRY.unpack_from(self._packed, self._at + 16 * index)
        flags = word & 255
        ids = self._ids[self._popped + index] if flags & HAS_IDS else b""
        return Reference(word >> 8, flags, expires, size, ids)

    def pop(self) -> Reference:
        """Remove the oldest entry; there must be one."""
        first = self.peek()
        self._at += 16
        if first.flags & HAS_IDS:
            del self._ids[self._popped]
        self._popped += 1
        self.total -= first.size
        if first.flags & QOS_MASK == 0:
            self.qos0 -= 1
        if self._at >= COMPACT_BYTES or self._at == len(self._packed):
            del self._packed[: self._at]
            self._at = 0
        return first

    def offsets(self) -> list[int]:
        return [word >> 8 for word, _, _ in ENTRY.iter_unpack(bytes(self._packed[self._at :]))]

    def extend(self, other: References) -> None:
        """Append all of another FIFO at once."""
        packed, ids = other.pack()
        if len(packed) == 0:
            return
        base = self._popped + len(self)
        for index, found in ids.items():
            self._ids[base + index] = found
        self._rising = self._rising and other._rising and other._offset(0) >= self._last
        self._last = max(self._last, other._last)
        self._packed += packed
        self.total += other.total
        self.qos0 += other.qos0

    def _offset(self, index: int) -> int:
        word: int = ENTRY.unpack_from(self._packed, self._at + 16 * index)[0]
        return word >> 8

    def mark(self, firsts: list[int], marked: set[int]) -> int:
        """Add to ``marked`` those of ``firsts`` (rising) where an entry lies between it and the next one. Returns the
        lowest offset, -1 for none. If offsets rise this takes a few steps for each of ``firsts``, however long the FIFO
        is."""
        count = len(self)
        if count == 0:
            return -1
        if not self._rising:
            offsets = self.offsets()
            mark(offsets, firsts, marked)
            return min(offsets)
        index = 0
        while index < count:
            following = bisect_right(firsts, self._offset(index))
            if following > 0:
                marked.add(firsts[following - 1])
            if following == len(firsts):
                break
            index = self._at_least(firsts[following], index + 1)
        return self._offset(0)

    def _at_least(self, offset: int, index: int) -> int:
        """The first entry from ``index`` on with that offset or a higher one."""
        end = len(self)
        while index < end:
            middle = (index + end) // 2
            if self._offset(middle) < offset:
                index = middle + 1
            else:
                end = middle
        return index

    def pack(self) -> tuple[bytes, dict[int, bytes]]:
        """All entries as bytes, and the identifiers by index, for a store."""
        return bytes(self._packed[self._at :]), {index - self._popped: ids for index, ids in self._ids.items()}

    @staticmethod
    def unpack(packed: bytes, ids: dict[int, bytes]) -> References:
        line = References()
        line._packed = bytearray(packed)
        line._ids = ids
        for word, _expires, size in ENTRY.iter_unpack(packed):
            if word >> 8 < line._last:
                line._rising = False
            else:
                line._last = word >> 8
            line.total += size
            if word & QOS_MASK == 0:
                line.qos0 += 1
        return line


def mark(offsets: list[int], firsts: list[int], marked: set[int]) -> None:
    """Add to ``marked``, for each offset, the last of ``firsts`` that is not above it."""
    for offset in offsets:
        index = bisect_right(firsts, offset)
        if index > 0:
            marked.add(firsts[index - 1])
