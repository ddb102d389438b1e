"""Some worlds of ``tests.core.streams.consumer_world``, and the mistakes that they find."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.core.streams.consumer_mistakes import MISTAKES
from tests.core.streams.consumer_world import run
from tests.few import few
from tests.planting import FAILURES, first_to_find

SEEDS_MAX = 200


@pytest.mark.parametrize("lossy", [False, True], ids=["all stored", "stored late"])
@pytest.mark.parametrize("worlds", [40, pytest.param(1500, marks=pytest.mark.long)])
@pytest.mark.timeout(900)
def test_consumers_keep_their_law(worlds: int, lossy: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(worlds):
        seen += run(seed, lossy=lossy).seen
    assert min(seen[each] for each in ("delivered", "redelivered", "MAX_DELIVERIES", "restarts")) > worlds
    assert all(
        seen[each] for each in ("404 No Messages", "408 Request Timeout", "409 Batch Completed", "408 Requests Pending")
    )


def test_a_seed_is_the_same_world_again() -> None:
    one, two = (run(11) for _ in range(2))
    assert one.consumer.encode() == two.consumer.encode() and one.seen == two.seen


@pytest.mark.interpreted_only("what is compiled cannot be patched")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", few(MISTAKES, "one delivery more than max_deliver"))
def test_each_mistake_is_found(name: str) -> None:
    found = first_to_find(range(SEEDS_MAX), MISTAKES[name], run, FAILURES)
    assert found >= 0, f"no seed below {SEEDS_MAX} finds it"
