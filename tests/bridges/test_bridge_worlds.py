"""Some worlds of ``tests.bridges.bridge_world``, and mistakes that they find."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.bridges.bridge_mistakes import MISTAKES, find
from tests.bridges.bridge_world import BridgeWorld, figures, run
from tests.few import few
from tests.planting import FAILURES, first_to_find

SEEDS_MAX = 200


@pytest.mark.parametrize(("worlds", "acts"), [(3, 60), pytest.param(150, 150, marks=pytest.mark.long)])
@pytest.mark.timeout(900)
def test_messages_cross_bridges_whatever_fails(worlds: int, acts: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(worlds):
        seen.update(figures(run(seed, acts)))
    assert seen["crashes"] and seen["carried"] > seen["strict messages"] / 4


@pytest.mark.parametrize(("worlds", "acts"), [(2, 60), pytest.param(100, 150, marks=pytest.mark.long)])
@pytest.mark.timeout(900)
def test_retained_messages_agree_though_queues_overflow(worlds: int, acts: int) -> None:
    dropped = 0
    for seed in range(worlds):
        world = run(seed, acts, short=True, version="5.0")
        dropped += sum(site.all_dropped().get("queue_full", 0) for site in world.sites.values())
    assert dropped


def test_a_seed_is_the_same_world_again() -> None:
    one, two = (BridgeWorld(4711, losses=True) for _ in range(2))
    one.live(20)
    two.live(20)
    assert list(one.messages) == list(two.messages)
    assert [reader.got for reader in one.readers] == [reader.got for reader in two.readers]
    assert [carrier.attempts for carrier in one.carriers] == [carrier.attempts for carrier in two.carriers]


@pytest.mark.interpreted_only("what is compiled cannot be patched")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", few(MISTAKES, "DUP is lost"))
def test_each_mistake_is_found(name: str) -> None:
    plant, _ = MISTAKES[name]
    found = first_to_find(range(SEEDS_MAX), lambda: plant, lambda seed: find(name, seed), FAILURES)
    assert found >= 0, f"no seed below {SEEDS_MAX} finds it"
