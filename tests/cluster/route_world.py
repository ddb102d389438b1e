"""``python -m tests.cluster.route_world --seeds N``: nodes that tell each other their routes, over a bus that loses,
doubles and reorders, with partitions, and crashes after which what was stored is there, cut short, or gone.

What is looked at after every turn of a node:

- what its router knows of another node is what that node had at the version that the vector says, exactly;
- when ``applied_by`` says that a version is in effect at some nodes, their routers have it.

At the end the faults stop. Then all routers know what everybody wants, all vectors are equal, and nothing is to do.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from random import Random
from typing import Any
from unittest.mock import patch

from tests.planting import Together

from starlingmq.cluster.links.control_frames import Heartbeat, Membership, RouteSnapshot
from starlingmq.cluster.links.peer_frames import Body, RouteRecords
from starlingmq.cluster.routes import own_routes, route_table
from starlingmq.cluster.routes.route_table import RouteTable

NOBODY = Membership(0, ())
KEYS = [b"k/%d" % number for number in range(12)]

SMALL = Together(
    patch.object(own_routes, "FRAME_RECORDS", 3),
    patch.object(own_routes, "CHUNK_RECORDS", 2),
    patch.object(own_routes, "HISTORY_LENGTH", 4),
    patch.object(route_table, "TURN_RECORDS", 5),
    patch.object(route_table, "PEER_RECORDS", 2),
)
"""Bounds that a dozen routes reach. Compiled code does not look at them: its worlds are larger than they should be."""


class Node:
    """A node of the world; ``routes`` is None while it is down."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.incarnation = 0
        self.disk: list[tuple[bytes, bytes | None]] = []
        self.wants: dict[bytes, int] = {}
        self.routes: Any = None
        self.start()

    def start(self) -> None:
        facts: dict[bytes, bytes] = {}
        for key, value in self.disk:
            if value is None:
                facts.pop(key, None)
            else:
                facts[key] = value
        self.incarnation += 1
        self.view: dict[int, dict[bytes, int]] = {}
        self.seen: dict[int, int] = {}  # newest incarnation that anything came from
        self.beaten: dict[int, int] = {}  # and a heartbeat
        self.waiting: list[int] = []  # versions that a SUBACK waits for
        self.told: tuple[int, int] = (0, 0)
        self.numbers = 0
        self.routes = RouteTable(self.number, self.incarnation, facts, self.world.log_length)
        self.note_told()
        self.routes.restart(self.wants)
        self.note_told()
        for number in self.world.gone:
            if number in self.routes.nodes():
                self.routes.member_gone(number)

    def note_told(self) -> None:
        """Remember what the routes are at each version that there is now."""
        own = self.routes._own
        truth = self.world.truth
        if self.told[0] != own.epoch:
            self.told = (own.epoch, own.history[-1][1] - 1)
            assert own.version == self.told[1]
            truth[(self.number, *self.told)] = dict(own.table)
        table = dict(truth[(self.number, *self.told)])
        for record in own._log[self.told[1] + 1 - own._log_first :]:
            if record.value:
                table[record.key] = record.value
            else:
                del table[record.key]
            self.told = (own.epoch, self.told[1] + 1)
            truth[(self.number, *self.told)] = dict(table)
        assert own.version == self.told[1] and own.table == table

    def want(self, random: Random) -> None:
        records = [(random.choice(KEYS), random.choice([0, 0, 1, 2, 3])) for _ in range(random.choice([1, 1, 2, 9]))]
        for key, value in records:
            self.wants[key] = value
            if not value:
                del self.wants[key]
        version = self.routes.originate(records)
        self.note_told()
        if version:  # else there never was anything that others would have to know
            self.waiting.append(version)

    def crash(self, random: Random) -> None:
        self.routes = None
        how = random.random()
        if how < 0.1:
            self.disk = []
        elif how < 0.6:
            del self.disk[max(0, len(self.disk) - random.randint(0, 25)) :]
        if random.random() < 0.5:  # sessions that ended with it
            self.wants = {key: value for key, value in self.wants.items() if random.random() < 0.7}

    def beat(self) -> None:
        routes = self.routes
        self.numbers += 1
        beat = Heartbeat(
            routes.epoch, routes.version, routes.vector(), {}, frozenset(), True, NOBODY, {}, self.numbers, {}
        )
        self.world.send(self, None, beat)

    def turn(self) -> None:
        for number, key, value in self.routes.take_changes():
            table = self.view.setdefault(number, {})
            assert table.get(key, 0) != value or number in self.world.gone, "a change that changes nothing"
            table[key] = value
            if not value:
                del table[key]
        if self.waiting and self.number % 2:  # the others learn it from heartbeats
            self.routes.confirm(self.waiting[-1])
        for target, body in self.routes.take_out():
            self.world.send(self, target, body)
        self.disk += self.routes.take_facts()
        self.check()

    def take(self, source: int, incarnation: int, body: Body) -> None:
        if incarnation < self.seen.get(source, 0) or source in self.world.gone:
            return
        self.seen[source] = incarnation
        if isinstance(body, Heartbeat):
            self.beaten[source] = incarnation
            self.routes.heartbeat(source, body, self.world.now)
        else:
            self.routes.received(source, body, self.world.now)

    def check(self) -> None:
        vector = self.routes.vector()
        for number, peer in self.routes._peers.items():
            if number in vector and peer._target is None:
                truth = self.world.truth[(number, *vector[number])]
                view = self.view.get(number, {})
                assert view == truth, f"{self.number} has of {number} at {vector[number]}: {view}, not {truth}"
        nodes = self.world.nodes
        present = [number for number, beat in self.beaten.items() if nodes[number].incarnation == beat]
        present = [number for number in present if number not in self.world.gone]
        applied = self.routes.applied_by(present)
        for version in [version for version in self.waiting if version <= applied]:
            self.waiting.remove(version)
            for number in present:
                other = nodes[number].routes
                if other is not None:
                    held = other.vector().get(self.number, (0, 0))
                    truth = self.world.truth.get((self.number, *held), {})
                    same = truth == self.world.truth[(self.number, self.incarnation, version)]
                    assert held >= (self.incarnation, version) or same, f"SUBACK of {version}; {number} is at {held}"


class World:
    """One seed."""

    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.log_length = random.choice([0, 4, 20, 100])
        self.loss = random.choice([0.0, 0.1, 0.3])
        self.doubling = random.choice([0.0, 0.1, 0.3])
        self.reordering = random.random() < 0.6
        self.truth: dict[tuple[int, int, int], dict[bytes, int]] = {}
        self.bus: list[tuple[int, int, int, Body]] = []
        self.cut: set[tuple[int, int]] = set()
        self.gone: list[int] = []
        self.now = 1000.0
        self.nodes: dict[int, Node] = {}
        self.records_sent = 0
        for number in range(1, random.randint(2, 5) + 1):
            self.nodes[number] = Node(self, number)

    def send(self, source: Node, target: int | None, body: Body) -> None:
        targets = [number for number in self.nodes if number != source.number] if target is None else [target]
        for number in targets:
            if number not in self.gone:
                self.bus.append((source.number, source.incarnation, number, body))
                if isinstance(body, RouteRecords | RouteSnapshot):
                    self.records_sent += len(body.records)

    def deliver(self) -> None:
        random = self.random
        at = random.randrange(len(self.bus)) if self.reordering else 0
        chance = random.random()
        if chance < self.doubling:
            source, incarnation, target, body = self.bus[at]
        else:
            source, incarnation, target, body = self.bus.pop(at)
        node = self.nodes[target]
        if node.routes is not None and (source, target) not in self.cut and random.random() >= self.loss:
            node.take(source, incarnation, body)

    def act(self) -> None:
        random = self.random
        chance = random.random()
        node = random.choice(self.up() or list(self.nodes.values()))
        if node.routes is None:
            node.start()
        if chance < 0.45:
            if self.bus:
                self.deliver()
        elif chance < 0.75:
            node.turn()
        elif chance < 0.85:
            node.want(random)
        elif chance < 0.93:
            node.beat()
            self.now += random.choice([0.0, 0.1, 0.5])
        elif chance < 0.96:
            node.crash(random)
        elif chance < 0.985:
            down = [node for node in self.nodes.values() if node.routes is None and node.number not in self.gone]
            if down:
                random.choice(down).start()
        elif chance < 0.998:
            numbers = list(self.nodes)
            self.cut = {(a, b) for a in numbers for b in numbers if random.random() < random.choice([0.0, 0.3, 1.0])}
        elif len(self.nodes) - len(self.gone) > 2:
            self.forget(node)

    def up(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.routes is not None and node.number not in self.gone]

    def forget(self, node: Node) -> None:
        node.routes = None
        self.gone.append(node.number)
        for other in self.up():
            other.routes.member_gone(node.number)

    def flush(self) -> None:
        """Everything is delivered, and everybody does what there is to do, until nothing moves."""
        for _ in range(2000):
            for source, incarnation, target, body in self.bus[:]:
                if self.nodes[target].routes is not None and target not in self.gone:
                    self.nodes[target].take(source, incarnation, body)
            self.bus.clear()
            for node in self.up():
                node.turn()
            if not self.bus and not any(node.routes.pending() for node in self.up()):
                return
        raise AssertionError("they never come to rest")

    def heal(self) -> None:
        self.loss = self.doubling = 0.0
        self.cut = set()
        for node in self.nodes.values():
            if node.routes is None and node.number not in self.gone:
                node.start()
        for _ in range(4):
            self.now += 1.5
            for node in self.up():
                node.beat()
            self.flush()

    def check_end(self) -> None:
        up = self.up()
        for node in up:
            assert node.routes.vector() == up[0].routes.vector(), "vectors differ"
            assert not node.waiting, "a SUBACK still waits"
            for other in up:
                assert other is node or node.view.get(other.number, {}) == other.wants, "a table is not what is wanted"
                assert other is node or node.routes.caught_up(other.number)
            assert not any(node.view.get(number) for number in self.gone), "routes of a node that is gone"
            assert set(node.routes.nodes()) == {other.number for other in up if other is not node}

    def live(self, acts: int = 250) -> None:
        for _ in range(acts):
            self.act()
        self.heal()
        self.check_end()


def run(seed: int) -> World:
    with SMALL:
        world = World(seed)
        world.live()
    return world


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.route_world", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    began = time.perf_counter()
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            run(seed)
        except Exception:
            traceback.print_exc(limit=-6)
            print(
                f"FAILED seed {seed}; again: python -m tests.cluster.route_world --first {seed} --seeds 1", flush=True
            )
            return 1
    print(f"{arguments.seeds} seeds, {time.perf_counter() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
