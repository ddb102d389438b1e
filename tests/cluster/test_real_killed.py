"""A node is killed, the others see that its process has ended, serve its clients at once and publish its wills soon.

Nothing else would tell them in time: ``member_timeout``, or ``lease_ttl``, is longer than a test may take.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

import pytest
from tests.cluster.real import Cluster, Node
from tests.patience import within
from tests.peer import Peer

from starlingmq.client import Client
from starlingmq.wire.mqtt import Connack, Connect, Will

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/cluster/test_process_watch.py"),
    pytest.mark.timeout(150),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

SILENCE: Final = {"member_timeout": 300.0, "subscribe_ack_timeout": 300.0, "takeover_limit": 300.0}
SECONDS: Final = 60.0


@pytest.fixture
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("killed"), 3, SILENCE, proxies=False) as cluster:
        asyncio.run(cluster.whole())
        yield cluster
        assert cluster.complaints() == []


@pytest.mark.parametrize("version", [4, 5])
async def test_clients_of_a_killed_node_are_served_elsewhere_at_once(three: Cluster, version: int) -> None:
    killed, other, third = three.nodes
    client = Client(killed.url, client_id="c", version=version, clean_start=False, session_expiry=600 * (version == 5))
    await client.connect()
    await client.subscribe("before/#", 1)
    async with Client(third.url, keep_alive=0) as publisher, within(SECONDS):
        killed.kill()
        killed_at = time.monotonic()
        async with Client(other.url, client_id="c", version=version, clean_start=False) as again:
            await again.subscribe("after/#", 1)
            served_at = time.monotonic()
            await publisher.publish("after/1", b"x", 1)
            async for message in again.messages():
                assert message.topic == "after/1"
                break
    print(f"\nserved elsewhere {served_at - killed_at:.2f} s after the kill")
    await three.until(
        lambda: not other.sees(killed) and not third.sees(killed), "each of the others sees that the process has ended"
    )
    killed.start()
    await three.whole()


@pytest.fixture
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Its leases last; all else is as by default."""
    with Cluster(tmp_path_factory.mktemp("wills"), 3, {"lease_ttl": 300}, proxies=False) as cluster:
        asyncio.run(cluster.whole())
        yield cluster
        assert cluster.complaints() == []


def told_all(node: Node) -> bool:
    return not node.is_behind()


async def test_wills_of_a_killed_node_do_not_wait_for_its_lease(patient: Cluster) -> None:
    """Each of the nodes is killed once, so one of them was the leader."""
    for killed, other, _ in (patient.nodes[at:] + patient.nodes[:at] for at in range(3)):
        peer = await Peer.open(killed.url)
        peer.send(Connect(5, "c", True, will=Will(f"will/{killed.name}".encode(), b"offline", 1, True, {})))
        assert (await peer.expect(Connack)).reason == 0
        async with Client(other.url) as watcher:
            await watcher.subscribe(f"will/{killed.name}", 1)
            await patient.until(partial(told_all, killed), "the leader of the share has the will")
            killed.kill()
            killed_at = time.monotonic()
            async with within(SECONDS):
                async for message in watcher.messages():
                    assert message.payload == b"offline"
                    break
        print(
            f"\nthe will of a client of {killed.name} is published {time.monotonic() - killed_at:.2f} s after the kill"
        )
        peer.abort()
        killed.start()
        await patient.whole()
