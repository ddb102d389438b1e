"""Presence between real processes, on real etcd: a client whose node is killed is back elsewhere at once, and stays
``online``, whether its node stays down or comes back."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from typing import Final

import pytest
from tests.cluster.real import Cluster, Node
from tests.patience import within
from tests.peer import Peer

from starlingmq.client import Client
from starlingmq.wire.mqtt import Ack, Connack, Connect, Publish, Will
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, Properties

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/cluster/test_presence.py"),
    pytest.mark.timeout(200),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

SECONDS: Final = 30.0
LEASE_SECONDS: Final = 3
QUIET_SECONDS: Final = LEASE_SECONDS + 6.0  # a will that comes late has come by then: with its node's lease, or before


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("presence"), 3, {"lease_ttl": LEASE_SECONDS}) as cluster:
        asyncio.run(cluster.whole())
        yield cluster
        assert cluster.complaints() == []


async def come_online(node: Node, name: str, version: int, clean: bool) -> Peer:
    """Until its node takes it: a node that has just lost another one may refuse clients for a moment."""
    async with within(SECONDS):
        while True:
            peer = await Peer.open(node.url, version)
            will = Will(f"presence/{name}".encode(), b"offline", 1, True, {})
            expiry: Properties = {SESSION_EXPIRY_INTERVAL: 600} if version == 5 and not clean else {}
            peer.send(Connect(version, name, clean, will=will, properties=expiry))
            if (await peer.expect(Connack)).reason == 0:
                break
            peer.abort()
            await asyncio.sleep(0.1)
    peer.send(Publish(f"presence/{name}".encode(), b"online", 1, True, packet_id=1))
    await peer.expect(Ack)
    return peer


@pytest.mark.parametrize("comes_back", [False, True], ids=["stays_down", "comes_back"])
async def test_a_client_whose_node_was_killed_is_online_in_the_end(three: Cluster, comes_back: bool) -> None:
    first, second, third = three.nodes
    kinds = [(version, clean) for version in (4, 5) for clean in (False, True)]
    names = {f"c{version}{'clean' if clean else 'kept'}": (version, clean) for version, clean in kinds}
    peers = [await come_online(first, name, *kind) for name, kind in names.items()]
    async with Client(third.url) as watcher:
        await watcher.subscribe("presence/#", 1)
        said: dict[str, list[bytes]] = {name: [] for name in names}

        async def listen() -> None:
            async for message in watcher.messages():
                said[message.topic.removeprefix("presence/")].append(message.payload)

        listening = asyncio.create_task(listen())
        first.kill()
        if comes_back:
            first.start()
        await asyncio.sleep(1.0)
        again = [await come_online(second, name, *kind) for name, kind in names.items()]
        if comes_back:
            await three.whole()
        await asyncio.sleep(QUIET_SECONDS)
        listening.cancel()
    for name, payloads in said.items():
        assert payloads[-1:] == [b"online"], f"{name}: {payloads}"
        assert payloads.count(b"offline") <= 2, f"{name}: {payloads}"  # the retained one of before, and the will
    for node in (second, third):
        async with Client(node.url) as reader:
            await reader.subscribe("presence/#", 1)
            retained: dict[str, bytes] = {}
            async with within(SECONDS):
                async for message in reader.messages():
                    retained[message.topic.removeprefix("presence/")] = message.payload
                    if len(retained) == len(names):
                        break
        assert retained == dict.fromkeys(names, b"online"), node.name
    for peer in (*peers, *again):
        peer.abort()
    if not comes_back:
        first.start()
    await three.whole()
