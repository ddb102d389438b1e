"""``python -m tests.cluster.chaos_copies --rounds N``: a cluster with copies under load, and in each round a node is
killed and its data directory deleted. Sometimes it returns at once, sometimes long after another one serves its data;
sometimes it keeps its disk, or gets back one of an earlier round, or only stands still, or etcd does.

With ``--copies 1`` all nodes keep their disks.

After each round all nodes have to be in step again. Each ``CHECK_ROUNDS`` everything that was acknowledged has to be
everywhere, once at QoS 2, in order, and each client has its session; wills and retained messages: ``chaos_kept``;
a stream: ``chaos_streams``; NATS: ``chaos_nats``; JetStream: ``chaos_jetstream``;
with ``--spark``: ``chaos_spark``.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
from tests.cluster.chaos_jetstream import Jetstreamed
from tests.cluster.chaos_kept import Kept
from tests.cluster.chaos_nats import Natsed
from tests.cluster.chaos_spark import Sparked
from tests.cluster.chaos_streams import Streamed, keep_stream
from tests.cluster.load import Load
from tests.cluster.real import AwayError, Cluster, Node

CHECK_ROUNDS: Final = 5
HOLD_SECONDS: Final = (0.0, 8.0)  # until the node returns
WORK_SECONDS: Final = (1.0, 4.0)  # with all nodes there
BACK_SECONDS: Final = 120.0
LOSSES: Final = {"loses its disk": 6, "gets an old disk": 1, "stops and loses its disk": 1}  # of what a node has
STILL: Final = {"stands still": 2, "has an etcd that stands still": 1, "and the others have no etcd": 1}
FATES: Final = LOSSES | {"keeps its disk": 2} | STILL
FATES_WITHOUT_COPIES: Final = {"keeps its disk": 6} | STILL


def is_copied(node: Node, copies: int) -> bool:
    """Whether that many nodes have everything that the node acknowledges, which serves its data itself."""
    try:
        own = next(each for each in node.ask("cluster.copies")["nodes"] if each["node"] == node.name)
    except (AwayError, StopIteration):
        return False
    return own["server"] == node.name and len(own["in_step"]) >= copies


class CopiesRun:
    def __init__(
        self,
        cluster: Cluster,
        natsed: Natsed,
        sparked: Sparked | None,
        copies: int,
        seed: int,
        directory: Path,
        talk: bool = False,
    ) -> None:
        self.cluster = cluster
        self.copies = copies
        self.draw = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._directory = directory
        self._talk = talk
        self._old: dict[str, Path] = {}  # disks of earlier rounds
        self._kept = Kept()
        self._streamed = Streamed()
        self._natsed = natsed
        self._jetstreamed = Jetstreamed(copies, natsed.ports)
        self._fates = FATES_WITHOUT_COPIES if copies == 1 else FATES
        self._sparked = sparked

    async def run(self, rounds: int, rate: int) -> Load:
        await self.cluster.whole()
        await self._until_copied()
        await self._kept.prepare(self.cluster.nodes[0])
        async with Load(self.cluster.nodes, rate, patience=BACK_SECONDS) as load:
            self._streamed.begin(self.cluster.nodes)
            await self._natsed.begin(self.cluster.nodes)
            await self._jetstreamed.begin(self.cluster.nodes)
            if self._sparked is not None:
                self._sparked.begin(self.cluster.nodes)
            try:
                for number in range(1, rounds + 1):
                    await asyncio.sleep(self.draw.uniform(*WORK_SECONDS))
                    await self._round(load, number)
                    if number % CHECK_ROUNDS == 0 or number == rounds:
                        await self._check(load)
                await self._streamed.end()
                if self._sparked is not None:
                    rows = await self._sparked.check(self.cluster.nodes)
                    self.tell(f"      Spark has read and written {rows:,} rows, each once")
            finally:
                await self._streamed.end()
                await self._natsed.end()
                await self._jetstreamed.end()
                if self._sparked is not None:
                    self._sparked.end()
        return load

    async def _round(self, load: Load, number: int) -> None:
        before, since = load.acks, time.monotonic()
        node = self.draw.choice(self.cluster.nodes)
        (fate,) = self.draw.choices(list(self._fates), list(self._fates.values()))
        hold = self.draw.uniform(*HOLD_SECONDS)
        self.counts[fate] += 1
        if fate in STILL:
            await self._stand_still(node, fate, hold)
        else:
            await self._lose(number, node, fate, hold)
        took = await self._until_copied()
        load.look()
        pace = (load.acks - before) / (time.monotonic() - since)
        self.tell(
            f"{number:4}  {node.name} {fate}, returns after {hold:.1f} s; all in step {took:.1f} s later; "
            f"{load.acks:,} acknowledged ({pace:,.0f}/s)"
        )

    async def _lose(self, number: int, node: Node, fate: str, hold: float) -> None:
        await self._kept.before(number, node, killed=not fate.startswith("stops"))
        if fate.startswith("stops"):
            await asyncio.to_thread(node.stop)
        else:
            await asyncio.to_thread(node.kill)
        await asyncio.to_thread(self._change_disk, node, fate)
        await self._kept.after()
        await asyncio.sleep(hold)
        node.start()

    async def _stand_still(self, node: Node, fate: str, hold: float) -> None:
        if fate == "stands still":
            node.freeze()
            await asyncio.sleep(hold)
            node.thaw()
            return
        nodes = [node] if fate.startswith("has") else self.cluster.nodes
        etcds = [etcd for each in nodes if (etcd := each.etcd()) is not None]
        for etcd in etcds:
            etcd.suspend()
        await asyncio.sleep(hold)
        for etcd in etcds:
            with suppress(psutil.NoSuchProcess):  # it may have been killed for not answering
                etcd.resume()

    def _change_disk(self, node: Node, fate: str) -> None:
        """An old disk has no etcd: etcd must not forget its votes."""
        old = self._old.get(node.name)
        if fate == "keeps its disk":
            return
        if old is None or self.draw.random() < 0.3:
            old = self._old[node.name] = self._directory / f"old-{node.name}"
            shutil.rmtree(old, ignore_errors=True)
            shutil.copytree(node.data_dir, old, ignore=shutil.ignore_patterns("etcd", "*.sock", "control*"))
        shutil.rmtree(node.data_dir)
        if fate == "gets an old disk":
            shutil.copytree(old, node.data_dir)

    async def _until_copied(self) -> float:
        nodes = self.cluster.nodes
        return await self.cluster.until(
            lambda: all(node.is_ready() and node.serves() and self._is_copied(node) for node in nodes),
            "all nodes serve and are in step",
            BACK_SECONDS,
        )

    def _is_copied(self, node: Node) -> bool:
        return self.copies == 1 or is_copied(node, self.copies)

    async def _check(self, load: Load) -> None:
        await self.cluster.whole()
        await load.settle()
        await self._kept.check(self.cluster.nodes, self.draw.choice(self.cluster.nodes))
        await self._streamed.check(self.cluster.nodes)
        await self._natsed.check(self.draw.choice(self.cluster.nodes))
        await self._jetstreamed.check(self.draw.choice(self.cluster.nodes))
        assert not self.cluster.complaints(), "\n".join(self.cluster.complaints())
        self.tell(
            f"      all is there: {load.acks:,} acknowledged, {load.delivered:,} delivered, {load.refused:,} refused, "
            f"{len(self._streamed.acknowledged):,} rows of the stream, {len(self._natsed.flushed):,} flushed, "
            f"{self._jetstreamed.describe()}"
        )
        load.go_on()

    def tell(self, line: str) -> None:
        if self._talk:
            print(line, flush=True)


def run(
    directory: Path, copies: int, rounds: int, seed: int, rate: int, talk: bool = False, spark: bool = False
) -> Load:
    """Raises AssertionError."""
    cluster = Cluster(directory, 3, {"copies": copies}, proxies=False)
    for node in cluster.nodes:
        node.configure(keep_stream)
    natsed = Natsed()
    natsed.listen(cluster.nodes)
    sparked = Sparked(directory) if spark else None
    if sparked is not None:
        sparked.listen(cluster.nodes)
    with cluster:
        trial = CopiesRun(cluster, natsed, sparked, copies, seed, directory, talk)
        load = asyncio.run(trial.run(rounds, rate))
        trial.tell(", ".join(f"{count} x {what}" for what, count in trial.counts.most_common()))
        return load


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.chaos_copies", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="nodes that are lost")
    parser.add_argument("--copies", type=int, default=2)
    parser.add_argument("--seed", type=int, default=None, help="draws the same rounds again (not their times)")
    parser.add_argument("--rate", type=int, default=500, help="messages a second at most")
    parser.add_argument("--spark", action="store_true", help="Spark reads a stream, and writes another one")
    parser.add_argument("--dir", type=Path, help="a new directory for what the nodes keep and say; it stays")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    print(f"copies {arguments.copies}, {arguments.rounds} rounds, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="starlingmq-copies-") as scratch:
        try:
            load = run(
                arguments.dir or Path(scratch),
                arguments.copies,
                arguments.rounds,
                seed,
                arguments.rate,
                talk=True,
                spark=arguments.spark,
            )
        except AssertionError as error:
            print(f"seed {seed}: {error}", file=sys.stderr)
            return 1
    print(f"seed {seed}: {load.acks:,} acknowledged, none lost, none doubled at QoS 2, all in order", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
