"""The filters of this node that have one shape, as this node publishes them: exactly, or as a summary.

Invariant: the published chunks contain the bits of every member. Bits of former members stay until the chunks are made
again, so a client that comes back to this node changes nothing. The chunks are made again, a few members at a time,

- with another size if there are too many members for the chunks, or far too few;
- with the same size once former members have too many bits;
- with a larger size if too many messages come that no subscriber here wants.

While the size changes, both sizes are published: the new chunks first, and the old ones are removed after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from starlingmq.core.router.filter_summary import (
    SIZE_MAX,
    chunk_key,
    mask,
    mixed,
    shape_key,
    shape_number,
)
from starlingmq.wire.characters import SLASH

CHUNK_MEMBERS: Final = 10  # per chunk at most, on average: then 1 in 100 other topics is admitted
STALE_MIN: Final = 1000  # bits of fewer former members are kept
UNWANTED_MIN: Final = 500  # messages that no subscriber wants, since the chunks were made
SPLIT_MAX: Final = 3  # times that the size may be doubled because of such messages

Record = tuple[bytes, int]


def fitting_size(members: int) -> int:
    """The smallest size for half as many members again."""
    size = 0
    while size < SIZE_MAX and CHUNK_MEMBERS << size < members * 3 // 2:
        size += 1
    return size


class FilterShape:
    """``prefix`` and ``suffix`` surround the level that varies."""

    number: int
    members: dict[bytes, int]  # filter -> value (1 wanted, 2 durably)
    size: int
    stale: int  # former members whose bits are still set
    unwanted: int  # messages for this shape that no subscriber here wanted, since the chunks were made
    received: int  # messages from other nodes when the chunks were made

    def __init__(self, level: int, prefix: bytes, suffix: bytes, size: int) -> None:
        self.prefix = prefix
        self.suffix = suffix
        self.level = level
        pattern = prefix + b"+" + suffix
        self.number = shape_number(level, pattern)
        self.members = {}
        self.size = size
        self.stale = 0
        self.unwanted = 0
        self.received = 0
        self._key = shape_key(level, pattern)
        self._value = 0  # as published
        self._durable = 0  # members with value 2
        self._chunks: dict[int, int] = {}
        self._dirty: dict[int, None] = {}
        self._splits = 0
        # Chunks that are being made again:
        self._next: dict[int, int] | None = None
        self._next_size = 0
        self._unread: Iterator[bytes] | None = None
        self._next_stale = 0
        # Changes that are being published: chunks of this size, then the removal of those of the old size
        self._published: Iterator[int] | None = None
        self._unpublished: dict[int, None] = {}  # chunks of this size of which no other node has any bits yet
        self._removed: Iterator[bytes] | None = None

    @property
    def pattern(self) -> bytes:
        return self.prefix + b"+" + self.suffix

    def includes(self, key: bytes) -> bool:
        """Whether a filter has this shape."""
        return self.varying(key) is not None

    def varying(self, key: bytes) -> bytes | None:
        """The level of a filter or topic that varies; None if it has another shape."""
        if not key.startswith(self.prefix) or not key.endswith(self.suffix):
            return None
        begin, end = len(self.prefix), len(key) - len(self.suffix)
        if end < begin:
            return None
        name = key[begin:end]
        if SLASH in name or name in (b"+", b"#") or (self.level == 0 and name.startswith(b"$")):
            return None
        return name

    def set(self, key: bytes, value: int) -> None:
        """A filter of this shape has this value now."""
        before = self.members.get(key, 0)
        self._durable += (value == 2) - (before == 2)
        if value == 0:
            if before != 0:
                del self.members[key]
                self.stale += 1
                self._next_stale += 1
            return
        self.members[key] = value
        if before == 0:
            self._add(key)

    def _add(self, key: bytes) -> None:
        name = self.varying(key)
        assert name is not None
        word = mixed(name)
        wanted = mask(word)
        chunk = word & ((1 << self.size) - 1)
        bits = self._chunks.get(chunk, 0)
        if bits & wanted != wanted or chunk in self._unpublished:
            self._chunks[chunk] = bits | wanted
            self._dirty[chunk] = None
        elif self.stale > 0:
            self.stale -= 1  # most likely its own bits
        if self._next is not None:
            chunk = word & ((1 << self._next_size) - 1)
            self._next[chunk] = self._next.get(chunk, 0) | wanted

    def busy(self) -> bool:
        """Whether there is work for ``step``."""
        return self._unread is not None or self._published is not None or self._removed is not None

    def take(self, records: list[Record]) -> None:
        """Adds what has changed: the shape before its chunks."""
        value = 2 if self._durable else 1
        if value > self._value:
            self._value = value
            records.append((self._key, value))
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for chunk in dirty:
                self._unpublished.pop(chunk, None)
                records.append((chunk_key(self.number, self.size, chunk), self._chunks[chunk]))

    def look(self, received: int) -> None:
        """Decides whether the chunks have to be made again. ``received``: messages from other nodes so far."""
        if self.busy():
            return
        count, room = len(self.members), CHUNK_MEMBERS << self.size
        fitting = min(fitting_size(count) + self._splits, SIZE_MAX)
        unwanted = self.unwanted >= UNWANTED_MIN and self.unwanted * 20 > received - self.received
        if count > room or fitting + 2 < self.size:
            self._begin(fitting, received)
        elif self.stale >= max(count, STALE_MIN) or (unwanted and self.stale * 8 > count):
            self._begin(self.size, received)
        elif unwanted and self._splits < SPLIT_MAX and self.size < SIZE_MAX:
            self._splits += 1
            self._begin(self.size + 1, received)
        elif unwanted:
            self.unwanted, self.received = 0, received

    def _begin(self, size: int, received: int) -> None:
        self._next = {}
        self._next_size = size
        self._unread = iter(list(self.members))
        self._next_stale = 0
        self.unwanted, self.received = 0, received

    def step(self, limit: int, records: list[Record]) -> None:
        """Does a part of what is under way: about ``limit`` members or records."""
        if self._unread is not None:
            self._read(self._unread, limit)
        elif self._published is not None:
            left = limit
            for chunk in islice(self._published, limit):
                self._unpublished.pop(chunk, None)
                records.append((chunk_key(self.number, self.size, chunk), self._chunks.get(chunk, 0)))
                left -= 1
            if left > 0:
                self._published = None
        elif self._removed is not None:
            left = limit
            for key in islice(self._removed, limit):
                records.append((key, 0))
                left -= 1
            if left > 0:
                self._removed = None

    def _read(self, unread: Iterator[bytes], limit: int) -> None:
        following = self._next
        assert following is not None
        left = limit
        for key in islice(unread, limit):
            left -= 1
            if key not in self.members:
                continue
            name = self.varying(key)
            assert name is not None
            word = mixed(name)
            chunk = word & ((1 << self._next_size) - 1)
            following[chunk] = following.get(chunk, 0) | mask(word)
        if left > 0:
            self._replace(following)

    def _replace(self, following: dict[int, int]) -> None:
        """All members are in the new chunks: from here on they count."""
        former, self._chunks = self._chunks, following
        if self._next_size == self.size:
            changed = [chunk for chunk in {**former, **following} if former.get(chunk, 0) != following.get(chunk, 0)]
            self._published = iter(changed)
        else:
            self._published = iter(list(following))
            self._unpublished = dict.fromkeys(following)
            self._removed = iter([chunk_key(self.number, self.size, chunk) for chunk in former])
        self.size = self._next_size
        self.stale = self._next_stale
        self._dirty = {}
        self._next = None
        self._unread = None

    def entries(self) -> int:
        """Entries of the table that belong to this shape, about."""
        return 1 + len(self._chunks)

    def withdraw(self) -> Iterator[Record]:
        """The records that remove all of this from the table; not while it is busy."""
        for chunk in self._chunks:
            yield chunk_key(self.number, self.size, chunk), 0
        yield self._key, 0

    def whole(self) -> Iterator[Record]:
        """All records, for a table that begins; not while it is busy."""
        self._value = 2 if self._durable else 1
        self._dirty = {}
        yield self._key, self._value
        for chunk, bits in self._chunks.items():
            yield chunk_key(self.number, self.size, chunk), bits
