"""A node whose disk is lost comes back with its own settings, and without an operator's help."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.cluster.real import Cluster, Node
from tests.patience import within

from starlingmq.client import Client

SECONDS = 20.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/net/test_etcd_rejoin.py"),
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]


async def finds_it(node: Node) -> None:
    """A subscriber there gets the retained message."""
    async with Client(node.url) as client, within(SECONDS):
        assert await client.subscribe("kept", 1) == [1]
        assert (await anext(client.messages())).payload == b"before"


async def test_a_node_with_an_empty_disk_joins_again_under_its_settings(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3) as cluster:
        await cluster.whole()
        one, two, three = cluster.nodes
        async with Client(three.url, client_id="stays") as client:
            await client.publish("kept", b"before", qos=1, retain=True)
        await finds_it(two)  # so it is not on the disk of the third node only
        for lost in (three, one):  # one that began the cluster with the others, then the first of all
            lost.kill()
            shutil.rmtree(lost.data_dir)
            lost.start()
            await cluster.whole()
            assert len(two.status()["members"]) == 3
            assert "its former etcd member is removed" in lost.said()
        await finds_it(three)
        three.kill()  # and it is a member like any other: the cluster lives without another one
        three.start()
        await cluster.whole()
        two.kill()
        await cluster.until(lambda: one.serves() and three.serves(), "two of three serve")
        two.start()
        await cluster.whole()


async def test_an_empty_disk_does_not_drive_out_a_node_that_runs(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3) as cluster:
        await cluster.whole()
        two, three = cluster.nodes[1:]
        copy = tmp_path / "copy"
        copy.mkdir()
        text = three.settings.read_text().replace(str(three.data_dir), str(copy / "data"))
        (copy / "starlingmq.yaml").write_text(text)
        twin = type(three)(copy / "starlingmq.yaml")
        cluster.nodes.append(twin)
        twin.start()
        await cluster.until(lambda: not twin.runs, "the second one ends")
        cluster.nodes.remove(twin)
        assert len(two.status()["members"]) == 3 and three.serves()
        await cluster.whole()
