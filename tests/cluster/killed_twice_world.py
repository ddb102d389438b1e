"""Takeover worlds in which all nodes are killed again and again, each time a moment after they are back;
``python -m tests.cluster.killed_twice_world --seeds N``.

Each node dies at any step of what it does then: with claims of several clients in one transaction of etcd, and with
sessions that were not read back from the disk since the node before died.
"""

from __future__ import annotations

import sys
from random import Random

from tests.cluster import seeded
from tests.cluster.takeover_world import RoamingWorld, figures
from tests.sim import faults
from tests.sim.node import Node


class KilledTwiceWorld(RoamingWorld):
    def __init__(self, seed: int, trace: bool = False) -> None:
        super().__init__(seed, trace)
        draw = self.draw = Random(f"twice {seed}")
        plan = self.plan
        plan.kind, plan.theme, plan.faulty = "faulty", "killed twice", True
        plan.seconds = draw.choice([6.0, 10.0])
        plan.faults, plan.rare = draw.choice([0, 0, 2]), []
        plan.early = plan.joins = plan.overtaking = False
        plan.goes, plan.loss, plan.doubling = "", 0.0, 0.0
        self.settings.keeps = True
        self.settings.power = draw.random() < 0.2
        self.pace = draw.choice([0.05, 0.1, 0.3])

    def _bring_people(self) -> None:
        super()._bring_people()
        when = self.draw.uniform(0.3, 1.5)
        while when < self.plan.seconds:
            self.schedule.after(when, self._kill_all)
            when += self.draw.choice([1.0, 2.0, 3.0]) * self.draw.uniform(0.5, 1.2)

    def _kill_all(self) -> None:
        """One after the other, in any order, each a few steps after its turn has come or at once; all are back soon."""
        draw = self.draw
        nodes = list(self.nodes)
        draw.shuffle(nodes)
        last = 0.0
        for node in nodes:
            node.down += 1
            last += draw.choice([0.0, 0.001, 0.01, 0.1, 0.3]) * draw.random()
            if draw.random() < 0.7:
                self.schedule.after(last, self._light, node, draw.randint(0, 12))
            dies_at = last + 0.05 + 0.2 * draw.random() if draw.random() < 0.7 else last
            self.schedule.after(dies_at, faults.die, node, node.process)
        for node in nodes:
            self.schedule.after(last + 0.3 + draw.choice([0.0, 0.0, 0.5]) * draw.random(), self._bring_back, node)

    def _light(self, node: Node, steps: int) -> None:
        node.machine.fuse = steps

    def _bring_back(self, node: Node) -> None:
        faults.die(node, None)
        faults.let_up(self, node)


def run(seed: int, trace: bool = False) -> KilledTwiceWorld:
    world = KilledTwiceWorld(seed, trace)
    world.live()
    return world


if __name__ == "__main__":
    sys.exit(seeded.main("killed_twice_world", __doc__, run, figures))
