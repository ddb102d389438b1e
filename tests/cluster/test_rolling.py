"""A cluster whose nodes are restarted one after the other, under load: nothing is lost, and every session is kept.

The clients are at home nowhere: they go where they are sent, and to other nodes by themselves now and then.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.cluster.real import Cluster
from tests.cluster.roaming import RoamingLoad
from tests.patience import within

from starlingmq.client import Client
from starlingmq.client.options import QOS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/cluster/test_drain_worlds.py"),
    pytest.mark.timeout(150),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

AWAY = 12  # clients that are not connected meanwhile
EACH = 20  # messages for them


def lasting(url: str, number: int) -> Client:
    version = 4 + number % 2
    return Client(
        url, client_id=f"away{number}", version=version, clean_start=False, session_expiry=3600 * (version - 4)
    )


async def test_a_rolling_restart_loses_nothing_and_keeps_every_session(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3) as cluster:
        await cluster.whole()
        for number in range(AWAY):
            client = lasting(cluster.nodes[number % 3].url, number)
            await client.connect()
            await client.subscribe("away/#", QOS[1 + number // 2 % 2])
            await client.disconnect()
        said: list[bytes] = []
        async with RoamingLoad(cluster.nodes, 400, hop_seconds=3.0, retained=True, wills=True) as load:
            for place, node in enumerate(cluster.nodes):
                await load.more(300)
                async with Client(cluster.nodes[place - 1].url) as publisher:
                    for turn in range(EACH):
                        said.append(b"%d/%d" % (place, turn))
                        await publisher.publish("away/x", said[-1], QOS[1 + turn % 2])
                assert await asyncio.to_thread(node.stop) == 0
                await load.more(300)
                node.start()
                await cluster.whole()
            await load.settle()
            print(load.figures())
        for number in range(AWAY):
            client = lasting(cluster.nodes[(number + 1) % 3].url, number)
            await client.connect()
            assert client.session_present, f"away{number} has lost its session"
            got: list[bytes] = []
            async with within(20.0):
                async for message in client.messages():
                    got.append(message.payload)
                    if len(got) == len(said):
                        break
            assert got == said
            await client.disconnect()
        assert cluster.complaints() == []
