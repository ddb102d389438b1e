"""Some of the seeds of ``python -m tests.cluster.lives``, whole clusters without faults, and a seed is a seed."""

from __future__ import annotations

import pytest
from tests.cluster import lives
from tests.cluster.world import World


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("score", [0.3, pytest.param(3, marks=pytest.mark.long)])
def test_lives_by_the_score(score: float) -> None:
    all = [lives.run(seed) for seed in range(round(20 * score))]
    assert sum(life.fates.crashes for life in all) > 34 * score
    assert score < 1 or any(life.fates.forgets for life in all), "some nodes are removed in all these lives"
    assert sum(life.world.relayed for life in all) > 3334 * score


def test_a_seed_is_the_same_life_again() -> None:
    one, two = lives.run(4711), lives.run(4711)
    assert one.world.describe() == two.world.describe() and one.world.relayed == two.world.relayed


def test_seven_that_start_at_once_are_one_cluster_soon_and_quiet() -> None:
    world = World(1)
    for name in lives.NAMES:
        world.start(name)
    world.run_until_all_serve(5.0)
    changes = [node.changes for node in world.alive()]
    assert changes == [6] * 7, "everybody came once"
    relayed = world.relayed
    world.run(60.0)
    assert [node.changes for node in world.alive()] == changes
    assert world.relayed == relayed, "a healthy cluster relays nothing"


def test_the_majority_survives_the_loss_of_one_frame_in_five() -> None:
    world = World(2)
    for name in "abcde":
        world.start(name)
    world.run_until_all_serve(5.0)
    world.loss = 0.2
    for _ in range(60):
        world.run(1.0)
        assert [node.serves for node in world.alive()] == [True] * 5, world.describe()
