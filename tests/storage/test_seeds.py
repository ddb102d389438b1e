"""Some of the seeds of ``make crash``: all is well."""

from __future__ import annotations

import pytest
from tests.storage import seeds


@pytest.mark.parametrize("lives", [25, pytest.param(100, marks=pytest.mark.long)])
def test_many_lives(lives: int) -> None:
    crashes = sum(seeds.run(seed) for seed in range(1_000_000, 1_000_000 + lives))
    assert crashes > lives, "hardly anything ever crashed"


def test_a_seed_is_the_same_life_again() -> None:
    one, two = (seeds.Life(4711) for _ in range(2))
    one.live(120)
    two.live(120)
    assert list(one.all) == list(two.all)
    assert [fake.output for fake in one.world.clients] == [fake.output for fake in two.world.clients]
