"""Worlds of copies in which the disk of the last node in step is lost, while followers have older copies;
``python -m tests.cluster.copies_last_disk --seeds N``.

Nothing is served without what was acknowledged until the operator gives it up, once all nodes are back. The operator
chooses the fullest copy; from then on the laws of ``copies_model`` hold for what that copy had.
"""

from __future__ import annotations

import sys
from random import Random

from tests.cluster import seeded
from tests.cluster.copies_disk import Disk
from tests.cluster.copies_faults import Faults
from tests.cluster.copies_model import TROUBLE
from tests.cluster.copies_world import FaultyWorld, figures

PATIENCE = 3.0  # seconds after which the operator decides


class LastDiskFaults(Faults):
    def __init__(self, world: LastDiskWorld, random: Random, seconds: float) -> None:
        super().__init__(world, random, seconds)
        for _ in range(2):
            self._pending.append((world.schedule.now + random.uniform(5.0, seconds), self.leave_behind))

    def leave_behind(self) -> bool:
        """All nodes but one are away for longer than they stay in step. Then that one loses its disk."""
        name = self._anyone()
        for other in self.world.nodes:
            if other != name and self._kill(other):
                self.world.schedule.after(self.random.choice([6.0, 12.0]), self.world.start, other)
        self.world.schedule.after(5.0, self._lose_last, name)
        return True

    def _lose_last(self, name: str) -> None:
        node = self.world.nodes[name]
        if self._kill(name):
            node.damaged = node.incarnation
            node.disk = self.random.choice([Disk(), self._old_disk(name)])
            self.world.trace.note(name, f"has another disk, with {sorted(node.disk.incarnations)}")
            self.seen["last disk lost"] += 1
            self._restart_later(name)


class LastDiskWorld(FaultyWorld):
    def __init__(self, seed: int, trace: bool = False) -> None:
        super().__init__(seed, trace)
        self.faults = LastDiskFaults(self, Random(f"faults {seed}"), TROUBLE)
        self._lost_since: dict[str, float] = {}
        self._known: dict[str, int] = {}

    def _step(self) -> None:
        super()._step()
        away = [name for name, node in self.nodes.items() if node.process is None and not node.lost]
        for origin in self.nodes:
            record = self.record(origin)
            if record is None or self.whole(origin) or away:
                self._lost_since.pop(origin, None)
            elif self.schedule.now >= self._lost_since.setdefault(origin, self.schedule.now) + PATIENCE:
                self._give_up(origin)

    def _give_up(self, origin: str) -> None:
        logs = {process.name: process.node.disk.log(origin) for process in self.processes()}
        name = max(logs, key=lambda each: (logs[each].generation, len(logs[each].items), each == origin))
        asked = self.random.choice(self.processes())
        problem = asked.copies.give_up(origin, name)
        self.trace.note(asked.name, f"is asked to give up {origin}, so that {name} serves: {problem or 'done'}")
        asked.turn()

    def _check_listed(self) -> None:
        for origin in self.nodes:
            record = self.record(origin)
            if record is not None and record.given_up > self._known.get(origin, 0):
                self._known[origin] = record.given_up
                assert not self.was_whole(origin), f"{origin} was given up, and a node has everything"
                self.books.acked.get(origin, set()).intersection_update(
                    self.nodes[record.server].disk.log(origin).items
                )
                self.books.seen["given up"] += 1
        super()._check_listed()

    def was_whole(self, origin: str) -> list[str]:
        """The nodes that were in step before the newest change, and whose disks are what that record means."""
        listed = self._listed.get(origin, {})
        return [name for name, incarnation in listed.items() if incarnation > self.nodes[name].damaged]


def run(seed: int, trace: bool = False) -> LastDiskWorld:
    world = LastDiskWorld(seed, trace)
    world.live()
    return world


if __name__ == "__main__":
    sys.exit(seeded.main("copies_last_disk", __doc__, run, figures))
