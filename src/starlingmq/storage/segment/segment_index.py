"""The sparse index of a segment: positions of some of its records, in memory and as a file beside the segment."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from struct import Struct
from sys import byteorder

from zlib_ng.zlib_ng import crc32

from starlingmq.storage.segment.segment_format import STRIDE

_HEADER = Struct("<4sIQQQQ")  # magic, version, first, next, size of the log, entries
_MAGIC = b"SMQI"
_VERSION = 1


class SparseIndex:
    """Offset and position of about one record for every STRIDE bytes, in order; the first record is one of them."""

    def __init__(self, offsets: array[int] | None = None, positions: array[int] | None = None) -> None:
        self.offsets = array("Q") if offsets is None else offsets
        self.positions = array("Q") if positions is None else positions

    def note(self, marks: list[int], offset: int, at: int) -> None:
        """An append begins with the record ``offset`` at position ``at``; ``marks`` are relative to that."""
        positions = self.positions
        for index in range(0, len(marks), 2):
            position = at + marks[index + 1]
            if not positions or position - positions[-1] >= STRIDE:
                self.offsets.append(offset + marks[index])
                positions.append(position)

    def cut(self, offset: int) -> None:
        """Remove the entries at ``offset`` and after it."""
        keep = bisect_left(self.offsets, offset)
        del self.offsets[keep:], self.positions[keep:]

    def encode(self, first: int, following: int, size: int) -> bytes:
        head = _HEADER.pack(_MAGIC, _VERSION, first, following, size, len(self.offsets))
        body = head + _plain(self.offsets) + _plain(self.positions)
        return body + crc32(body).to_bytes(4, "little")


def decode_index(data: bytes, first: int) -> tuple[SparseIndex, int, int] | None:
    """The index, the offset after the last record, and the size of the log it was made for; None if it is damaged."""
    if len(data) < _HEADER.size + 4 or crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        return None
    magic, version, own_first, following, size, count = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != _VERSION or own_first != first or len(data) != _HEADER.size + 16 * count + 4:
        return None
    middle = _HEADER.size + 8 * count
    return SparseIndex(_array(data[_HEADER.size : middle]), _array(data[middle:-4])), following, size


def _plain(numbers: array[int]) -> bytes:
    if byteorder == "big":
        numbers = array("Q", numbers)
        numbers.byteswap()
    return numbers.tobytes()


def _array(data: bytes) -> array[int]:
    numbers = array("Q")
    numbers.frombytes(data)
    if byteorder == "big":
        numbers.byteswap()
    return numbers
