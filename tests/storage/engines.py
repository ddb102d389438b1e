"""The engines, all of which every test here runs on, and the dumb twins they must agree with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.storage.memory_engine import MemoryJournal, MemoryKv
from tests.storage.simfs import SimFiles

from starlingmq.storage.journal import Journal
from starlingmq.storage.kv import Batch, Kv
from starlingmq.storage.segment.segment_journal import SegmentJournal

KV_ENGINES: dict[str, Callable[[], Kv]] = {"memory": MemoryKv}
JOURNAL_ENGINES: dict[str, Callable[[], Journal]] = {
    "memory": MemoryJournal,
    "segment": lambda: SegmentJournal("journal", SimFiles(), segment_bytes=200, open_max=2),
}


class DictKv:
    """Kv as a dict that is sorted for every scan."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def write(self, batch: Batch) -> None:
        for key, value in batch.changes.items():
            self.values.pop(key, None)
            if value is not None:
                self.values[key] = value

    def scan(self, start: bytes, end: bytes | None, limit: int, reverse: bool) -> list[tuple[bytes, bytes]]:
        found = sorted(item for item in self.values.items() if start <= item[0] and (end is None or item[0] < end))
        return (found[::-1] if reverse else found)[:limit]


class ListJournal:
    """Journal as a list that nothing is ever taken from."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.trimmed = 0

    def append(self, records: Sequence[bytes]) -> None:
        self.records += records

    def read(self, first: int, max_records: int, max_bytes: int) -> list[tuple[int, bytes]]:
        """The longest run of records from ``first`` on within the bounds; one at least."""
        rest = list(enumerate(self.records))[first:]
        runs = (rest[:count] for count in range(min(max_records, len(rest)), 1, -1))
        fitting = (run for run in runs if sum(len(record) for _, record in run) <= max_bytes)
        return next(fitting, rest[:1])
