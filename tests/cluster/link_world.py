"""Two nodes and the link between them, over ways that lose, duplicate and reorder, with crashes of both and slow
commits;
``python -m tests.cluster.link_world --seeds N``.

Each node has messages for the other, keeps them until they are acknowledged, and drops received ones that it has stored
already by their numbers, as the layer above does. The invariants:

- between two living incarnations messages are delivered once and in order, with nothing to drop;
- acknowledged messages are stored; the stored ones are a prefix of the sent ones, in order;
- the messages that a receiver has not stored yet are bounded by its window;
- when the faults end, everything arrives and is acknowledged, and nothing is left to do.
"""

from __future__ import annotations

import argparse
import sys
import time
from math import inf
from random import Random

from starlingmq.cluster.links.peer_frames import Data, DataAck
from starlingmq.cluster.links.peer_link import PeerLink

WINDOW = 60
LARGEST = 100
RESEND = 1.0

Body = Data | DataAck | int  # int: a node's incarnation, as in a heartbeat


class Node:
    def __init__(self, world: World, name: int) -> None:
        self.world = world
        self.name = name
        self.incarnation = 0
        self.known = 0  # incarnation of the other one
        self.journal: list[int] = []  # numbers of all messages for the other one; blobs are made of them
        self.cursor = 0  # how many of them the other one has acknowledged, as far as that is stored
        self.stored: list[int] = []
        self.start()

    def start(self) -> None:
        self.incarnation += 1
        self.link = PeerLink(self.incarnation, WINDOW, RESEND)
        self.known = 0
        self.waiting: list[int] = []  # in memory, to be offered when there is room
        self.offered = self.acknowledged = self.cursor
        self.arrived: list[int] = []  # delivered and not in a commit yet
        self.commits: list[tuple[list[int], tuple[int, int]]] = []
        self.source = (0, 0)  # incarnation that the last message came from, and its number
        self.held = False

    def crash(self, random: Random) -> None:
        self.cursor = max(0, self.cursor - random.choice([0, 0, 1, 5]))  # its last positions were not stored
        self.start()

    def publish(self, count: int) -> None:
        self.journal += range(len(self.journal) + 1, len(self.journal) + count + 1)

    def turn(self) -> None:
        link = self.link
        while self.offered < len(self.journal) and (self.world.eager or link.room() > 0):
            count = min(self.world.random.choice([1, 1, 2, 5]), len(self.journal) - self.offered)
            numbers = self.journal[self.offered : self.offered + count]
            blob = b"".join(number.to_bytes(4, "big") for number in numbers)
            padding = bytes(self.world.random.choice([0, 0, 20, LARGEST - 20]) // 4 * 4)
            link.offer(blob + padding, count, self.world.now)
            self.offered += count
        for data in link.take(self.world.now, self.world.random.choice([10, 100, 1000])):
            self.world.send(self, link.target_incarnation, data)
        if self.arrived or link.ack_due:
            self.commits.append((self.arrived, link.mark()))
            self.arrived = []

    def commit(self) -> None:
        if self.commits:
            numbers, mark = self.commits.pop(0)
            for number in numbers:
                if number > len(self.stored):
                    assert number == len(self.stored) + 1, "lost, or out of order"
                    self.stored.append(number)
            ack = self.link.stored(mark)
            if ack is not None:
                self.world.send(self, self.link.source_incarnation, ack)

    def hello(self) -> None:
        self.world.send(self, 0, self.incarnation)

    def take(self, incarnation: int, target_incarnation: int, body: Body) -> None:
        link = self.link
        if isinstance(body, int):
            if body > self.known:
                self.known = body
                link.reset_sender(body)
        elif isinstance(body, Data):
            blob = link.received(body, incarnation, target_incarnation)
            if blob is not None:
                self._deliver(incarnation, [int.from_bytes(blob[at : at + 4], "big") for at in range(0, len(blob), 4)])
        else:
            self.acknowledged += link.acknowledged(body, incarnation, target_incarnation, self.world.now)
            self.cursor = self.acknowledged
            assert self.cursor <= len(self.world.other(self).stored), "acknowledged and not stored"

    def _deliver(self, incarnation: int, numbers: list[int]) -> None:
        numbers = [number for number in numbers if number]
        before, last = self.source
        assert incarnation >= before, "of a life that is over"
        assert incarnation > before or numbers[0] == last + 1, f"{numbers} after {last}"
        self.source = (incarnation, numbers[-1])
        self.arrived += numbers
        waiting = self.link._delivered_bytes - self.link._stored_bytes
        assert waiting <= WINDOW + LARGEST, "more than the window"

    def hold(self, held: bool) -> None:
        self.held = held
        self.link.hold(held)


Frame = tuple[Node, int, int, Body]  # target, incarnation of the source, of the target, body


class World:
    """One seed."""

    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.loss = random.choice([0.0, 0.05, 0.3])
        self.doubling = random.choice([0.0, 0.1, 0.3])
        self.reordering = random.random() < 0.5
        self.crashes = random.choice([0.0, 0.01, 0.05])
        self.now = 100.0
        self.eager = random.random() < 0.5  # offers without a look at the room
        self.bus: list[Frame] = []
        self.nodes = [Node(self, 0), Node(self, 1)]

    def other(self, node: Node) -> Node:
        return self.nodes[1 - node.name]

    def send(self, source: Node, target_incarnation: int, body: Body) -> None:
        self.bus.append((self.other(source), source.incarnation, target_incarnation, body))

    def deliver(self) -> None:
        random = self.random
        at = random.randrange(len(self.bus)) if self.reordering else 0
        frame = self.bus[at] if random.random() < self.doubling else self.bus.pop(at)
        if random.random() >= self.loss:
            self._pass_on(frame)

    def _pass_on(self, frame: Frame) -> None:
        target, incarnation, target_incarnation, body = frame
        target.take(incarnation, target_incarnation, body)

    def act(self) -> None:
        random = self.random
        chance = random.random()
        node = random.choice(self.nodes)
        if random.random() < self.crashes:
            node.crash(random)
            if random.random() < 0.5:  # a new connection overtakes what lies about
                other = self.other(node)
                other.take(node.incarnation, 0, node.incarnation)
                other.turn()
        elif chance < 0.45:
            if self.bus:
                self.deliver()
        elif chance < 0.65:
            node.turn()
        elif chance < 0.8:
            node.commit()
        elif chance < 0.9:
            node.publish(random.choice([1, 3, 10, 30]))
        elif chance < 0.94:
            node.hello()
        elif chance < 0.97:
            self.now += random.choice([0.0, 0.3, 1.1])
        elif chance < 0.985:
            node.link.resend()
        else:
            node.hold(random.random() < 0.6)

    def heal(self) -> None:
        """No faults any more, except that those who hold hold on for a while."""
        self.loss = self.doubling = 0.0
        for turn in range(5000):  # a frame as large as the window takes some of them
            for node in self.nodes:
                if turn == 8 and node.held:
                    node.hold(False)
                node.hello()
                node.turn()
            self.bus, frames = [], self.bus
            for frame in frames:
                self._pass_on(frame)
            for node in self.nodes:
                while node.commits:
                    node.commit()
            self.now += 0.3
            if turn > 20 and all(node.cursor == len(node.journal) for node in self.nodes):
                break
        for node in self.nodes:
            assert self.other(node).stored == node.journal, "not all has arrived"
            assert node.cursor == len(node.journal) and node.link.unacknowledged() == 0, "not all is acknowledged"
            assert node.link.room() == WINDOW and node.link.wake_at() == inf, "there is something left to do"

    def live(self, acts: int = 400) -> None:
        for _ in range(acts):
            self.act()
        self.heal()


def run(seed: int) -> None:
    World(seed).live()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.link_world", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    began = time.perf_counter()
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            run(seed)
        except Exception:
            print(f"FAILED seed {seed}; again: python -m tests.cluster.link_world --first {seed} --seeds 1", flush=True)
            raise
    print(f"{arguments.seeds} seeds, {time.perf_counter() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
