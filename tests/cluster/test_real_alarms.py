"""Alarms of a real cluster: a node is lost, too few nodes store copies, the majority is lost, and all are back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.cluster.real import Cluster, Node
from tests.cluster.test_real_copies import copied

from starlingmq.client import Client

SECONDS = 60.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/cluster/test_gone_nodes.py"),
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]


KINDS = ("node", "copies", "last_copy", "quorum", "etcd")


def alarms(node: Node) -> dict[str, str]:
    """The alarms of these kinds that this node has itself, with their severity."""
    found = node.ask("alarms", node=node.name)["alarms"]
    return {one["kind"]: one["severity"] for one in found if one["kind"] in KINDS}


async def test_a_lost_node_missing_copies_and_an_etcd_without_majority_are_alarms_until_the_nodes_are_back(
    tmp_path: Path,
) -> None:
    """The last node serves the data of another one, and is connected to it: it has a quorum, and no etcd."""
    with Cluster(tmp_path, 3, {"copies": 3, "min_copies": 3}, proxies=False) as cluster:
        await cluster.whole()
        await copied(cluster, 3)
        one, two, three = cluster.nodes
        await cluster.until(lambda: alarms(one) == {}, "nothing is wrong", SECONDS)
        async with Client(one.url) as client:
            three.kill()
            await client.publish("kept", b"x", 0, retain=True)  # else nothing waits for the copy that is missing
            lost = {"node": "warning", "copies": "critical"}
            await cluster.until(lambda: alarms(one) == lost, "a node and copies are missing", SECONDS)
        two.kill()
        await cluster.until(lambda: alarms(one).get("etcd") == "warning", "etcd has no majority", SECONDS)
        health = one.status()["health"]
        assert health["status"] != "healthy" and "etcd does not answer" in health["summary"]
        two.start()
        three.start()
        await cluster.whole()
        await cluster.until(lambda: alarms(one) == {}, "all alarms have ended", SECONDS)


async def test_data_that_only_one_node_has_is_an_alarm_until_another_one_has_it(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, {"copies": 2, "min_copies": 1}, proxies=False) as cluster:
        await cluster.whole()
        await copied(cluster, 2)
        one, _, three = cluster.nodes
        await cluster.until(lambda: alarms(one) == {}, "nothing is wrong", SECONDS)
        three.kill()
        lost = {"node": "warning", "last_copy": "critical"}
        await cluster.until(lambda: alarms(one) == lost, "a copy is missing", SECONDS)
        three.start()
        await cluster.whole()
        await cluster.until(lambda: alarms(one) == {}, "all alarms have ended", SECONDS)


async def test_a_lost_majority_is_an_alarm(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, proxies=False) as cluster:
        await cluster.whole()
        one, two, three = cluster.nodes
        for node in (two, three):
            node.kill()
        lost = {"quorum": "critical", "node": "warning"}
        await cluster.until(lambda: lost.items() <= alarms(one).items(), "the majority is lost", SECONDS)
