"""The bridge of a cluster of real processes: one node carries it, and another one does when that node is lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.bridges.real import Line, bridge, reading, starlingmq
from tests.cluster.real import Cluster, Node
from tests.cluster.test_real_copies import copied
from tests.patience import within

from starlingmq.client import Client
from starlingmq.client.options import QOS

SECONDS = 30.0
COUNT = 30
STEADY = 50  # looks that find the same node
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]


class Carriers:
    """Looks which node carries the bridge: the last one that has connected to the other broker. While the nodes start,
    each may find itself alone for a moment."""

    def __init__(self, cluster: Cluster, kind: str = "bridge") -> None:
        self.cluster = cluster
        self.kind = kind

    def now(self) -> Node | None:
        found = {
            line[:23]: node  # by time
            for node in self.cluster.nodes
            for line in node.said().splitlines()
            if f"{self.kind} b: connected to" in line
        }
        return found[max(found)] if found else None

    def server(self) -> str:
        """URL of the node that the carrier was last connected to."""
        node = self.now()
        assert node is not None
        lines = [line for line in node.said().splitlines() if f"{self.kind} b: connected to" in line]
        return lines[-1].partition("connected to ")[2].strip().strip('"}')

    async def next(self, before: Node | None = None, elected: Node | None = None) -> Node:
        """The next one after ``before``; ``elected``: this one, though others may carry it while nodes disagree."""
        seen: list[Node | None] = []

        def is_settled() -> bool:
            seen.append(self.now())
            last = set(seen[-STEADY:])
            right = last.isdisjoint([None, before]) and (elected is None or last == {elected})
            return len(seen) >= STEADY and len(last) == 1 and right

        await self.cluster.until(is_settled, "another node carries the bridge")
        found = seen[-1]
        assert found is not None
        return found


async def publish_at(nodes: list[Node], first: int) -> None:
    """Numbers at QoS 1 and 2, at each node in turn."""
    for index, node in enumerate(nodes):
        async with Client(node.url) as client, within(SECONDS):
            for number in range(first + index, first + COUNT, len(nodes)):
                await client.publish(f"out/{number % 2 + 1}", str(number), qos=QOS[number % 2 + 1])


@pytest.mark.long(alone="the nodes of a cluster and another broker, as processes")
async def test_the_bridge_moves_with_all_that_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "cluster").mkdir()
    cluster = Cluster(tmp_path / "cluster", 3, {"copies": 2, "lease_ttl": 3}, proxies=False)
    async with starlingmq(tmp_path / "far", {}) as far, Line(far.url) as line:

        def add_bridge(settings: dict[str, Any]) -> None:
            topics = [{"filter": "out/#"}, {"filter": "in/#", "direction": "in"}]
            settings["bridges"] = [bridge(line.url, *topics)]

        for node in cluster.nodes:
            node.configure(add_bridge)
        with cluster:
            await cluster.whole()
            await copied(cluster, 2)
            carriers = Carriers(cluster)
            first = await carriers.next()
            async with reading(far.url, "out/#") as there:
                came: list[int] = []

                async def all_of(until: int) -> None:
                    while set(range(until)) - set(came):
                        came.extend(int(each.payload) for each in await there.take())

                await publish_at(cluster.nodes, 0)
                await all_of(COUNT)
                line.broken = True
                line.cut()
                await publish_at(cluster.nodes, COUNT)
                first.kill()
                line.mend()
                second = await carriers.next(first)
                await all_of(2 * COUNT)
                rest = [node for node in cluster.nodes if node is not first]
                await publish_at(rest, 2 * COUNT)
                await all_of(3 * COUNT)
                first.start()
                await cluster.whole()
                await copied(cluster, 2)
                carrying = await carriers.next(second, first)  # the one that is elected among three
                await publish_at(cluster.nodes, 3 * COUNT)
                carrying.ask("cluster.drain", no_wait="yes")
                await carriers.next(carrying)  # not always the second, which had it with the data of the first
                others = [node for node in cluster.nodes if node is not carrying]
                await publish_at(others, 4 * COUNT)
                await all_of(5 * COUNT)
                twice = [number for number in came if number % 2 == 1 and came.count(number) > 1]
                assert not twice, "QoS 2"
                async with reading(others[0].url, "in/#") as here:
                    async with Client(far.url) as client:
                        await client.publish("in/a", "y", qos=2)
                    assert (await here.one())[1] == b"y"
            assert not cluster.complaints()


@pytest.mark.long(alone="the nodes of two clusters, as processes")
@pytest.mark.timeout(600)
async def test_a_link_between_two_clusters_loses_a_node_at_each_side(tmp_path: Path) -> None:
    for name in ("near", "far"):
        (tmp_path / name).mkdir()
    settings = {"copies": 2, "lease_ttl": 3}
    near, far = (Cluster(tmp_path / name, 3, settings, proxies=False) for name in ("near", "far"))

    def name_far(settings: dict[str, Any]) -> None:
        settings["cluster"]["name"] = "far"

    def add_link(settings: dict[str, Any]) -> None:
        settings["cluster"]["name"] = "near"
        servers = [node.url for node in far.nodes]
        settings["links"] = [{"name": "b", "servers": servers, "topics": [{"filter": "out/#"}], "keep_alive": 5}]

    for node in far.nodes:
        node.configure(name_far)
    for node in near.nodes:
        node.configure(add_link)
    with near, far:
        for cluster in (near, far):
            await cluster.whole()
            await copied(cluster, 2)
        carriers = Carriers(near, "link")
        first = await carriers.next()
        taker = next(node for node in far.nodes if carriers.server() == node.url)
        reader_at = next(node for node in far.nodes if node is not taker)
        async with reading(reader_at.url, "out/#") as there:
            came: list[int] = []

            async def all_of(until: int) -> None:
                async with within(4 * SECONDS):
                    while set(range(until)) - set(came):
                        came.extend(int(each.payload) for each in await there.take())

            await publish_at(near.nodes, 0)
            await all_of(COUNT)
            first.kill()
            rest = [node for node in near.nodes if node is not first]
            await publish_at(rest, COUNT)
            await all_of(2 * COUNT)
            taker.kill()
            await publish_at(rest, 2 * COUNT)
            await all_of(3 * COUNT)
            assert sorted(came) == list(range(3 * COUNT)), "each once, at QoS 1 as well"
        assert not near.complaints() + far.complaints()
