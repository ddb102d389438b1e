"""The new owner of a session, or the former one, dies for good at each step of a takeover, while there are copies."""

from __future__ import annotations

from typing import Final
from unittest.mock import patch

import pytest
from tests.cluster.new_owner_world import run
from tests.sim.world import World

from starlingmq.cluster.view.cluster_view import ClusterView

STEPS: Final = (0, 1, 2, 3, 5, 8, 13, 21)
STAY: Final = ((0, 2), (1, 3))


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "copies", 2)


@pytest.mark.parametrize(
    ("whose", "steps"),
    [
        pytest.param(whose, steps, marks=() if (whose, steps) in STAY else pytest.mark.long)
        for whose in (0, 1)
        for steps in STEPS[whose::2]
    ],
)
def test_the_client_finds_its_session_within_seconds(whose: int, steps: int) -> None:
    run(2 * steps + whose)


@pytest.mark.interpreted_only("what is compiled can not be patched")
def test_the_worlds_find_a_takeover_that_does_not_wait_for_copies() -> None:
    with (
        patch.object(ClusterView, "is_expected", ClusterView.is_heard_elsewhere),
        pytest.raises(AssertionError, match="the session is lost"),
    ):
        for steps in STEPS:
            run(2 * steps)
