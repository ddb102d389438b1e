"""The source in real Spark: batch and streaming queries over streams of real brokers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from starlingmq.pipeline.restarts import transient
from starlingmq.spark import decode_json
from tests.cli.test_stream_commands import ask
from tests.spark.brokers import StreamBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NUMBERS = [b"%d" % number for number in range(100)]


def read(spark: SparkSession, options: dict[str, str], **more: str) -> DataFrame:
    return spark.read.format("starlingmq").options(**options, **more).load()


def stream(
    spark: SparkSession, options: dict[str, str], path: Path, *, available: bool = True, **more: str
) -> StreamingQuery:
    """A query into Parquet files."""
    rows = spark.readStream.format("starlingmq").options(**options, **more).load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(path / "checkpoint"))
    trigger = writer.trigger(availableNow=True) if available else writer.trigger(processingTime="200 milliseconds")
    return trigger.start(str(path / "rows"))


def finish(start: Callable[[], StreamingQuery]) -> list[StreamingQuery]:
    """Run a query to its end, again from its checkpoint if a Python worker misses the 10 s that Spark gives it."""
    queries = []
    while True:
        queries.append(start())
        try:
            queries[-1].awaitTermination()
        except PySparkException as error:
            if not transient(str(error)):
                raise
        else:
            return queries


def rows_of_batches(query: StreamingQuery) -> list[int]:
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def written(spark: SparkSession, path: Path) -> list[tuple[str, int, bytes]]:
    rows = spark.read.parquet(str(path / "rows")).select("node", "offset", "payload").collect()
    return sorted((row.node, row.offset, bytes(row.payload)) for row in rows)


def until_written(query: StreamingQuery, spark: SparkSession, path: Path, count: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert query.isActive, query.exception()
        if query.recentProgress and len(written(spark, path)) >= count:
            return
        time.sleep(0.2)
    raise AssertionError(f"{count} rows never came")


def test_a_batch_query_has_every_row_and_column(spark: SparkSession, broker: StreamBroker) -> None:
    broker.publish(NUMBERS)
    broker.publish([b"x"], "c")
    rows = read(spark, broker.options, rowsPerPartition="30")
    found = sorted((row.offset, row.topic, bytes(row.payload), row.qos, row.node) for row in rows.collect())
    assert found == [(n, "a/b", NUMBERS[n], 1, "n1") for n in range(100)] + [(100, "c", b"x", 1, "n1")]
    assert rows.rdd.getNumPartitions() == 4
    assert rows.where("node = 'n1' AND offset >= 80").count() == 21
    assert rows.count() == 101, "no predicate of the query before"
    more = {"topicFilter": "c,x/#", "startingOffsets": json.dumps({"n1": 10})}
    assert [row.offset for row in read(spark, broker.options, **more).collect()] == [100]


@pytest.mark.long(kept="tests/bulk/test_planning.py::test_a_batch_is_cut_into_tasks")
def test_a_batch_query_of_an_empty_range_has_no_rows(spark: SparkSession, broker: StreamBroker) -> None:
    assert read(spark, broker.options).count() == 0, "an empty stream"
    broker.publish(NUMBERS[:3])
    for more in (
        {"startingTimestamp": "2100-01-01T00:00:00"},
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"n1": 2}', "endingOffsets": '{"n1": 2}'},
    ):
        assert read(spark, broker.options | more).collect() == []


@pytest.mark.long(kept="tests/spark/test_payload_rules.py::test_json_values_have_rules_at_any_depth")
def test_payloads_are_decoded_and_what_can_not_be_is_kept(spark: SparkSession, broker: StreamBroker) -> None:
    broker.publish([b'{"id": "a", "v": 1}', b"no json", b'{"id": "b", "v": "no number"}', b'{"id": "c", "v": 4}'])
    rows = decode_json(read(spark, broker.options), "id string, v int").orderBy("offset").collect()
    assert [(row.id, row.v) for row in rows if row._malformed is None] == [("a", 1), ("c", 4)]
    assert [row._malformed for row in rows if row._malformed] == ["no json", '{"id": "b", "v": "no number"}']


@pytest.mark.long(kept="tests/spark/test_payload_rules.py::test_what_is_one_json_object")
def test_a_payload_has_one_json_value(spark: SparkSession, broker: StreamBroker) -> None:
    one = [b'{"id": "a}b", "v": 1}', b' {"id": "a", "v": 2} ', b'{"id": "c", "v": 4, "w": [{"x": 1}, {"x": [2]}]}\n']
    more = [b'{"id": "a", "v": 1}{"id": "b", "v": 2}', b'{"id": "a", "v": 1}\n{"id": "b", "v": 2}']
    more += [b'{"id": "a", "v": 1},{"id": "b", "v": 2}', b'{"id": "a", "v": NaN} {"id": "b"}', b'{"id": "a"} tail']
    more += [b'{"id": "a"},{"id": "b"', b'{"id": "a"},tail', b'{"id": "a"},', b'{"id": "a"}}', b'{"id": "a"}], "x": 3']
    more += [b'{"id": "a"}]', b'{"id": "a", "v": NaN},{"id": "b"}']
    broker.publish([*one, *more])
    rows = decode_json(read(spark, broker.options), "id string, v double").orderBy("offset").collect()
    assert [row.id for row in rows if row._malformed is None] == ["a}b", "a", "c"]
    assert [row._malformed.encode() for row in rows if row._malformed] == more


@pytest.mark.long(kept="tests/bulk/test_planning.py::test_bad_options_are_said_by_name")
def test_an_impossible_read_is_reported_in_one_line(spark: SparkSession, broker: StreamBroker) -> None:
    for option, value, words in (
        ("stream", "none", "there is no stream none on n1"),
        ("maxRows", "5", "maxrows: unknown option"),  # Spark knows no large letters
    ):
        with pytest.raises(PySparkException) as told:
            read(spark, broker.options | {"nodeTimeout": "1", option: value}).collect()
        assert words in str(told.value)


def test_a_streaming_query_goes_on_from_its_checkpoint_in_bounded_batches(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path
) -> None:
    broker.publish(NUMBERS[:50])
    more = {"startingOffsets": "earliest", "maxRowsPerTrigger": "20", "consumer": "test", "pinRetention": "true"}
    first = finish(lambda: stream(spark, broker.options | more, tmp_path))
    assert [rows for query in first for rows in rows_of_batches(query)] == [20, 20, 10]
    broker.publish(NUMBERS[50:])
    finish(lambda: stream(spark, broker.options | more, tmp_path))
    assert written(spark, tmp_path) == [("n1", n, NUMBERS[n]) for n in range(100)]
    (consumer,) = ask(broker.data, "show", name="all")["consumers"]
    assert consumer["name"] == "test" and consumer["pins"] and consumer["next"] >= 50


@pytest.mark.long(
    kept="tests/bulk/test_nodes.py::test_a_node_that_was_away_gives_rows_from_the_time_at_which_the_query_began"
)
def test_a_broker_that_is_killed_and_a_node_that_comes_later(
    spark: SparkSession, mortal_broker: StreamBroker, tmp_path: Path
) -> None:
    broker = mortal_broker
    broker.publish(NUMBERS[:30])
    other = StreamBroker(tmp_path / "n2", "n2")
    other.stop()
    servers = {"servers": f"{broker.address},{other.address}", "startingOffsets": "earliest"}
    query = stream(spark, broker.options | servers, tmp_path, available=False)
    try:
        until_written(query, spark, tmp_path, 30)
        broker.kill()
        broker.start()
        broker.publish(NUMBERS[30:60])
        other.start()
        other.publish(NUMBERS[:40])
        until_written(query, spark, tmp_path, 100)
    finally:
        query.stop()
        other.stop()
    assert written(spark, tmp_path) == [
        *(("n1", n, NUMBERS[n]) for n in range(60)),
        *(("n2", n, NUMBERS[n]) for n in range(40)),
    ]


@pytest.mark.long(kept="tests/bulk/test_nodes.py::test_rows_that_are_not_kept_are_counted")
def test_offsets_removed_by_retention_fail_a_query_or_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    broker = StreamBroker(tmp_path / "n1", "n1", "storage.segment_size=1KiB")
    try:
        broker.publish(NUMBERS[:10])
        finish(lambda: stream(spark, broker.options, tmp_path, startingOffsets="earliest"))
        broker.publish(NUMBERS[10:])
        first = ask(broker.data, "trim", name="all", before="60")["first"]
        assert 10 < first <= 60
        with pytest.raises(PySparkException, match=rf"no longer has {first - 10} rows of stream all"):
            finish(lambda: stream(spark, broker.options, tmp_path, startingOffsets="earliest"))
        forgiving = broker.options | {"startingOffsets": "earliest", "failOnDataLoss": "false"}
        finish(lambda: stream(spark, forgiving, tmp_path))
        kept = [*range(10), *range(first, 100)]
        assert written(spark, tmp_path) == [("n1", n, NUMBERS[n]) for n in kept]
    finally:
        broker.stop()
