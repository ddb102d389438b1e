"""Streams across nodes, in worlds with faults: nothing that was acknowledged is lost, doubled or undone."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.cluster.stream_mistakes import MISTAKES
from tests.cluster.stream_world import StreamWorld
from tests.few import few
from tests.planting import FAILURES, first_to_find

SEEDS_MAX = 60


@pytest.mark.parametrize("worlds", [8, pytest.param(80, marks=pytest.mark.long)])
@pytest.mark.timeout(600)
def test_what_was_acknowledged_stays(worlds: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(worlds):
        seen += StreamWorld(seed).run().seen
    assert all(seen[each] for each in ("home killed", "cut", "etcd", "older", "delivered", "delivered again")), seen


@pytest.mark.interpreted_only("what is compiled cannot be patched")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    few(
        MISTAKES,
        "the registry is written without comparing",
        "messages of other nodes are acknowledged and not stored",
        "acknowledgements are answered before they are stored",
    ),
)
def test_each_mistake_is_found(name: str) -> None:
    found = first_to_find(range(SEEDS_MAX), MISTAKES[name], lambda seed: StreamWorld(seed).run(), FAILURES)
    assert found >= 0, f"no seed below {SEEDS_MAX} finds it"
