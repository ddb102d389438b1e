"""A node is killed while thousands of messages are published for its sessions: none is dropped when it is back."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator
from typing import Final

import pytest
from tests.cluster.real import Cluster, Node
from tests.patience import within

from starlingmq.client import Client
from starlingmq.client.options import QOS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/cluster/test_backlog.py"),
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

COUNT: Final = 4000
LIMIT: Final = 1000  # mqtt.max_mqueue_len, as by default
SECONDS: Final = 60.0


class LimitedCluster(Cluster):
    def _connect(self, node: Node) -> None:
        super()._connect(node)
        node.configure(lambda settings: settings.update({"mqtt": {"max_mqueue_len": LIMIT}, "limits": {}}))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with LimitedCluster(tmp_path_factory.mktemp("backlog"), 3, proxies=False) as cluster:
        asyncio.run(cluster.whole())
        yield cluster
        assert cluster.complaints() == []


def lasting(url: str, client_id: str) -> Client:
    return Client(url, client_id=client_id, clean_start=False, session_expiry=3600)


async def leave_session(url: str, client_id: str, topic: str, qos: int) -> None:
    async with lasting(url, client_id) as client:
        await client.subscribe(topic, QOS[qos])


@pytest.mark.parametrize("qos", [1, 2])
async def test_all_that_waited_for_a_killed_node_comes_in_order_and_none_is_dropped(three: Cluster, qos: int) -> None:
    killed, other, third = three.nodes
    topic, payloads = f"backlog/{qos}", [b"%d" % number for number in range(COUNT)]
    await leave_session(killed.url, f"reader {qos}", topic, qos)
    await leave_session(killed.url, f"never {qos}", topic, qos)
    killed.kill()
    await three.until(lambda: not other.sees(killed) and not third.sees(killed), "the process has ended")
    said = other.said_bytes()
    async with Client(other.url) as publisher, within(SECONDS):
        for payload in payloads:
            publisher.publish_soon(topic, payload, QOS[qos])
        await publisher.flush()
        killed.start()
        await three.until(killed.is_ready, "it is back")
        async with lasting(killed.url, f"reader {qos}") as reader:
            assert reader.session_present
            got: list[bytes] = []
            async for message in reader.messages():
                got.append(message.payload)
                if len(got) == COUNT:
                    break
            assert got == payloads
    await three.whole()
    overview = killed.ask("overview")
    assert overview["totals"]["dropped"] == 0, overview["dropped"]
    await three.until(  # the figure is as of the last survey of all sessions
        lambda: bool(killed.ask("overview")["holds"]["queued"] >= COUNT), "the session that stays away has all of them"
    )
    # in the line about its return, or, if they take longer, in one that follows
    told = re.compile(r"the ([\d,]+) messages (?:that waited for it )?were passed on")
    await three.until(lambda: told.search(other.said(said)) is not None, "it tells what was passed on")
    passed_on = told.search(other.said(said))
    assert passed_on is not None and int(passed_on[1].replace(",", "")) >= COUNT
    metrics = {sample["name"]: sample["value"] for sample in killed.ask("metrics")["samples"]}
    assert metrics["starlingmq_forwards_kept_total"] >= COUNT
