"""The figures in small; in full, and what issue 4 asks for, in the slow run."""

from __future__ import annotations

import pytest
from tests.cluster.figures import Figures


def test_figures_in_small() -> None:
    found = Figures(3000).found
    assert len(found) == 4 and min(found.values()) > 0


@pytest.mark.slow
def test_fifty_thousand_routes_a_second() -> None:
    found = Figures(100_000).found
    found.pop("longest call, ms")  # tells as much of other processes on the machine
    assert min(found.values()) > 50_000, found
