"""Worlds of nodes that keep copies of each other, while disks are lost for good; ``python -m tests.cluster.copies_world
--seeds N``. Their checks are in ``copies_model``, their faults in ``copies_faults``.
"""

from __future__ import annotations

import sys
from collections import Counter
from random import Random

from tests.cluster import seeded
from tests.cluster.copies_faults import Faults
from tests.cluster.copies_model import TROUBLE, CopiesWorld


class FaultyWorld(CopiesWorld):
    def __init__(self, seed: int, trace: bool = False) -> None:
        super().__init__(seed, trace)
        self.faults = Faults(self, Random(f"faults {seed}"), TROUBLE)

    def trouble(self) -> None:
        self.faults.step()

    def heal(self) -> None:
        self.faults.heal()


def run(seed: int, trace: bool = False) -> FaultyWorld:
    world = FaultyWorld(seed, trace)
    world.live()
    return world


def figures(world: FaultyWorld) -> Counter[str]:
    return world.books.seen + world.faults.seen


if __name__ == "__main__":
    sys.exit(seeded.main("copies_world", __doc__, run, figures))
