"""A dict in pieces against a plain dict; and nothing of it depends on the seed of Python's hashes."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random

import pytest
from tests.few import few
from tests.patience import slowness

from starlingmq.core.structures.sharded_dict import SHARDS, ShardedDict

KEYS = [b"plant/%d/machine/%d" % (number % 7, number) for number in range(500)]
PRINT_ORDER = """
from starlingmq.core.structures.sharded_dict import ShardedDict
shards = ShardedDict()
for number in range(500):
    shards.set(b"plant/%d/machine/%d" % (number % 7, number), number)
print([number for _, number in shards.items()])
"""


def output(hash_seed: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60 * slowness(),
    ).stdout


def test_it_is_a_dict() -> None:
    random, shards, twin = Random(1), ShardedDict[int](), dict[bytes, int]()
    for number in range(5000):
        key = random.choice(KEYS)
        if random.random() < 0.6:
            shards.set(key, number)
            twin[key] = number
        else:
            assert shards.pop(key) == twin.pop(key, None)
        assert shards.get(key) == twin.get(key) and len(shards) == len(twin)
    assert sorted(shards.items()) == sorted(twin.items()) and len(twin) > 100


def test_each_shard_gets_its_part() -> None:
    shards = ShardedDict[int]()
    for number in range(64_000):
        shards.set(b"plant/%d/machine/%d" % (number % 7, number), number)
    sizes = [len(shard) for shard in shards._shards]
    assert len(sizes) == SHARDS and min(sizes) > 700 and max(sizes) < 1300


def test_the_order_of_items_does_not_depend_on_the_seed_of_hashes() -> None:
    assert output("1", "-c", PRINT_ORDER) == output("2", "-c", PRINT_ORDER)


@pytest.mark.parametrize("seed", few(["24", "29"], "24"))
def test_a_simulated_world_does_not_depend_on_the_seed_of_hashes(seed: str) -> None:
    """Compares the whole trace: each frame, each step of each node."""
    one, two = (output(hash_seed, "-m", "tests.sim", "--seed", seed) for hash_seed in ("1", "2"))
    assert len(one.splitlines()) > 100 and one == two


def test_an_empty_dict_keeps_no_room_for_the_entries_that_it_has_had() -> None:
    sharded = ShardedDict[int]()

    def room() -> int:
        return sum(map(sys.getsizeof, sharded._shards))

    before = room()
    for number in range(20_000):
        sharded.set(b"%d" % number, number)
    assert room() > 10 * before
    for number in range(20_000):
        assert sharded.pop(b"%d" % number) == number
    assert room() <= before
