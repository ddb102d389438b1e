"""Many filters of another node in sum: their *shape*, such as ``devices/+/commands``, and a Bloom filter over the level
that varies (docs/CLUSTER.md, Summaries of filters).

Invariant: a summary admits every filter that its node has added to it. It may admit others: their messages travel to
that node, which drops and counts them.

The Bloom filter consists of 2**size chunks of ``CHUNK_BITS`` bits. One hash of the varying level gives the chunk and
``HASHES`` bits in it, so a filter changes one chunk. Chunks are entries of the replicated route table. Their keys begin
with U+0000, which no filter has:

    00 01, u32 shape, u8 level, pattern    the shape: value 1 (wanted) or 2 (wanted durably), as for a filter
    00 02, u32 shape, u8 size, u32 chunk   the bits of a chunk

A node may have chunks of two sizes while it changes the size: a filter is admitted if the chunks of one size admit it.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

from starlingmq.core.session.session import Subscription
from starlingmq.core.topics.filter_tree import Subscriber
from starlingmq.core.topics.topics import LONG

CHUNK_BITS: Final = 128
HASHES: Final = 4
SIZE_MAX: Final = 24  # 2**24 chunks are enough for 160 million filters
TOPICS_MAX: Final = 65536  # looked up since the bits last changed; more are not listed ...
TOPIC_BYTES_MAX: Final = 4 << 20  # ... nor more bytes of them
RESERVED: Final = 0  # the first byte of these keys
_SHAPE: Final = struct.Struct(">BBIB")
_CHUNK: Final = struct.Struct(">BBIBI")
_SHAPE_KIND: Final = 1
_CHUNK_KIND: Final = 2
_WORD: Final = 0xFFFFFFFF


def is_summary(key: bytes) -> bool:
    """Whether a key of the route table belongs to a summary, and is not a filter or a shared group."""
    return len(key) != 0 and key[0] == RESERVED


def shape_number(level: int, pattern: bytes) -> int:
    """The same at every node and in every incarnation, so a number never changes its meaning."""
    return crc32(pattern, level)


def shape_key(level: int, pattern: bytes) -> bytes:
    return _SHAPE.pack(RESERVED, _SHAPE_KIND, shape_number(level, pattern), level) + pattern


def chunk_key(shape: int, size: int, chunk: int) -> bytes:
    return _CHUNK.pack(RESERVED, _CHUNK_KIND, shape, size, chunk)


def parse_shape(key: bytes) -> tuple[int, int, bytes] | None:
    """The number, level and pattern of a shape; None if this is not the key of one."""
    if len(key) <= _SHAPE.size or key[1] != _SHAPE_KIND:
        return None
    _, _, shape, level = _SHAPE.unpack_from(key)
    pattern = key[_SHAPE.size :]
    parts = pattern.split(b"/")
    return (shape, level, pattern) if level < len(parts) and parts[level] == b"+" else None


def parse_chunk(key: bytes) -> tuple[int, int, int] | None:
    """The shape's number, the size, and the number of a chunk; None if this is not the key of one."""
    if len(key) != _CHUNK.size or key[1] != _CHUNK_KIND:
        return None
    _, _, shape, size, chunk = _CHUNK.unpack(key)
    return (shape, size, chunk) if size <= SIZE_MAX and chunk < 1 << size else None


def mixed(name: bytes) -> int:
    """A hash of 32 bits whose low bits select the chunk. (CRC-32 alone spreads consecutive names too evenly.)"""
    word = crc32(name)
    word = ((word ^ (word >> 16)) * 0x21F0AAAD) & _WORD
    word = ((word ^ (word >> 15)) * 0x735A2D97) & _WORD
    return word ^ (word >> 15)


def mask(word: int) -> int:
    """The bits of a name in its chunk."""
    word = ((word ^ 0x5BD1E995) * 0x2C1B3C6D) & _WORD
    word ^= word >> 13
    bits = 0
    for _ in range(HASHES):
        bits |= 1 << (word & (CHUNK_BITS - 1))
        word >>= 7
    return bits


class LookedUp:
    """The topics that were looked up in the summaries of one shape: their cached routes depend on these. Routes of long
    topics are not cached."""

    _topics: dict[bytes, None]
    _bytes: int  # of them
    _many: bool  # too many to list

    def __init__(self) -> None:
        self._topics = {}
        self._bytes = 0
        self._many = False

    def note(self, topic: bytes) -> None:
        if self._many or len(topic) > LONG or topic in self._topics:
            return
        self._topics[topic] = None
        self._bytes += len(topic)
        if len(self._topics) >= TOPICS_MAX or self._bytes > TOPIC_BYTES_MAX:
            self._topics = {}
            self._many = True

    def take(self) -> list[bytes] | None:
        """The topics since the last call; None: too many to list."""
        topics = None if self._many else list(self._topics)
        self._topics = {}
        self._bytes = 0
        self._many = False
        return topics


class FilterSummary(Subscriber):
    """The filters of one shape that one other node wants. ``subscription`` is that node's, for the pattern; None until
    the shape is known. ``looked_up`` is shared by all nodes."""

    shape: int
    level: int
    subscription: Subscription | None
    looked_up: LookedUp
    _chunks: dict[bytes, int]  # by the keys of the route table
    _sizes: dict[int, int]  # size -> number of chunks with bits

    def __init__(self, shape: int, looked_up: LookedUp) -> None:
        self.shape = shape
        self.level = 0
        self.subscription = None
        self.looked_up = looked_up
        self._chunks = {}
        self._sizes = {}

    def key(self) -> object:
        return self

    def empty(self) -> bool:
        return self.subscription is None and not self._chunks

    def set_chunk(self, key: bytes, size: int, bits: int) -> None:
        known = key in self._chunks
        if bits:
            self._chunks[key] = bits
            if not known:
                self._sizes[size] = self._sizes.get(size, 0) + 1
        elif known:
            del self._chunks[key]
            self._sizes[size] -= 1
            if self._sizes[size] == 0:
                del self._sizes[size]

    def admits(self, topic: bytes) -> bool:
        """Whether the node may want a topic that matches the pattern. Remembers that it was asked."""
        self.looked_up.note(topic)
        word = mixed(topic.split(b"/", self.level + 1)[self.level])
        wanted = mask(word)
        for size in self._sizes:
            bits = self._chunks.get(chunk_key(self.shape, size, word & ((1 << size) - 1)), 0)
            if bits & wanted == wanted:
                return True
        return False
