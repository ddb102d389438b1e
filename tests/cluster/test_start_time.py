"""A node serves soon after it has started: it waits for answers, and for no timer. Virtual time, without imports."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.few import few
from tests.sim import network
from tests.sim.commits import none_runs
from tests.sim.node import Node
from tests.sim.world import World

from starlingmq.config.settings import ClusterConfig

HEARTBEATS = ClusterConfig().heartbeat_interval
SOON = 0.4 * HEARTBEATS  # a change is told after a tenth of it: three such steps, and etcd


class CalmWorld(World):
    """Two nodes without clients, close to each other."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._set_size(2)
        self.network.delay = 0.0003
        self.settings.keeps, self.settings.sync_seconds = True, 0.0005
        self.settings.cluster = structs.replace(
            self.settings.cluster, heartbeat_interval=HEARTBEATS, member_timeout=4 * HEARTBEATS
        )

    def until_it_serves(self, node: Node) -> float:
        """Seconds from its start."""
        began = self.schedule.now
        self.start_if_wanted(node)
        while not self._serves(node):
            assert self.schedule.now < began + 10.0, self.why()
            self._pass(0.005)
        return self.schedule.now - began


@pytest.mark.parametrize("seed", few(range(6), 0, 3))
def test_a_node_that_joins_and_one_that_starts_again_serve_soon(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes dial one that has connected to them at once (``net.peers.peer_stream``), and not after a back-off."""
    monkeypatch.setattr(network, "RECONNECT_SECONDS", 0.002)
    world = CalmWorld(seed)
    try:
        world.form()
        world.pass_time(1.0)
        node = world._add_node("n3")
        assert world.until_it_serves(node) < SOON
        world.pass_time(2.0)
        node.end()
        world.pass_time(1.0)
        assert world.until_it_serves(node) < SOON
    finally:
        none_runs()
