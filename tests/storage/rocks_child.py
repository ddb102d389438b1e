"""Writes to an engine in a process of its own, and says after every write how far it is, until it is killed.

Run as ``python -m tests.storage.rocks_child kv DIRECTORY`` or ``journal DIRECTORY FIRST``. Write number n is
``batch_of(n)`` or ``records_of(n)``; the journal goes on with number FIRST, the store with the one it does not have.
"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

from starlingmq.storage.kv import Batch
from starlingmq.storage.rocks.rocks_engines import RocksJournal, RocksKv


def batch_of(number: int) -> Batch:
    """Moves one key on, so that half a batch would show, and fills a memtable once in a while."""
    batch = Batch()
    batch.delete(b"at%d" % (number - 1))
    batch.put(b"at%d" % number, b"%d" % number)
    batch.put(b"n%08d" % number, b"%d" % number * 300)
    return batch


def records_of(number: int) -> list[bytes]:
    return [b"%d.%d" % (number, part) * 100 for part in range(number % 5)]


def write_kv(path: Path) -> None:
    kv = RocksKv(path)
    for number in count(int((kv.scan(b"n", b"o", 1, reverse=True) or [(b"n-1", b"")])[0][0][1:]) + 1):
        kv.write(batch_of(number))
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


def write_journal(path: Path, done: int) -> None:
    journal = RocksJournal(path)
    for number in count(done):
        begin = journal.append(records_of(number))
        journal.trim(begin - 3000)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "kv":
        write_kv(Path(sys.argv[2]))
    else:
        write_journal(Path(sys.argv[2]), int(sys.argv[3]))
