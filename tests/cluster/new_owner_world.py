"""Worlds with copies in which a node dies for good in the middle of a takeover, its disk with it, at each step of what
it does then; ``python -m tests.cluster.new_owner_world --copies 2 --seeds N``.

A client with messages in flight and in its queue goes to another node. The new owner or the former one dies a few steps
of its disk later, or a moment later. The client then has to find its session at a node that is left, within seconds,
with everything that was acknowledged, each message once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random
from typing import Final, cast

from msgspec import structs
from tests.cluster import seeded
from tests.cluster.takeover_world import Roamer, RoamingWorld, figures
from tests.sim.clients import Publisher
from tests.sim.copies.copied_node import CopiedNode
from tests.sim.copies.lost_disks import whole
from tests.sim.plan import PublisherPlan, SubscriberPlan

from starlingmq.wire.mqtt import Packet, Publish

MESSAGES: Final = 12
IN_FLIGHT: Final = 3
STEPS: Final = 24  # of a disk, from the CONNECT at the new owner on
MOMENT: Final = 0.4  # seconds after which the node dies that had fewer to do
SERVED_SECONDS: Final = 12.0  # of these slow worlds, with elections and disks that take 0.1 s


class Mover(Roamer):
    """It reads no message before it is ``awake``: those in flight stay so."""

    awake = False
    found: bool | None = None  # the last CONNACK said that its session was present

    def take(self, packet: Packet) -> None:
        if self.awake or not isinstance(packet, Publish):
            super().take(packet)

    def begin(self, present: bool) -> None:
        self.found = present
        super().begin(present)


class NewOwnerWorld(RoamingWorld):
    """Even seeds kill the new owner, odd ones the former one; ``seed // 2 % STEPS`` is the number of its steps."""

    def __init__(self, seed: int, trace: bool = False) -> None:
        super().__init__(seed, trace)
        self._set_size(3)
        self.draw = draw = Random(f"new owner {seed}")
        plan = self.plan
        plan.kind, plan.theme, plan.faulty = "faulty", "a takeover is cut short", True
        plan.faults, plan.rare, plan.retained = 0, [], 0.0
        plan.early = plan.joins = plan.overtaking = False
        plan.goes, plan.loss, plan.doubling = "", 0.0, 0.0
        self.losses = []
        settings = self.settings
        settings.mqtt = structs.replace(settings.mqtt, max_inflight=IN_FLIGHT)
        acts = [(0.0, b"a/1", 2)] * MESSAGES
        plan.subscribers = [SubscriberPlan("mover", 0, draw.choice([4, 5]), True, [(0.0, b"a/1", 2)])]
        plan.publishers = [PublisherPlan("writer", draw.choice([0, 2]), 5, True, acts)]
        self.steps = seed // 2 % STEPS
        self.kills_new = seed % 2 == 0
        self.back_after = draw.choice([0.5, 60.0])

    def _add_node(self, host: str) -> CopiedNode:
        return cast(CopiedNode, super()._add_node(host))

    def _bring_people(self) -> None:
        plan = self.plan.subscribers[0]
        mover = self.mover = Mover(self.books, self.random, self.nodes[0], plan.name, plan.version, True)
        mover.homes = (self.nodes[0],)
        self.subscribers.append(mover)
        mover.left = 1
        told = self.plan.publishers[0]
        writer = Publisher(self.books, self.random, self.nodes[told.host], told.name, told.version, True)
        writer.left = MESSAGES
        self.publishers.append(writer)
        self.people = [mover, writer]
        for person in self.people:
            person.come()
        mover.subscribe(b"a/1", 2)

    def _until(self, done: Callable[[], bool], seconds: float, complaint: str) -> float:
        """In small steps: the seconds that it took."""
        began = self.schedule.now
        while not done():
            assert self.schedule.now < began + seconds, f"not within {seconds:.0f} s: {complaint}; {self.why()}"
            self._pass(0.01)
        return self.schedule.now - began

    def _safety(self) -> None:
        self.books.strict = False
        self._bring_people()
        mover, writer = self.mover, self.publishers[0]
        self._until(lambda: bool(mover.promises) and writer.online, 20.0, "the mover is subscribed")
        for _, topic, qos in self.plan.publishers[0].acts:
            writer.publish(topic, qos)
        self._until(writer.finished, 20.0, "all is published")
        hosts = self.hosts
        self._until(lambda: all(len(whole(self, each)) >= self.copies for each in hosts), 60.0, "all have copies")
        former, new = cast(list[CopiedNode], self.nodes[:2])
        lost = new if self.kills_new else former
        mover.homes = (new,)
        mover.hop()
        self._until(lambda: mover.connection is not None and mover.node is new, 10.0, "it comes to the new owner")
        self._cut_short(lost)
        mover.homes = tuple(node for node in self.nodes if node is not lost)
        mover.found, mover.awake = None, True
        mover.cut()  # it reads what was in flight on its next connection
        took = self._until(lambda: mover.found is not None, 60.0, "the mover is served again")
        self.seen["seconds until it was served"] += round(took)
        assert mover.found, f"the session is lost, {took:.1f} s after {lost.host} died"
        self.took = took
        assert took < SERVED_SECONDS, f"the session is found after {took:.1f} s"

    def _cut_short(self, lost: CopiedNode) -> None:
        """It dies for good, at most ``steps`` steps from now."""
        lost.machine.fuse = self.steps
        lost.down += 1
        end = self.schedule.now + MOMENT
        while lost.running and self.schedule.now < end:
            self._pass(0.001)
        if lost.running:
            lost.crash(False)
        lost.lose_disk(None)
        self.seen["disks lost"] += 1

        def back() -> None:
            lost.down = max(0, lost.down - 1)
            self.start_if_wanted(lost)

        self.undo_after(self.back_after, back, "the loss of its disk")


def run(seed: int, trace: bool = False) -> NewOwnerWorld:
    world = NewOwnerWorld(seed, trace)
    world.live()
    return world


if __name__ == "__main__":
    sys.exit(seeded.main("new_owner_world", __doc__, run, figures))
