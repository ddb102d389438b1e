"""The delivery audit in real Spark: what it says of the events of brokers that do right or wrong, and of a real one."""

from __future__ import annotations

import asyncio
import io
import random
import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from starlingmq.cli.pipeline_jobs import show
from starlingmq.client import Client
from starlingmq.client.options import QOS
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.pipeline.delivery_audit import DeliveryAudit, audit, events_of
from starlingmq.wire.mqtt import PUBREL, Ack, Publish
from tests.auditing import judge
from tests.core.test_audit import AuditWorld, lasting, life, subscribe, take_all
from tests.patience import slowness, within
from tests.spark.brokers import StreamBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def rows_of(spark: SparkSession, world: AuditWorld, without: tuple[int, ...] = ()) -> DataFrame:
    """The stream of its events, as the source reads it; some batches are missing."""
    kept = [message for place, message in enumerate(world.kept("events")) if place not in without]
    told = [(message.topic.decode(), message.payload) for message in kept]
    return spark.createDataFrame(told, "topic string, payload binary").coalesce(1)


def said(found: DeliveryAudit) -> str:
    out = io.StringIO()
    show(found, Console(width=200, file=out))
    return out.getvalue()


def test_a_planted_loss_and_a_planted_duplicate_are_found(spark: SparkSession) -> None:
    """In what waits: one message is gone, another one is there twice. A burst, which is told in runs: a message in the
    middle of one is gone.
    """
    world = AuditWorld()
    reader, burst, others = (
        lasting(world, "reader", receive=1),
        lasting(world, "burst", receive=5),
        world.connect("others"),
    )
    subscribe(reader, b"a/#", 2)
    subscribe(burst, b"b", 1)
    subscribe(others, b"b", 0)
    author = world.connect("author")
    for number in range(10):
        author.send(Publish(b"a/%d" % (number % 2), b"%d" % number, 2, packet_id=number + 1))
        author.send(Ack(PUBREL, number + 1))
    queue = world.state.ctx.sessions["reader"].queue
    assert queue is not None and [outgoing.message.payload for outgoing in queue.items][:3] == [b"1", b"2", b"3"]
    queue.pop()
    queue.push(Outgoing(queue.items[0].message, 2, False, b"", None), world.now)
    take_all(reader)
    world.connect("sprinter").send_all([Publish(b"b", b"x", 1, packet_id=number) for number in range(1, 41)])
    queue = world.state.ctx.sessions["burst"].queue
    assert queue is not None
    gone = queue.items[20].message.id.decode()
    del queue.items[20]
    take_all(burst)
    events = world.census()
    ids = [event["id"] for event in events if event["kind"] == "accepted"]
    assert judge(events).lost == {"reader": 1, "burst": 1}
    found, messages = audit(spark, events_of(rows_of(spark, world)))
    assert (found.lost, found.doubled, found.missing, found.clean) == (2, 1, 0, False)
    assert [(one.what, one.client, one.topic, one.id) for one in found.findings] == [
        ("lost", "reader", "a/1", ids[1]),
        ("doubled", "reader", "a/0", ids[2]),
        ("lost", "burst", "b", gone),
    ]
    assert {row.id for row in messages.where("lost > 0").collect()} == {ids[1], gone}
    text = said(found)
    assert f"lost: message {ids[1]} on a/1 (QoS 2, " in text and "2 lost, 1 doubled, 0 wait" in text
    assert [total.accepted for total in found.totals if total.client == "author"] == [5, 5]
    totals = {total.client: total for total in found.totals}
    assert totals["sprinter"].accepted == totals["burst"].due == totals["others"].delivered == 40
    assert totals["burst"].delivered == totals["burst"].acknowledged == 39


@pytest.mark.long(kept="tests/spark/test_audit.py::test_a_planted_loss_and_a_planted_duplicate_are_found")
@pytest.mark.parametrize("seed", [3, 11])
def test_nothing_wrong_is_said_of_a_clean_run_as_the_twin_says(spark: SparkSession, seed: int) -> None:
    world = AuditWorld(max_mqueue_len=8)
    life(world, random.Random(seed))
    verdict = judge(world.census())
    found, messages = audit(spark, events_of(rows_of(spark, world)))
    assert verdict.clean and found.clean and found.until > 0.0 and found.missing == 0, said(found)
    reasons: dict[str, int] = {}
    for total in found.totals:
        for reason, count in total.dropped.items():
            reasons[reason] = reasons.get(reason, 0) + count
    assert reasons == dict(verdict.reasons)
    assert sum(total.delivered for total in found.totals) > 100 and messages.count() > 50
    assert "nothing lost, nothing doubled" in said(found)
    if seed == 3:
        batches = len(world.kept("events"))
        torn, _ = audit(spark, events_of(rows_of(spark, world, (batches // 2,))))
        assert torn.missing == 1 and not torn.clean and "so nothing can be proven" in said(torn)


@pytest.mark.long(kept="tests/spark/test_audit.py::test_a_planted_loss_and_a_planted_duplicate_are_found")
def test_a_real_broker_with_reconnections_and_a_crash_does_nothing_wrong(spark: SparkSession, tmp_path: Path) -> None:
    streams = "streams.define=[{name: events, topics: ['$events/#']}]"
    broker = StreamBroker(tmp_path / "n1", "n1", streams)

    async def reader(client_id: str) -> Client:
        client = Client(broker.url, client_id=client_id, clean_start=False, session_expiry=1000)
        await client.connect()
        return client

    async def talk(first: int) -> None:
        if not first:
            away = await reader("away")
            await away.subscribe("a/#", qos=1)
            await away.disconnect()
        here = await reader("here")
        await here.subscribe("a/#", qos=2)
        async with Client(broker.url, client_id="author") as author:
            for number in range(first, first + 60):
                await author.publish(f"a/{number % 3}", b"%d" % number, qos=QOS[number % 3])
        async with within(60):
            count = 0
            async for _ in here.messages():
                count += 1
                if count == 60:
                    break
        await here.disconnect()

    try:
        asyncio.run(talk(0))
        broker.kill()
        broker.start()
        asyncio.run(talk(60))
        options = broker.options | {"stream": "events"}
        deadline = time.monotonic() + 60 * slowness()
        while True:  # a census comes every two seconds
            found, _ = audit(spark, events_of(spark.read.format("starlingmq").options(**options).load()))
            if found.until and found.waiting == 120:
                break
            assert time.monotonic() < deadline, said(found)
        assert found.clean and found.nodes == ["n1"], said(found)
        assert sum(total.accepted for total in found.totals if total.client == "author") == 120
        assert sum(total.delivered for total in found.totals if total.client == "here") == 120
    finally:
        broker.stop()
