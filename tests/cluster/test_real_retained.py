"""Retained messages and wills between real processes, on real etcd: everywhere, once, whatever becomes of a node."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from typing import Final

import pytest
from tests.cluster.real import Cluster, Node
from tests.cluster.test_real import retained_at
from tests.patience import within
from tests.peer import Peer

from starlingmq.client import Client
from starlingmq.wire.mqtt import Connack, Connect, Will
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL, Properties

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/cluster/test_real.py::test_a_message_retained_at_one_node_is_retained_at_all"),
    pytest.mark.timeout(150),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

SECONDS: Final = 20.0
LARGE: Final = b"x" * 100_000


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("retained"), 3, {"lease_ttl": 3}) as cluster:
        asyncio.run(cluster.whole())
        yield cluster
        assert cluster.complaints() == []


async def test_a_large_retained_message_survives_that_its_node_is_killed(three: Cluster) -> None:
    first, *others = three.nodes
    async with Client(first.url) as client:
        await client.publish("large/one", LARGE, 1, retain=True)
        await client.publish("large/small", b"small", 1, retain=True)
        assert await retained_at(others[0], "large/#", 2) == {"large/one": LARGE, "large/small": b"small"}
    await three.until(lambda: not first.owes(), "the copy is where it is to be")
    first.kill()
    await three.until(lambda: all(node.serves() for node in others), "the others serve")
    for node in others:
        assert (await retained_at(node, "large/#", 2))["large/one"] == LARGE
    async with Client(others[0].url) as client:
        await client.publish("large/small", b"other", 1, retain=True)
    first.start()
    await three.whole()
    assert await retained_at(first, "large/#", 2) == {"large/one": LARGE, "large/small": b"other"}


async def leave_will(node: Node, name: str, delay: int, version: int) -> Peer:
    """A connection with a will; to be cut with ``abort``."""
    peer = await Peer.open(node.url, version)
    properties: Properties = {WILL_DELAY_INTERVAL: delay} if delay else {}
    will = Will(f"will/{name}".encode(), b"gone", 1, False, properties if version == 5 else {})
    expiry: Properties = {SESSION_EXPIRY_INTERVAL: 600} if version == 5 else {}
    peer.send(Connect(version, name, False, will=will, properties=expiry))
    assert (await peer.expect(Connack)).reason == 0
    return peer


async def comes(watcher: Client, seconds: float, enough: int = 0) -> list[str]:
    """The wills that come within so many seconds, or until that is enough."""
    found: list[str] = []
    try:
        async with within(seconds):
            async for message in watcher.messages():
                found.append(message.topic.removeprefix("will/"))
                if len(found) == enough:
                    break
    except TimeoutError:
        pass
    return found


async def test_a_surviving_node_replays_messages_that_the_others_retain_once_they_are_back(three: Cluster) -> None:
    """Its etcd has no majority meanwhile, so its watches move from endpoint to endpoint until one answers."""
    one, survivor, other = three.nodes
    for times in range(2):
        one.kill()
        other.kill()
        await three.until(lambda: not survivor.serves(), "the majority is gone")
        one.start()
        other.start()
        await three.whole()
        wanted = {f"outlived/{times}/{node.name}": b"here" for node in (one, other)}
        for node in (one, other):
            async with Client(node.url) as client:
                await client.publish(f"outlived/{times}/{node.name}", b"here", 1, retain=True)
        assert await retained_at(survivor, f"outlived/{times}/#", 2) == wanted
    figures = {line["name"]: line["value"] for line in survivor.ask("metrics")["samples"]}
    assert "starlingmq_retained_replays_incomplete_total" in figures
    assert figures["starlingmq_retained_replays_waiting"] == 0
    assert figures["starlingmq_retained_replay_wait_seconds"] == 0


async def test_wills_of_a_killed_node_are_published_unless_their_clients_are_back(three: Cluster) -> None:
    await three.whole()
    first, second, third = three.nodes
    async with Client(third.url) as watcher:
        await watcher.subscribe("will/#", 1)
        own = await leave_will(first, "own", 0, 5)
        own.abort()
        assert await comes(watcher, SECONDS, 1) == ["own"], "its own node publishes it"

        peers = [
            await leave_will(first, "killed4", 0, 4),
            await leave_will(first, "killed5", 0, 5),
            await leave_will(first, "late", 4, 5),
            await leave_will(first, "back", 60, 5),
        ]
        moved = await leave_will(first, "moved", 60, 5)
        moved.abort()
        again = await leave_will(second, "moved", 60, 5)  # in time: nothing is published of the first connection
        await three.until(lambda: not (first.is_behind() or second.is_behind()), "the leaders of shares have the wills")
        first.kill()
        async with within(SECONDS):
            while not second.serves():
                await asyncio.sleep(0.1)
        back = await leave_will(second, "back", 600, 5)
        came = await comes(watcher, SECONDS, 3)
        assert sorted(came[:2]) == ["killed4", "killed5"] and came[2:] == ["late"], came
        first.start()
        await three.whole()
        assert await comes(watcher, 2.0) == [], "who comes back does not publish them again"
        for peer in (*peers, again, back):
            peer.abort()


async def test_a_node_that_joins_has_all_of_it(three: Cluster) -> None:
    await three.whole()
    async with Client(three.nodes[0].url) as client:
        for number in range(2000):
            await client.publish(f"t/{number}", b"%d" % number, 0, retain=True)
        await client.publish("t/last", b"x", 1, retain=True)
    fourth = three.add("n4")
    await three.whole()
    assert len(await retained_at(fourth, "t/#", 2001)) == 2001
