"""Three nodes, each a process with an etcd of its own, and the clients that people use, on different nodes; then what
may happen to such a cluster, one thing at a time and under load. ``make chaos-cluster`` has it all at once."""

from __future__ import annotations

import asyncio
import json
import queue
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from paho.mqtt.client import Client as PahoClient
from paho.mqtt.client import MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion
from tests.clients.paho_thread import disconnect
from tests.cluster.load import Load
from tests.cluster.real import Cluster, Node
from tests.patience import slowness, within
from tests.peer import Peer

from starlingmq.client import Client, ConnectRefused
from starlingmq.client.options import QOS
from starlingmq.wire.mqtt import Ack, Connack, Connect, Disconnect, Publish, Subscribe, SubscribeRequest, Unsubscribe
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, Properties

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(150),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

VERSIONS: Final = (4, 5)
EACH: Final = 40  # messages of each publisher at each QoS
SECONDS: Final = 20.0

numbers = count(1)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), 3) as cluster:
        asyncio.run(cluster.whole())
        yield cluster
        assert cluster.complaints() == []
        assert [node.stop() for node in cluster.nodes] == [0, 0, 0]


@pytest.fixture
async def cluster(three: Cluster) -> Cluster:
    """The cluster of this module, whole again after what the last test did to it."""
    three.heal()
    await three.whole()
    return three


def fresh(name: str) -> str:
    return f"{name}/{next(numbers)}"


def ctl(node: Node, *words: str) -> Any:
    """The output of ``starlingmq ctl cluster`` with --json."""
    command = [sys.executable, "-m", "starlingmq", "ctl", "cluster", *words]
    run = subprocess.run(
        [*command, "--data-dir", str(node.data_dir), "--json"],
        capture_output=True,
        timeout=SECONDS * slowness(),
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


# Clients on different nodes

Said = list[tuple[str, str]]
Publishing = Callable[[Node, int, str, int], Awaitable[None]]


def lines(source: Node) -> list[str]:
    return [f"{source.name} {number}" for number in range(EACH)]


async def with_ours(cluster: Cluster, version: int, qos: int, topic: str) -> list[str]:
    first, second, third = cluster.nodes
    async with (
        Client(first.url, version=version) as reader,
        Client(second.url, version=version) as one,
        Client(third.url, version=version) as two,
    ):
        assert await reader.subscribe(topic, QOS[qos]) == [qos]
        for author, node in ((one, second), (two, third)):
            for line in lines(node):
                await author.publish(topic, line, QOS[qos])
        got = []
        async with within(SECONDS):
            async for message in reader.messages():
                assert message.qos == qos
                got.append(message.payload.decode())
                if len(got) == 2 * EACH:
                    break
    return got


def paho(node: Node, version: int) -> PahoClient:
    connected: queue.Queue[bool] = queue.Queue()
    client = PahoClient(CallbackAPIVersion.VERSION2, protocol=version)  # type: ignore[arg-type]
    client.on_connect = lambda c, u, flags, code, properties: connected.put(not code.is_failure)
    client.connect("127.0.0.1", node.port)
    client.loop_start()
    assert connected.get(timeout=SECONDS * slowness())
    return client


def with_paho(cluster: Cluster, version: int, qos: int, topic: str) -> list[str]:
    clients = [paho(node, version) for node in cluster.nodes]
    reader, *authors = clients
    granted: queue.Queue[list[int]] = queue.Queue()
    messages: queue.Queue[MQTTMessage] = queue.Queue()
    reader.on_subscribe = lambda c, u, mid, codes, properties: granted.put([code.value for code in codes])
    reader.on_message = lambda c, u, message: messages.put(message)
    try:
        reader.subscribe(topic, qos)
        assert granted.get(timeout=SECONDS * slowness()) == [qos]
        for author, node in zip(authors, cluster.nodes[1:], strict=True):
            sent = [author.publish(topic, line, qos) for line in lines(node)]
            for each in sent:
                each.wait_for_publish(SECONDS * slowness())
        return [messages.get(timeout=SECONDS * slowness()).payload.decode() for _ in range(2 * EACH)]
    finally:
        for client in clients:
            disconnect(client)


def with_mosquitto(cluster: Cluster, version: int, qos: int, topic: str) -> list[str]:
    def words(node: Node) -> list[str]:
        options = ["-h", "127.0.0.1", "-p", str(node.port), "-V", "mqttv5" if version == 5 else "mqttv311"]
        return [*options, "-t", topic, "-q", str(qos)]

    first, *others = cluster.nodes
    command = ["stdbuf", "-oL", "mosquitto_sub", *words(first), "-d", "-C", str(2 * EACH), "-W", str(int(SECONDS))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as sub:
        assert sub.stdout is not None
        for line in sub.stdout:
            if line.startswith("Subscribed"):
                break
        for node in others:
            said = "".join(f"{line}\n" for line in lines(node))
            subprocess.run(
                ["mosquitto_pub", *words(node), "-l"], input=said, text=True, check=True, timeout=SECONDS * slowness()
            )
        return [line.strip() for line in sub.stdout if line[:1] == "n"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("clients", ["ours", "paho", "mosquitto"])
async def test_clients_on_three_nodes(cluster: Cluster, clients: str, version: int) -> None:
    """Messages published on two nodes after the SUBACK of a third arrive there, once, in order, at every QoS."""
    if clients == "mosquitto" and shutil.which("mosquitto_sub") is None:
        pytest.skip("mosquitto's clients are not installed")
    for qos in (0, 1, 2):
        topic = fresh("across")
        if clients == "ours":
            got = await with_ours(cluster, version, qos, topic)
        else:
            exchange = with_paho if clients == "paho" else with_mosquitto
            got = await asyncio.to_thread(exchange, cluster, version, qos, topic)
        for node in cluster.nodes[1:]:
            assert [line for line in got if line.startswith(node.name)] == lines(node)


async def test_a_shared_subscription_over_nodes(cluster: Cluster) -> None:
    """Each message once, and to members of all nodes: once the primary knows of each, none is left out of 150."""
    topic = fresh("shared")
    readers = [await Peer.connect(node.url) for node in cluster.nodes]
    for reader in readers:
        assert await reader.subscribe(f"$share/g/{topic}", qos=1) == [1]
    all_got: list[list[int]] = [[] for _ in readers]
    came = asyncio.Event()

    async def take(reader: Peer, got: list[int]) -> None:
        while True:
            got.append(int((await reader.message()).payload))
            came.set()

    async def until(count: int) -> None:
        while sum(map(len, all_got)) < count:
            came.clear()
            await came.wait()

    tasks = [asyncio.create_task(take(*pair)) for pair in zip(readers, all_got, strict=True)]
    sent = 0
    async with within(SECONDS), Client(cluster.nodes[0].url) as author:
        while not all(all_got):
            await author.publish(topic, str(sent), 1)
            sent += 1
            await until(sent)
        for number in range(sent, sent + 150):
            await author.publish(topic, str(number), 1)
        await until(sent + 150)
    for task, reader in zip(tasks, readers, strict=True):
        task.cancel()
        reader.abort()
    assert sorted(number for got in all_got for number in got) == list(range(sent + 150))
    shares = [len([number for number in got if number >= sent]) for got in all_got]
    assert all(shares), f"every node has a member and gets its share {shares}"


@pytest.mark.long(kept="tests/cli/test_cluster_commands.py::test_routes_are_the_same_wherever_one_looks")
async def test_operators_see_the_same_routes_and_members_at_each_node(cluster: Cluster) -> None:
    async with Client(cluster.nodes[0].url) as client:
        await client.subscribe("seen/by/all", 1)
        found = [ctl(node, "routes", "seen/") for node in cluster.nodes]
        assert found[0] == found[1] == found[2]
        listed = {each["name"]: [route["filter"] for route in each["listed"]] for each in found[0]["nodes"]}
        assert listed == {"n1": ["seen/by/all"], "n2": [], "n3": []}
    for node in cluster.nodes:
        status = ctl(node, "status")
        assert status["serving"] and status["node"] == node.name
        assert [member["name"] for member in status["members"]] == ["n1", "n2", "n3"]
        assert [member["connected"] for member in status["members"]] == [True] * 3


async def retained_at(node: Node, filter: str, wanted: int, version: int = 5) -> dict[str, bytes]:
    """The retained messages that a new subscriber gets there now."""
    found: dict[str, bytes] = {}
    async with Client(node.url, version=version) as client:
        await client.subscribe(filter, 1)
        async with within(SECONDS):
            while len(found) < wanted:
                message = await anext(client.messages())
                assert message.retain
                found[message.topic] = message.payload
    return found


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_message_retained_at_one_node_is_retained_at_all(cluster: Cluster, version: int) -> None:
    first, *others = cluster.nodes
    wanted = {f"seen{version}/{number}": b"%d" % number for number in range(20)}
    async with Client(first.url, version=version) as client:
        for topic, payload in wanted.items():
            await client.publish(topic, payload, 1, retain=True)
        for node in others:  # at once: what was acknowledged is there
            assert await retained_at(node, f"seen{version}/#", 20, version) == wanted
        await client.publish(f"seen{version}/0", b"", 1, retain=True)
    del wanted[f"seen{version}/0"]
    for node in others:
        assert await retained_at(node, f"seen{version}/#", 19, version) == wanted


# Allowed faults, under load


async def test_a_node_is_killed_and_comes_back(cluster: Cluster) -> None:
    node = cluster.nodes[1]
    async with Load(cluster.nodes) as load:
        await load.more(100)
        node.kill()
        await load.more(150)
        node.start()
        await cluster.until(node.is_ready, f"{node.name} is back")
        await load.more(100)
        await load.settle()
        assert load.promised > 0
        await cluster.whole()


async def test_an_etcd_is_killed_and_started_again(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    async with Load(cluster.nodes) as load:
        await load.more(100)
        etcd = node.etcd()
        assert etcd is not None
        etcd.kill()

        def is_back(old: int = etcd.pid) -> bool:
            etcd = node.etcd()
            return etcd is not None and etcd.pid != old

        await cluster.until(is_back, f"the etcd of {node.name} is back")
        await load.more(100)
        await load.settle()
        assert load.refused == load.refused_connections == 0, "who serves goes on without it"
        await cluster.whole()


@pytest.mark.long(kept="tests/sim/test_sim.py")
async def test_one_way_cut_off_goes_round(cluster: Cluster) -> None:
    first, second, third = cluster.nodes
    async with Load(cluster.nodes) as load:
        await load.more(500)
        cluster.cut(first, second)
        await cluster.until(
            lambda: through(first, second) == third.name and through(second, first) == third.name,
            "there is a way round",
        )
        assert first.serves() and second.serves()
        async with Client(second.url) as reader, Client(first.url) as author, within(SECONDS):
            await reader.subscribe("round/+", 2)
            for qos in (0, 1, 2):
                await author.publish(f"round/{qos}", "", qos)
                assert (await anext(reader.messages())).topic == f"round/{qos}"
        await load.more(2000)
        await load.settle()
        load.go_on()
        cluster.heal()
        await load.more(500)
        await load.settle()
        await cluster.whole()


def through(node: Node, other: Node) -> str:
    """The node that its frames for another one go through, once they are connected."""
    seen = member(node, other.name)
    return str(seen["through"]) if seen["connected"] else ""


def member(node: Node, name: str) -> dict[str, Any]:
    """Another one as it sees it."""
    found: list[dict[str, Any]] = node.status()["members"]
    return next(each for each in found if each["name"] == name)


@pytest.mark.long(kept="tests/cluster/test_real.py::test_a_minority_refuses_mqtt_5")
async def test_a_node_that_is_cut_off_under_load(cluster: Cluster) -> None:
    away = cluster.nodes[1]
    async with Load(cluster.nodes) as load:
        await load.more(500)
        cluster.isolate(away)
        await cluster.until(lambda: not away.serves(), "it knows that it is alone")
        await load.more(1000)
        cluster.heal()
        await cluster.until(away.serves, "it serves again")
        await load.more(500)
        await load.settle()
        assert load.refused + load.lost > 0
        await cluster.whole()


# A minority refuses


class Alone:
    """A node cut off, with clients of one version that were there before."""

    def __init__(self, cluster: Cluster, version: int) -> None:
        self.cluster = cluster
        self.node = cluster.nodes[2]
        self.version = version

    async def guest(self, name: str = "") -> Peer:
        return await Peer.connect(self.node.url, name or fresh("guest"), self.version, clean_start=True)

    async def cut_off(self) -> None:
        self.cluster.isolate(self.node)
        await self.cluster.until(lambda: not self.node.serves(), "it knows that it is alone")


async def test_a_minority_refuses_mqtt_5(cluster: Cluster) -> None:
    alone = Alone(cluster, 5)
    topic = fresh("alone")
    reader, guest, releasing = await alone.guest(), await alone.guest(), await Peer.open(alone.node.url, 5)
    assert await reader.subscribe(topic, qos=2) == [2]
    kept: Properties = {SESSION_EXPIRY_INTERVAL: 600}
    releasing.send(Connect(5, "releasing", True, properties=kept), Publish(topic.encode(), b"held", 2, packet_id=7))
    assert (await releasing.expect(Connack)).reason == 0
    assert (await releasing.expect(Ack)).type == PUBREC
    await alone.cut_off()

    stranger = await Peer.open(alone.node.url, 5)
    stranger.send(Connect(5, "stranger", True))
    assert (await stranger.expect(Connack)).reason == 0x88
    with pytest.raises(ConnectRefused) as refused:
        await Client(alone.node.url, version=5).connect()
    assert refused.value.reason == 0x88
    assert await guest.subscribe("a", "b", qos=1) == [0x83, 0x83]
    guest.send(Unsubscribe(2, [b"a"]))
    answer = await guest.receive()
    assert getattr(answer, "reasons", None) == [0x83]
    assert await guest.publish(topic, b"refused", 1) == 0x83
    assert await guest.publish(topic, b"refused", 2) == 0x83
    await guest.publish(topic, b"goes on", 0)
    assert (await reader.message()).payload == b"goes on"
    releasing.send(Ack(PUBREL, 7))
    assert (await releasing.expect(Disconnect)).reason == 0x9C
    assert await releasing.ended()

    # The others serve meanwhile.
    first, second, _ = cluster.nodes
    async with Client(first.url) as one, Client(second.url) as two:
        await one.subscribe(topic, 1)
        await two.publish(topic, "the majority serves", 1)
        async with within(SECONDS):
            assert (await anext(one.messages())).payload == b"the majority serves"

    cluster.heal()
    await cluster.whole()
    assert await guest.subscribe("a", qos=1) == [1]
    assert (await reader.message()).payload == b"the majority serves", "kept for it meanwhile"
    back = await Peer.connect(alone.node.url, "releasing", 5, clean_start=False, properties=kept)
    back.send(Ack(PUBREL, 7))
    assert (await back.expect(Ack)).type == PUBCOMP
    held = await reader.expect(Publish)
    assert (held.payload, held.qos) == (b"held", 2)
    for peer in (reader, guest, back, stranger, releasing):
        peer.abort()


async def test_a_minority_refuses_mqtt_3_1_1(cluster: Cluster) -> None:
    alone = Alone(cluster, 4)
    topic = fresh("alone")
    reader, guest = await alone.guest(), await alone.guest()
    refused = [await alone.guest() for _ in range(4)]
    assert await reader.subscribe(topic, qos=2) == [2]
    releasing = await Peer.connect(alone.node.url, "releasing4", 4, clean_start=False)
    releasing.send(Publish(topic.encode(), b"held", 2, packet_id=7))
    assert (await releasing.expect(Ack)).type == PUBREC
    await alone.cut_off()

    stranger = await Peer.open(alone.node.url, 4)
    stranger.send(Connect(4, "stranger", True))
    assert (await stranger.expect(Connack)).reason == 3
    assert await stranger.ended()
    assert await asyncio.to_thread(paho_is_refused, alone.node)
    asked = [
        Subscribe(1, [SubscribeRequest(b"a", 1)]),
        Unsubscribe(2, [b"a"]),
        Publish(topic.encode(), b"refused", 1, packet_id=3),
        Publish(topic.encode(), b"refused", 2, packet_id=3),
    ]
    for peer, packet in zip(refused, asked, strict=True):
        peer.send(packet)
        assert await peer.ended(), packet
    releasing.send(Ack(PUBREL, 7))
    assert await releasing.ended()
    await guest.publish(topic, b"goes on", 0)
    assert (await reader.message()).payload == b"goes on"

    cluster.heal()
    await cluster.whole()
    back = await Peer.connect(alone.node.url, "releasing4", 4, clean_start=False)
    back.send(Ack(PUBREL, 7))
    assert (await back.expect(Ack)).type == PUBCOMP
    assert (await reader.expect(Publish)).payload == b"held"
    back.send(Publish(topic.encode(), b"taken", 1, packet_id=8))
    assert (await back.expect(Ack)).type == PUBACK
    for peer in (*refused, reader, guest, back, stranger, releasing):
        peer.abort()


def paho_is_refused(node: Node) -> bool:
    answers: queue.Queue[bool] = queue.Queue()
    client = PahoClient(CallbackAPIVersion.VERSION2, reconnect_on_failure=False)
    client.on_connect = lambda c, u, flags, code, properties: answers.put(code.is_failure)
    client.connect("127.0.0.1", node.port)
    client.loop_start()
    try:
        return answers.get(timeout=SECONDS * slowness())
    finally:
        disconnect(client)


# Members that come and go


@pytest.mark.long(kept="tests/cluster/test_members.py")
async def test_a_node_joins_one_leaves_and_one_is_forgotten(tmp_path: Path) -> None:
    with Cluster(tmp_path, 3, {"lease_ttl": 3}) as cluster:
        await cluster.whole()
        first, second, third = list(cluster.nodes)
        async with Load([first, second]) as load:
            await load.more(300)
            fourth = cluster.add("n4")  # its etcd starts as a learner
            await cluster.whole()
            assert [member["number"] for member in ctl(fourth, "members")["members"]].count(4) == 1
            async with Client(fourth.url) as new, Client(first.url) as old:
                await new.subscribe("to/the/new", 1)
                await old.publish("to/the/new", "welcome", 1)
                async with within(SECONDS):
                    assert (await anext(new.messages())).payload == b"welcome"
            await load.more(300)

            assert await asyncio.to_thread(ctl, third, "leave") == {"left": "n3"}
            assert third.process is not None and await asyncio.to_thread(third.process.wait, SECONDS * slowness()) == 0
            cluster.nodes.remove(third)
            await cluster.whole()
            await load.more(300)

            fourth.kill()
            cluster.nodes.remove(fourth)
            await load.more(300)
            await cluster.until(lambda: member(first, "n4")["online"] is False, "its lease has run out")
            assert await asyncio.to_thread(ctl, first, "forget", "n4") == {"forgot": "n4"}
            await cluster.whole()
            await load.more(300)
            await load.settle()
        # It is told so when it comes back, and comes in again as a new one.
        fourth.start()
        assert fourth.process is not None
        assert await asyncio.to_thread(fourth.process.wait, SECONDS * slowness()) > 0
        assert "this node was removed from its cluster" in fourth.said()
        shutil.rmtree(fourth.data_dir / "etcd")
        cluster.nodes.append(fourth)
        fourth.start()
        await cluster.whole()
        assert member(first, "n4")["number"] == 5
        assert cluster.complaints() == []


@pytest.mark.long(kept="tests/cluster/test_real.py::test_a_node_is_killed_and_comes_back")
async def test_five_nodes(tmp_path: Path) -> None:
    with Cluster(tmp_path, 5) as cluster:
        await cluster.whole()
        first, second, third, *others = cluster.nodes
        async with Load(cluster.nodes, authors=1) as load:
            await load.more(500)
            first.kill()
            cluster.isolate(second)
            await cluster.until(lambda: not second.serves(), "n2 knows that it is alone")
            await load.more(1000)
            assert third.serves() and all(node.serves() for node in others)
            first.start()
            # The other nodes have the messages that n2 sent while n1 was away.
            await cluster.until(first.is_ready, "n1 is back, without n2")
            cluster.heal()
            await cluster.until(second.serves, "n2 is back")
            await load.more(500)
            await load.settle()
        await cluster.whole()
        assert cluster.complaints() == []
