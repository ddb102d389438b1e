"""A dict that grows in many small steps: a dict of a million entries stops for some 50 ms when it is resized.

It consists of 64 dicts, selected by the CRC-32 of the key. Each is resized at its own time, with a 64th of the entries.
A client that picks keys with equal CRCs gets one large dict, and a stop as long as before. ``hash`` would spread those,
too, but it differs from process to process, and with it the order of ``items``: then the same input would give another
output.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar
from zlib import crc32

SHARDS: Final = 64  # a power of two; 64 empty dicts take 4 KB

T = TypeVar("T")


class ShardedDict(Generic[T]):
    """bytes -> T, for dicts that may grow large. The order of its keys is meaningless: sort what is shown."""

    _shards: list[dict[bytes, T]]
    _count: int

    def __init__(self) -> None:
        self._shards = [{} for _ in range(SHARDS)]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, key: bytes) -> T | None:
        return self._shards[crc32(key) & (SHARDS - 1)].get(key)

    def set(self, key: bytes, value: T) -> None:
        shard = self._shards[crc32(key) & (SHARDS - 1)]
        before = len(shard)
        shard[key] = value
        self._count += len(shard) - before

    def pop(self, key: bytes) -> T | None:
        """Remove ``key``. Returns its value, or None if it was absent."""
        shard = self._shards[crc32(key) & (SHARDS - 1)]
        before = len(shard)
        value = shard.pop(key, None)
        if not shard:
            shard.clear()  # otherwise it keeps the room of the most entries that it has had
        self._count += len(shard) - before
        return value

    def items(self) -> list[tuple[bytes, T]]:
        found: list[tuple[bytes, T]] = []
        for shard in self._shards:
            found.extend(shard.items())
        return found
