"""A node stands still while messages wait for it at another one, which dies with its disk; the others serve soon."""

from __future__ import annotations

from itertools import product
from typing import Any, Final
from unittest.mock import patch

import pytest
from tests.cluster.frozen_world import run
from tests.few import few
from tests.sim.test_planted_copies import waits_for_this_disk_alone
from tests.sim.world import World

from starlingmq.cluster.copies.copy_roles import CopyRoles
from starlingmq.cluster.peers.process_presence import ProcessPresence
from starlingmq.storage.copies.copy_source import CopySource

STAY: Final = ((0, 1), (2, 2))


@pytest.mark.parametrize(
    ("seed", "copies"),
    [each if each in STAY else pytest.param(*each, marks=pytest.mark.long) for each in product(range(5), (1, 2))],
)
def test_the_others_serve_soon_and_nothing_is_lost(seed: int, copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "copies", copies)
    run(seed)


MISTAKES: dict[str, tuple[Any, str, Any, str]] = {
    "a node that was replaced never confirms its disk": (
        CopyRoles,
        "_return",
        lambda self, record: None,
        "serves no CONNECT",
    ),
    "no node leads": (ProcessPresence, "_is_leading", lambda self: False, "mover is not served"),
    "acknowledged before the copy": (CopySource, "copied", waits_for_this_disk_alone, "is lost|again, in another"),
}
"""Its place, and the complaint of the world that finds it."""


@pytest.mark.interpreted_only("compiled classes cannot be patched")
@pytest.mark.parametrize("name", few(MISTAKES, "no node leads", "acknowledged before the copy"))
def test_the_worlds_find(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, attribute, wrong, complaint = MISTAKES[name]
    monkeypatch.setattr(World, "copies", 2)
    with pytest.raises(AssertionError, match=complaint), patch.object(place, attribute, wrong):
        for seed in range(20):
            run(seed)
