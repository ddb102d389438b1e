"""The bytes of an append to a segment: the hot path of the segment journal, compiled. segment_format.py has the format.
A record of 100 bytes takes about 0.08 us, half of it for its CRC: zlib needs 0.15 us for it, zlib-ng 0.04."""

from __future__ import annotations

from collections.abc import Sequence

from librt.strings import BytesWriter, write_i32_le
from mypy_extensions import i32, i64
from zlib_ng.zlib_ng import crc32

from starlingmq.storage.segment.segment_format import END, HEAD_SIZE, LOW, STRIDE


def encode(records: Sequence[bytes], offset: int, salt: int, marks: list[int]) -> bytes:
    """The bytes of an append of ``records``, the first of which has this offset.

    ``marks`` receives number and position of the first record, and of one for about every STRIDE bytes, for the index.
    """
    out = BytesWriter()
    checksum = crc32
    end: i64 = END
    low: i64 = LOW
    stride: i64 = STRIDE
    head: i64 = HEAD_SIZE
    here: i64 = offset
    first: i64 = offset
    salted: i64 = salt
    last: i64 = first + len(records) - 1
    size: i64 = 0
    mark_at: i64 = 0
    for record in records:
        if size >= mark_at:
            marks.append(int(here - first))
            marks.append(int(size))
            mark_at = size + stride
        length: i64 = len(record)
        word = length | end if here == last else length
        low_offset = here & low
        crc: i64 = checksum(record, int(word + salted + here & low))
        write_i32_le(out, i32(word - (word >> 31 << 32)))
        write_i32_le(out, i32(crc - (crc >> 31 << 32)))
        write_i32_le(out, i32(low_offset - (low_offset >> 31 << 32)))
        out.write(record)
        size += head + length
        here += 1
    return out.getvalue()
