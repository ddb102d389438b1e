"""A node is killed, and its clients are served by the others at once: those see that its process has ended.

Silence would not tell so soon: ``member_timeout`` is longer than the whole test may take.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from typing import Final

import pytest
from tests.cluster.real import Cluster

from starlingmq.client import Client

pytestmark = [
    pytest.mark.slow,
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
    async with Client(third.url, keep_alive=0) as publisher, asyncio.timeout(SECONDS):
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
    for node in (other, third):
        assert not node.sees(killed)
    killed.start()
    await three.whole()
