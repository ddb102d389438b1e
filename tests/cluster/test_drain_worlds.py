"""Worlds in which nodes are restarted in order, drawn from seeds; and mistakes made on purpose, each of which shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cluster.drain_world import run

import starlingmq
from starlingmq.cluster import drain
from starlingmq.cluster.drain import Drain
from starlingmq.core.mover import Mover

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


SHOWING = (4, 52, 0, 130, 20, 80)  # seeds of worlds of which one shows each mistake; which, changes with what they do
Mistake = tuple[type, str, Callable[..., object]]
MISTAKES: dict[str, Mistake] = {
    "it ends before sessions are gone": (Drain, "_hopeful", lambda *_: False),
    "what was queued stays behind": (Mover, "take_queue", lambda *_: []),
}


@pytest.mark.skipif(starlingmq.compiled(), reason="what is compiled can not be patched")
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, method, wrong = MISTAKES[name]
    monkeypatch.setattr(drain, "LINGER", 0.0)  # which would hide the most of them
    monkeypatch.setattr(kind, method, wrong)
    for seed in SHOWING:
        try:
            run(seed)
        except Exception:
            return
    pytest.fail("no world shows it")
