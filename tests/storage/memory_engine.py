"""The engines that keep nothing: what the others are tested against."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from starlingmq.storage.journal import JournalSegment
from starlingmq.storage.kv import Batch


class MemoryKv:
    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []  # in order

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def scan(self, start: bytes, end: bytes | None, limit: int, reverse: bool = False) -> list[tuple[bytes, bytes]]:
        low = bisect_left(self._keys, start)
        high = len(self._keys) if end is None else max(low, bisect_left(self._keys, end))
        found = self._keys[max(low, high - limit) : high][::-1] if reverse else self._keys[low : min(high, low + limit)]
        return [(key, self._values[key]) for key in found]

    def write(self, batch: Batch) -> None:
        for key, value in batch.changes.items():
            if value is not None:
                if key not in self._values:
                    insort(self._keys, key)
                self._values[key] = value
            elif self._values.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]

    def sync(self) -> None:
        pass

    def close(self) -> None:
        self._values.clear()
        self._keys.clear()


class MemoryJournal:
    def __init__(self) -> None:
        self._records: list[bytes] = []
        self._origin = 0  # offset of _records[0]
        self._first = 0
        self._size = 0

    @property
    def first(self) -> int:
        return self._first

    @property
    def next(self) -> int:
        return self._origin + len(self._records)

    @property
    def size(self) -> int:
        return self._size

    def append(self, records: Sequence[bytes]) -> int:
        offset = self.next
        self._records.extend(records)
        self._size += sum(map(len, records))
        return offset

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        left = max_bytes
        for at in range(max(offset, self._first), self.next):
            record = self._records[at - self._origin]
            left -= len(record)
            if found and (left < 0 or len(found) >= max_records):
                break
            found.append((at, record))
        return found

    def read_at(self, offsets: Sequence[int]) -> list[bytes | None]:
        return [self._records[at - self._origin] if self._first <= at < self.next else None for at in offsets]

    def segments(self) -> Sequence[JournalSegment]:
        return []

    def drop(self, first: int) -> None:
        pass

    def trim(self, before: int) -> None:
        before = min(before, self.next)
        while self._first < before:
            index = self._first - self._origin
            self._size -= len(self._records[index])
            self._records[index] = b""
            self._first += 1
        gone = self._first - self._origin
        if gone * 2 > len(self._records):  # so a record is moved once on average, however often the journal is trimmed
            del self._records[:gone]
            self._origin = self._first

    def sync(self) -> None:
        pass

    def close(self) -> None:
        self._records.clear()
        self._origin = self._first
        self._size = 0
