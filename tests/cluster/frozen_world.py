"""Worlds in which a node stands still (SIGSTOP) while messages wait for it at another node, which then dies with its
disk; ``python -m tests.cluster.frozen_world --copies 2 --seeds N``.

It stands still for shorter or longer than ``member_timeout``, then goes on with everything that has arrived. The two
nodes that are left then have to serve every CONNECT: at no time may one of them serve none for longer than
``STANDS_MAX``. With copies nothing that was acknowledged is lost, and the session of the dead node is found. Without
copies only the dead node's sessions are, and the messages that it alone had.

If only the dead node was in step, an operator gives up the data that its disk alone had, ``OPERATOR_SECONDS`` later.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Final, cast

from msgspec import structs
from tests.cluster import seeded
from tests.cluster.takeover_world import Roamer, RoamingBooks, RoamingWorld
from tests.cluster.takeover_world import figures as roaming_figures
from tests.sim import faults
from tests.sim.checkers import Promise, Sent
from tests.sim.clients import Person, Publisher
from tests.sim.copies.copied_node import CopiedNode
from tests.sim.copies.lost_disks import whole
from tests.sim.disk import Disk
from tests.sim.node import Node
from tests.sim.plan import PublisherPlan, SubscriberPlan

from starlingmq.wire.mqtt import Packet

FEW: Final = 6  # messages before the node stands still
MANY: Final = 20  # at each of the others, while it does
STANDS_MAX: Final = 12.0  # seconds of these slow worlds, with elections and disks that take 0.1 s
WATCHED: Final = 16.0  # seconds after the freeze and the death in which the others are called
OPERATOR_SECONDS: Final = 3.0


class Caller(Person):
    """It connects to one node again and again, each time with another client id. ``served``: when."""

    def __init__(self, world: FrozenWorld, node: Node) -> None:
        super().__init__(world.books, world.draw, node, f"caller at {node.host}", 5, False)
        self.served: list[float] = []
        self.reasons: Counter[int] = Counter()
        self.calls = 0

    def come(self) -> None:
        self.calls += 1
        self.name = f"caller {self.calls} at {self.node.host}"
        super().come()

    def begin(self, present: bool) -> None:
        self.served.append(self.schedule.now)
        self.schedule.after(0.0, self.cut)

    def refused(self, reason: int) -> None:
        self.reasons[reason] += 1

    def take(self, packet: Packet) -> None:
        pass

    def finished(self) -> bool:
        return True


class Writer(Publisher):
    """Its session may be lost with its node."""

    def hear(self, data: bytes) -> None:
        self.known = False
        super().hear(data)

    def may_lose_handshakes(self) -> bool:
        return True


class FrozenBooks(RoamingBooks):
    """``lost_nodes``: the nodes whose data only the lost disk had, and until when."""

    def __init__(self) -> None:
        super().__init__()
        self.lost_nodes: dict[str, float] = {}

    def begun(self, reader: str, payload: bytes) -> None:
        if reader not in self.gone:  # a message that waited for another session may come to its next subscription
            super().begun(reader, payload)

    def went_back(self, subscriber: str) -> bool:
        return subscriber in self.gone

    def received(self, subscriber: str, payload: bytes, qos: int, most: int, promises: list[Promise]) -> None:
        most = len(self.sent) if self.went_back(subscriber) else most
        super().received(subscriber, payload, qos, most, promises)

    def _owed(self, promise: Promise, sent: Sent, calm: bool) -> bool:
        if sent.at <= self.lost_nodes.get(sent.node.host, 0.0):
            return False
        return super()._owed(promise, sent, calm)


class FrozenWorld(RoamingWorld):
    def __init__(self, seed: int, trace: bool = False) -> None:
        super().__init__(seed, trace)
        self._set_size(3)
        self.books: FrozenBooks = FrozenBooks()
        self.books.refusing = self.copies > 1
        self.draw = draw = Random(f"frozen {seed}")
        plan, settings = self.plan, self.settings
        plan.kind, plan.theme, plan.faulty = "faulty", "a node stands still", True
        plan.faults, plan.rare, plan.retained = 0, [], 0.0
        plan.early = plan.joins = plan.overtaking = False
        plan.goes, plan.loss, plan.doubling = "", 0.0, 0.0
        self.losses = []
        settings.keeps = True
        timeout = settings.cluster.member_timeout
        self.lost_at = 0.0
        self.stands = timeout * draw.choice([0.3, 0.7, 1.1, 1.6, 2.1, 3.0])  # seconds
        self.dies_after = self.stands * draw.choice([0.3, 0.9, 1.0])  # from the beginning of the freeze
        self.back_after = draw.choice([0.5, 60.0])
        settings.cluster = structs.replace(settings.cluster, copy_timeout=draw.choice([8.0, 600.0]))
        plan.subscribers = [
            SubscriberPlan("reader", 2, draw.choice([4, 5]), True, [(0.0, b"#", 2)]),
            SubscriberPlan("mover", 0, draw.choice([4, 5]), True, [(0.0, b"#", 2)]),
            SubscriberPlan("other", 1, draw.choice([4, 5]), True, [(0.0, b"a/#", 1)]),
        ]
        acts = [(0.0, b"a/1", draw.choice([1, 2])) for _ in range(FEW + MANY)]
        plan.publishers = [PublisherPlan(f"writer{host}", host, draw.choice([4, 5]), True, acts) for host in (0, 1)]

    def _bring_people(self) -> None:
        for told in self.plan.subscribers:
            home = self.nodes[told.host]
            roamer = Roamer(self.books, self.random, home, told.name, told.version, True)
            roamer.homes = (home,)
            roamer.left = len(told.acts)
            self.subscribers.append(roamer)
        for written in self.plan.publishers:
            node = self.nodes[written.host]
            writer = Writer(self.books, self.random, node, written.name, written.version, True)
            writer.left = len(written.acts)
            self.publishers.append(writer)
        self.people = [*self.subscribers, *self.publishers]
        for person in self.people:
            person.come()
        for subscriber, told in zip(self.subscribers, self.plan.subscribers, strict=True):
            for _, filter, qos in told.acts:
                subscriber.subscribe(filter, qos)

    def _until(self, done: Callable[[], bool], seconds: float, complaint: str) -> None:
        end = self.schedule.now + seconds
        while not done():
            assert self.schedule.now < end, f"not within {seconds:.0f} s: {complaint}; {self.why()}"
            self._pass(0.01)

    def _write(self, count: int, seconds: float) -> None:
        """That many messages at each of the publishers, within these seconds."""
        for writer, plan in zip(self.publishers, self.plan.publishers, strict=True):
            for _, topic, qos in plan.acts[:count]:
                self.schedule.after(seconds * self.draw.random(), writer.publish, topic, qos)

    def _safety(self) -> None:
        self.books.strict = False
        self._bring_people()
        self._until(lambda: all(each.promises for each in self.subscribers), 20.0, "all have subscribed")
        self._write(FEW, 0.0)
        self._until(lambda: all(len(each.sent) == 0 and each.left == MANY for each in self.publishers), 20.0, "written")
        if self.copies > 1:
            hosts = self.hosts
            self._until(lambda: all(len(whole(self, each)) >= self.copies for each in hosts), 60.0, "all have copies")
        lost, _, frozen = self.nodes
        faults.freeze(self, frozen, self.stands)
        self._write(MANY, self.dies_after)
        self.pass_time(self.dies_after)
        self._lose(lost)
        self.pass_time(max(0.0, frozen.stalled_until - self.schedule.now))
        self._watch()

    def _lose(self, lost: Node) -> None:
        """It dies with its disk, for good or for a moment."""
        lost.down += 1
        lost.crash(False)
        if isinstance(lost, CopiedNode):
            lost.lose_disk(None)
        else:
            lost.disk = Disk(lost.machine, self.settings.span)
        self.lost_at = self.schedule.now
        if self.copies == 1:
            self._excuse(lost)

        def back() -> None:
            lost.down = max(0, lost.down - 1)
            self.start_if_wanted(lost)

        self.undo_after(self.back_after, back, "the loss of its disk")
        mover = cast(Roamer, self.subscribers[1])
        mover.homes = self.nodes[1:]

    def _excuse(self, node: Node) -> None:
        """Data that only that node had, or the dead one in its place, is gone."""
        self.books.lost_nodes[node.host] = self.lost_at
        for told in self.plan.subscribers:
            if self.nodes[told.host] is node:
                self.books.gone[told.name] = self.lost_at

    def _decide(self) -> None:
        """An operator gives up the data of which the lost disk was the only one in step."""
        there = [node for node in cast(list[CopiedNode], self.nodes) if node.life is not None and not node.damaged]
        for node in cast(list[CopiedNode], self.nodes):
            if not there or node.host in self.books.lost_nodes or whole(self, node.host):
                continue
            having = [each for each in there if each is node or node.host in each.store.copies]
            name = (node if node in having else (having or there)[0]).host
            asked = there[0].life
            assert asked is not None
            problem = asked.roles.give_up(node.host, name)
            self.trace.note(asked.host, f"is to give up the data of {node.host} to {name}: {problem or 'done'}")
            if not problem:
                self.seen["data given up by an operator"] += 1
                self._excuse(node)
        self.schedule.after(0.5, self._decide)

    def _watch(self) -> None:
        began = self.schedule.now
        if self.copies > 1:
            self.schedule.after(OPERATOR_SECONDS, self._decide)
        callers = [Caller(self, node) for node in self.nodes[1:]]
        for caller in callers:
            caller.come()
        reader = self.subscribers[0]
        reader.cut()
        while self.schedule.now < began + WATCHED:
            self._pass(0.25)
            for caller in callers:
                silent = self.schedule.now - max([began, *caller.served[-1:]])
                why = f"reasons {dict(caller.reasons)}; {self.why()}"
                assert silent < STANDS_MAX, f"{caller.node.host} serves no CONNECT for {silent:.0f} s; {why}"
        for caller in callers:
            caller.ending = True
            times = [began, *caller.served, self.schedule.now]
            gap = max(later - earlier for earlier, later in pairwise(times))
            self.seen[f"longest silence, up to {2 * (int(gap) // 2) + 2} s"] += 1
        for each in self.subscribers:
            assert each.online, f"{each.name} is not served after {WATCHED:.0f} s; {self.why()}"


def run(seed: int, trace: bool = False) -> FrozenWorld:
    world = FrozenWorld(seed, trace)
    world.live()
    return world


def figures(world: FrozenWorld) -> Counter[str]:
    ours = [what for what in world.seen if "silence" in what or "operator" in what or "frozen" in what]
    return roaming_figures(world) + Counter({what: world.seen[what] for what in ours})


if __name__ == "__main__":
    sys.exit(seeded.main("frozen_world", __doc__, run, figures))
