"""Short queues, and a node that is back: they drop no message that the others have accepted for it meanwhile."""

from __future__ import annotations

import pytest
from tests.cluster.limited_world import run
from tests.few import few


@pytest.mark.parametrize("seed", few(range(9), 0, 1, 2))
def test_what_waits_for_a_node_comes_whatever_its_queues_take(seed: int) -> None:
    assert run(seed).books.acknowledged_count
