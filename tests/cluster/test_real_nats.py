"""NATS clients on real nodes: who they are told of, and where they go when theirs leaves."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest
from nats.aio.client import Client
from tests.cluster.real import Cluster, Node
from tests.patience import slowness, within

from starlingmq.client import Client as MqttClient

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/nats/test_lame_duck.py"),
    pytest.mark.timeout(150),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

PATIENCE = 30


def speak_nats(settings: dict[str, Any]) -> None:
    settings["listeners"].append("nats://127.0.0.1:0")
    settings["nats"] = {"lame_duck_duration": "60s"}
    settings["node"]["shutdown_timeout"] = "60s"


@pytest.fixture
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("nats"), 3)
    for node in cluster.nodes:
        node.configure(speak_nats)
    with cluster:
        asyncio.run(cluster.whole())
        yield cluster


def address(node: Node) -> str:
    found = re.findall(r"nats://[0-9.:]+", node.said())
    return str(found[-1]).removeprefix("nats://")


async def test_a_node_that_leaves_sends_its_clients_to_the_others_one_after_the_other(three: Cluster) -> None:
    leaving, *others = three.nodes
    all_told, ducks, moved = asyncio.Event(), [], []
    clients = [Client() for _ in range(6)]

    def watch(client: Client) -> dict[str, object]:
        async def discovered() -> None:
            if len(client.servers) == 3:
                all_told.set()

        async def lame_duck() -> None:
            ducks.append(client)

        async def reconnected() -> None:
            moved.append(client)

        return {"discovered_server_cb": discovered, "lame_duck_mode_cb": lame_duck, "reconnected_cb": reconnected}

    for client in clients:
        await client.connect(
            address(leaving),
            connect_timeout=PATIENCE,
            max_reconnect_attempts=-1,
            **watch(client),  # type: ignore[arg-type]
        )
    if len(clients[0].servers) < 3:  # listeners are told of in heartbeats
        await asyncio.wait_for(all_told.wait(), PATIENCE * slowness())
    subscriptions = [await client.subscribe("news.*") for client in clients]
    for client in clients:
        await client.flush(PATIENCE)
    began = monotonic()
    assert await asyncio.to_thread(leaving.stop) == 0
    assert monotonic() - began < min(15 * slowness(), 50), "SIGTERM does not wait for the period of lame duck mode"
    assert len(ducks) == len(clients)
    async with within(PATIENCE):
        while len(moved) < len(clients):
            await asyncio.sleep(0.05)
    for client in clients:
        await client.flush(PATIENCE)
        assert client.connected_url is not None
        assert client.connected_url.netloc in [address(node) for node in others]
    async with MqttClient(others[1].url, client_id="kept", session_expiry=3600) as publisher:
        await publisher.publish("news/today", b"moved", 1)
    for subscription in subscriptions:
        assert (await subscription.next_msg(timeout=PATIENCE * slowness())).data == b"moved"
    for client in clients:
        await client.close()
    assert [await asyncio.to_thread(node.stop) for node in others] == [0, 0]
    hint = "no other node of the cluster accepts clients any more, so the "
    assert [hint in node.said() for node in three.nodes] == [False, False, True], "only the last one says how to go on"
