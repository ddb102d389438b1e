"""How a query plans over nodes that come, go, and lose rows: the reader itself beside real brokers, without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from starlingmq.spark.nodes import LostRows, NodeBook, StreamError
from starlingmq.spark.read_options import read_options
from starlingmq.spark.source import LOST, MicroBatchReader, Position, parts, read_part
from tests.cli.test_stream_commands import ask
from tests.spark.brokers import StreamBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

NUMBERS = [b"%d" % number for number in range(100)]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def begin(stack: ExitStack, path: Path, name: str, *settings: str) -> StreamBroker:
    broker = StreamBroker(path / name, name, *settings)
    stack.callback(broker.stop)
    return broker


def reader(*brokers: StreamBroker, **more: str) -> MicroBatchReader:
    servers = {"servers": ",".join(broker.address for broker in brokers), "startingOffsets": "earliest"}
    return MicroBatchReader(read_options(brokers[0].options | servers | {"patience": "1"} | more, streaming=True))


def advance(planner: MicroBatchReader, start: Position) -> tuple[Position, list[bytes]]:
    """The next batch: where it ends, and its payloads."""
    end = planner.latestOffset(start, ReadAllAvailable())
    rows: list[Any] = []
    for part in planner.partitions(start, end):
        rows += [value for batch in planner.read(part) for value in batch.column("payload").to_pylist()]
    return end, rows


def test_a_node_that_is_gone_for_good_is_left_out_by_name(stack: ExitStack, tmp_path: Path) -> None:
    n1, n2 = (begin(stack, tmp_path, name) for name in ("n1", "n2"))
    for broker in (n1, n2):
        broker.publish(NUMBERS[:10])
    start, rows = advance(reader(n1, n2), {})
    assert start == {"n1": 10, "n2": 10} and sorted(rows) == sorted(NUMBERS[:10] * 2)
    n2.publish(NUMBERS[:5])
    under_way = start | {"n2": 15}
    n2.kill()
    n1.publish(NUMBERS[10:20])
    with pytest.raises(StreamError, match=r"node n2.*option patience"):
        advance(reader(n1, n2), start)
    without = reader(n1, n2, goOnWithout="n2")
    end, rows = advance(without, start)
    assert end == {"n1": 20, "n2": 10} and rows == NUMBERS[10:20]
    assert without.partitions(start, under_way) == [], "a batch that was planned before it went"
    n2.start()
    n2.publish(NUMBERS[5:6])
    again, rows = advance(reader(n1, n2), end)
    assert again == {"n1": 20, "n2": 16} and rows == NUMBERS[:6], "where it was left, if it comes back after all"


def test_rows_that_are_not_kept_are_counted(stack: ExitStack, tmp_path: Path) -> None:
    broker = begin(stack, tmp_path, "n1", "storage.segment_size=1KiB")
    broker.publish(NUMBERS[:10])
    start, _ = advance(reader(broker), {})
    broker.publish(NUMBERS[10:])
    first = ask(broker.data, "trim", name="all", before="60")["first"]
    with pytest.raises(LostRows, match=f"no longer has {first - 10} rows"):
        advance(reader(broker), start)
    forgiving = reader(broker, failOnDataLoss="false")
    end, rows = advance(forgiving, start)
    assert end == {"n1": 100, LOST: first - 10} and rows == NUMBERS[first:]
    broker.publish(NUMBERS[:1])
    end, rows = advance(forgiving, end)
    assert end == {"n1": 101, LOST: first - 10} and rows == NUMBERS[:1], "the count goes on with the query"
    broker.kill()
    shutil.rmtree(broker.data)
    broker.start()
    with pytest.raises(LostRows, match="rows from offset 0 on"):
        advance(reader(broker), end)
    end, rows = advance(forgiving, end)
    assert end == {"n1": 0, LOST: first - 10} and rows == []
    broker.publish(NUMBERS[:3])
    assert advance(forgiving, end)[1] == NUMBERS[:3]


def test_an_offset_range_is_always_the_same_rows(stack: ExitStack, tmp_path: Path) -> None:
    broker = begin(stack, tmp_path, "n1", "storage.segment_size=1KiB")
    broker.publish(NUMBERS)

    def table(pieces: int) -> pa.Table:
        book = NodeBook(read_options(broker.options | {"rowsPerPartition": str(pieces)}, streaming=False))
        found = [batch for part in parts(book, {"n1": 7}, {"n1": 93}) for batch in read_part(part, book.options)]
        book.close()
        return pa.Table.from_batches(found).combine_chunks()

    once = table(1000)
    assert once.column("payload").to_pylist() == NUMBERS[7:93] and once.column("offset").to_pylist() == [*range(7, 93)]
    assert table(10) == once, "in other pieces"
    broker.kill()
    broker.start()
    broker.publish(NUMBERS)
    assert table(30) == once, "after a crash, beside what came since"
