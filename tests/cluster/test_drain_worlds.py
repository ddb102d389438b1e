"""Random worlds in which nodes are restarted in order. Moments that these rarely reach: ``test_drain_hazards``."""

from __future__ import annotations

from tests.cluster.drain_world import run

PLAIN = (0, 4, 8, 20, 48, 52, 80, 130)
"""The last ones found something: who waited for routes of others gave up, and a takeover forgot whose PUBRECs wait."""
FAULTY = (1, 3, 5, 7, 9, 29)  # two of each kind; in the last one an offer came again, after its session


def test_restarts_in_order_lose_nothing_and_keep_every_session() -> None:
    drained = handed = 0
    for seed in PLAIN:
        world = run(seed)
        drained += world.drained
        handed += world.handed
    assert drained > 15 and handed > 8, "hardly anything was handed over"


def test_crashes_cuts_and_an_etcd_that_is_away_meanwhile() -> None:
    for seed in FAULTY:
        run(seed)
