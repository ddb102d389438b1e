"""Roaming clients (``tests.cluster.takeover_world``) in worlds where a node leaves for good or is forgotten, and is
started again with what it had on its disk; ``python -m tests.cluster.return_world --seeds N``.

What was at that node when it was taken out may be lost; ``test_strays`` tells what of it is not. What was claimed since
is nowhere twice, and nothing comes twice at QoS 2.
"""

from __future__ import annotations

import sys
from collections import Counter
from random import Random
from typing import ClassVar

from tests.cluster import seeded
from tests.cluster.takeover_world import RoamingWorld, figures


class ReturningWorld(RoamingWorld):
    """``sets_aside``: with ``cluster.copies``, a node that was taken out sets the data on its disk aside before it
    begins (``CopyRoles``, order SetAside)."""

    sets_aside: ClassVar[bool] = False

    def __init__(self, seed: int, trace: bool = False) -> None:
        super().__init__(seed, trace)
        plan = self.plan
        self.away = Random(f"returning {seed}")
        if not plan.goes:
            plan.goes = self.away.choice(["leave", "forget"])
        plan.nodes = max(plan.nodes, 3)
        plan.faulty = True
        while len(self.nodes) < plan.nodes:
            self._add_node(f"n{len(self.nodes) + 1}")
        self.returns = 0
        self.strays = 0

    def look(self) -> None:
        super().look()
        self._see_who_left()
        node = self.nodes[0]
        if node.gone and (self.seen["forgets"] or node.host in self.left) and not self.returns:
            self.returns = 1
            self.schedule.after(self.away.choice([0.0, 0.5, 3.0]), self._start_again)

    def _start_again(self) -> None:
        node = self.nodes[0]
        self.trace.note("world", "n1 is started again, as a new node")
        if self.sets_aside and self.copies == 1:
            node.disk.wipe()
        node.gone = node.leaving = False
        node.down = 0
        self.start_if_wanted(node)
        if node.process is not None:
            self.strays = len(node.process.state.ctx.sessions)


def run(seed: int, trace: bool = False) -> ReturningWorld:
    world = ReturningWorld(seed, trace) if ReturningWorld.copies == 1 else CopiedReturningWorld(seed, trace)
    world.live()
    return world


def told(world: ReturningWorld) -> Counter[str]:
    return figures(world) + Counter({"returns": world.returns, "sessions on the disks of who returns": world.strays})


class CopiedReturningWorld(ReturningWorld):
    sets_aside = True

    def in_doubt(self) -> bool:
        """Sessions of the node that was taken out are lost: in these worlds no other node serves its data."""
        return self.returns > 0 or self.nodes[0].leaving or super().in_doubt()


def run_with_copies(seed: int, trace: bool = False) -> ReturningWorld:
    world = CopiedReturningWorld(seed, trace)
    world.live()
    return world


if __name__ == "__main__":
    sys.exit(seeded.main("return_world", __doc__, run, told))
