"""Operations with records in frames of copies (copy_frames), which are made and read for each stored message."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

OPERATION: Final = struct.Struct("<BI")
COUNT: Final = struct.Struct("<I")


class CopyFrameError(ValueError):
    """Bytes that are no group: the other side is broken, or speaks another version."""


def with_records(kind: int, head: bytes, records: Sequence[bytes]) -> bytes:
    """An operation: kind, size, ``head``, how many records, the length of each, and their bytes."""
    lengths = struct.pack(f"<{1 + len(records)}I", len(records), *map(len, records))
    content = b"".join(records)
    size = len(head) + len(lengths) + len(content)
    return b"".join((OPERATION.pack(kind, size), head, lengths, content))


def records_of(payload: memoryview, at: int) -> list[bytes]:
    """The records of an operation, of which ``at`` bytes are before their number. Raises CopyFrameError."""
    count = unpack(COUNT, payload, at)[0]
    at += COUNT.size
    if at + 4 * count > len(payload):
        raise CopyFrameError(f"the lengths of {count} records are cut off")
    lengths = struct.unpack_from(f"<{count}I", payload, at)
    content = bytes(payload[at + 4 * count :])
    if sum(lengths) != len(content):
        raise CopyFrameError(f"{count} records do not fill {len(payload)} bytes")
    found: list[bytes] = []
    begin = 0
    for length in lengths:
        end: int = begin + length
        found.append(content[begin:end])
        begin = end
    return found


def unpack(form: struct.Struct, view: memoryview, at: int) -> tuple[int, ...]:
    """Raises CopyFrameError."""
    try:
        return form.unpack_from(view, at)
    except struct.error as error:
        raise CopyFrameError(str(error)) from None
