"""Random worlds in which nodes are restarted in order. Moments that these rarely reach: ``test_drain_hazards``."""

from __future__ import annotations

import pytest
from tests.cluster.drain_world import run
from tests.few import few

PLAIN = range(0, 16, 2)
FAULTY = range(1, 13, 2)  # two of each kind


@pytest.mark.parametrize("worlds", [2, pytest.param(8, marks=pytest.mark.long)])
def test_restarts_in_order_lose_nothing_and_keep_every_session(worlds: int) -> None:
    drained = handed = 0
    for seed in PLAIN[-worlds:]:
        world = run(seed)
        drained += world.drained
        handed += world.handed
    assert drained > 1.5 * worlds and handed >= worlds, "hardly anything was handed over"


@pytest.mark.parametrize("seed", few(FAULTY, 1, 11))
def test_crashes_cuts_and_an_etcd_that_is_away_meanwhile(seed: int) -> None:
    run(seed)
