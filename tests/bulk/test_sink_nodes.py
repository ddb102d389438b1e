"""The sink over nodes that die and move, task by task, as Spark's workers call it: real brokers, and no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from starlingmq.cli.local_cluster import free_port
from starlingmq.spark.row_publishing import PublishError
from starlingmq.spark.sink import BATCH_ID, QUERY_ID, StreamWriter
from starlingmq.spark.sink_options import read_sink_options
from tests.spark.brokers import StreamBroker, ThreadBroker, rows_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PARTITIONS = 6
EACH = 20  # rows of a partition


@pytest.fixture
def context() -> Iterator[TaskContext]:
    context = TaskContext._getOrCreate()
    yield context
    TaskContext._setTaskContext(None)


class Query:
    """Spark's part of a streaming query: it records that a batch begins, runs its tasks, and commits it."""

    def __init__(self, context: TaskContext, checkpoint: Path) -> None:
        self._context = context
        self._checkpoint = checkpoint
        (checkpoint / "offsets").mkdir(parents=True)

    def attempt(
        self, batch: int, servers: Sequence[StreamBroker], split: Sequence[range] | None = None, **more: str
    ) -> None:
        """``split``: the rows of each partition. Raises what the first task that fails raises, with those before it
        done.
        """
        if split is None:
            first = batch * PARTITIONS * EACH
            split = [range(first + part * EACH, first + (part + 1) * EACH) for part in range(PARTITIONS)]
        (self._checkpoint / "offsets" / str(batch)).touch()
        urls = ",".join(broker.url for broker in servers)
        given = {
            "servers": urls,
            "checkpointLocation": str(self._checkpoint),
            "nodeTimeout": "60",
            "window": "3",
        } | more
        writer = StreamWriter(read_sink_options(given))
        done: list[WriterCommitMessage | None] = []
        for partition, numbers in enumerate(split):
            self._context._partitionId = partition
            self._context._localProperties = {QUERY_ID: "the-query", BATCH_ID: str(batch)}
            rows = {"topic": ["out/a"] * len(numbers), "payload": [b"%d" % number for number in numbers]}
            batches = [pa.RecordBatch.from_pydict(rows)] if numbers else []
            done.append(writer.write(iter(batches)))
        writer.commit(done, batch)


def published(*brokers: StreamBroker) -> list[tuple[str, int]]:
    return sorted((broker.name, int(payload)) for broker in brokers for _, payload in rows_of(broker.options))


def test_a_batch_that_is_split_elsewhere_is_an_error(context: TaskContext, tmp_path: Path) -> None:
    broker = ThreadBroker(tmp_path / "n1", "n1")
    query = Query(context, tmp_path / "checkpoint")
    try:
        query.attempt(0, [broker], [range(4), range(4, 8), range(0)])
        query.attempt(0, [broker], [range(4), range(4, 8), range(0)])
        for split in ([range(8), range(0)], [range(8)]):
            with pytest.raises(PublishError, match="the-query/1: an earlier attempt published rows of this partition"):
                query.attempt(0, [broker], split)
        with pytest.raises(PublishError, match="the-query/0: an earlier attempt published rows of this partition"):
            query.attempt(0, [broker], [range(0), range(4, 8)])
        query.attempt(1, [broker], [range(8, 12)])
        with pytest.raises(PublishError, match="the broker has messages of a later batch than 0"):
            query.attempt(0, [broker], [range(4), range(4, 8), range(0)])
    finally:
        broker.stop()


def test_a_node_that_gets_no_rows_is_not_waited_for(context: TaskContext, tmp_path: Path) -> None:
    n1, n2 = brokers = [ThreadBroker(tmp_path / name, name) for name in ("n1", "n2")]
    query = Query(context, tmp_path / "checkpoint")
    try:
        query.attempt(0, brokers, [range(4)])
        n2.stop()
        query.attempt(0, brokers, [range(4)])
        query.attempt(1, brokers, [range(4, 8), range(0)])
        assert published(n1) == [("n1", number) for number in range(8)]
    finally:
        for broker in brokers:
            broker.stop()


@pytest.mark.long(kept="tests/spark/test_placing.py::test_every_attempt_of_a_batch_goes_to_the_same_nodes")
def test_rows_wait_for_the_node_that_knows_them(context: TaskContext, tmp_path: Path) -> None:
    n1, n2, n3 = brokers = [ThreadBroker(tmp_path / name, name) for name in ("n1", "n2", "n3")]
    query = Query(context, tmp_path / "checkpoint")
    size = PARTITIONS * EACH
    try:
        query.attempt(0, brokers)
        n2.stop()
        for servers in (brokers, [n3, n1]):  # a batch that has begun waits for it, named or not
            with pytest.raises(PublishError, match="rows wait for node n2, which stores their sequence numbers"):
                query.attempt(1, servers, nodeTimeout="1")
        n2.url = f"mqtt://127.0.0.1:{free_port()}"
        n2.start()
        query.attempt(1, [n3, n1, n2])  # it has another address now
        found = published(*brokers)
        assert sorted(row for _, row in found) == list(range(2 * size)), "none lost, none twice"
        assert {name for name, row in found if row >= size} == {"n1", "n2", "n3"}
        n1.url, n3.url = n3.url, n1.url  # as a load balancer or a wrong list would have it
        for broker in (n1, n3):
            broker.stop()
        for broker in (n1, n3):
            broker.start()
        query.attempt(1, [n3, n1])  # tried again: found by their names
        query.attempt(2, [n3, n1])
        found = published(*brokers)
        assert sorted(row for _, row in found) == list(range(3 * size))
        assert {name for name, row in found if row >= 2 * size} == {"n1", "n3"}, "the new list, from a new batch on"
        n1.stop()
        query.attempt(3, [n3, n1], excludedNodes="n1")
        n1.start()
        assert sorted(row for _, row in published(*brokers)) == list(range(4 * size))
    finally:
        for broker in brokers:
            broker.stop()
