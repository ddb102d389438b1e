"""How a query plans over nodes that come, go, and lose rows: the reader itself beside real brokers, without Spark.

Nodes of most tests are in threads and shared by them; each test has a stream of its own.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from starlingmq.bulk.positions import LOST, PositionError, StreamPosition
from starlingmq.spark.nodes import LostRows, NodeBook, StreamError
from starlingmq.spark.read_options import read_options
from starlingmq.spark.row_reading import parts, read_part
from starlingmq.spark.source import MicroBatchReader, Told
from tests.cli.commands import run
from tests.cli.test_stream_commands import ask
from tests.spark.brokers import StreamBroker, ThreadBroker, batches_of, rows_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

NUMBER = count()
NUMBERS = [b"%d" % number for number in range(100)]


@pytest.fixture(scope="module")
def both_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ThreadBroker]]:
    data = tmp_path_factory.mktemp("nodes")
    nodes: list[ThreadBroker] = []
    try:
        for name in ("n1", "n2"):
            nodes.append(ThreadBroker(data / name, name, "storage.segment_size=1KiB"))
        yield nodes
    finally:
        for node in nodes:
            node.stop()


@pytest.fixture
def nodes(both_nodes: list[ThreadBroker]) -> list[ThreadBroker]:
    """Two nodes that are not a cluster, with an empty stream."""
    name = f"stream{next(NUMBER)}"
    for node in both_nodes:
        node.start()  # the test before may have stopped it
        node.begin_stream(name)
    return both_nodes


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[ThreadBroker]:
    """A node whose data are lost."""
    node = ThreadBroker(tmp_path / "n1", "n1")
    yield node
    node.stop()


def reader(*brokers: StreamBroker, **more: str) -> MicroBatchReader:
    servers = {"servers": ",".join(broker.address for broker in brokers), "startingOffsets": "earliest"}
    return MicroBatchReader(read_options(brokers[0].options | servers | {"nodeTimeout": "1"} | more, streaming=True))


def advance(planner: MicroBatchReader, start: Told | None = None) -> tuple[Told, list[bytes]]:
    """The next batch: where it ends, and its payloads. ``start`` None: a query begins."""
    start = planner.initialOffset() if start is None else start
    end = planner.latestOffset(start, ReadAllAvailable())
    return end, payloads(planner, start, end)


def payloads(planner: MicroBatchReader, start: Told, end: Told) -> list[bytes]:
    rows: list[Any] = []
    for part in planner.partitions(start, end):
        rows += [value for batch in planner.read(part) for value in batch.column("payload").to_pylist()]
    return rows


def at(told: Told, **offsets: int) -> Told:
    """The same position with other offsets."""
    return told | {"offsets": told["offsets"] | offsets}


def test_a_node_that_is_gone_for_good_is_left_out_by_name(nodes: list[ThreadBroker]) -> None:
    n1, n2 = nodes
    for broker in (n1, n2):
        broker.publish(NUMBERS[:10])
    start, rows = advance(reader(n1, n2))
    assert start["offsets"] == {"n1": 10, "n2": 10} and sorted(rows) == sorted(NUMBERS[:10] * 2)
    n2.publish(NUMBERS[:5])
    under_way = at(start, n2=15)
    n2.stop()
    n1.publish(NUMBERS[10:20])
    with pytest.raises(StreamError, match=r"node n2.*option nodeTimeout"):
        advance(reader(n1, n2), start)
    without = reader(n1, n2, excludedNodes="n2")
    end, rows = advance(without, start)
    assert end["offsets"] == {"n1": 20, "n2": 10} and rows == NUMBERS[10:20]
    assert without.partitions(start, under_way) == [], "a batch that was planned before it went"
    n2.start()
    n2.publish(NUMBERS[5:6])
    again, rows = advance(reader(n1, n2), end)
    assert again["offsets"] == {"n1": 20, "n2": 16} and rows == NUMBERS[:6], "where it was left, if it comes back"


def test_a_node_that_was_away_gives_rows_from_the_time_at_which_the_query_began(nodes: list[ThreadBroker]) -> None:
    n1, n2 = nodes
    n2.publish(NUMBERS[:10])
    n2.stop()
    latest, earliest = (reader(n1, n2, startingOffsets=where) for where in ("latest", "earliest"))
    since_now, since_ever = latest.initialOffset(), earliest.initialOffset()
    assert list(since_now["waiting"]) == list(since_ever["waiting"]) == [n2.address], "its name is unknown so far"
    n1.publish(NUMBERS[:3])
    since_now, rows = advance(latest, since_now)
    assert rows == NUMBERS[:3], "nobody waits for it meanwhile"
    batch = n1.options | {"servers": f"{n1.address},{n2.address}", "nodeTimeout": "1"}
    with pytest.raises(StreamError, match=f"{n2.address} may have a part of the stream and does not answer"):
        rows_of(batch)
    assert len(rows_of(batch | {"excludedNodes": n2.address})) == 3
    n2.start()
    n2.publish(NUMBERS[10:15])
    since_now, rows = advance(latest, since_now)
    assert rows == [] and since_now["offsets"] == {"n1": 3, "n2": 10} and "waiting" not in since_now
    assert advance(latest, since_now)[1] == NUMBERS[10:15]
    since_ever, _ = advance(earliest, since_ever)
    assert advance(earliest, since_ever)[1] == NUMBERS[:15]
    assert sorted(rows_of(batch)) == sorted([("n1", n) for n in NUMBERS[:3]] + [("n2", n) for n in NUMBERS[:15]])


def test_rows_of_a_new_node_that_are_not_kept_fail_the_query(nodes: list[ThreadBroker]) -> None:
    n1, n2 = nodes
    start = reader(n1).initialOffset()
    n2.publish(NUMBERS)
    first = ask(n2.data, "trim", name=n2.stream, before="60")["first"]
    with pytest.raises(LostRows, match=f"node n2 no longer has {first} rows"):
        advance(reader(n1, n2), start)
    forgiving = reader(n1, n2, failOnDataLoss="false")
    end, rows = advance(forgiving, start)
    assert (end["offsets"], end["lost"], rows) == ({"n1": 0, "n2": first}, first, [])
    assert advance(forgiving, end)[1] == NUMBERS[first:]


def test_a_stream_that_is_another_one_fails_the_query_or_begins_again(own_node: ThreadBroker) -> None:
    broker = own_node
    broker.publish(NUMBERS[:10])
    start, _ = advance(reader(broker))
    broker.publish(NUMBERS[10:20])
    under_way = at(start, n1=20)
    forgiving = reader(broker, failOnDataLoss="false", consumer="c")
    ask(broker.data, "delete", name="all")
    for _ in range(2):
        assert advance(forgiving, start) == (start, []), "the query waits for a stream of this name"
    assert payloads(forgiving, start, under_way) == []
    with pytest.raises(StreamError, match="there is no stream all on n1"):
        advance(reader(broker), start)
    with pytest.raises(StreamError, match="no stream all"):
        payloads(reader(broker), start, under_way)
    ask(broker.data, "create", name="all", topics="#")
    broker.publish(NUMBERS[50:80])
    for planner in (reader(broker), reader(broker, consumer="c")):
        with pytest.raises(
            LostRows, match="not the one that was read up to offset 10: it was deleted and created again"
        ):
            advance(planner, start)
        with pytest.raises(LostRows, match="not the one that was read before"):
            payloads(planner, start, under_way)
    assert payloads(forgiving, start, under_way) == [], "a batch that was planned before"
    forgiving.commit(under_way)
    assert ask(broker.data, "show", name="all")["consumers"] == [], "its progress is in another stream"
    end, rows = advance(forgiving, start)
    assert rows == [] and (end["offsets"], end["again"]) == ({"n1": 20}, 1), "offsets are never given twice"
    end, rows = advance(forgiving, end)
    assert rows == NUMBERS[50:80] and end["offsets"] == {"n1": 50}
    broker.stop()
    shutil.rmtree(broker.data)
    broker.start()
    broker.publish(NUMBERS[:70])  # more than were read: the offset alone tells nothing
    with pytest.raises(LostRows, match="the node has lost its disk"):
        advance(reader(broker), end)
    end, rows = advance(forgiving, end)
    assert rows == [] and end["again"] == 2
    assert advance(forgiving, end)[1] == NUMBERS[:70]


def test_a_stream_from_a_backup_goes_on_where_both_are_the_same(own_node: ThreadBroker, tmp_path: Path) -> None:
    broker = own_node
    broker.publish(NUMBERS[:10])
    before, _ = advance(reader(broker))
    broker.publish(NUMBERS[10:20])
    assert run("backup", str(tmp_path / "backup"), "--data-dir", str(broker.data))[0] == 0
    broker.publish(NUMBERS[20:30])
    after, _ = advance(reader(broker), before)
    broker.stop()
    shutil.rmtree(broker.data)
    assert run("restore", str(tmp_path / "backup"), "--data-dir", str(broker.data))[0] == 0
    broker.start()
    broker.publish(NUMBERS[30:60])
    with pytest.raises(LostRows, match="was restored from a backup"):
        advance(reader(broker), after)
    end, rows = advance(reader(broker), before)
    assert rows == [] and end["offsets"] == {"n1": 10} and "again" not in end
    assert advance(reader(broker), end)[1] == [*NUMBERS[10:20], *NUMBERS[30:60]]


def test_positions_of_earlier_releases_are_read_and_those_of_later_ones_refused(nodes: list[ThreadBroker]) -> None:
    broker = nodes[0]
    broker.publish(NUMBERS[:20])
    end, rows = advance(reader(broker), {"n1": 5, LOST: 7})
    assert rows == NUMBERS[5:20] and (end["offsets"], end["lost"], end["version"]) == ({"n1": 20}, 7, 2)
    assert payloads(reader(broker), {}, {"n1": 3}) == NUMBERS[:3], "a node that had come into the batch"
    for told, words in ((end | {"version": 3}, "version 3"), ({"n1": "x"}, "invalid position")):
        with pytest.raises(PositionError, match=words):
            advance(reader(broker), told)


def test_rows_that_are_not_kept_are_counted(nodes: list[ThreadBroker]) -> None:
    broker = nodes[0]
    broker.publish(NUMBERS[:10])
    start, _ = advance(reader(broker))
    broker.publish(NUMBERS[10:])
    first = ask(broker.data, "trim", name=broker.stream, before="60")["first"]
    with pytest.raises(LostRows, match=f"no longer has {first - 10} rows"):
        advance(reader(broker), start)
    forgiving = reader(broker, failOnDataLoss="false")
    end, rows = advance(forgiving, start)
    assert (end["offsets"], end["lost"]) == ({"n1": 100}, first - 10) and rows == NUMBERS[first:]
    broker.publish(NUMBERS[:1])
    end, rows = advance(forgiving, end)
    assert (end["offsets"], end["lost"]) == ({"n1": 101}, first - 10), "the count goes on with the query"
    assert rows == NUMBERS[:1]


def test_an_offset_range_is_always_the_same_rows(tmp_path: Path) -> None:
    broker = StreamBroker(tmp_path / "n1", "n1", "storage.segment_size=1KiB")

    def table(pieces: int) -> pa.Table:
        book = NodeBook(read_options(broker.options | {"rowsPerPartition": str(pieces)}, streaming=False))
        cut = parts(book, StreamPosition(offsets={"n1": 7}), StreamPosition(offsets={"n1": 93}))
        found = [batch for part in cut for batch in read_part(part, book.options)]
        book.close()
        return pa.Table.from_batches(found).combine_chunks()

    try:
        broker.publish(NUMBERS)
        once = table(1000)
        assert once.column("payload").to_pylist() == NUMBERS[7:93] and once.column("offset").to_pylist() == [
            *range(7, 93)
        ]
        assert table(10) == once, "in other pieces"
        broker.kill()
        broker.start()
        broker.publish(NUMBERS)
        assert table(30) == once, "after a crash, beside what came since"
    finally:
        broker.stop()


def test_minimum_of_partitions_splits_a_small_stream(nodes: list[ThreadBroker]) -> None:
    n1, n2 = nodes
    n1.publish(NUMBERS[:30])
    n2.publish(NUMBERS[30:40])
    planner = reader(n1, n2, minPartitions="4")
    start = planner.initialOffset()
    end = planner.latestOffset(start, ReadAllAvailable())
    pieces = planner.partitions(start, end)
    assert [(part.value[0], part.value[2] - part.value[1]) for part in pieces] == [("n1", 10)] * 3 + [("n2", 10)]
    assert sorted(payloads(planner, start, end)) == sorted(NUMBERS[:40])
    many = reader(n1, n2, minPartitions="1000")
    assert len(many.partitions(start, end)) == 40, "a row is not split"


def test_a_batch_waits_for_its_minimum_of_rows_or_the_delay(nodes: list[ThreadBroker]) -> None:
    broker = nodes[0]
    broker.publish(NUMBERS[:5])
    patient = reader(broker, minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    start = patient.initialOffset()
    assert patient.latestOffset(start, ReadAllAvailable()) == start, "too few rows"
    hasty = reader(broker, minRowsPerTrigger="10", maxTriggerDelay="0ms")
    assert advance(hasty, start)[1] == NUMBERS[:5], "the delay is over"
    at_once = reader(broker, minRowsPerTrigger="10", maxTriggerDelay="1h")
    at_once.prepareForTriggerAvailableNow()
    assert advance(at_once, start)[1] == NUMBERS[:5], "Trigger.AvailableNow waits for nothing"
    broker.publish(NUMBERS[5:10])
    assert advance(patient, start)[1] == NUMBERS[:10]


def test_times_bound_a_batch_query_for_all_nodes_or_by_node(nodes: list[ThreadBroker]) -> None:
    n1, n2 = nodes
    for broker in (n1, n2):
        broker.publish(NUMBERS[:3])
    limit = max(
        when.timestamp() for _, batch in batches_of(both(n1, n2)) for when in batch.column("timestamp").to_pylist()
    )
    limit_ms = int(limit * 1000) + 1
    while time.time() * 1000 <= limit_ms:
        time.sleep(0.001)  # the clock itself is awaited
    for broker in (n1, n2):
        broker.publish(NUMBERS[3:5])
    early = rows_of(both(n1, n2, endingTimestamp=str(limit_ms)))
    assert sorted(early) == [(node, number) for node in ("n1", "n2") for number in NUMBERS[:3]]
    late = rows_of(both(n1, n2, startingTimestamp=json.dumps({"n2": limit_ms})))
    assert sorted(late) == sorted([("n1", n) for n in NUMBERS[:5]] + [("n2", n) for n in NUMBERS[3:5]])
    with pytest.raises(StreamError, match="timestamps are given for n9, but the stream is on n1, n2"):
        rows_of(both(n1, n2, endingTimestamp='{"n9": 1769860800000}'))
    for start in ({"startingOffsets": "latest"}, {"startingTimestamp": json.dumps({"n1": limit_ms})}):
        with pytest.raises(StreamError, match=r"endingTimestamp: offset 0 on node n1 is before its start, [35]"):
            rows_of(both(n1, n2, endingTimestamp='{"n1": 1769860800000}', **start))
    future = int(time.time() * 1000) + 3_600_000
    for since in (str(future), json.dumps({"n1": future})):
        options = both(n1, n2, startingTimestamp=since)
        with pytest.raises(StreamError, match=r"startingTimestamp: .* is in the future, and the query would read"):
            MicroBatchReader(read_options(options, streaming=True)).initialOffset()
        assert {node for node, _ in rows_of(options)} == ({"n2"} if "{" in since else set()), "a batch has none"


def both(n1: StreamBroker, n2: StreamBroker, **more: str) -> dict[str, str]:
    return n1.options | {"servers": f"{n1.address},{n2.address}"} | more
