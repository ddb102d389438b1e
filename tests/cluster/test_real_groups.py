"""Queue groups between real processes: members and publishers of both protocols on all nodes; a primary that dies."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from tests.cluster.real import Cluster, Node
from tests.patience import slowness, within

import nats
from starlingmq.client import Client

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(150),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

EACH = 200  # messages of each publisher
SECONDS = 30.0


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("groups"), 3)
    for node in cluster.nodes:
        node.configure(with_nats)
    with cluster:
        asyncio.run(cluster.whole())
        yield cluster


def with_nats(settings: dict[str, Any]) -> None:
    settings["listeners"].append(nats_url(int(settings["listeners"][0].rpartition(":")[2])))


def nats_url(port: int) -> str:
    return f"nats://127.0.0.1:{port + 50}"


class Workers:
    """One group with members of both protocols; records each message and the member that received it."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.got: Counter[bytes] = Counter()
        self.shares: Counter[str] = Counter()
        self.changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._nats: list[NatsClient] = []
        self._mqtt: list[Client] = []

    def take(self, name: str, payload: bytes) -> None:
        self.got[payload] += 1
        self.shares[name] += 1
        self.changed.set()

    async def nats(self, node: Node) -> None:
        client = await nats.connect(nats_url(node.port), allow_reconnect=False)

        async def work(message: Msg) -> None:
            self.take(f"nats {node.name}", message.data)

        await client.subscribe(self.subject, "crew", work)
        await client.flush()
        self._nats.append(client)

    async def mqtt(self, node: Node) -> None:
        client = Client(node.url, client_id=f"crew-{node.name}-{self.subject}")
        await client.connect()
        await client.subscribe(f"$share/crew/{self.subject.replace('.', '/')}", 1)
        self._mqtt.append(client)

        async def work() -> None:
            with suppress(Exception):  # its node dies
                async for message in client.messages():
                    self.take(f"mqtt {node.name}", message.payload)

        self._tasks.append(asyncio.create_task(work()))

    async def until(self, wanted: set[bytes]) -> None:
        async with within(SECONDS):
            while not wanted <= set(self.got):
                self.changed.clear()
                await self.changed.wait()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for each in self._nats:
            await each.close()
        for client in self._mqtt:
            with suppress(Exception):
                await client.disconnect()


def groups(node: Node) -> dict[str, dict[str, Any]]:
    """The answer of ``ctl groups``, by filter."""
    command = [sys.executable, "-m", "starlingmq", "ctl", "groups", "--json", "--data-dir", str(node.data_dir)]
    run = subprocess.run(command, capture_output=True, timeout=SECONDS * slowness(), text=True)
    assert run.returncode == 0, run.stderr
    return {each["filter"]: each for each in json.loads(run.stdout)["groups"]}


def members(cluster: Cluster, filter: str) -> list[int]:
    """How many each node knows of."""
    return [groups(node)[filter]["members"] if filter in groups(node) else 0 for node in cluster.nodes]


def told_as_table(node: Node) -> str:
    command = [sys.executable, "-m", "starlingmq", "ctl", "groups", "--wide", "--data-dir", str(node.data_dir)]
    return subprocess.run(command, capture_output=True, timeout=SECONDS * slowness(), text=True, check=True).stdout


@pytest.mark.long(kept="tests/cluster/test_queue_groups.py")
async def test_members_and_publishers_of_both_protocols_on_all_nodes(three: Cluster) -> None:
    workers = Workers("jobs.mixed")
    for node in three.nodes:
        await workers.mqtt(node)
        await workers.nats(node)
    await three.until(lambda: members(three, "jobs/mixed") == [6, 6, 6], "all nodes know of all members")
    wanted: set[bytes] = set()
    for node in three.nodes:
        async with Client(node.url) as devices:
            service = await nats.connect(nats_url(node.port))
            for number in range(EACH):
                wanted |= {b"m %b %d" % (node.name.encode(), number), b"n %b %d" % (node.name.encode(), number)}
                await devices.publish("jobs/mixed", b"m %b %d" % (node.name.encode(), number), 1)
                await service.publish("jobs.mixed", b"n %b %d" % (node.name.encode(), number))
            await service.close()
    await workers.until(wanted)
    assert set(workers.got.values()) == {1}, "each to one member, once"
    assert len(workers.shares) == 6 and min(workers.shares.values()) > 6 * EACH / 6 / 3
    told = [groups(node)["jobs/mixed"] for node in three.nodes]
    assert {each["primary"] for each in told} == {three.nodes[0].name}
    assert [each["lag"] for each in told] == [0, 0, 0] and {each["members"] for each in told} == {6}
    first, second, third = three.nodes
    there = {"members": 2, "online": 2, "waiting": 0}
    assert {name: node | {"room": 0} for name, node in told[0]["nodes"].items()} == {
        second.name: there | {"room": 0},
        third.name: there | {"room": 0},
    }
    assert told[2]["nodes"] == {first.name: {"members": 2}, second.name: {"members": 2}}
    assert f"{second.name}: 2; {third.name}: 2" in told_as_table(first)
    await workers.close()


@pytest.mark.long(kept="tests/cluster/test_queue_groups.py")
async def test_a_hop_of_a_group_takes_little(three: Cluster) -> None:
    """The member, the publisher and the primary are on three nodes."""
    first, second, third = three.nodes
    primary, workers = Workers("jobs.quick"), Workers("jobs.quick")
    await primary.nats(first)
    async with within(10.0):
        while "jobs/quick" not in (known := groups(third)) or known["jobs/quick"]["primary"] != first.name:
            await asyncio.sleep(0.02)
    await workers.nats(second)
    await primary.close()
    times = []
    service = await nats.connect(nats_url(third.port))
    for number in range(100):
        began = time.perf_counter()
        payload = b"%d" % number
        await service.publish("jobs.quick", payload)
        await service.flush()
        await workers.until({payload})
        times.append(time.perf_counter() - began)
    await service.close()
    await workers.close()
    print(f"median {1000 * sorted(times)[50]:.2f} ms, longest {1000 * max(times):.1f} ms")
    assert sorted(times)[50] < 0.05 * slowness()


@pytest.mark.long(kept="tests/cluster/test_queue_groups.py")
async def test_the_node_of_the_primary_is_killed(three: Cluster) -> None:
    """Messages that waited there arrive when it is back; all others are delivered without it."""
    first, second, third = three.nodes
    workers = Workers("jobs.killed")
    for node in three.nodes:
        await workers.mqtt(node)
    await workers.nats(second)
    assert groups(third)["jobs/killed"]["primary"] == first.name
    wanted: set[bytes] = set()
    async with Client(third.url) as devices:
        service = await nats.connect(nats_url(second.port))
        for number in range(EACH):
            if number == EACH // 2:
                first.kill()
            payloads = b"m %d" % number, b"n %d" % number
            await devices.publish("jobs/killed", payloads[0], 1)
            await service.publish("jobs.killed", payloads[1])
            wanted |= set(payloads)
        await service.flush()
        await service.close()
    elected = time.monotonic()
    while groups(third)["jobs/killed"]["primary"] in (first.name, "", "none"):
        assert time.monotonic() < elected + SECONDS * slowness()
    first.start()
    await workers.until(wanted)
    await three.whole()
    assert max(workers.got.values()) <= 2, "what a member had not acknowledged may come to another one"
    await workers.close()
