"""Sinks with their real packages: Delta, Kafka and PostgreSQL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from starlingmq.pipeline.compaction import compact_table
from starlingmq.pipeline.config import SinkConfig, read_pipeline
from starlingmq.pipeline.jdbc import DatabaseAway, PostgresqlTable
from starlingmq.pipeline.kafka import FILE, ROWS, Begun, DeletedMessages, KafkaTopics
from starlingmq.pipeline.restarts import transient
from starlingmq.pipeline.run import Pipeline
from starlingmq.spark.sink import QUERY_ID
from tests.lake.services import Kafka, Postgresql
from tests.lake.session import pipeline
from tests.spark.brokers import StreamBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BATCHES = "starlingmq_batches"
SCHEMA = {"format": "json", "schema": "id string, value int"}
NUMBERED = "SELECT id, value, offset FROM rows"


def reading(device: str, value: int) -> bytes:
    return json.dumps({"id": device, "value": value}).encode()


def run(spark: SparkSession, file: Path) -> None:
    for query in Pipeline(spark, read_pipeline(file), file).start():
        query.awaitTermination()


def rows(spark: SparkSession, path: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.read.format("delta").load(str(path)).collect())


def test_delta_gets_each_row_once_in_partitions(spark: SparkSession, broker: StreamBroker, tmp_path: Path) -> None:
    sink = {"format": "delta", "path": str(tmp_path / "table"), "partition_by": ["id"]}
    file = pipeline(tmp_path, [broker.address], "delta", sink, decode=SCHEMA, steps=[{"sql": NUMBERED}])
    broker.publish([reading("a", 1), reading("b", 2)])
    run(spark, file)
    broker.publish([reading("a", 3)])
    run(spark, file)
    assert rows(spark, tmp_path / "table") == [("a", 1, 0), ("a", 3, 2), ("b", 2, 1)]
    assert (tmp_path / "table" / "id=a").is_dir()


def test_delta_keeps_the_latest_row_of_each_key_and_new_columns(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    sink: dict[str, Any] = {"format": "delta", "path": str(table), "key": ["id"], "order_by": ["offset"]}
    sink |= {"cluster_by": ["id"]}
    file = pipeline(tmp_path, [broker.address], "keyed", sink, decode=SCHEMA, steps=[{"sql": NUMBERED}])
    broker.publish([reading("a", 1), reading("b", 2), reading("a", 3)])
    run(spark, file)
    assert rows(spark, table) == [("a", 3, 2), ("b", 2, 1)]
    broker.publish([reading("b", 4), reading("c", 5)])
    run(spark, file)
    changed = [("a", 3, 2), ("b", 4, 3), ("c", 5, 4)]
    assert rows(spark, table) == changed
    again = {**sink, "options": {"mergeSchema": "true"}}
    steps = [{"sql": "SELECT id, value, offset, upper(id) AS name FROM rows"}]
    file = pipeline(tmp_path, [broker.address], "again", again, decode=SCHEMA, steps=steps)  # every row once more
    run(spark, file)
    assert rows(spark, table) == [(*row, row[0].upper()) for row in changed], "no older row replaces a later one"
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{table}`").collect()[0]
    assert detail["clusteringColumns"] == ["id"]
    before, after = compact_table(spark, read_pipeline(file).sink)
    assert before >= after
    assert rows(spark, table) == [(*row, row[0].upper()) for row in changed]


def test_postgresql_gets_each_row_once(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path, postgresql: Postgresql
) -> None:
    options = {"url": postgresql.url, "dbtable": "readings", "user": "postgres"}
    sink: dict[str, Any] = {"format": "jdbc", "options": options}
    file = pipeline(tmp_path, [broker.address], "plain", sink, decode=SCHEMA, steps=[{"sql": NUMBERED}])
    broker.publish([reading("a", 1), reading("b", 2)])
    run(spark, file)
    broker.publish([reading("a", 3)])
    run(spark, file)
    assert postgresql.ask('SELECT id, value FROM readings ORDER BY "offset"') == ["a|1", "b|2", "a|3"]
    keyed = {**sink, "options": {**options, "dbtable": "latest"}, "key": ["id"], "order_by": ["offset"]}
    file = pipeline(tmp_path, [broker.address], "latest", keyed, decode=SCHEMA, steps=[{"sql": NUMBERED}])
    run(spark, file)
    broker.publish([reading("b", 4)])
    run(spark, file)
    assert postgresql.ask("SELECT id, value FROM latest ORDER BY id") == ["a|3", "b|4"]


def test_a_repeated_batch_changes_no_table_of_postgresql(spark: SparkSession, postgresql: Postgresql) -> None:
    options = {"url": postgresql.url, "dbtable": "repeated", "user": "postgres"}
    table = PostgresqlTable(SinkConfig(format="jdbc", options=options))
    context = spark.sparkContext
    context.setLocalProperty(QUERY_ID, "one")
    for number, first in ((0, 0), (0, 0), (1, 10), (1, 10), (0, 0)):
        table.write(spark.range(first, first + 5).toDF("id"), number)
    context.setLocalProperty(QUERY_ID, "another")
    table.write(spark.range(20, 25).toDF("id"), 0)
    found = [int(line) for line in postgresql.ask("SELECT id FROM repeated ORDER BY id")]
    assert found == [*range(5), *range(10, 15), *range(20, 25)]
    assert postgresql.ask("SELECT tablename FROM pg_tables WHERE tablename LIKE '%starlingmq_%'") == [BATCHES]


def test_a_row_of_postgresql_replaces_nulls_and_null_is_a_key(spark: SparkSession, postgresql: Postgresql) -> None:
    options = {"url": postgresql.url, "dbtable": "nulls", "user": "postgres"}
    table = PostgresqlTable(SinkConfig(format="jdbc", options=options, key=("id",), order_by=("at", "part")))
    spark.sparkContext.setLocalProperty(QUERY_ID, "nulls")
    batches = (
        [("a", None, None, "old"), (None, 1, 1, "old"), ("b", 5, None, "old"), ("c", 5, 5, "old")],
        [("a", None, None, "equal"), (None, 2, 0, "new"), ("b", 5, 0, "new"), ("c", 5, None, "older")],
        [("a", 1, None, "new"), ("b", None, 9, "older"), ("c", 4, 9, "older")],
    )
    for number, batch in enumerate(batches):
        table.write(spark.createDataFrame(batch, "id string, at int, part int, text string"), number)
    found = postgresql.ask("SELECT id, text FROM nulls ORDER BY id")
    assert found == ["a|new", "b|new", "c|old", "|new"]


@pytest.mark.parametrize("name", ["n" * 62, 'public."My.Table ""x"""', '"' + "q" * 62 + '"'])
def test_names_of_tables_may_be_long_and_quoted(spark: SparkSession, postgresql: Postgresql, name: str) -> None:
    options = {"url": postgresql.url, "dbtable": name, "user": "postgres"}
    table = PostgresqlTable(SinkConfig(format="jdbc", options=options, key=("id",), order_by=("id",)))
    for query in ("one", "another"):
        spark.sparkContext.setLocalProperty(QUERY_ID, f"{query} {name[:9]}")
        table.write(spark.range(3).toDF("id"), 0)
    assert postgresql.ask(f"SELECT count(*) FROM {name}") == ["3"]
    assert postgresql.ask("SELECT tablename FROM pg_tables WHERE tablename LIKE '%starlingmq_%'") == [BATCHES]


def test_a_failure_of_postgresql_is_transient_only_if_it_is_away(spark: SparkSession, postgresql: Postgresql) -> None:
    options = {"url": postgresql.url, "dbtable": "away", "user": "postgres"}
    table = PostgresqlTable(SinkConfig(format="jdbc", options=options))
    spark.sparkContext.setLocalProperty(QUERY_ID, "away")
    table.write(spark.range(1).toDF("id"), 0)
    with pytest.raises(PySparkException) as refused:
        table.write(spark.range(1).toDF("other"), 1)
    assert not transient(str(refused.value))
    with table._connection(spark) as connection:
        postgresql.kill()
        with pytest.raises(DatabaseAway):
            table._save(connection, spark.range(1).toDF("id"), "append", "away")
    postgresql.start()
    table.write(spark.range(5, 6).toDF("id"), 1)
    assert postgresql.ask("SELECT id FROM away ORDER BY id") == ["0", "5"]


def consumed(spark: SparkSession, kafka: Kafka, topic: str) -> list[bytes]:
    options = {"kafka.bootstrap.servers": kafka.servers, "subscribe": topic}
    return sorted(bytes(row.value) for row in spark.read.format("kafka").options(**options).load().collect())


def test_kafka_gets_each_row_once_and_gives_it_back(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path, kafka: Kafka
) -> None:
    sink = {"format": "kafka", "options": {"kafka.bootstrap.servers": kafka.servers, "topic": "out"}}
    file = pipeline(
        tmp_path, [broker.address], "kafka", sink, steps=[{"sql": "SELECT topic AS key, payload AS value FROM rows"}]
    )
    numbers = [b"%d" % number for number in range(20)]
    broker.publish(numbers[:10])
    run(spark, file)
    broker.publish(numbers[10:])
    run(spark, file)
    assert consumed(spark, kafka, "out") == sorted(numbers)
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.servers)
    back = source.option("subscribe", "out").option("startingOffsets", "earliest").load()
    messages = back.selectExpr("concat('back/', key) AS topic", "value AS payload")
    writer = messages.writeStream.format("starlingmq").options(
        servers=broker.url, checkpointLocation=f"{tmp_path}/back"
    )
    writer.trigger(availableNow=True).start().awaitTermination()
    found = spark.read.format("starlingmq").options(**broker.options, topicFilter="back/#").load()
    assert sorted(bytes(row.payload) for row in found.collect()) == sorted(numbers)


def test_a_repeated_batch_publishes_what_an_earlier_attempt_had_not(
    spark: SparkSession, tmp_path: Path, kafka: Kafka
) -> None:
    options = {"kafka.bootstrap.servers": kafka.servers, "topic": "repeated"}
    topics = KafkaTopics(SinkConfig(format="kafka", options=options), str(tmp_path))
    spark.sparkContext.setLocalProperty(QUERY_ID, "one")
    same = spark.range(6).select(F.lit("same").alias("value"))  # equal rows count
    others = spark.range(4).select(F.concat(F.lit("v"), "id").alias("value"))
    topics.write(others.union(same), 0)
    topics.write(others.union(same), 0)
    wanted = sorted([b"same"] * 6 + [b"v%d" % number for number in range(4)])
    assert consumed(spark, kafka, "repeated") == wanted
    topics.write(others, 1)
    assert consumed(spark, kafka, "repeated") == sorted([*wanted, *(b"v%d" % number for number in range(4))])
    assert msgspec.json.decode((tmp_path / FILE).read_bytes(), type=Begun).batch == 1


def test_a_batch_of_kafka_whose_result_changes_is_published_once(
    spark: SparkSession, tmp_path: Path, kafka: Kafka
) -> None:
    options = {"kafka.bootstrap.servers": kafka.servers, "topic": "changing"}
    topics = KafkaTopics(SinkConfig(format="kafka", options=options), str(tmp_path))
    spark.sparkContext.setLocalProperty(QUERY_ID, "changing")
    for _ in range(3):
        topics.write(spark.range(20).select(F.expr("uuid()").alias("value")), 0)
    assert len(consumed(spark, kafka, "changing")) == 20


def test_a_batch_of_kafka_that_began_is_published_once_whatever_an_attempt_had_published(
    spark: SparkSession, tmp_path: Path, kafka: Kafka
) -> None:
    options = {"kafka.bootstrap.servers": kafka.servers, "topic": "partly"}
    topics = KafkaTopics(SinkConfig(format="kafka", options=options), str(tmp_path))
    spark.sparkContext.setLocalProperty(QUERY_ID, "partly")
    values = spark.range(10).select(F.concat(F.lit("v"), F.col("id") % 5).alias("value"))
    topics.write(values, 0)
    part = spark.read.parquet(f"{tmp_path}/{ROWS}")
    more = part.union(part.limit(4)).collect()  # as if an attempt had died after it published all but four rows
    spark.createDataFrame(more, part.schema).write.mode("overwrite").parquet(f"{tmp_path}/{ROWS}")
    topics.write(values, 0)
    assert len(consumed(spark, kafka, "partly")) == 14


def test_a_batch_of_kafka_whose_messages_were_deleted_is_refused(
    spark: SparkSession, tmp_path: Path, kafka: Kafka
) -> None:
    options = {"kafka.bootstrap.servers": kafka.servers, "topic": "short"}
    topics = KafkaTopics(SinkConfig(format="kafka", options=options), str(tmp_path))
    spark.sparkContext.setLocalProperty(QUERY_ID, "short")
    values = spark.range(20).select(F.col("id").cast("string").alias("value"))
    topics.write(values, 0)
    kafka.delete_before(spark, "short", topics._offsets(spark, "short").ends)
    with pytest.raises(DeletedMessages, match=r"topic short, partition .: messages from offset 0 on were deleted"):
        topics.write(values, 0)
    topics.write(values, 1)
    assert len(consumed(spark, kafka, "short")) == 20
