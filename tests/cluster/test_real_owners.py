"""Owners in shares between real processes: clients connect and move while all etcds are stopped."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.cluster.real import Cluster
from tests.patience import within

from starlingmq.client import Client

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

AWAY_SECONDS = float(os.environ.get("STARLINGMQ_ETCD_AWAY", "20"))
ROAMERS = 12


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, 3, {"owners": "shares"}, proxies=False) as cluster:
        asyncio.run(cluster.whole())
        yield cluster
        assert cluster.complaints() == []


class Roamer:
    """A client that goes from node to node, and gets a message at each."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.name = f"roamer{number}"
        self.moves = 0
        self.slowest = 0.0
        self.place = number

    async def move(self, publisher: Client, present: bool = True) -> None:
        self.place += 1
        url = self.cluster.nodes[self.place % 3].url
        client = Client(url, client_id=self.name, version=5, clean_start=False, session_expiry=3600)
        began = time.perf_counter()
        await client.connect()
        self.slowest = max(self.slowest, time.perf_counter() - began)
        assert client.session_present == present, f"{self.name} after {self.moves} moves"
        if not present:
            await client.subscribe(f"for/{self.name}", 1)
        payload = b"%d" % self.moves
        await publisher.publish(f"for/{self.name}", payload, 1)
        async with within(20.0):
            async for message in client.messages():
                assert message.payload == payload
                break
        await client.disconnect()
        self.moves += 1


async def keep_etcd_away(cluster: Cluster) -> None:
    """Stops all etcds, also those that the nodes start in their place."""
    while True:
        for node in cluster.nodes:
            etcd = node.etcd()
            with suppress(psutil.NoSuchProcess):
                if etcd is not None and etcd.status() != psutil.STATUS_STOPPED:
                    etcd.suspend()
        await asyncio.sleep(0.05)


async def test_clients_connect_and_move_while_all_etcds_are_stopped(three: Cluster) -> None:
    roamers = [Roamer(three, number) for number in range(ROAMERS)]
    async with Client(three.nodes[0].url) as publisher:
        for roamer in roamers[: ROAMERS // 2]:
            await roamer.move(publisher, present=False)
        stopping = asyncio.create_task(keep_etcd_away(three))
        try:
            end = time.monotonic() + AWAY_SECONDS
            for roamer in roamers[ROAMERS // 2 :]:  # new ones
                await roamer.move(publisher, present=False)
            while time.monotonic() < end:
                for roamer in roamers:
                    await roamer.move(publisher)
        finally:
            stopping.cancel()
            for node in three.nodes:
                etcd = node.etcd()
                if etcd is not None:
                    etcd.resume()
        for roamer in roamers:
            await roamer.move(publisher)
    moves = sum(roamer.moves for roamer in roamers)
    slowest = max(roamer.slowest for roamer in roamers)
    print(f"{moves} moves, {AWAY_SECONDS:.0f} s without etcd, the slowest CONNECT took {1000 * slowest:.0f} ms")
    assert moves >= 3 * ROAMERS
