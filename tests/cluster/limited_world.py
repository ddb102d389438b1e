"""Worlds of ``tests.sim`` whose queues are short: a node goes, others accept many messages for its sessions, and it is
back; ``python -m tests.cluster.limited_world --seeds N``.

While a node is there, fewer messages are published for its sessions than their queues take, so none may be dropped,
whenever it dies again, and in whatever order its clients return.
"""

from __future__ import annotations

import sys
from collections import Counter
from random import Random

from msgspec import structs
from tests.cluster import seeded
from tests.sim import faults
from tests.sim.node import Node
from tests.sim.plan import PublisherPlan, SubscriberPlan
from tests.sim.world import World

from starlingmq.core.context.ready import Event

LIMIT = 20  # messages of a queue: more than all that is published when everything is well
FEW = 3  # published for each session while its node is there
MANY = 80
SETTLE_SECONDS = 1.5  # until clients have subscribed


class LimitedWorld(World):
    def __init__(self, seed: int, trace: bool = False) -> None:
        super().__init__(seed, trace)
        draw = self.draw = Random(f"limited {seed}")
        plan, settings = self.plan, self.settings
        plan.kind, plan.theme, plan.faulty = "faulty", "limited", True
        plan.faults, plan.rare, plan.retained = 0, [], 0.0
        plan.early = plan.joins = plan.overtaking = False
        plan.goes, plan.loss, plan.doubling = "", 0.0, 0.0
        while len(self.nodes) < 3:
            self._add_node(f"n{len(self.nodes) + 1}")
        settings.keeps, settings.power = True, draw.random() < 0.3
        settings.mqtt = structs.replace(settings.mqtt, max_mqueue_len=LIMIT)
        settings.limits = structs.replace(settings.limits, publisher_hold=draw.choice([0.0, 0.1, 1.0]))
        self.goes_at = SETTLE_SECONDS + draw.uniform(0.2, 1.0)
        self.cut_off = draw.random() < 0.3  # otherwise it is killed
        self.away = 3.0 if self.cut_off else draw.choice([0.5, 3.0])  # seconds; a shorter cut would delay messages only
        plan.seconds = self.goes_at + self.away + draw.uniform(1.0, 3.0)
        plan.subscribers = [
            SubscriberPlan(f"sub{number}", 0, draw.choice([4, 5]), True, [(0.0, b"a/#", draw.choice([1, 2]))])
            for number in range(draw.randint(1, 3))
        ]
        plan.publishers = [self._publisher(draw, number) for number in range(draw.randint(1, 2))]
        self.many = sum(len(each.acts) for each in plan.publishers)
        self.dropped: Counter[str] = Counter()

    def _publisher(self, draw: Random, number: int) -> PublisherPlan:
        qos = draw.choice([1, 2])
        few = [draw.uniform(SETTLE_SECONDS, self.goes_at) for _ in range(FEW // 2)]
        many = [self.goes_at + 0.05 + (self.away - 0.3) * draw.random() for _ in range(draw.randint(LIMIT, MANY))]
        acts = [(when, b"a/1", qos) for when in sorted([*few, *many])]
        return PublisherPlan(f"pub{number}", draw.choice([1, 2]), draw.choice([4, 5]), True, acts)

    def event(self, event: Event) -> None:
        if event.kind == "dropped":
            self.dropped[event.detail] += 1

    def _bring_people(self) -> None:
        super()._bring_people()
        draw, schedule, node = self.draw, self.schedule, self.nodes[0]
        back_at = self.goes_at + self.away
        if self.cut_off:
            others = [other for other in self.hosts if other != node.host]
            ways = [(node.host, other) for other in others] + [(other, node.host) for other in others]
            schedule.after(self.goes_at, self.network.cut, ways)
            schedule.after(back_at, self.network.heal, ways)
        else:
            schedule.after(self.goes_at, self._kill, node, 0)
            schedule.after(back_at, faults.let_up, self, node)
        for _ in range(draw.choice([0, 0, 1, 2])):  # it dies again, when it has some of what waited
            back_at += draw.choice([0.3, 1.0]) * draw.random()
            schedule.after(back_at, self._kill, node, draw.randint(1, 30))
            back_at += 0.5
            schedule.after(back_at, self._kill, node, 0)
            schedule.after(back_at, faults.let_up, self, node)
            schedule.after(back_at, faults.let_up, self, node)

    def _kill(self, node: Node, steps: int) -> None:
        """At once, or after so many steps."""
        node.down += 1
        if steps:
            node.machine.fuse = steps
        else:
            faults.die(node, None)


def run(seed: int, trace: bool = False) -> LimitedWorld:
    world = LimitedWorld(seed, trace)
    world.live()
    assert not world.dropped["queue_full"], world.dropped
    return world


def figures(world: LimitedWorld) -> Counter[str]:
    crashes = sum(len(node.crashes) for node in world.nodes)
    return Counter({"acknowledged": world.books.acknowledged_count, "crashes": crashes})


if __name__ == "__main__":
    sys.exit(seeded.main("limited_world", __doc__, run, figures))
