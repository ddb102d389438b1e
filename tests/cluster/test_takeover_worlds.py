"""Clients that roam through worlds of faults, drawn from seeds; and mistakes made on purpose, each of which shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cluster.takeover_world import RoamingWorld, run

import starlingmq
from starlingmq.cluster.arrivals import Arrival
from starlingmq.cluster.coming import Coming
from starlingmq.cluster.departures import Departure
from starlingmq.cluster.leaving import Leaving
from starlingmq.cluster.marks import Marks
from starlingmq.core.delivery import Delivery
from starlingmq.core.mover import Mover
from starlingmq.core.moving import OPEN

FAULTY = (*range(1, 13), 16, 30, 38, 49, 53)
"""Worlds with faults; those from 16 on found something: what was taken before a crash and taken again after it, a
session that waited for itself, what waited for a disk that worked again."""


def calm() -> list[int]:
    return [seed for seed in range(200) if not RoamingWorld(seed).plan.faulty]


def test_nothing_is_lost_or_out_of_order_where_nothing_fails() -> None:
    takeovers = 0
    for seed in calm():
        takeovers += run(seed).takeovers()
    assert takeovers > 300, "hardly anybody went anywhere"


def test_worlds_with_faults() -> None:
    for seed in FAULTY:
        run(seed)


def nothing(*_: object) -> None:
    return None


SEEDS_MAX = 60
Mistake = tuple[type, str, Callable[..., object], int]
MISTAKES: dict[str, Mistake] = {  # with a seed that shows it
    "the former owner goes on after the marks": (Departure, "mark", nothing, 1),
    "what came before the marks is taken from both": (Delivery, "_takes", lambda *_: True, 7),
    "nobody waits for the window": (Arrival, "awaited", lambda _: False, 2),
    "a session is present though a later one may be": (Coming, "_unsure", lambda *_: False, 43),
    "who was overtaken is given it": (Leaving, "_is_newer", lambda *_: False, 7),
    "what comes here is taken at once": (Arrival, "stage", lambda *_: OPEN, 26),
    "marks that come before the takeover they belong to are not looked at": (Marks, "_came_for", nothing, 43),
    "the queue stays behind": (Mover, "take_queue", lambda *_: [], 5),
}


@pytest.mark.skipif(starlingmq.compiled(), reason="what is compiled can not be patched")
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the seed that found it, or, where the code has changed since, at another one."""
    kind, method, wrong, seed = MISTAKES[name]
    run(seed)
    monkeypatch.setattr(kind, method, wrong)
    with pytest.raises(Exception):  # noqa: B017 - whatever the code raises
        for other in (seed, *range(SEEDS_MAX)):
            run(other)
