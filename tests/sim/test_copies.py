"""Whole clusters with ``cluster.copies``, of which disks are lost for good: the invariants of every world hold on.

``python -m tests.sim --copies 2``, and the same for the worlds of ``tests.cluster``, live more of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster import drain_world, handshake_world, killed_twice_world, presence_world, return_world, takeover_world
from tests.few import few
from tests.sim.run import run
from tests.sim.seen import Seen
from tests.sim.world import World


@pytest.fixture
def two_copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(World, "copies", 2)
    yield


@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("worlds", [2, pytest.param(12, marks=pytest.mark.long)])
def test_disks_are_lost_and_nothing_else(copies: int, worlds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "copies", copies)
    seen = Seen()
    acknowledged = 0
    for seed in range(20, 20 + worlds):
        world = run(seed)
        seen += world.seen
        acknowledged += world.books.acknowledged_count
    assert acknowledged > 33 * worlds
    assert seen["disks lost"] > worlds // 4 and seen["lost nodes served elsewhere"] > worlds // 4
    assert worlds < 12 or seen["old disks"] > 1


@pytest.mark.usefixtures("two_copies")
def test_the_leader_leaves_the_wills_of_a_lost_node_to_its_successor() -> None:
    presence_world.run(10)


@pytest.mark.usefixtures("two_copies")
@pytest.mark.parametrize("seed", few(range(4), 0))
def test_sessions_and_handshakes_survive_the_loss_of_disks(seed: int) -> None:
    takeover_world.run(seed)
    handshake_world.run(seed)
    killed_twice_world.run(seed)


@pytest.mark.usefixtures("two_copies")
@pytest.mark.parametrize("seed", few(range(3, 6), 3))
def test_nodes_that_leave_come_back_while_disks_are_lost(seed: int) -> None:
    return_world.run(seed)
    drain_world.run(seed)
