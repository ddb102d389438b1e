"""Mistakes made on purpose are found: the checkers can fail."""

from __future__ import annotations

import pytest
from tests.sim import planted, test_sim
from tests.sim.planted import SEEDS_MAX, caught
from tests.sim.run import run

import starlingmq

pytestmark = pytest.mark.skipif(starlingmq.compiled(), reason="what is compiled can not be patched")


def test_a_node_that_passes_nothing_on_is_found() -> None:
    with planted.nothing_is_passed_on(), pytest.raises(AssertionError):
        test_sim.test_who_cannot_reach_each_other_go_on_through_the_third([("n1", "n2"), ("n2", "n1")])


def test_a_suback_for_those_connected_alone_is_found() -> None:
    with planted.suback_does_not_look_whom_others_reach(), pytest.raises(AssertionError):
        test_sim.test_a_suback_waits_for_who_is_connected_to_others()


@pytest.mark.parametrize("mistake, seed", planted.FOUND.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_each_mistake_is_found(mistake: planted.Mistake, seed: int) -> None:
    """At the seed that found it, or, where the code has changed since, at another one."""
    run(seed)  # without the mistake all is well
    found, _ = caught(mistake, (seed, *range(SEEDS_MAX)))
    assert found >= 0, f"no seed below {SEEDS_MAX} finds it"
