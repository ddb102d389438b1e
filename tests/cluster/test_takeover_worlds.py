"""Clients that roam through random worlds of faults. Moments that these rarely reach: ``test_takeover_hazards``."""

from __future__ import annotations

import pytest
from tests.cluster.takeover_world import RoamingWorld, run
from tests.few import few


@pytest.mark.parametrize("seeds", [8, pytest.param(200, marks=pytest.mark.long)])
def test_nothing_is_lost_or_out_of_order_where_nothing_fails(seeds: int) -> None:
    takeovers = 0
    for seed in range(seeds):
        if not RoamingWorld(seed).plan.faulty:
            takeovers += run(seed).takeovers()
    assert takeovers > 1.5 * seeds, "hardly anybody went anywhere"


@pytest.mark.parametrize("seed", few(range(1, 26), *range(1, 5)))
def test_worlds_with_faults(seed: int) -> None:
    run(seed)
