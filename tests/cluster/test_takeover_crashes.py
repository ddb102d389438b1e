"""A session goes to another node, and one of the two dies after each step of it: nothing is lost, whoever it was."""

from __future__ import annotations

import pytest
from tests.cluster.takeover_world import Roamer, RoamingWorld
from tests.sim.clients import Publisher
from tests.sim.node import Node
from tests.sim.world import LIVENESS_MAX

pytestmark = pytest.mark.slow

STEPS = 14  # appends, batches and frames after which a node dies


def made() -> RoamingWorld:
    """Three nodes that keep what they store and serve, without clients."""
    for seed in range(1000):
        world = RoamingWorld(seed)
        plan = world.plan
        if not plan.faulty and plan.nodes == 3 and plan.settings.keeps and plan.settings.span != 3:
            plan.faulty = True  # as far as the checkers go: a session may not be found while its node is down
            world.form()
            return world
    raise AssertionError("no seed draws such a world")


def clients_of(world: RoamingWorld, home: Node, other: Node, messages: int) -> tuple[Roamer, Publisher]:
    """Somebody who is at home, has subscribed to a/#, and will go; and a publisher of so many messages."""
    roamer = Roamer(world.books, world.random, home, "roamer", 5, True)
    publisher = Publisher(world.books, world.random, other, "publisher", 5, True)
    world.subscribers, world.publishers, world.people = [roamer], [publisher], [roamer, publisher]
    roamer.left, publisher.left = 1, messages
    roamer.homes = [home]
    roamer.come()
    publisher.come()
    roamer.subscribe(b"a/#", 2)
    world.pass_time(1.0)
    return roamer, publisher


@pytest.mark.parametrize("victim", ["former owner", "new owner"])
def test_a_crash_at_each_step(victim: str) -> None:
    for step in range(STEPS):
        crash_at(step, victim)


def crash_at(step: int, victim: str) -> None:
    world = made()
    here, there, other = world.nodes
    roamer, publisher = clients_of(world, here, other, 10)
    roamer.homes = [there]
    roamer.cut()
    for number in range(6):
        publisher.publish(b"a/1", 1 + number % 2)
    world.pass_time(0.04)
    dies = here if victim == "former owner" else there
    dies.machine.fuse = step
    world.pass_time(1.0)
    dies.machine.fuse = 1 << 60
    if dies.process is not None:
        dies.crash(False)
    world.pass_time(0.5)
    world.start_if_wanted(dies)
    roamer.homes = []
    for number in range(4):
        publisher.publish(b"a/1", 1 + number % 2)
    world._wait(world._balanced, LIVENESS_MAX, f"step {step}")
    world._wait(lambda: not world.unsettled(), LIVENESS_MAX, f"step {step}")
    got = {payload for (name, _), each in world.books.got.items() if name == "roamer" for payload in each}
    assert len(got) == 10, f"step {step}: {len(got)} of 10 messages came"
