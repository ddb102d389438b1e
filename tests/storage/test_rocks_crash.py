"""kill -9 in the middle of writes: what was written before is there, whole, and nothing is there in part."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.few import few
from tests.storage.rocks_child import records_of

from starlingmq.storage.rocks.rocks_engines import RocksJournal, RocksKv

ROUNDS = 4


def killed_after(lines: int, *arguments: str) -> int:
    """Run the writer, kill it after so many writes; the number of the last write that it spoke of."""
    command = [sys.executable, "-m", "tests.storage.rocks_child", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as child:
        assert child.stdout is not None
        said = [child.stdout.readline() for _ in range(lines)]
        child.kill()
        said += [line for line in child.stdout.read().splitlines(keepends=True) if line.endswith(b"\n")]
    return int(said[-1])


@pytest.mark.parametrize("seed", few(range(2), 0))
def test_the_kv_has_every_batch_whole(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(ROUNDS):
        last = killed_after(chance.randrange(1, 4000), "kv", str(tmp_path / "kv"))
        kv = RocksKv(tmp_path / "kv")
        written = kv.scan(b"n", b"o", 1_000_000)
        assert last <= len(written) - 1 <= last + 1  # one more may have been written and not spoken of
        assert [key for key, _ in written] == [b"n%08d" % number for number in range(len(written))]
        assert kv.scan(b"at", b"au", 10) == [(b"at%d" % (len(written) - 1), b"%d" % (len(written) - 1))]
        assert kv.damage == ""
        kv.close()


@pytest.mark.parametrize("seed", few(range(2), 0))
def test_the_journal_has_every_append_whole(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    done = 0
    appended: list[bytes] = []
    for _ in range(ROUNDS):
        last = killed_after(chance.randrange(1, 4000), "journal", str(tmp_path / "journal"), str(done))
        for number in range(done, last + 1):
            appended += records_of(number)
        done = last + 1
        journal = RocksJournal(tmp_path / "journal")
        if journal.next > len(appended):
            appended += records_of(done)
            done += 1
        assert journal.next == len(appended)
        assert journal.first <= max(0, journal.next - 3000)
        assert journal.read(0, 1_000_000, 1 << 30) == list(enumerate(appended))[journal.first :]
        size = sum(len(record) + 16 for record in appended[journal.first :])
        assert journal.size == size
        assert journal.damage == ""
        journal.close()
