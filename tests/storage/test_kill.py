"""A few rounds of ``make chaos-storage``."""

from __future__ import annotations

import pytest
from tests.storage import killing


@pytest.mark.parametrize(
    ("journal", "durability", "rounds"),
    [
        ("segment", "process", 1),
        pytest.param("segment", "process", 2, marks=pytest.mark.long),
        pytest.param("segment", "power", 2, marks=pytest.mark.long),
        pytest.param("rocksdb", "process", 2, marks=pytest.mark.long),
        pytest.param("rocksdb", "power", 2, marks=pytest.mark.long),
    ],
)
def test_a_broker_that_is_killed_under_load(journal: str, durability: str, rounds: int) -> None:
    assert killing.run(journal, durability, rounds, seed=1) > 100
