"""JetStream on three real nodes with nats.py: streams are at one node and used from the others, also when their node is
lost for good: another one serves its data."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats.errors
import nats.js.errors
import pytest
from nats.js.api import ConsumerConfig, RePublish, RetentionPolicy, StreamSource
from nats.js.client import JetStreamContext
from tests.cluster.real import AwayError, Cluster, Node
from tests.cluster.test_real_copies import copied
from tests.cluster.test_real_nats import address
from tests.jetstream.test_mqtt_readers import offset_of
from tests.patience import slowness, within

import nats
from starlingmq.client import Client, ClientError
from starlingmq.core.jetstream.hub import STORE_SECONDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

SECONDS = 60.0
BEFORE = 40  # messages that are acknowledged before the home is lost
AFTER = 40
TROUBLE = (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError)


def speak_nats(settings: dict[str, Any]) -> None:
    settings["listeners"].append("nats://127.0.0.1:0")


@asynccontextmanager
async def three(directory: Path, copies: int) -> AsyncIterator[Cluster]:
    cluster = Cluster(directory, 3, {"copies": copies}, proxies=False)
    for node in cluster.nodes:
        node.configure(speak_nats)
    with cluster:
        await cluster.whole()
        if copies > 1:
            await copied(cluster, copies)
        yield cluster
        assert not cluster.complaints()


@asynccontextmanager
async def client(node: Node, seconds: float = 10.0) -> AsyncIterator[JetStreamContext]:
    connection = await nats.connect(f"nats://{address(node)}", allow_reconnect=False)
    try:
        yield connection.jetstream(timeout=seconds * slowness())
    finally:
        with suppress(*TROUBLE):
            await connection.close()


async def publish(js: JetStreamContext, subject: str, number: int) -> int:
    """Until it is acknowledged; the sequence."""
    while True:
        with suppress(*TROUBLE):
            ack = await js.publish(
                subject, b"%d" % number, headers={"Nats-Msg-Id": f"{number}"}, timeout=2 * slowness()
            )
            return int(ack.seq)
        await asyncio.sleep(0.05)


async def read(reader: Client, count: int) -> list[tuple[str, int]]:
    """Topics and offsets of the next messages."""
    found: list[tuple[str, int]] = []
    messages = reader.messages()
    while len(found) < count:
        message = await anext(messages)
        found.append((message.topic, offset_of(message)))
    await messages.aclose()
    return found


async def read_by_mqtt(nodes: list[Node], until: int) -> None:
    """A session that goes from node to node, and gets each message once, in order."""
    expected = 1
    while expected <= until:
        node = nodes[expected % len(nodes)]
        async with Client(node.url, client_id="reader", clean_start=False, session_expiry=3600) as reader:
            await reader.subscribe("$stream/S@earliest", qos=1)
            for _, offset in await read(reader, min(7, until + 1 - expected)):
                if offset == expected:
                    expected += 1
                else:
                    assert offset < expected, f"{offset} came in place of {expected}"


@pytest.mark.long(kept="tests/cluster/test_streams_across_nodes.py")
async def test_what_was_acknowledged_survives_the_home_of_its_stream(tmp_path: Path) -> None:
    async with three(tmp_path, 2) as cluster:
        one, two, three_ = cluster.nodes
        async with client(one) as js:
            await js.add_stream(name="S", subjects=["s.>"], num_replicas=2)
            await js.add_consumer("S", ConsumerConfig(durable_name="c", ack_wait=3.0))
            await js.add_stream(name="W", subjects=["w"], retention=RetentionPolicy.WORK_QUEUE)
            await js.add_consumer("W", ConsumerConfig(durable_name="c", ack_wait=3.0))
        sequences: dict[int, int] = {}
        done: dict[str, dict[int, int]] = {"S": {}, "W": {}}  # how often what was acknowledged came, by sequence
        async with client(two) as publishing, client(three_) as consuming:

            async def consume(stream: str, until: int) -> None:
                pull = await consuming.pull_subscribe_bind("c", stream)
                found = done[stream]
                while len(found) < until:
                    with suppress(*TROUBLE):
                        for message in await pull.fetch(5, timeout=2 * slowness()):
                            seq = message.metadata.sequence.stream
                            if seq in found:
                                found[seq] += 1  # it came although it was acknowledged
                            await message.ack_sync(timeout=2 * slowness())
                            found.setdefault(seq, 0)

            total = BEFORE + AFTER
            consumers = [asyncio.create_task(consume(stream, total)) for stream in ("S", "W")]
            consumers.append(asyncio.create_task(read_by_mqtt([two, three_], total)))
            async with within(3 * SECONDS):
                for number in range(total):
                    if number == BEFORE:
                        one.kill()
                        shutil.rmtree(one.data_dir)
                    sequences[number] = await publish(publishing, "s.a", number)
                    assert await publish(publishing, "w", number) == number + 1
                await asyncio.gather(*consumers)
            assert list(sequences.values()) == list(range(1, total + 1)), "each sequence is given once, in order"
            for number, seq in sequences.items():
                assert (await publishing.get_msg("S", seq)).data == b"%d" % number
            assert {seq: again for seq, again in done["W"].items() if again} == {}
            assert {seq: again for seq, again in done["S"].items() if again} == {}
            assert (await publishing.stream_info("W")).state.messages == 0
            assert sorted(info.config.name or "" for info in await consuming.streams_info()) == ["S", "W"]
            one.start()  # with an empty disk: it gets its data back
            await cluster.whole()
            async with client(one) as back:
                assert await publish(back, "s.a", total) == total + 1
                assert await publish(publishing, "s.a", total + 1) == total + 2
                assert (await back.get_msg("S", 1)).data == b"0"


async def take_as_member(name: str, nodes: list[Node], found: Counter[int]) -> None:
    """At the first of the nodes that serves."""
    while True:
        for node in nodes:
            with suppress(ClientError, OSError, TimeoutError):
                async with Client(node.url, client_id=name, clean_start=False, session_expiry=3600) as member:
                    await member.subscribe("$share/g/$stream/S@earliest", qos=1)
                    async for message in member.messages():
                        found[offset_of(message)] += 1
        await asyncio.sleep(0.2)


@pytest.mark.long(kept="tests/cluster/test_groups_that_read_streams.py")
async def test_a_group_that_reads_a_stream_survives_its_home(tmp_path: Path) -> None:
    async with three(tmp_path, 2) as cluster:
        one, two, three_ = cluster.nodes
        async with client(one) as js:
            await js.add_stream(name="S", subjects=["s.>"], num_replicas=2)
        found: dict[str, Counter[int]] = {name: Counter() for name in ("m1", "m2", "m3")}
        places = ([one, two], [two], [three_])
        members = [
            asyncio.create_task(take_as_member(name, nodes, found[name]))
            for name, nodes in zip(found, places, strict=True)
        ]

        async def all_came(count: int) -> Counter[int]:
            while True:
                came = sum(found.values(), Counter[int]())
                if len(came) >= count:
                    assert sorted(came) == list(range(1, count + 1))
                    return came
                await asyncio.sleep(0.05)

        try:
            async with client(two) as publishing, within(3 * SECONDS):
                for number in range(BEFORE):
                    await publish(publishing, "s.a", number)
                came = await all_came(BEFORE)
                assert set(came.values()) == {1}, "each message came to one member"
                while (await publishing.consumer_info("S", "mqtt-group-g")).num_ack_pending:
                    await asyncio.sleep(0.05)
                # Acknowledgements without an answer are stored every STORE_SECONDS, and copied then.
                await asyncio.sleep(3 * STORE_SECONDS * slowness())
                for number in range(BEFORE, BEFORE + AFTER):
                    if number == BEFORE + AFTER // 2:
                        one.kill()
                        shutil.rmtree(one.data_dir)
                    await publish(publishing, "s.a", number)
                came = await all_came(BEFORE + AFTER)
                assert came.total() - len(came) < BEFORE, "it went on, and did not begin again"
        finally:
            for member in members:
                member.cancel()
            await asyncio.gather(*members, return_exceptions=True)


async def republished(home: JetStreamContext, other: JetStreamContext, third: JetStreamContext) -> None:
    """A message enters at the third node, is stored at home, and is sent again to a stream and a client of others."""
    await home.add_stream(name="R", subjects=["r.>"], republish=RePublish(src="r.>", dest="again.>"))
    await other.add_stream(name="AGAIN", subjects=["again.>"])
    listening = await third.subscribe("again.>", ordered_consumer=True)
    heard = await third._nc.subscribe("again.a")
    await third._nc.flush()
    await third.publish("r.a", b"1")
    for subscription in (heard, listening):
        message = await subscription.next_msg(10.0 * slowness())
        assert (message.subject, message.data) == ("again.a", b"1")
        assert message.headers and message.headers["Nats-Stream"] == "R"
    assert await home.delete_stream("R") and await home.delete_stream("AGAIN")


async def mirrored(home: JetStreamContext, other: JetStreamContext, third: JetStreamContext) -> None:
    """A mirror at another node than its origin, and a source at a third."""
    await home.add_stream(name="C", subjects=["c.>"])
    await home.publish("c.a", b"1")
    await other.add_stream(name="M", mirror=StreamSource(name="C"))
    await third.add_stream(name="F", sources=[StreamSource(name="M")])
    await other.publish("c.a", b"2")
    async with within(SECONDS):
        while (await home.stream_info("F")).state.messages < 2:
            await asyncio.sleep(0.05)
    assert [(await other.get_msg("M", seq)).data for seq in (1, 2)] == [b"1", b"2"]
    assert [(await home.get_msg("F", seq)).data for seq in (1, 2)] == [b"1", b"2"]
    for name in "CMF":
        assert await home.delete_stream(name)


async def test_streams_of_all_nodes_are_one_service(tmp_path: Path) -> None:
    async with three(tmp_path, 1) as cluster:
        one, two, three_ = cluster.nodes
        async with client(one) as home, client(two) as other, client(three_) as third:
            await home.add_stream(name="S", subjects=["s.>"])
            assert (await other.add_stream(name="S", subjects=["s.>"])).config.name == "S"
            with pytest.raises(nats.js.errors.BadRequestError):
                await other.add_stream(name="T", subjects=["s.a"])
            await third.add_stream(name="T", subjects=["t"])
            assert [(await each.publish("s.a", b"x")).seq for each in (home, other, third)] == [1, 2, 3]
            for node in (one, two):
                async with Client(node.url) as reader:
                    await reader.subscribe("$stream/S@offset=2/s/+")
                    assert await read(reader, 2) == [("s/a", 2), ("s/a", 3)]
            async with Client(two.url) as member:
                await member.subscribe("$queue/S", qos=1)
                assert [offset for _, offset in await read(member, 3)] == [1, 2, 3]
            async with within(SECONDS):
                while (await home.consumer_info("S", "mqtt-queue")).num_ack_pending:
                    await asyncio.sleep(0.05)
            subscription = await third.subscribe("s.>", ordered_consumer=True)
            assert [(await subscription.next_msg(10.0)).metadata.sequence.stream for _ in range(3)] == [1, 2, 3]
            bucket = await other.create_key_value(bucket="B")
            await bucket.put("a", b"1")
            elsewhere = await home.key_value("B")
            assert (await elsewhere.get("a")).value == b"1"
            watcher: Any = await elsewhere.watchall()
            first = await watcher.updates(timeout=10)
            assert first is not None and first.value == b"1"
            await (await third.key_value("B")).update("a", b"2", last=1)
            while (found := await watcher.updates(timeout=10)) is None:
                continue
            assert (found.key, found.value) == ("a", b"2")
            assert sorted(info.config.name or "" for info in await home.streams_info()) == ["KV_B", "S", "T"]
            assert (await other.account_info()).streams == 3
            for action, arguments in (("cluster.leave", {}), ("cluster.forget", {"name": one.name})):
                with pytest.raises(AwayError, match=r"streams of JetStream, which would be lost: S;"):
                    (one if not arguments else two).ask(action, **arguments)
            await republished(home, other, third)
            await mirrored(home, other, third)
            assert await third.delete_stream("S")
            with pytest.raises(nats.js.errors.NotFoundError):
                await other.stream_info("S")
            three_.ask("stream.delete", name="T")  # by an operator
            async with within(SECONDS):
                while "T" in [info.config.name for info in await home.streams_info()]:
                    await asyncio.sleep(0.05)
            await home.add_stream(name="T", subjects=["t"])
            assert (await third.publish("t", b"x")).seq == 1
