"""A few rounds of ``make chaos-storage``."""

from __future__ import annotations

import pytest
from tests.storage import killing


@pytest.mark.parametrize("journal", ["segment", "rocksdb"])
@pytest.mark.parametrize("durability", ["process", "power"])
def test_a_broker_that_is_killed_under_load(journal: str, durability: str) -> None:
    assert killing.run(journal, durability, rounds=2, seed=1) > 100
