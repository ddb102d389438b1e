"""Sessions that follow their clients, between real processes: with queued messages, in order, once."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator

import pytest
from tests.cluster.real import Cluster
from tests.few import few
from tests.patience import within

from starlingmq.client import Client
from starlingmq.client.options import QOS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(150),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

QUEUED = 1000


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("sessions"), 2) as cluster:
        asyncio.run(cluster.whole())
        yield cluster
        assert cluster.complaints() == []


def lasting(url: str, version: int) -> Client:
    expiry = 3600 if version == 5 else 0
    return Client(url, client_id=f"roamer{version}", version=version, clean_start=False, session_expiry=expiry)


async def take(client: Client, wanted: int) -> list[bytes]:
    found: list[bytes] = []
    async with within(20.0):
        async for message in client.messages():
            found.append(message.payload)
            if len(found) == wanted:
                break
    return found


@pytest.mark.parametrize("version", few([4, 5], 5))
async def test_a_client_finds_its_queue_at_the_node_it_goes_to(two: Cluster, version: int) -> None:
    here, there = two.nodes
    topic = f"roaming/{version}"
    client = lasting(here.url, version)
    await client.connect()
    await client.subscribe(topic, 2)
    await client.disconnect()
    payloads = [b"%d" % number for number in range(QUEUED)]
    async with Client(there.url) as publisher:
        for number, payload in enumerate(payloads):
            await publisher.publish(topic, payload, QOS[1 + number % 2])
        client = lasting(there.url, version)
        began = time.perf_counter()
        await client.connect()
        assert client.session_present
        got = await take(client, QUEUED)
        print(f"{QUEUED} messages at the other node after {1000 * (time.perf_counter() - began):.0f} ms")
        assert got == payloads
        await publisher.publish(topic, b"more", 2)
        assert await take(client, 1) == [b"more"]
        await client.disconnect()
    again = lasting(here.url, version)
    await again.connect()
    assert again.session_present
    assert again.unread == 0
    await again.disconnect()


async def test_a_session_is_its_users_at_both_nodes(two: Cluster) -> None:
    here, there = two.nodes

    def client(url: str, user: str) -> Client:
        return Client(url, client_id="shared", username=user, clean_start=False, session_expiry=3600)

    ann = client(here.url, "ann")
    await ann.connect()
    await ann.subscribe("owned", 1)
    await ann.disconnect()
    async with Client(there.url) as publisher:
        await publisher.publish("owned", b"for ann", 1)
        ann = client(there.url, "ann")
        await ann.connect()
        assert ann.session_present and await take(ann, 1) == [b"for ann"], "the owner finds it at the other node"
        await ann.disconnect()
        await publisher.publish("owned", b"for ann too", 1)
        bob = client(here.url, "bob")
        await bob.connect()
        assert not bob.session_present
        await bob.subscribe("mine", 1)
        await publisher.publish("owned", b"for nobody", 1)
        await publisher.publish("mine", b"for bob", 1)
        assert await take(bob, 1) == [b"for bob"] and bob.unread == 0
        await bob.disconnect()
