"""Owners in shares between real processes: what clients do, and what waits, while all etcds are stopped."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest
from tests.cluster.real import Cluster, Node
from tests.patience import slowness, within
from tests.peer import Peer

from starlingmq.client import Client
from starlingmq.wire.mqtt import Connack, Connect, Packet, Will
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL, Properties

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

AWAY_SECONDS = float(os.environ.get("STARLINGMQ_ETCD_AWAY", "8"))
ROAMERS = 12
WAITING_SECONDS = 3.0  # a CONNECT waits for its owner for longer, as a rule


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, 3, proxies=False) as cluster:
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
        else:
            await client.unsubscribe(f"once/{self.moves - 1}/{self.name}")
        await client.subscribe(f"once/{self.moves}/{self.name}", 1)
        payload = b"%d" % self.moves
        wanted = {f"for/{self.name}", f"once/{self.moves}/{self.name}"}
        for topic in (f"once/{self.moves - 1}/{self.name}", *wanted):
            await publisher.publish(topic, payload, 1)
        async with within(20.0):
            async for message in client.messages():
                assert message.payload == payload and message.topic in wanted, message
                wanted.remove(message.topic)
                if not wanted:
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


def is_stopped(node: Node) -> bool:
    etcd = node.etcd()
    with suppress(psutil.NoSuchProcess):
        return etcd is None or etcd.status() == psutil.STATUS_STOPPED
    return False


@asynccontextmanager
async def etcd_away(cluster: Cluster) -> AsyncIterator[None]:
    stopping = asyncio.create_task(keep_etcd_away(cluster))
    try:
        await cluster.until(lambda: all(is_stopped(node) for node in cluster.nodes), "all etcds are stopped")
        yield
    finally:
        stopping.cancel()
        for node in cluster.nodes:
            etcd = node.etcd()
            with suppress(psutil.NoSuchProcess):
                if etcd is not None:
                    etcd.resume()


async def test_clients_connect_and_move_while_all_etcds_are_stopped(three: Cluster) -> None:
    roamers = [Roamer(three, number) for number in range(ROAMERS)]
    async with Client(three.nodes[0].url) as publisher:
        for roamer in roamers[: ROAMERS // 2]:
            await roamer.move(publisher, present=False)
        async with etcd_away(three):
            end = time.monotonic() + AWAY_SECONDS
            for roamer in roamers[ROAMERS // 2 :]:  # new ones
                await roamer.move(publisher, present=False)
            while time.monotonic() < end:
                for roamer in roamers:
                    await roamer.move(publisher)
        for roamer in roamers:
            await roamer.move(publisher)
    moves = sum(roamer.moves for roamer in roamers)
    slowest = max(roamer.slowest for roamer in roamers)
    print(f"{moves} moves, {AWAY_SECONDS:.0f} s without etcd, the slowest CONNECT took {1000 * slowest:.0f} ms")
    assert moves >= 3 * ROAMERS


async def came(client: Client, topic: str, seconds: float) -> list[bytes]:
    """The payloads that come on that topic within so many seconds; not more than one."""
    found: list[bytes] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            async for message in client.messages():
                if message.topic == topic:
                    found.append(message.payload)
                    break
    return found


@pytest.mark.long(kept="tests/cluster/test_shares_worlds.py")
async def test_wills_come_and_retained_values_wait_while_all_etcds_are_stopped(three: Cluster) -> None:
    first, second, third = three.nodes
    async with Client(third.url) as watcher:
        await watcher.subscribe("will/#", 1)
        await watcher.subscribe("kept/#", 1)
        async with etcd_away(three):
            for number, delay in enumerate([0, 1]):
                peer = await Peer.open(first.url)
                will = Will(b"will/%d" % number, b"gone", 1, properties={WILL_DELAY_INTERVAL: delay} if delay else {})
                properties: Properties = {SESSION_EXPIRY_INTERVAL: 60}
                peer.send(Connect(5, f"mourner{number}", False, will=will, properties=properties))
                assert (await peer.expect(Connack)).reason == 0
                peer.abort()
                assert await came(watcher, f"will/{number}", 20.0 * slowness()) == [b"gone"]
            async with Client(first.url) as publisher:
                await publisher.publish("kept/a", b"value", 1, retain=True)
            assert await came(watcher, "kept/a", 20.0 * slowness()) == [b"value"], "a subscriber gets the message"
            async with Client(first.url) as here:
                await here.subscribe("kept/#", 1)
                assert await came(here, "kept/a", 20.0 * slowness()) == [b"value"], "its node retains it"
            async with Client(second.url) as there:
                await there.subscribe("kept/#", 1)
                assert await came(there, "kept/a", 8.0) == [], "other nodes learn of it from etcd"
        await three.whole()
        async with Client(second.url) as there:
            await there.subscribe("kept/#", 1)
            assert await came(there, "kept/a", 20.0 * slowness()) == [b"value"]


def place_of(node: Node, client_id: str) -> tuple[str, str]:
    """The leader and the deputy of the share of a client id."""
    found = node.ask("cluster.shares", client=client_id)["lookup"]
    return found["leader"], found["deputy"]


@pytest.mark.long(kept="tests/cluster/test_shares_worlds.py")
async def test_shares_of_a_node_that_is_gone_and_a_node_that_starts_wait_for_etcd(three: Cluster) -> None:
    first, second, third = three.nodes
    names = {place_of(first, f"c{number}"): f"c{number}" for number in range(200)}
    assert len(names) == 6, "each pair of nodes has shares"
    with_it = [name for pair, name in names.items() if third.name in pair]
    without = [name for pair, name in names.items() if third.name not in pair]
    async with etcd_away(three):
        await asyncio.to_thread(third.kill)
        await three.until(lambda: not first.sees(third) and not second.sees(third), "it is missed")
        third.start()
        for node in (first, second):
            for name in without:
                async with within(20.0), Client(node.url, client_id=name, clean_start=False, session_expiry=60):
                    pass
        waiting = []
        for name in with_it:
            peer = await Peer.open(first.url)
            peer.send(Connect(5, name, False, properties={SESSION_EXPIRY_INTERVAL: 60}))
            waiting.append(peer)
        answers = [asyncio.create_task(peer.receive()) for peer in waiting]
        early, late = await asyncio.wait(answers, timeout=WAITING_SECONDS)
        assert late and not any(is_success(task.result()) for task in early), "a share without its node was served"
        assert not third.is_ready(), "a node served before it had a table"
    await three.whole()
    for peer, answer in zip(waiting, answers, strict=True):
        answer.cancel()
        peer.abort()
    for name in with_it:
        async with within(30.0), Client(third.url, client_id=name, clean_start=False, session_expiry=60):
            pass


def is_success(packet: Packet | None) -> bool:
    """Whether it is a CONNACK with success; a refusal asks the client to try again."""
    return isinstance(packet, Connack) and packet.reason == 0
