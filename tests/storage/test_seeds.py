"""Some of the seeds of ``make crash``, and those that found something once."""

from __future__ import annotations

import pytest
from tests.storage import seeds

FOUND = (0, 1, 3, 14, 15, 48, 253, 296, 371, 609, 3386)
"""Seeds that find operations out of order, a checkpoint ahead of the journal, replayed changes that the next checkpoint
leaves out, segments dropped while they grow, what is wanted again after a power failure, and references to what was
given back, where that is wrong."""


@pytest.mark.parametrize("seed", FOUND)
def test_seeds_that_found_something(seed: int) -> None:
    seeds.run(seed)


def test_a_hundred_lives() -> None:
    assert sum(seeds.run(seed) for seed in range(1_000_000, 1_000_100)) > 100, "hardly anything ever crashed"


def test_a_seed_is_the_same_life_again() -> None:
    one, two = (seeds.Life(4711) for _ in range(2))
    one.live(120)
    two.live(120)
    assert list(one.all) == list(two.all)
    assert [fake.output for fake in one.world.clients] == [fake.output for fake in two.world.clients]
