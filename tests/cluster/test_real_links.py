"""A bridge of a real cluster: every node shows it once, pauses it, and another node carries it on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.real import Cluster, Node

from starlingmq import Broker
from starlingmq.client import Client

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/api/test_links.py"),
    pytest.mark.timeout(150),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]


def link(node: Node) -> dict[str, Any]:
    (found,) = node.ask("links")["links"]
    assert isinstance(found, dict)
    return found


async def test_each_node_shows_a_link_once_and_another_carries_it_on(tmp_path: Path) -> None:
    async with Broker(listeners=["mqtt://127.0.0.1:0"], node={"name": "far"}) as far:
        bridge = {"name": "hub", "servers": [far.address()], "topics": [{"filter": "out/#"}]}
        cluster = Cluster(tmp_path, 3)
        for node in cluster.nodes:
            node.configure(lambda settings: settings.update(bridges=[bridge]))
        with cluster:
            await cluster.whole()
            await cluster.until(lambda: all(link(one)["state"] == "connected" for one in cluster.nodes), "it is there")
            (carrier,) = {link(one)["node"] for one in cluster.nodes}
            first = next(one for one in cluster.nodes if one.name == carrier)
            other, third = (one for one in cluster.nodes if one is not first)
            done = other.ask("links.pause", name="hub")
            assert (sorted(done["nodes"]), done["missing"]) == (sorted(one.name for one in cluster.nodes), [])
            await cluster.until(lambda: link(third)["state"] == "paused", "it is paused")
            async with Client(third.url) as writer, Client(far.address()) as reader:
                await reader.subscribe("out/#", qos=2)
                for number in range(10):
                    await writer.publish("out/a", str(number), qos=2)
                await cluster.until(lambda: link(other)["waiting"] == 10, "they wait")
                first.stop()
                await cluster.until(lambda: link(other)["node"] in (other.name, third.name), "another one has it")
                assert link(other)["state"] == "paused"
                other.ask("links.resume", name="hub")
                messages = reader.messages()
                assert [(await anext(messages)).payload for _ in range(10)] == [b"%d" % at for at in range(10)]
                await cluster.until(lambda: link(third)["in_flight"] == 0, "all are acknowledged")
            assert link(third)["state"] == "connected" and link(third)["waiting"] == 0
            assert third.ask("links.drain", name="hub")["paused"]
