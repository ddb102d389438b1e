"""The worlds of ``tests.cluster.takeover_world`` with rolling restarts, several in each:
``python -m tests.cluster.drain_world --seeds N``.

- *plain*: nothing else happens. No session is ever lost, even on nodes that store nothing.
- *crash*: the draining node, or another one, dies during the drain.
- *etcd*: no node reaches etcd for a while.
- *cut*: two nodes cannot reach each other for a while.
"""

from __future__ import annotations

import sys
from collections import Counter

from tests.cluster import seeded
from tests.cluster.takeover_world import RoamingWorld
from tests.sim import faults
from tests.sim.clients import Publisher
from tests.sim.node import Node, Process

KINDS = ("plain", "crash", "plain", "etcd", "plain", "cut")
DRAIN_SECONDS = 8.0  # as shutdown_timeout
LOOK_SECONDS = 0.05


class Settled(Publisher):
    """Comes back to its node; its session was elsewhere meanwhile, perhaps on a node that cannot be reached."""

    def hear(self, data: bytes) -> None:
        world = self.node.world
        assert isinstance(world, RoamingWorld)
        self.known = self.known and world.strict()
        super().hear(data)


class DrainWorld(RoamingWorld):
    publisher = Settled

    def __init__(self, seed: int, trace: bool = False) -> None:
        super().__init__(seed, trace)
        plan = self.plan
        self.what = KINDS[seed % len(KINDS)]
        plan.faulty = self.what != "plain"
        plan.kind, plan.faults, plan.rare = ("faulty" if plan.faulty else "calm"), 0, []
        plan.joins, plan.goes, plan.early, plan.overtaking = False, "", False, False
        plan.loss = plan.doubling = 0.0
        self.drained = 0  # restarts before which all was given away
        self.handed = 0  # sessions
        self._order = list(range(plan.nodes))
        self.more.shuffle(self._order)

    def _bring_people(self) -> None:
        super()._bring_people()
        self._restart(0)

    def _restart(self, turn: int) -> None:
        """The next node, once all serve again."""
        if self.healed:
            return
        if not self._all_serve():
            self.schedule.after(0.1, self._restart, turn)
            return
        node = self.nodes[self._order[turn % len(self._order)]]
        process = node.process
        assert process is not None
        self.trace.note("world", f"{node.host} is told to stop")
        process._enter(lambda now: process.cluster.begin_drain(now, DRAIN_SECONDS))
        self.schedule.after(self.more.uniform(0.0, 1.5), self._disturb, node)
        self._look_at(node, process, turn, self.schedule.now + DRAIN_SECONDS)

    def _disturb(self, node: Node) -> None:
        if self.what == "crash":
            victim = self.more.choice([node, self.more.choice(self.nodes)])
            faults.die(victim, None)
            self.schedule.after(self.more.uniform(0.1, 1.0), self.start_if_wanted, victim)
        elif self.what == "etcd":
            for _ in self.nodes:
                self.schedule.after(self.more.uniform(0.5, 4.0), faults.cut_from_etcd(self, self.more))
        elif self.what == "cut":
            self.schedule.after(self.more.uniform(0.5, 4.0), faults.cut_pair(self, self.more))

    def _look_at(self, node: Node, process: Process, turn: int, until: float) -> None:
        if node.process is process and not self.healed:
            drain = process.cluster.drain
            done = drain.done and process.cluster.flushed()
            if not done and self.schedule.now < until:
                self.schedule.after(LOOK_SECONDS, self._look_at, node, process, turn, until)
                return
            self.trace.note("world", f"{node.host} ends, {drain.sessions_left} sessions are left")
            self.drained += done and not drain.sessions_left
            self.handed += drain.handed
            if not self.settings.keeps:
                node.disk.wipe()
                self.books.lossy = self.books.lossy or not done or drain.sessions_left > 0
            node.process = None
            process.die()
            self.network.changed_at = self.schedule.now
        elif node.process is process:
            process._enter(lambda now: process.cluster.end_drain())
        self.schedule.after(self.more.uniform(0.1, 1.0), self._up_again, node, turn)

    def _up_again(self, node: Node, turn: int) -> None:
        self.start_if_wanted(node)
        self.schedule.after(self.more.uniform(0.0, 1.0), self._restart, turn + 1)

    def _liveness(self) -> None:
        self.healed = True
        for node in self.nodes:
            process = node.process
            if process is not None and process.cluster.drain.active:
                process._enter(lambda now, process=process: process.cluster.end_drain())
        super()._liveness()


def run(seed: int, trace: bool = False) -> DrainWorld:
    world = DrainWorld(seed, trace)
    world.live()
    return world


def figures(world: DrainWorld) -> Counter[str]:
    seen = Counter({"restarts after which nothing was left": world.drained, "sessions handed over": world.handed})
    seen["subscriptions of sessions that were not found"] = len(world.books.lost)
    return seen


if __name__ == "__main__":
    sys.exit(seeded.main("drain_world", __doc__, run, figures))
