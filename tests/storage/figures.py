"""How fast the RocksDB engines are: ``python -m tests.storage.figures [DIRECTORY]``. The tests run it in small.

One thread, values of 200 bytes for the store and 1 KiB for the journal, both without compressible parts.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from starlingmq.storage.kv import Batch, after
from starlingmq.storage.rocks.rocks_engines import RocksJournal, RocksKv


def figures(directory: Path, scale: float = 1.0) -> dict[str, float]:
    """Figures by name, per second unless the name says otherwise. ``scale`` 1.0 takes some ten seconds."""
    found: dict[str, float] = {}
    kv = RocksKv(directory / "kv")
    for size in (1, 10, 100):
        found[f"kv puts, batches of {size}"] = puts(kv, size, int(scale * 50_000 * (1 + (size > 1) * 3)))
    found["kv gets"] = per_second(int(scale * 50_000), lambda number: kv.get(key(number)))
    found["kv scan, 1000 at a time"] = scan(kv)
    found["kv put and sync"] = per_second(int(scale * 1000) or 1, lambda number: put_and_sync(kv, number))
    kv.close()
    journal = RocksJournal(directory / "journal")
    for size in (1, 10, 100):
        found[f"journal appends, batches of {size}"] = appends(journal, size, int(scale * 100_000))
    found["journal read, 100 at a time"] = read(journal)
    chance = random.Random(1)
    near = sorted(chance.sample(range(journal.next), journal.next // 20))
    found["journal read_at, every 20th"] = read_at(journal, near)
    chance.shuffle(near)
    found["journal read_at, anywhere"] = read_at(journal, near)
    journal.close()
    begin = perf_counter()
    journal = RocksJournal(directory / "journal")
    found["journal open, ms"] = (perf_counter() - begin) * 1e3
    journal.close()
    return found


def key(number: int) -> bytes:
    return b"q" + number.to_bytes(8, "big")


def per_second(count: int, step: Callable[[int], object]) -> float:
    begin = perf_counter()
    for number in range(count):
        step(number)
    return count / (perf_counter() - begin)


def puts(kv: RocksKv, size: int, count: int) -> float:
    value = os.urandom(200)

    def write(number: int) -> None:
        batch = Batch()
        for place in range(number * size, (number + 1) * size):
            batch.put(key(place), value)
        kv.write(batch)

    return size * per_second(count // size or 1, write)


def put_and_sync(kv: RocksKv, number: int) -> None:
    batch = Batch()
    batch.put(key(number), bytes(200))
    kv.write(batch)
    kv.sync()


def scan(kv: RocksKv) -> float:
    begin, count, start = perf_counter(), 0, b""
    while piece := kv.scan(start, b"r", 1000):
        count += len(piece)
        start = after(piece[-1][0])
    return count / (perf_counter() - begin)


def appends(journal: RocksJournal, size: int, count: int) -> float:
    source = os.urandom(1 << 20)
    records = [source[at : at + 1024] for at in range(0, 1 << 20, 1024)]
    batches = [[records[(start + place) % 1024] for place in range(size)] for start in range(1024)]
    return size * per_second(count // size or 1, lambda number: journal.append(batches[number % 1024]))


def read(journal: RocksJournal) -> float:
    begin, offset = perf_counter(), 0
    while piece := journal.read(offset, 100, 1 << 20):
        offset = piece[-1][0] + 1
    return offset / (perf_counter() - begin)


def read_at(journal: RocksJournal, offsets: list[int]) -> float:
    begin = perf_counter()
    for place in range(0, len(offsets), 100):
        assert None not in journal.read_at(offsets[place : place + 100])
    return len(offsets) / (perf_counter() - begin)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as temporary:
        for name, figure in figures(Path(temporary)).items():
            print(f"{name:36}{figure:14,.0f}")
