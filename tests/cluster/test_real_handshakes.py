"""QoS 2 handshakes that go on at another node, between real processes: published once, told truly."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import pytest
from tests.cluster.real import Cluster, Node
from tests.harness import body_start
from tests.patience import within

from starlingmq.client import Client
from starlingmq.wire.mqtt import Ack, Connack, Connect, Packet, Publish, decode, encode, frame_length
from starlingmq.wire.packets import PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, Properties

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/cluster/test_handshake_worlds.py"),
    pytest.mark.timeout(150),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

NOT_FOUND = 0x92
TIMEOUT = 6.0
WATCHERS = count(1)
SETTINGS = {"handshake_timeout": f"{TIMEOUT:g}s", "member_timeout": "1.5s", "heartbeat_interval": "300ms"}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("handshakes"), 3, SETTINGS) as cluster:
        asyncio.run(cluster.whole())
        yield cluster
        assert cluster.complaints() == []


class Publisher:
    """Says one packet after the other, and nothing by itself."""

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.version = version
        self.data = b""
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter | None = None

    async def come(self, node: Node) -> bool:
        """Connect to a node, wherever it was before; whether its session is there."""
        self.go()
        self.data = b""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", node.port)
        properties: Properties = {SESSION_EXPIRY_INTERVAL: 3600} if self.version == 5 else {}
        self.say(Connect(self.version, self.name, False, properties=properties))
        answer = await self.hear()
        assert isinstance(answer, Connack) and answer.reason == 0, answer
        return answer.session_present

    def go(self) -> None:
        """Leave without a word."""
        if self.writer is not None:
            self.writer.transport.abort()

    def say(self, packet: Packet) -> None:
        assert self.writer is not None
        self.writer.write(encode(packet, self.version))

    async def hear(self, seconds: float = 20.0) -> Packet | None:
        """The next packet; None: the connection has ended."""
        async with within(seconds):
            while len(self.data) < 2 or not 0 < frame_length(self.data, 0) <= len(self.data):
                more = b""
                with suppress(ConnectionError):
                    more = await self.reader.read(1 << 16)
                if not more:
                    return None
                self.data += more
        length = frame_length(self.data, 0)
        frame, self.data = self.data[:length], self.data[length:]
        return decode(frame[0], frame, body_start(frame), length, self.version)

    async def publish(self, payload: bytes, packet_id: int = 1, dup: bool = False) -> None:
        """PUBLISH and PUBREC."""
        self.say(Publish(self.topic.encode(), payload, 2, packet_id=packet_id, dup=dup))
        assert await self.hear() == Ack(PUBREC, packet_id)

    async def release(self, packet_id: int = 1) -> Packet | None:
        self.say(Ack(PUBREL, packet_id))
        return await self.hear()

    @property
    def topic(self) -> str:
        return f"handshakes/{self.name}"


def durable(node: Node) -> Client:
    """Of what other nodes acknowledge for a session that ends with its connection nothing is kept there."""
    return Client(node.url, client_id=f"watcher{next(WATCHERS)}", session_expiry=600)


async def received(watcher: Client, publisher: Publisher, cluster: Cluster) -> list[bytes]:
    """All that comes for a topic until a last message from each node: none overtakes what came from there before."""
    for node in cluster.nodes:
        async with Client(node.url) as client:
            await client.publish(publisher.topic, b"end", 2)
    found: list[bytes] = []
    async with within(20.0):
        async for message in watcher.messages():
            found.append(message.payload)
            if found.count(b"end") == len(cluster.nodes):
                break
    return [payload for payload in found if payload != b"end"]


@pytest.mark.parametrize("version", [4, 5])
async def test_a_publisher_goes_on_at_another_node_and_repeats_itself_at_a_third(three: Cluster, version: int) -> None:
    first, second, third = three.nodes
    publisher = Publisher(f"hopper{version}", version)
    async with durable(third) as watcher:
        await watcher.subscribe(publisher.topic, 2)
        await publisher.come(first)
        await publisher.publish(b"once")
        assert await publisher.come(second)
        assert await publisher.release() == Ack(PUBCOMP, 1)
        assert await publisher.come(third)
        assert await publisher.release() == Ack(PUBCOMP, 1)  # as if the first one had been lost
        assert await received(watcher, publisher, three) == [b"once"]
    asked = third.status()["handshakes"]
    assert asked["answers/completed"] >= 1
    publisher.go()


@pytest.mark.parametrize("version", [4, 5])
async def test_a_publish_that_comes_again_at_another_node_goes_its_way_once(three: Cluster, version: int) -> None:
    first, second, third = three.nodes
    publisher = Publisher(f"again{version}", version)
    async with durable(third) as watcher:
        await watcher.subscribe(publisher.topic, 2)
        await publisher.come(first)
        await publisher.publish(b"once")
        assert await publisher.come(second)
        await publisher.publish(b"once", dup=True)  # PUBREC was lost
        assert await publisher.come(first)
        assert await publisher.release() == Ack(PUBCOMP, 1)
        assert await received(watcher, publisher, three) == [b"once"]
    publisher.go()


async def test_handshakes_of_a_killed_node_are_there_when_it_is_back(three: Cluster) -> None:
    first, second, third = three.nodes
    publisher = Publisher("patient", 5)
    async with durable(third) as watcher:
        await watcher.subscribe(publisher.topic, 2)
        await publisher.come(first)
        await publisher.publish(b"kept")
        assert await publisher.come(second)
        first.kill()
        first.start()
        await three.whole()
        assert await publisher.release() == Ack(PUBCOMP, 1)
        first.kill()  # with what it has completed
        first.start()
        await three.whole()
        assert await publisher.come(third)
        assert await publisher.release() == Ack(PUBCOMP, 1)
        assert await received(watcher, publisher, three) == [b"kept"]
    publisher.go()


async def test_a_holder_that_is_cut_off_is_waited_for(three: Cluster) -> None:
    first, second, third = three.nodes
    publisher = Publisher("waiting", 5)
    async with durable(third) as watcher:
        await watcher.subscribe(publisher.topic, 2)
        await publisher.come(first)
        await publisher.publish(b"waited for")
        assert await publisher.come(second)
        await three.cut_off(first)
        asked = second.status()["handshakes"]["windows"]
        publisher.say(Ack(PUBREL, 1))
        await three.until(lambda: second.status()["handshakes"]["windows"] > asked, "it is asked for")
        three.heal()
        assert await publisher.hear() == Ack(PUBCOMP, 1)
        await three.whole()
        assert await received(watcher, publisher, three) == [b"waited for"]
    publisher.go()


async def test_a_holder_that_is_cut_off_for_long_is_told_as_lost(three: Cluster) -> None:
    first, second, third = three.nodes
    older, newer = Publisher("older", 4), Publisher("newer", 5)
    async with durable(third) as watcher:
        for publisher in (older, newer):
            await watcher.subscribe(publisher.topic, 2)
            await publisher.come(first)
            await publisher.publish(b"lost")
            assert await publisher.come(second)
        await three.cut_off(first)
        answers = await asyncio.gather(older.release(), newer.release())
        assert list(answers) == [None, Ack(PUBCOMP, 1, NOT_FOUND)]
        assert await older.come(second)  # the session is there; PUBCOMP comes when the holder is back
        for publisher in (older, newer):
            await publisher.publish(b"again", packet_id=2)
            assert await publisher.release(2) == Ack(PUBCOMP, 2)
        three.heal()
        await three.whole()
        assert await older.release() == Ack(PUBCOMP, 1)
        assert await received(watcher, older, three) == [b"again", b"again", b"lost"]
    older.go()
    newer.go()
