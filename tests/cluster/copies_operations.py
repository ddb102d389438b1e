"""``python -m tests.cluster.copies_operations``: operations and failures in a cluster with copies, under load.

Each operation begins with three nodes that are in step, and ends so. Then everything that was acknowledged has to be
everywhere, once at QoS 2, in order, and each client has its session. Between the operations the load goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import psutil
from tests.cluster.chaos_copies import is_copied
from tests.cluster.load import Load
from tests.cluster.real import AwayError, Cluster, Node
from tests.storage.small_disk import SmallDisk, small_disk

BACK_SECONDS: Final = 180.0
SLOW_SECONDS: Final = 20.0
RUNS_SECONDS: Final = 0.02  # of a slow machine: a tenth of the time
STANDS_SECONDS: Final = 0.18
DISK_MEGABYTES: Final = 400
QUOTA_EXCEEDED: Final = 0x97


class Operated:
    """``copies``, ``required``: ``cluster.copies`` of the present settings, and ``cluster.min_copies``."""

    def __init__(self, cluster: Cluster, copies: int, required: int, load: Load, disks: dict[str, SmallDisk]) -> None:
        self.cluster = cluster
        self.copies = copies
        self.required = required
        self.load = load
        self.disks = disks

    async def in_step(self) -> None:
        nodes = self.cluster.nodes
        await self.cluster.until(
            lambda: all(node.is_ready() and node.serves() and is_copied(node, self.copies) for node in nodes),
            "all nodes serve and are in step",
            BACK_SECONDS,
        )

    def server_of(self, origin: Node) -> str:
        """As another node knows it."""
        for node in self.cluster.nodes:
            if node is not origin:
                with suppress(AwayError):
                    return next(
                        str(one["server"]) for one in node.ask("cluster.copies")["nodes"] if one["node"] == origin.name
                    )
        return origin.name

    def follower_of(self, node: Node) -> Node:
        own = next(each for each in node.ask("cluster.copies")["nodes"] if each["node"] == node.name)
        return self.cluster[own["followers"][0]["node"]]

    async def until_taken_over(self, lost: Node) -> Node:
        await self.cluster.until(
            lambda: self.server_of(lost) != lost.name, "another node serves its data", BACK_SECONDS
        )
        return self.cluster[self.server_of(lost)]

    async def goes_on(self, seconds: float = 60.0) -> None:
        """Messages are acknowledged again."""
        acks = self.load.acks
        await self.cluster.until(lambda: self.load.acks > acks + 100, "messages are acknowledged", seconds)

    def lose_disk(self, node: Node) -> None:
        for path in node.data_dir.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    async def restart_with_copies(self, copies: int) -> None:
        self.copies = 1
        for node in self.cluster.nodes:
            await asyncio.to_thread(node.stop)
            wanted = {"copies": copies, "min_copies": min(copies, self.required)}
            node.configure(lambda settings: settings["cluster"].update(wanted))  # noqa: B023 - it is called at once
            node.start()
            await self.in_step()
        self.copies = copies
        await self.in_step()

    # The operations

    async def restarted_one_by_one(self) -> None:
        """The second one is killed while it hands over."""
        for number, node in enumerate(self.cluster.nodes):
            stopping = asyncio.ensure_future(asyncio.to_thread(node.stop))
            if number == 1:
                await asyncio.sleep(0.3)
                node.kill()
            await stopping
            node.start()
            await self.in_step()

    async def without_copies_for_a_while(self) -> None:
        before = self.copies
        await self.restart_with_copies(1)
        await self.restart_with_copies(before)

    async def the_successor_is_lost_too(self) -> None:
        """Its disk is kept: two etcds of three are away."""
        lost = self.cluster.nodes[2]
        lost.kill()
        self.lose_disk(lost)
        successor = await self.until_taken_over(lost)
        successor.kill()
        await asyncio.sleep(2.0)
        successor.start()
        lost.start()
        await self.in_step()

    async def a_follower_stands_still(self) -> None:
        follower = self.follower_of(self.cluster.nodes[0])
        follower.freeze()
        await self.goes_on()
        await asyncio.sleep(SLOW_SECONDS)
        follower.thaw()
        await self.in_step()

    async def a_follower_takes_ten_times_as_long(self) -> None:
        follower = self.follower_of(self.cluster.nodes[0])
        until = time.monotonic() + SLOW_SECONDS
        while time.monotonic() < until:
            follower.freeze()
            await asyncio.sleep(STANDS_SECONDS)
            follower.thaw()
            await asyncio.sleep(RUNS_SECONDS)
        await self.goes_on()
        await self.in_step()

    async def the_disk_of_a_follower_is_full(self) -> None:
        follower = self.follower_of(self.cluster.nodes[0])
        disk = self.disks[follower.name]
        self.load.refusals.add(QUOTA_EXCEEDED)  # at that node itself
        disk.fill()
        await self.goes_on()
        await asyncio.sleep(SLOW_SECONDS)
        disk.free()
        await self.in_step()
        await self.goes_on()
        if self.required <= 1:
            self.load.refusals.remove(QUOTA_EXCEEDED)

    async def etcd_stands_still_while_a_node_is_lost(self) -> None:
        lost, *others = self.cluster.nodes
        etcds: list[psutil.Process] = [etcd for node in others if (etcd := node.etcd()) is not None]
        for etcd in etcds:
            etcd.suspend()
        for node in self.cluster.nodes:
            node.trouble.begins()
        lost.kill()
        self.lose_disk(lost)
        await asyncio.sleep(10.0)
        for etcd in etcds:
            etcd.resume()
        await self.until_taken_over(lost)
        self.cluster.heal()
        lost.start()
        await self.in_step()

    async def a_node_is_lost_while_others_do_not_reach_each_other(self) -> None:
        one, two, lost = self.cluster.nodes
        self.cluster.part(one, two)
        await asyncio.sleep(1.0)
        lost.kill()
        self.lose_disk(lost)
        await asyncio.sleep(5.0)
        self.cluster.heal()
        lost.start()
        await self.in_step()

    async def all_are_killed_and_one_disk_is_lost(self) -> None:
        for node in self.cluster.nodes:
            node.kill()
        self.lose_disk(self.cluster.nodes[1])
        for node in self.cluster.nodes:
            node.start()
        await self.in_step()


OPERATIONS: Final[dict[str, Callable[[Operated], Awaitable[None]]]] = {
    "restart": Operated.restarted_one_by_one,
    "no-copies": Operated.without_copies_for_a_while,
    "successor": Operated.the_successor_is_lost_too,
    "frozen": Operated.a_follower_stands_still,
    "slow": Operated.a_follower_takes_ten_times_as_long,
    "full": Operated.the_disk_of_a_follower_is_full,
    "etcd": Operated.etcd_stands_still_while_a_node_is_lost,
    "parted": Operated.a_node_is_lost_while_others_do_not_reach_each_other,
    "all": Operated.all_are_killed_and_one_disk_is_lost,
}


async def operate(
    cluster: Cluster, copies: int, required: int, chosen: list[str], rate: int, disks: dict[str, SmallDisk]
) -> Load:
    """Raises AssertionError."""
    await cluster.whole()
    async with Load(cluster.nodes, rate, patience=BACK_SECONDS) as load:
        operated = Operated(cluster, copies, required, load, disks)
        if required > 1:  # nodes refuse until a follower is in step again
            load.refusals.add(QUOTA_EXCEEDED)
            for person in (*load.authors, *load.readers, *load.sharers, *load.wanderers):
                person.refusals = (*person.refusals, QUOTA_EXCEEDED)
        await operated.in_step()
        for name in chosen:
            acks, since = load.acks, time.monotonic()
            await operated.goes_on()
            await OPERATIONS[name](operated)
            took = time.monotonic() - since
            await cluster.whole()
            await load.settle()
            assert not cluster.complaints(), "\n".join(cluster.complaints())
            print(f"{name:10} {took:6.1f} s, {load.acks - acks:,} acknowledged meanwhile; all is there", flush=True)
            load.go_on()
    return load


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.copies_operations", description=__doc__)
    parser.add_argument("--only", default=",".join(OPERATIONS), help=f"of {', '.join(OPERATIONS)}")
    parser.add_argument("--copies", type=int, default=2)
    parser.add_argument("--min-copies", type=int, default=0)
    parser.add_argument("--rate", type=int, default=500, help="messages a second at most")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    if unknown := [name for name in chosen if name not in OPERATIONS]:
        parser.error(f"--only: unknown {', '.join(unknown)}; there are {', '.join(OPERATIONS)}")
    with tempfile.TemporaryDirectory(prefix="starlingmq-operations-") as scratch, ExitStack() as stack:
        settings = {"copies": arguments.copies, "min_copies": arguments.min_copies, "copy_timeout": "15s"}
        cluster = Cluster(Path(scratch), 3, settings, proxies="parted" in chosen)
        disks: dict[str, SmallDisk] = {}
        if "full" in chosen:
            for node in cluster.nodes:
                disks[node.name] = stack.enter_context(small_disk(node.data_dir, DISK_MEGABYTES))
        try:
            with cluster:
                load = asyncio.run(
                    operate(cluster, arguments.copies, arguments.min_copies, chosen, arguments.rate, disks)
                )
        except AssertionError as error:
            print(error, file=sys.stderr)
            return 1
    print(f"{load.acks:,} acknowledged, none lost, none doubled at QoS 2, all in order")
    return 0


if __name__ == "__main__":
    sys.exit(main())
