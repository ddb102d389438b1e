"""A rule of a cluster of real processes: one node carries it, and another one goes on without that and its disk."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from starlingmq.client import Client
from tests.bridges.test_bridge_cluster import Carriers
from tests.cluster.real import Cluster, Node
from tests.cluster.test_real_copies import copied
from tests.patience import within

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

SECONDS: Final = 60.0
EACH: Final = 60
RULE: Final[dict[str, Any]] = {
    "name": "b",
    "source": {"topics": ["in/#"]},
    "decode": {"format": "json", "schema": "n int"},
    "steps": [{"sql": "select 'out' as topic, string(n) as payload, 1 as qos from rows"}],
}


def with_rule(settings: dict[str, Any]) -> None:
    settings["rules"] = [RULE]


async def publish(node: Node, first: int) -> None:
    async with Client(node.url) as client, within(SECONDS):
        for number in range(first, first + EACH):
            await client.publish("in/a", json.dumps({"n": number}), qos=1)


@pytest.mark.long(alone="the nodes of a cluster that carry a rule, as processes")
async def test_no_row_is_lost_with_the_node_that_carries_the_rule_and_its_disk(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3, {"copies": 2, "lease_ttl": 3}, proxies=False)
    for node in cluster.nodes:
        node.configure(with_rule)
    with cluster:
        await cluster.whole()
        await copied(cluster, 2)
        carriers = Carriers(cluster, "rule")
        first = await carriers.next()
        here, there = [node for node in cluster.nodes if node is not first]
        came: Counter[int] = Counter()
        subscribed = asyncio.Event()

        async def read() -> None:
            async with Client(here.url, client_id="reader", clean_start=False, session_expiry=3600) as reader:
                await reader.subscribe("out", qos=1)
                subscribed.set()
                async for message in reader.messages():
                    came[int(message.payload)] += 1

        reading = asyncio.ensure_future(read())
        async with within(SECONDS):
            await subscribed.wait()
        await publish(there, 0)
        writing = asyncio.ensure_future(publish(there, EACH))
        await cluster.until(lambda: len(came) > EACH, "rows come")
        first.kill()
        shutil.rmtree(first.data_dir)
        await writing
        second = await carriers.next(first)
        assert second in (here, there)
        await publish(here, 2 * EACH)
        await cluster.until(lambda: len(came) == 3 * EACH, "all rows have come")
        assert came.total() < 5 * EACH, "it went on, and did not begin again"
        reading.cancel()
        assert not cluster.complaints()
