"""Frames from a node to the followers that keep a copy of its data directory, and their answers.

The owner of a data directory sends *groups*, in the order in which it changed its own directory. A group has a number
(``lsn``, counted from 1 in each life of the owner) and the operations of one turn. Numbers have no gaps. A follower
that has stored a group has stored all groups before it, so one number acknowledges all of them. Groups with the number
0 bring a follower up to date (``catch_up``); they are not acknowledged, and may end in the middle of a turn.

A group is u64 lsn, u32 bytes of operations, operations. An operation is u8 kind, u32 bytes, payload. All numbers are
little-endian.

    APPEND    records of the journal: u64 offset of the first, lengths, records
    STREAM    records of a stream: u64 number of the stream, u64 offset of the first, lengths, records
    KV        changes of the key-value store, applied together: per change u32 bytes of the key, i32 bytes of the value
              (-1: the key is deleted), key, value
    KEEP      MessagePack ``Kept``: what the owner still has; a follower deletes everything else
    DEFINE    MessagePack ``Defined``: all streams of the owner
    CONSUMERS MessagePack: number of a stream, content of its CONSUMERS file
    KV_BEGIN  empty: the KV operations that follow are the whole store, until KV_END
    KV_END    empty
    BOUNDARY  empty: the journal ends between two turns here

Lengths are u32 how many, then u32 bytes of each. In groups with the number 0, offsets may skip what the owner has
given back.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from starlingmq.storage.copies.copy_facts import Life
from starlingmq.storage.copies.copy_records import OPERATION, CopyFrameError, records_of, unpack, with_records
from starlingmq.storage.streams.stream_definition import Definition

T = TypeVar("T")

APPEND: Final = 1
STREAM: Final = 2
KV: Final = 3
KEEP: Final = 4
DEFINE: Final = 5
CONSUMERS: Final = 6
KV_BEGIN: Final = 7
KV_END: Final = 8
BOUNDARY: Final = 9

ASKS: Final = 0  # generation of a ``Hello`` that asks how much a node has, and begins nothing
NO_KV: Final = (0, 0)  # no key-value store that is whole

_GROUP: Final = struct.Struct("<QI")
_OFFSET: Final = struct.Struct("<Q")
_STREAM: Final = struct.Struct("<QQ")
_CHANGE: Final = struct.Struct("<Ii")


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """``journal``: first and next offset of each segment; of an engine without segments one range. ``streams``: by
    number of the stream, the first offset that is kept."""

    journal: tuple[tuple[int, int], ...]
    streams: dict[int, int]


class Defined(msgspec.Struct, frozen=True, array_like=True):
    """``ends``: by name, where a deleted stream ended; a stream of that name that is created later begins there."""

    streams: list[Definition]
    ends: dict[str, int]


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The first message of an owner. ``engine`` of its journal; ``segment_size`` in bytes."""

    owner: str
    generation: int
    engine: str
    segment_size: int
    lives: tuple[Life, ...]


class CopyPosition(msgspec.Struct, frozen=True, array_like=True):
    """How much a follower has of a data directory. ``generation``: of the life by which it was written last. ``kv``:
    which state of the key-value store it has, as (generation, count of batches); (0, 0): none that is whole.
    ``streams``: next offset by number. ``excess``: number of records that are cut off if it follows the owner that
    asks: if the follower is in step, it must serve, and not the owner."""

    generation: int
    journal: int  # next offset
    kv: tuple[int, int]
    streams: dict[int, int]
    excess: int = 0


def encode_group(lsn: int, operations: Sequence[bytes]) -> bytes:
    return b"".join((_GROUP.pack(lsn, sum(map(len, operations))), *operations))


def append(offset: int, records: Sequence[bytes]) -> bytes:
    return with_records(APPEND, _OFFSET.pack(offset), records)


def stream(number: int, offset: int, records: Sequence[bytes]) -> bytes:
    return with_records(STREAM, _STREAM.pack(number, offset), records)


def kv(changes: Mapping[bytes, bytes | None]) -> bytes:
    parts: list[bytes] = []
    for key, value in changes.items():
        if value is None:
            parts += (_CHANGE.pack(len(key), -1), key)
        else:
            parts += (_CHANGE.pack(len(key), len(value)), key, value)
    payload = b"".join(parts)
    return OPERATION.pack(KV, len(payload)) + payload


def plain(kind: int, payload: bytes = b"") -> bytes:
    """KV_BEGIN, KV_END and BOUNDARY."""
    return OPERATION.pack(kind, len(payload)) + payload


def packed(kind: int, content: object) -> bytes:
    """KEEP, DEFINE and CONSUMERS."""
    return plain(kind, msgspec.msgpack.encode(content))


def decode(payload: bytes | memoryview, kind: type[T]) -> T:
    """Raises CopyFrameError."""
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except msgspec.MsgspecError as error:
        raise CopyFrameError(str(error)) from None


def groups(data: bytes) -> Iterator[tuple[int, memoryview]]:
    """The groups in a message: their numbers, and their operations. Raises CopyFrameError."""
    view = memoryview(data)
    at = 0
    while at < len(view):
        lsn, size = unpack(_GROUP, view, at)
        at += _GROUP.size
        if at + size > len(view):
            raise CopyFrameError(f"group {lsn} ends after {len(view) - at} of {size} bytes")
        yield lsn, view[at : at + size]
        at += size


def operations(group: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Kind and payload of each operation. Raises CopyFrameError."""
    at = 0
    while at < len(group):
        kind, size = unpack(OPERATION, group, at)
        at += OPERATION.size
        if at + size > len(group):
            raise CopyFrameError(f"an operation of kind {kind} ends after {len(group) - at} of {size} bytes")
        yield kind, group[at : at + size]
        at += size


def appended(payload: memoryview) -> tuple[int, list[bytes]]:
    """Offset and records of APPEND. Raises CopyFrameError."""
    (offset,) = unpack(_OFFSET, payload, 0)
    return offset, records_of(payload, _OFFSET.size)


def streamed(payload: memoryview) -> tuple[int, int, list[bytes]]:
    """Number, offset and records of STREAM. Raises CopyFrameError."""
    number, offset = unpack(_STREAM, payload, 0)
    return number, offset, records_of(payload, _STREAM.size)


def changed(payload: memoryview) -> dict[bytes, bytes | None]:
    """The changes of KV. Raises CopyFrameError."""
    changes: dict[bytes, bytes | None] = {}
    at = 0
    while at < len(payload):
        of_key, of_value = unpack(_CHANGE, payload, at)
        at += _CHANGE.size
        end = at + of_key + max(of_value, 0)
        if end > len(payload):
            raise CopyFrameError("a change of the key-value store is cut off")
        key = bytes(payload[at : at + of_key])
        changes[key] = None if of_value < 0 else bytes(payload[at + of_key : end])
        at = end
    return changes
