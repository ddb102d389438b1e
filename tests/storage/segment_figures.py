"""How fast the segment journal is: ``python -m tests.storage.segment_figures [DIRECTORY]``. The tests run it in small.

One thread, records without compressible parts, read from the page cache.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from starlingmq.storage.segment.segment_journal import SegmentJournal


def figures(directory: Path, scale: float = 1.0) -> dict[str, float]:
    """Figures by name, records per second unless the name says otherwise. ``scale`` 1.0 writes some 3 GiB."""
    found: dict[str, float] = {}
    for size in (1, 10, 100, 1000):
        found[f"appends of 200 B, batches of {size}"] = appends(directory / f"a{size}", size, int(scale * 200_000))
        count = int(scale * 50_000)
        found[f"appends and sync of 200 B, batches of {size}"] = appends(directory / f"s{size}", size, count, sync=True)
    for size in (100, 200, 1024):
        found |= reads(directory / f"r{size}", size, int(scale * 200_000))
    for size in (200, 1024):
        found |= opening(directory / f"o{size}", size, int(scale * (1 << 30)))
    return found


def appends(directory: Path, size: int, count: int, sync: bool = False) -> float:
    journal = SegmentJournal(str(directory))
    records = [os.urandom(200) for _ in range(size)]
    times = max(1, min(count // size, 1000 if sync else count))
    begin = perf_counter()
    for _ in range(times):
        journal.append(records)
        if sync:
            journal.sync()
    spent = perf_counter() - begin
    journal.close()
    return times * size / spent


def reads(directory: Path, size: int, count: int) -> dict[str, float]:
    journal = SegmentJournal(str(directory))
    records = [os.urandom(size) for _ in range(100)]
    for _ in range(count // 100):
        journal.append(records)
    anywhere = [random.randrange(journal.next) for _ in range(count // 10)]
    found = {
        f"read_at of {size} B, anywhere": read_at(journal, anywhere, 100),
        f"read_at of {size} B, neighbours": read_at(journal, list(range(journal.next)), 1000),
    }
    begin, offset = perf_counter(), 0
    while piece := journal.read(offset, 1000, 1 << 20):
        offset = piece[-1][0] + 1
    found[f"read of {size} B"] = offset / (perf_counter() - begin)
    journal.close()
    return found


def read_at(journal: SegmentJournal, offsets: list[int], size: int) -> float:
    begin = perf_counter()
    for place in range(0, len(offsets), size):
        assert None not in journal.read_at(offsets[place : place + size])
    return len(offsets) / (perf_counter() - begin)


def opening(directory: Path, size: int, volume: int) -> dict[str, float]:
    """With all indexes, without that of the last segment (as after a crash), and without any."""
    journal = SegmentJournal(str(directory))
    records = [os.urandom(size) for _ in range(1000)]
    while journal.size < volume:
        journal.append(records)
    journal.close()
    indexes = sorted(directory.glob("*.idx"))
    found = {f"opening of {size} B, indexed, ms": open_ms(directory)}
    indexes[-1].unlink()
    found[f"opening of {size} B, last not indexed, ms"] = open_ms(directory)
    for index in directory.glob("*.idx"):
        index.unlink()
    found[f"opening of {size} B, not indexed, ms"] = open_ms(directory)
    return found


def open_ms(directory: Path) -> float:
    begin = perf_counter()
    journal = SegmentJournal(str(directory))
    spent = (perf_counter() - begin) * 1e3
    assert not journal.damage
    journal.close()
    return spent


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as temporary:
        for name, figure in figures(Path(temporary)).items():
            print(f"{name:48}{figure:14,.1f}")
