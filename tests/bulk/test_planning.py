"""The Spark source's planning on the driver: without Spark, but with real brokers to plan for."""

from __future__ import annotations

import asyncio
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from starlingmq import Broker
from starlingmq.cli.local_cluster import free_ports
from starlingmq.config.settings import load_config
from starlingmq.spark.nodes import NodeBook, StreamError
from starlingmq.spark.option_error import OptionError
from starlingmq.spark.read_options import read_options
from starlingmq.spark.row_reading import RowPartition
from starlingmq.spark.source import BatchReader, MicroBatchReader, Told
from tests.bulk.conftest import TOKEN, settings
from tests.bulk.test_service import publish


def options(*brokers: Broker, **more: str) -> dict[str, str]:
    servers = ",".join(broker.read_at for broker in brokers)
    return {"servers": servers, "stream": "all", "token": TOKEN, "nodeTimeout": "1", **more}


def ranges(found: Any) -> list[tuple[str, int, int]]:
    assert all(isinstance(part, RowPartition) for part in found)
    return [(part.node, part.start, part.end) for part in found]


def at(told: Told, **offsets: int) -> Told:
    """The same position with other offsets."""
    return told | {"offsets": offsets}


async def test_a_batch_is_cut_into_tasks(broker: Broker) -> None:
    await publish(broker, 10)

    def plan(**more: str) -> list[tuple[str, int, int]]:
        return ranges(BatchReader(read_options(options(broker, **more), streaming=False)).partitions())

    assert await asyncio.to_thread(plan, rowsPerPartition="4") == [("n1", 0, 3), ("n1", 3, 6), ("n1", 6, 10)]
    more = {"startingOffsets": '{"n1": 4}', "endingOffsets": '{"n1": 6}'}
    assert await asyncio.to_thread(lambda: plan(**more)) == [("n1", 4, 6)]
    assert await asyncio.to_thread(plan, startingOffsets="latest") == []
    reader = BatchReader(read_options(options(broker), streaming=False))
    assert list(reader.read(InputPartition(None))) == [], "what Spark makes up where there is no partition"
    assert await asyncio.to_thread(plan, startingTimestamp="1700000000000") == [("n1", 0, 10)]
    assert await asyncio.to_thread(plan, startingTimestamp="2100-01-01T00:00:00") == []
    kafka = {"startingOffsets": '{"n1": -2}', "endingOffsets": '{"n1": -1}'}
    assert await asyncio.to_thread(lambda: plan(**kafka)) == [("n1", 0, 10)]
    assert await asyncio.to_thread(plan, startingOffsets='{"n1": -1}') == []
    backwards = {"startingOffsets": '{"n1": 6}', "endingOffsets": '{"n1": 4}'}
    with pytest.raises(StreamError, match="endingOffsets: offset 4 on node n1 is before its start, 6"):
        await asyncio.to_thread(lambda: plan(**backwards))
    with pytest.raises(StreamError, match="excludedNodes: lists all nodes of stream"):
        await asyncio.to_thread(plan, excludedNodes="n1")
    strange: dict[str, str] = {"startingOffsets": '{"n7": 1}'}
    with pytest.raises(StreamError, match="given for n7"):
        await asyncio.to_thread(plan, **strange)
    late: dict[str, str] = {"endingOffsets": '{"n1": 11}'}
    with pytest.raises(StreamError, match="n1, which has offsets up to 10; -2 is the earliest"):
        await asyncio.to_thread(plan, **late)


async def test_a_micro_batch_is_bounded_and_available_now_has_an_end(broker: Broker) -> None:
    await publish(broker, 10)
    reader = MicroBatchReader(read_options(options(broker, startingOffsets="earliest", maxRowsPerTrigger="4"), True))

    def plan() -> None:
        start = reader.initialOffset()
        assert start["offsets"] == {"n1": 0}
        limit = reader.getDefaultReadLimit()
        assert limit == ReadMaxRows(4)
        reader.prepareForTriggerAvailableNow()
        ends = []
        while True:
            end = reader.latestOffset(start, limit)
            if end == start:
                break
            first, last = start["offsets"]["n1"], end["offsets"]["n1"]
            assert ranges(reader.partitions(start, end)) == [("n1", first, last)]
            ends.append(last)
            asyncio.run_coroutine_threadsafe(publish(broker, 1), loop).result(20)
            start = end
        assert ends == [4, 8, 10]
        assert reader.reportLatestOffset() == at(start, n1=13)
        assert reader.latestOffset(at(start, n1=10), ReadAllAvailable()) == at(start, n1=10)
        fresh: MicroBatchReader = pickle.loads(pickle.dumps(reader))
        assert fresh.latestOffset(at(start, n1=10), ReadAllAvailable()) == at(start, n1=13)
        assert fresh.latestOffset(at(start, n1=0), ReadMaxBytes(1)) == at(start, n1=1)
        assert 1 < fresh.latestOffset(at(start, n1=0), ReadMaxBytes(300))["offsets"]["n1"] < 13
        reader.stop()
        fresh.stop()

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(plan)


async def test_a_node_that_comes_is_read_from_its_beginning_and_shares_are_fair(broker: Broker, tmp_path: Path) -> None:
    await publish(broker, 30)
    config = load_config(None, settings(tmp_path / "two", "n2"))
    async with Broker(config, listeners=["mqtt://127.0.0.1:0"]) as other:
        reader = MicroBatchReader(read_options(options(broker, other, startingOffsets="latest"), True))

        def plan() -> None:
            start = reader.latestOffset({"n1": 30}, ReadAllAvailable())
            assert start["offsets"] == {"n1": 30, "n2": 0}
            asyncio.run_coroutine_threadsafe(publish(other, 10), loop).result(20)
            end = reader.latestOffset(start, ReadAllAvailable())
            assert end == at(start, n1=30, n2=10)
            (part,) = reader.partitions(start, end)
            assert isinstance(part, RowPartition)
            assert (part.node, part.start, part.end, part.forgive) == ("n2", 0, 10, False)
            assert reader.latestOffset(at(start, n1=0, n2=0), ReadMaxRows(20)) == at(start, n1=15, n2=5)
            assert sum(reader.latestOffset(at(start, n1=0, n2=0), ReadMaxRows(1))["offsets"].values()) == 1
            reader.stop()

        loop = asyncio.get_running_loop()
        await asyncio.to_thread(plan)


async def test_a_node_that_is_away_when_a_batch_is_planned_fails_it_by_name(broker: Broker) -> None:
    await publish(broker, 1)
    reader = MicroBatchReader(read_options(options(broker), True))
    nowhere = "node n2 has a part of the stream, but none of .* knows its address.*option nodeTimeout"
    with pytest.raises(StreamError, match=nowhere):
        await asyncio.to_thread(reader.latestOffset, {"n1": 0, "n2": 5}, ReadAllAvailable())
    with pytest.raises(StreamError, match=nowhere):
        await asyncio.to_thread(reader.partitions, {"n1": 0, "n2": 0}, {"n1": 0, "n2": 5})
    reader.stop()


async def test_a_batch_of_a_node_that_was_just_lost_is_planned_when_it_is_there_again(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart of a query while a node is being replaced: its offsets are known, its address is not."""
    (port,) = free_ports(1)
    config = load_config(None, [*settings(tmp_path / "two", "n2"), f"streams.listen=127.0.0.1:{port}"])
    servers = f"{broker.read_at},127.0.0.1:{port}"
    reader = MicroBatchReader(read_options(options(broker, servers=servers, nodeTimeout="30"), True))
    looked = threading.Event()
    look = NodeBook.look

    def watched(book: NodeBook) -> dict[str, str]:
        try:
            return look(book)
        finally:
            looked.set()

    monkeypatch.setattr(NodeBook, "look", watched)
    planned = asyncio.create_task(asyncio.to_thread(reader.partitions, {"n1": 0, "n2": 0}, {"n1": 0, "n2": 5}))
    assert await asyncio.to_thread(looked.wait, 20)
    assert not planned.done()
    async with Broker(config, listeners=["mqtt://127.0.0.1:0"]) as other:
        (part,) = await planned
        assert isinstance(part, RowPartition)
        assert (part.node, part.start, part.end, part.address) == ("n2", 0, 5, other.read_at)
    reader.stop()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"servers": ""}, "servers: name at least one"),
        ({"servers": "nowhere"}, "'nowhere' is not host:port"),
        ({"servers": "mqtt://here:1883"}, "is a URL; the source needs host:port of streams.listen"),
        ({"servers": "here:70000"}, "with a port between 1 and 65535"),
        ({"stream": ""}, "stream: required"),
        ({"startingOffsets": "first"}, "is not earliest, latest"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "set only one of them"),
        ({"startingTimestamp": "noon"}, "neither milliseconds"),
        ({"startingTimestamp": "1769860800"}, "1769860800 looks like seconds; give milliseconds"),
        (
            {"startingTimestamp": '{"n1": 1769860800000000}'},
            "looks like microseconds or nano",
        ),
        ({"endingOffsets": "latest"}, "not supported by streaming queries"),
        ({"maxRowsPerTrigger": "0"}, "not a number above 0"),
        ({"maxBytesPerTrigger": "much"}, "not a number above 0"),
        ({"failOnDataLoss": "maybe"}, "neither true nor false"),
        ({"tlsCa": "/nowhere.pem"}, "cannot be read"),
        ({"maxRows": "1"}, "maxRows: unknown option"),
        ({"columns": "topic,value"}, "columns: there is no value; the columns are topic, payload, qos"),
        ({"columns": "topic, topic"}, "has a column twice"),
    ],
)
def test_bad_options_are_said_by_name(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        read_options({"servers": "a:1", "stream": "s"} | given, streaming=True)


def test_a_batch_does_not_end_before_it_starts() -> None:
    given = {"servers": "a:1", "stream": "s", "startingTimestamp": "2026-01-31T12:00:00"}
    with pytest.raises(OptionError, match=r"endingTimestamp: 2026-01-31T11:59:59.999000\+00:00 is before starting"):
        read_options(given | {"endingTimestamp": "1769860799999"}, streaming=False)


def test_good_options() -> None:
    found = read_options(
        {"SERVERS": "a:1, b:2", "stream": "s", "maxBytesPerTrigger": "2MiB", "topicFilter": "a/#, b"}, True
    )
    assert (found.servers, found.bytes_max, found.filters, found.starting) == (
        ("a:1", "b:2"),
        2 << 20,
        ("a/#", "b"),
        "latest",
    )
