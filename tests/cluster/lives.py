"""``python -m tests.cluster.lives --seeds N``: clusters whose nodes come and go over a network and an etcd that fail.

A seed draws all of it; the same seed is the same life again. First a time of faults, in which only safety is asked for
(``world`` checks it at every step); then all is healed, and everybody has to agree and to serve, and to stay so.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterable

from tests.cluster.world import DELAY_MAX, LEASE_TTL, TIMEOUT, Node, World

NAMES = ("a", "b", "c", "d", "e", "f", "g")
GONE = ("left", "forgotten", "replaced")
HEAL_SECONDS = 40.0
CALM_SECONDS = 15.0


class Life:
    def __init__(self, seed: int, world_class: type[World] = World) -> None:
        self.world = world_class(seed)
        self.random = self.world.random
        self.names = NAMES[: self.random.randint(3, len(NAMES))]
        self.fates = Counts()
        random = self.random
        self.acts: list[tuple[Callable[[], None], float]] = [
            (self.start, 4.0),
            (self.crash, 1.5),
            (self.leave, random.choice([0.0, 0.5])),
            (self.forget, random.choice([0.0, 1.0])),
            (self.cut_one_way, random.choice([0.0, 3.0])),
            (self.cut_off, 1.0),
            (self.part, random.choice([0.5, 2.0])),
            (self.heal, 1.5),
            (self.cut_from_etcd, random.choice([0.5, 2.0])),
            (self.join_unseen, random.choice([0.0, 2.0])),
            (self.etcd_fault, 1.0),
            (self.weather, 0.5),
        ]

    def live(self, acts: int) -> None:
        for name in self.names[: self.random.randint(1, 4)]:
            self.world.start(name)
        for _ in range(acts):
            weights = [weight for _, weight in self.acts]
            self.random.choices([act for act, _ in self.acts], weights)[0]()
            self.world.run(self.random.choice([0.05, 0.3, 1.0, 1.2 * TIMEOUT, 4.0]))
            self.bury()
        self.end()

    # Faults

    def up(self) -> list[Node]:
        return self.world.alive()

    def start(self) -> None:
        down = [name for name in self.names if name not in self.world.nodes or not self.world.nodes[name].alive]
        if down:
            self.world.start(self.random.choice(down))

    def crash(self) -> None:
        if self.up():
            self.world.crash(self.random.choice(self.up()).name)
            self.fates.crashes += 1

    def leave(self) -> None:
        if self.up():
            node = self.random.choice(self.up())
            node.members.leave(self.world.now)
            node.work()

    def forget(self) -> None:
        serving = [node for node in self.up() if node.serves]
        if not serving:
            return
        node = self.random.choice(serving)
        online = node.members.online
        down = [member.name for member in node.members.membership.members if member.number not in online]
        if down and not node.members.forget(self.random.choice(down), node.serves, False, self.world.now):
            node.work()
            self.fates.forgets += 1

    def bury(self) -> None:
        for node in self.up():
            if node.members.state in GONE:
                node.alive = False
                node.session.close(self.world.now)
                self.fates.gone += 1

    def cut_one_way(self) -> None:
        source, target = self.random.sample(self.names, 2)
        self.world.cut(source, target)

    def cut_off(self) -> None:
        """A node is not heard, or does not hear, or both."""
        name = self.random.choice(self.names)
        ways = self.random.choice(["speaks", "hears", "both"])
        for other in self.names:
            if other != name and ways != "hears":
                self.world.cut(name, other)
            if other != name and ways != "speaks":
                self.world.cut(other, name)

    def part(self) -> None:
        side = set(self.random.sample(self.names, self.random.randint(1, len(self.names) - 1)))
        both = self.random.random() < 0.7
        away = self.random.random() < 0.5
        for name in self.names:
            for other in self.names:
                if (name in side) != (other in side) and (both or name in side):
                    self.world.cut(name, other)
        for name in self.names:
            if away and name in side:
                self.world.etcd.cut(name)

    def join_unseen(self) -> None:
        """Some are cut off from etcd while others join, one after the other."""
        for node in self.up():
            if self.random.random() < 0.6:
                self.world.etcd.cut(node.name)
        for _ in range(2):
            self.start()
            self.world.run(self.random.choice([0.2, 1.0]))

    def heal(self) -> None:
        if self.random.random() < 0.5:
            self.world.cuts.clear()
        else:
            for way in sorted(self.world.cuts):
                if self.random.random() < 0.5:
                    self.world.cuts.discard(way)
        self.heal_etcd([name for name in self.names if self.random.random() < 0.7])

    def heal_etcd(self, names: Iterable[str]) -> None:
        for name in names:
            self.world.etcd.heal(name, self.world.now)

    def cut_from_etcd(self) -> None:
        self.world.etcd.cut(self.random.choice(self.names))

    def etcd_fault(self) -> None:
        fault = self.random.choice(["leader", "compact", "lease"])
        if fault == "leader":
            self.world.etcd.lose_leader(self.world.now, self.random.uniform(0.1, 4.0))
        elif fault == "compact":
            self.world.etcd.compact()
        elif self.up():
            self.world.etcd.expire_lease(self.random.choice(self.up()).name, self.world.now)

    def weather(self) -> None:
        world = self.world
        world.loss = self.random.choice([0.0, 0.0, 0.1, 0.3])
        world.doubling = self.random.choice([0.0, 0.2])
        world.delay = self.random.choice([0.01, 0.05, 0.4, DELAY_MAX])

    # The end

    def end(self) -> None:
        world = self.world
        world.cuts.clear()
        world.loss = world.doubling = 0.0
        world.delay = 0.02
        self.heal_etcd(self.names)
        world.run(LEASE_TTL)  # late frames arrive, and nodes that meant to leave do
        self.bury()
        until = world.now + HEAL_SECONDS
        first = True
        while first or not world.agreed():
            assert world.now < until, "they do not come together:\n" + "\n".join(world.describe())
            for name in self.names:
                if name in world.nodes and not world.nodes[name].alive:
                    world.start(name)
            world.run(1.0)
            self.bury()
            first = False
        world.run(1.0)
        changes = [node.changes for node in world.alive()]
        revisions = [node.members.membership.revision for node in world.alive()]
        world.run(CALM_SECONDS)
        assert [node.changes for node in world.alive()] == changes, "connections come and go on a healthy network"
        assert [node.members.membership.revision for node in world.alive()] == revisions, "members come and go"


class Counts:
    crashes = 0
    forgets = 0
    gone = 0


def run(seed: int, acts: int = 40, world_class: type[World] = World) -> Life:
    life = Life(seed, world_class)
    life.live(acts)
    return life


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.lives", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--failures", type=int, default=1, help="stop after so many")
    arguments = parser.parse_args()
    began = time.perf_counter()
    failures = crashes = forgets = gone = relayed = 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            life = run(seed)
        except (AssertionError, LookupError, ValueError):
            traceback.print_exc(limit=-4)
            print(f"FAILED seed {seed}; again: python -m tests.cluster.lives --first {seed} --seeds 1", flush=True)
            failures += 1
            if failures >= arguments.failures:
                return 1
            continue
        crashes += life.fates.crashes
        forgets += life.fates.forgets
        gone += life.fates.gone
        relayed += life.world.relayed
    took = time.perf_counter() - began
    print(f"{arguments.seeds} seeds, {crashes} crashes, {forgets} forgets, {gone} gone, {relayed} frames relayed")
    print(f"{took:.1f} s, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
