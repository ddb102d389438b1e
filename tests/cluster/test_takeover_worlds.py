"""Clients that roam through random worlds of faults. Moments that these rarely reach: ``test_takeover_hazards``."""

from __future__ import annotations

import pytest
from tests.cluster.takeover_world import RoamingWorld, run
from tests.few import few

FAULTY = (*range(1, 13), 16, 30, 38, 49, 53, 145, 250, 301, 554, 1322, 1692, 1798, 3076)
"""Worlds with faults; those from 16 on found something: what was taken before a crash and taken again after it, a
session that waited for itself, what waited for a disk that worked again, a node that joined twice,
marks that were there before the session, a node that was taken out and came back, a session that was
taken back though a later owner had it, claims that etcd carried out late,
a new owner that crashed before it had answered its client."""


@pytest.mark.parametrize("seeds", [12, pytest.param(200, marks=pytest.mark.long)])
def test_nothing_is_lost_or_out_of_order_where_nothing_fails(seeds: int) -> None:
    takeovers = 0
    for seed in range(seeds):
        if not RoamingWorld(seed).plan.faulty:
            takeovers += run(seed).takeovers()
    assert takeovers > 1.5 * seeds, "hardly anybody went anywhere"


@pytest.mark.parametrize("seed", few(FAULTY, 1, 2, 16, 53, 1692, 3076))
def test_worlds_with_faults(seed: int) -> None:
    run(seed)
