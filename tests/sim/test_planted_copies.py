"""Mistakes made on purpose are found by worlds in which disks are lost: the checkers can fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from tests.cluster.test_takeover_crashes import mute
from tests.sim.clients import Publisher, Subscriber
from tests.sim.copies.copied_node import CopiedNode
from tests.sim.copies.machine_life import CopiedProcess
from tests.sim.copies.sim_pipe import SimPipe
from tests.sim.node import Node
from tests.sim.recording import formed
from tests.sim.world import World

from starlingmq.storage.copies.copy_source import CopySource

pytestmark = pytest.mark.interpreted_only("compiled classes cannot be patched")


def forgets_what_was_between_nodes(begin: Callable[[CopiedProcess], None]) -> Callable[[CopiedProcess], None]:
    def wrong(self: CopiedProcess) -> None:
        if self.name != self.node.host:
            for link in self.state.ctx.cluster.links.values():
                link.queue = link.window = None
        begin(self)

    return wrong


def waits_for_this_disk_alone(self: CopySource, local: Awaitable[None] | None) -> Awaitable[None] | None:
    self.stored_before = self._confirmed = self.journal.next
    return local


def people_at(world: World, home: Node, there: Node) -> Publisher:
    """A publisher at home, and a subscriber there."""
    subscriber = Subscriber(world.books, world.random, there, "subscriber", 5, True)
    publisher = Publisher(world.books, world.random, home, "publisher", 5, True)
    world.subscribers, world.publishers, world.people = [subscriber], [publisher], [subscriber, publisher]
    subscriber.left = publisher.left = 1
    subscriber.come()
    publisher.come()
    subscriber.subscribe(b"a/#", 1)
    world.pass_time(3.0)
    return publisher


def test_a_publish_is_acknowledged_once_a_copy_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """While what its node sends to the copies is on its way, the client waits."""
    world = formed("copies 2")
    arrive = SimPipe._arrive
    held: list[SimPipe] = []
    try:
        home = world.nodes[0]
        publisher = people_at(world, home, home)
        assert isinstance(home, CopiedNode)
        monkeypatch.setattr(
            SimPipe, "_arrive", lambda self: held.append(self) if self.life.host == home.host else arrive(self)
        )
        publisher.publish(b"a/1", 1)
        world.pass_time(0.3)
        assert held and not publisher.finished(), "acknowledged before the copy"
        monkeypatch.setattr(SimPipe, "_arrive", arrive)
        for pipe in held:
            pipe._arrive()
        world._wait(publisher.finished, 10.0, "it is not acknowledged")
    finally:
        world.close()


def test_an_acknowledgement_before_the_copy_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CopySource, "copied", waits_for_this_disk_alone)
    with pytest.raises(AssertionError, match="acknowledged before the copy"):
        test_a_publish_is_acknowledged_once_a_copy_has_it(monkeypatch)


def test_what_was_between_nodes_comes_from_the_copy() -> None:
    """A message was accepted, for a subscriber at a node that was not reached; then its node dies, with its disk."""
    world = formed("copies 2")
    try:
        lose_a_node_with_a_message_for_another(world)
    finally:
        world.close()


def lose_a_node_with_a_message_for_another(world: World) -> None:
    home, there, _ = world.nodes
    publisher = people_at(world, home, there)
    mute(world, [(home, there), (there, home)])
    publisher.publish(b"a/1", 1)
    world.pass_time(1.0)
    assert publisher.finished() and not world.books.got
    home.down += 1
    home.crash(False)
    assert isinstance(home, CopiedNode)
    home.lose_disk(None)
    mute(world)
    world._wait(lambda: bool(world.books.got), 10.0, "it does not come")


def test_a_takeover_that_loses_what_was_between_nodes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CopiedProcess, "begin", forgets_what_was_between_nodes(CopiedProcess.begin))
    with pytest.raises(AssertionError, match="it does not come"):
        test_what_was_between_nodes_comes_from_the_copy()
