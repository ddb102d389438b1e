"""``python -m tests.cluster.chaos --rounds N``: a cluster of real processes under load, and in each round something
breaks: nodes and etcds are killed or stand still, ways between nodes are cut, in one direction or both.

What breaks, and with which settings, is drawn from the seed that is printed; when it happens is up to the machine. Each
``CHECK_ROUNDS`` and in the end everything is healed, and all that was acknowledged has to be everywhere, once at QoS 2,
in order.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from tests.cluster.load import Load
from tests.cluster.proxy import BACK, OUT
from tests.cluster.real import Cluster, Node

CHECK_ROUNDS: Final = 10
HOLD_SECONDS: Final = (0.2, 6.0)  # that a fault lasts
REST_SECONDS: Final = 1.0  # between two, at most
OVERLAP: Final = 0.3  # share of faults after which the next one does not wait until all serve again
BACK_SECONDS: Final = 90.0  # until all serve after a fault; a start may have much to read


class Chaos:
    """The faults of one cluster. Each method is one: it breaks something, holds it, and mends it."""

    def __init__(self, cluster: Cluster, draw: random.Random) -> None:
        self.cluster = cluster
        self.draw = draw
        self.faults: dict[str, tuple[int, Callable[[], Awaitable[str]]]] = {
            "kill a node": (6, self.kill_node),
            "kill two nodes": (1, self.kill_two),
            "kill all nodes": (1, self.kill_all),
            "restart a node": (2, self.restart_node),
            "kill an etcd": (4, self.kill_etcd),
            "cut a link": (4, self.cut_link),
            "cut one way": (4, self.cut_one_way),
            "cut one stream": (2, self.cut_stream),
            "isolate a node": (4, self.isolate),
            "make a node mute": (2, self.mute),
            "make a node deaf": (2, self.deafen),
            "split the cluster": (2, self.split),
            "freeze a node": (4, self.freeze),
            "freeze an etcd": (2, self.freeze_etcd),
            "reset connections": (2, self.reset),
            "slow links": (2, self.slow),
        }

    async def fault(self) -> tuple[str, str]:
        """One that is drawn: what it is, and whom it met."""
        weights = [weight for weight, _ in self.faults.values()]
        (name,) = self.draw.choices(list(self.faults), weights)
        return name, await self.faults[name][1]()

    async def hold(self) -> None:
        await asyncio.sleep(self.draw.uniform(*HOLD_SECONDS))

    def node(self) -> Node:
        return self.draw.choice(self.cluster.nodes)

    def nodes(self, count: int) -> list[Node]:
        return self.draw.sample(self.cluster.nodes, count)

    async def _kill(self, nodes: list[Node]) -> str:
        for node in nodes:
            await asyncio.to_thread(node.kill)
        await self.hold()
        for node in nodes:
            node.start()
        return ", ".join(node.name for node in nodes)

    async def kill_node(self) -> str:
        return await self._kill([self.node()])

    async def kill_two(self) -> str:
        return await self._kill(self.nodes(2))

    async def kill_all(self) -> str:
        return await self._kill(self.nodes(len(self.cluster.nodes)))

    async def restart_node(self) -> str:
        node = self.node()
        code = await asyncio.to_thread(node.stop)
        assert code == 0, f"{node.name} ended with {code}"
        await self.hold()
        node.start()
        return node.name

    async def kill_etcd(self) -> str:
        node = self.node()
        etcd = node.etcd()
        if etcd is None:
            return f"{node.name}, which has none now"
        etcd.kill()
        return node.name

    async def cut_link(self) -> str:
        one, other = self.nodes(2)
        self.cluster.part(one, other)
        return await self._held(f"{one.name} - {other.name}")

    async def cut_one_way(self) -> str:
        source, target = self.nodes(2)
        self.cluster.cut(source, target)
        return await self._held(f"{source.name} -> {target.name}")

    async def cut_stream(self) -> str:
        source, target = self.nodes(2)
        way = self.draw.choice([OUT, BACK])
        self.cluster.proxies[target.name].cut(way, caller=source.name)
        return await self._held(f"{source.name} -> {target.name}, {way}")

    async def isolate(self) -> str:
        node = self.node()
        self.cluster.isolate(node)
        return await self._held(node.name)

    async def mute(self) -> str:
        node = self.node()
        for other in self.cluster.nodes:
            if other is not node:
                self.cluster.cut(node, other)
        return await self._held(node.name)

    async def deafen(self) -> str:
        node = self.node()
        for other in self.cluster.nodes:
            if other is not node:
                self.cluster.cut(other, node)
        return await self._held(node.name)

    async def split(self) -> str:
        away = self.nodes(len(self.cluster.nodes) // 2)
        self.cluster.isolate(*away)
        return await self._held(", ".join(node.name for node in away))

    async def _held(self, whom: str) -> str:
        await self.hold()
        self.cluster.heal()
        return whom

    async def freeze(self) -> str:
        node = self.node()
        node.freeze()
        await self.hold()
        node.thaw()
        return node.name

    async def freeze_etcd(self) -> str:
        node = self.node()
        etcd = node.etcd()
        if etcd is None:
            return f"{node.name}, which has none now"
        etcd.suspend()
        await self.hold()
        if etcd.is_running():  # it may have been killed for not answering
            etcd.resume()
        return node.name

    async def reset(self) -> str:
        node = self.node()
        self.cluster.proxies[node.name].disconnect()
        return node.name

    async def slow(self) -> str:
        for proxy in self.cluster.proxies.values():
            proxy.delay(self.draw.uniform(0.01, 0.3))
        return await self._held("all")


class Run:
    """Rounds, with a line for each."""

    def __init__(self, cluster: Cluster, rounds: int, seed: int, rate: int, talk: bool) -> None:
        self.cluster = cluster
        self.rounds = rounds
        self.draw = random.Random(seed)
        self.rate = rate
        self.talk = talk
        self.counts: Counter[str] = Counter()
        self.began = time.monotonic()

    async def run(self) -> Load:
        chaos = Chaos(self.cluster, self.draw)
        await self.cluster.whole()
        async with Load(self.cluster.nodes, self.rate, patience=BACK_SECONDS) as load:
            for number in range(1, self.rounds + 1):
                before, since = load.acks, time.monotonic()
                what, whom = await chaos.fault()
                self.counts[what] += 1
                back = await self._come_back(number)
                await asyncio.sleep(self.draw.uniform(0, REST_SECONDS))
                load.look()
                pace = (load.acks - before) / (time.monotonic() - since)
                self.tell(f"{number:4}  {what}: {whom}; {back}; {load.acks:,} acknowledged ({pace:,.0f}/s)")
                if number % CHECK_ROUNDS == 0 or number == self.rounds:
                    await self._check(load)
        return load

    async def _come_back(self, number: int) -> str:
        if self.draw.random() < OVERLAP and number % CHECK_ROUNDS and number != self.rounds:
            return "no wait"
        took = await self.cluster.until(
            lambda: all(node.runs and node.is_ready() and node.serves() for node in self.cluster.nodes),
            "all nodes serve",
            BACK_SECONDS,
        )
        return f"all serve {took:.1f} s later"

    async def _check(self, load: Load) -> None:
        took = await self.cluster.whole()
        since = time.monotonic()
        await load.settle()
        took += await self.cluster.whole()
        assert not self.cluster.complaints(), "\n".join(self.cluster.complaints())
        for node in self.cluster.nodes:
            dropped = node.status()["traffic"]["dropped"]
            assert "foreign" not in dropped, f"{node.name}: {dropped}"
        spent = time.monotonic() - self.began
        self.tell(
            f"      all is there: {load.acks:,} acknowledged ({load.acks / spent:,.0f}/s over {spent:,.0f} s), "
            f"{load.delivered:,} delivered, {load.promised:,} after a SUBACK, {load.refused:,} refused, "
            f"{load.lost:,} connections lost, {load.unheard:,} late after a refusal unheard; "
            f"whole after {took:.1f} s, settled in {time.monotonic() - since:.1f} s"
        )
        load.go_on()

    def tell(self, line: str) -> None:
        if self.talk:
            print(line, flush=True)


def draw_settings(draw: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of cluster and storage: as they are by default, or so that bounds are met all the time."""
    cluster = {
        "link_window": draw.choice(["8MiB", "64KiB", "4KiB"]),
        "route_log": draw.choice([100_000, 2]),
        "resend_interval": draw.choice(["2s", "500ms"]),
    }
    storage = {"journal": draw.choice(["segment", "rocksdb"]), "durability": draw.choice(["process", "power"])}
    return cluster, storage


def run(directory: Path, nodes: int, rounds: int, seed: int, rate: int = 2000, talk: bool = False) -> Load:
    """One run; the load that it bore. Raises AssertionError."""
    settings, storage = draw_settings(random.Random(seed))
    with Cluster(directory, nodes, settings, storage) as cluster:
        trial = Run(cluster, rounds, seed, rate, talk)
        trial.tell(", ".join(f"{key} {value}" for key, value in (settings | storage).items()))
        load = asyncio.run(trial.run())
        trial.tell(", ".join(f"{count} x {what}" for what, count in trial.counts.most_common()))
        return load


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="faults")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=None, help="draws the same faults again (not their times)")
    parser.add_argument("--rate", type=int, default=2000, help="messages a second at most")
    parser.add_argument("--dir", type=Path, help="a new directory for what the nodes keep and say; it stays")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    print(f"{arguments.nodes} nodes, {arguments.rounds} rounds, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="starlingmq-chaos-") as scratch:
        try:
            load = run(arguments.dir or Path(scratch), arguments.nodes, arguments.rounds, seed, arguments.rate, True)
        except AssertionError as error:
            print(f"seed {seed}: {error}", file=sys.stderr)
            return 1
    print(f"seed {seed}: {load.acks:,} acknowledged, none lost, none doubled at QoS 2, all in order", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
