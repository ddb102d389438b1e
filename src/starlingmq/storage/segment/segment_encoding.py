"""What an append to a segment writes: the hot end of the segment journal, compiled. The format is in segment_format.py.

A record of 100 bytes takes about 0.08 us, half of it for its CRC: zlib's takes 0.15 us for it, zlib-ng's 0.04.
"""

from __future__ import annotations

from collections.abc import Sequence

from librt.strings import BytesWriter, write_i32_le
from zlib_ng.zlib_ng import crc32

from starlingmq.storage.segment.segment_format import END, HEAD_SIZE, LOW, STRIDE


def encode(records: Sequence[bytes], offset: int, salt: int, marks: list[int]) -> bytes:
    """The bytes of an append of ``records``, the first of which has this offset.

    ``marks`` gets number and position of one record for about every STRIDE bytes, of the first one first: what the
    index has to know.
    """
    out = BytesWriter()
    checksum = crc32
    end, low, stride, head = END, LOW, STRIDE, HEAD_SIZE
    last = len(records) - 1
    size = mark_at = 0
    for number, record in enumerate(records):
        if size >= mark_at:
            marks.append(number)
            marks.append(size)
            mark_at = size + stride
        length = len(record)
        word = length | end if number == last else length
        place = offset + number & low
        crc = checksum(record, word + salt + offset + number & low)
        write_i32_le(out, word - (word >> 31 << 32))
        write_i32_le(out, crc - (crc >> 31 << 32))
        write_i32_le(out, place - (place >> 31 << 32))
        out.write(record)
        size += head + length
    return out.getvalue()
