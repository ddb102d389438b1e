"""The sink in real Spark: rows become messages, once, whichever process dies and whatever is tried again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from starlingmq.spark.nodes import NodeBook
from starlingmq.spark.read_options import read_options
from tests.spark.brokers import StreamBroker, rows_of
from tests.spark.test_source import read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

STREAMS = "streams.define=[{name: in, topics: ['in/#']}, {name: out, topics: ['out/#']}]"
MANY = 4000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[StreamBroker]:
    running = StreamBroker(tmp_path / "n1", "n1", STREAMS)
    yield running
    running.stop()


def sink(broker: StreamBroker, **more: str) -> dict[str, str]:
    return {"servers": broker.url, "nodeTimeout": "20"} | more


def out(spark: SparkSession, broker: StreamBroker) -> DataFrame:
    return read(spark, broker.options | {"stream": "out"})


def payloads(spark: SparkSession, broker: StreamBroker) -> list[bytes]:
    return [bytes(row.payload) for row in out(spark, broker).orderBy("offset").collect()]


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    rows = spark.range(count, numPartitions=partitions)
    return rows.select(F.lit("out/a").alias("topic"), F.col("id").cast("string").alias("payload"))


def publish(rows: DataFrame, options: dict[str, str]) -> None:
    rows.write.format("starlingmq").mode("append").options(**options).save()


@pytest.mark.long(kept="tests/spark/test_sink.py::test_a_batch_that_is_tried_again_is_published_once")
def test_rows_of_the_source_are_written_as_they_are(spark: SparkSession, broker: StreamBroker) -> None:
    columns = "topic string, payload binary, qos tinyint, retain boolean, properties "
    columns += "array<struct<name: string, value: string>>"
    properties = [("mqtt.content_type", "text/plain"), ("mqtt.correlation_data", "00ff"), ("a", "1"), ("a", "2")]
    made = [(f"out/{qos}", b"x%d" % qos, qos, qos == 1, properties) for qos in (0, 1, 2)]
    publish(spark.createDataFrame(made, columns).coalesce(1), sink(broker))
    found = out(spark, broker).orderBy("topic").collect()
    assert [(row.topic, bytes(row.payload), row.qos, row.retain) for row in found] == [row[:4] for row in made]
    assert [(each.name, each.value) for each in found[0].properties] == properties
    publish(out(spark, broker), sink(broker))
    again = out(spark, broker).orderBy("topic", "offset").collect()
    assert [row.topic for row in again] == [f"out/{qos}" for qos in (0, 0, 1, 1, 2, 2)]
    assert all(row.properties == found[0].properties for row in again)


def test_a_batch_that_is_tried_again_is_published_once(spark: SparkSession, broker: StreamBroker) -> None:
    key = {"idempotencyKey": "the-job", "sameSplit": "true"}

    def found() -> list[int]:
        return sorted(int(payload) for _, payload in rows_of(broker.options | {"stream": "out"}))

    half = numbers(spark, 1000).withColumn(
        "topic", F.when(F.col("payload") == "400", F.lit("out/#")).otherwise(F.col("topic"))
    )
    with pytest.raises(PySparkException, match="'out/#' is not a valid topic to publish to"):
        publish(half, sink(broker, **key))
    assert len(found()) < 1000
    for _ in range(2):
        publish(numbers(spark, 1000), sink(broker, **key))
        assert found() == list(range(1000))
    with pytest.raises(PySparkException, match="differ from those published at an earlier attempt"):
        publish(numbers(spark, 1000).withColumn("payload", F.lit("other")), sink(broker, **key))
    publish(numbers(spark, 10), sink(broker, **key, batchId="1"))
    assert len(found()) == 1010


@pytest.mark.long(kept="tests/bulk/test_sink_nodes.py::test_a_batch_that_is_split_elsewhere_is_an_error")
def test_a_keyed_batch_that_is_split_elsewhere_doubles_nothing(spark: SparkSession, broker: StreamBroker) -> None:
    key = {"idempotencyKey": "the-job"}
    for partitions in (4, 2, 8):
        with pytest.raises(PySparkException, match=r"write one partition \(coalesce\(1\)\)|earlier attempt"):
            publish(numbers(spark, 4000, partitions), sink(broker, **key))
        found = payloads(spark, broker)
        assert len(set(found)) == len(found) < 4000
    for partitions in (2, 3):  # the order is the same, the split is not
        publish(numbers(spark, 4000, partitions).coalesce(1), sink(broker, **key))
        assert sorted(map(int, payloads(spark, broker))) == list(range(4000))
    other_order = numbers(spark, 4000).orderBy(F.col("payload")).coalesce(1)
    with pytest.raises(PySparkException, match="differ from those published at an earlier attempt"):
        publish(other_order, sink(broker, **key))
    assert len(payloads(spark, broker)) == 4000


@pytest.mark.long(kept="tests/bulk/test_sink_nodes.py::test_a_batch_that_is_split_elsewhere_is_an_error")
def test_a_keyed_batch_that_is_another_one_is_refused_before_a_row_is_published(
    spark: SparkSession, broker: StreamBroker
) -> None:
    key = {"idempotencyKey": "the-job"}
    rows = numbers(spark, 100, 1)
    publish(rows, sink(broker, **key, batchId="7"))
    for changed, options, words in (
        (rows, {"batchId": "6"}, "the broker has messages of a later batch than 6, .* use a new key"),
        (rows, {"batchId": "6", "qos": "2"}, "published rows with QoS 1, and this one has rows with QoS 2 only"),
        (rows, {"batchId": "7", "qos": "0"}, "published rows with QoS 1, and this one has rows with QoS 0 only"),
        (rows, {"batchId": "7", "retain": "true"}, "the first 100 messages of the-job/0/1 differ"),
        (rows.limit(50).coalesce(1), {"batchId": "7"}, "published 100 messages, this one has 50"),
    ):
        with pytest.raises(PySparkException, match=words):
            publish(changed, sink(broker, **key, **options))
    publish(rows.withColumn("qos", F.lit(1)), sink(broker, **key, batchId="7"))
    assert sorted(map(int, payloads(spark, broker))) == list(range(100))


@pytest.mark.long(kept="tests/bulk/test_sink_nodes.py::test_a_batch_that_is_split_elsewhere_is_an_error")
def test_a_streaming_query_does_not_take_new_rows_for_old_ones_after_its_checkpoint_was_deleted(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path
) -> None:
    def run(checkpoint: str, key: str) -> None:
        options = broker.options | {"stream": "in", "startingOffsets": "earliest", "maxRowsPerTrigger": "40"}
        rows = spark.readStream.format("starlingmq").options(**options).load().withColumn("topic", F.lit("out/a"))
        writer = rows.writeStream.format("starlingmq").options(**sink(broker, idempotencyKey=key))
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    broker.publish([b"%d" % number for number in range(100)], "in/a")
    run("first", "the-job")
    assert sorted(map(int, payloads(spark, broker))) == list(range(100))
    broker.publish([b"%d" % number for number in range(100, 150)], "in/a")
    with pytest.raises(PySparkException, match="the-job/0/1: the broker has messages of a later batch than 0"):
        run("second", "the-job")
    assert len(payloads(spark, broker)) == 100
    run("first", "the-job")
    assert sorted(map(int, payloads(spark, broker))) == list(range(150))


def begin(spark: SparkSession, broker: StreamBroker, path: Path, **more: str) -> StreamingQuery:
    """From stream ``in`` to stream ``out``."""
    options = broker.options | {"stream": "in", "startingOffsets": "earliest", "rowsPerPartition": "500"} | more
    rows = spark.readStream.format("starlingmq").options(**options).load()
    rows = rows.withColumn("topic", F.lit("out/a")).withColumn("qos", (F.col("offset") % 3).cast("int"))
    writer = rows.where("qos > 0").writeStream.format("starlingmq").options(**sink(broker))
    return (
        writer.queryName("out")
        .option("checkpointLocation", str(path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def wanted(count: int) -> list[int]:
    return [number for number in range(count) if number % 3]


@pytest.mark.long(kept="tests/spark/test_sink.py::test_a_batch_that_is_tried_again_is_published_once")
def test_a_streaming_batch_that_is_replayed_is_published_once(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path
) -> None:
    broker.publish([b"%d" % number for number in range(300)], "in/a")
    begin(spark, broker, tmp_path, maxRowsPerTrigger="100").awaitTermination()
    assert sorted(map(int, payloads(spark, broker))) == wanted(300)
    for done in (tmp_path / "checkpoint" / "commits").glob("*2*"):  # as if the driver had died before it wrote that
        done.unlink()
    begin(spark, broker, tmp_path, maxRowsPerTrigger="100").awaitTermination()
    broker.publish([b"%d" % number for number in range(300, 400)], "in/a")
    begin(spark, broker, tmp_path, maxRowsPerTrigger="100").awaitTermination()
    assert sorted(map(int, payloads(spark, broker))) == wanted(400)


@pytest.mark.long(kept="tests/spark/test_sink.py::test_a_batch_that_is_tried_again_is_published_once")
def test_the_broker_is_killed_while_rows_are_published(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path
) -> None:
    broker.publish([b"%d" % number for number in range(MANY)], "in/a")
    slow = {"window": "20"}
    done = threading.Event()

    def kill() -> None:
        book = NodeBook(read_options(broker.options | {"stream": "out"}, streaming=False))
        while not done.is_set() and book.bounds()["n1"].next < MANY // 10:
            time.sleep(0.01)
        book.close()
        broker.kill()
        broker.start()

    killer = threading.Thread(target=kill)
    options = broker.options | {"stream": "in", "startingOffsets": "earliest"}
    rows = read(spark, options).withColumn("topic", F.lit("out/a")).withColumn("qos", F.lit(1))
    killer.start()
    try:
        publish(rows, sink(broker, **slow))
    finally:
        done.set()
        killer.join()
    assert sorted(map(int, payloads(spark, broker))) == list(range(MANY))


@pytest.mark.long(kept="tests/spark/test_sink_rows.py::test_columns_that_cannot_be_published_are_said_by_name")
def test_an_impossible_write_is_reported_in_one_line(spark: SparkSession, broker: StreamBroker) -> None:
    rows = numbers(spark, 5)
    for data, options, words in (
        (
            rows.withColumn("value", F.lit(1)),
            {},
            "column value: unknown to the sink, which supports topic, payload, qos",
        ),
        (rows.drop("topic"), {}, "the column topic is missing"),
        (rows.withColumn("qos", F.lit("1")), {}, "column qos is string, but must be byte or"),
        (
            rows,
            {"servers": "mqtt://127.0.0.1:1", "nodeTimeout": "1"},
            r"no broker listens at mqtt://127.0.0.1:1.*option nodeTimeout",
        ),
        (rows, {"windows": "1"}, "windows: unknown option of the sink"),
    ):
        with pytest.raises(PySparkException, match=words):
            publish(data, sink(broker) | options)
