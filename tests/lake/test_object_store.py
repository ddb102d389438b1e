"""Checkpoints, tables and dead letters in an object store, by Hadoop's S3A and a server that stands in for S3."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from starlingmq.pipeline.config import read_pipeline
from starlingmq.pipeline.restarts import transient
from starlingmq.pipeline.run import Pipeline, PipelineError
from tests.lake.killing import Driver
from tests.lake.services import Kafka, ObjectStore
from tests.lake.session import pipeline, settings
from tests.spark.brokers import TOKEN, StreamBroker, rows_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EACH = 40
STREAMS = "streams.define=[{name: all, topics: ['in/#']}, {name: out, topics: ['out/#']}]"
NUMBERS = "SELECT TRY_CAST(CAST(payload AS string) AS int) AS number, offset FROM rows"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[StreamBroker]:
    running = StreamBroker(tmp_path / "n1", "n1", STREAMS)
    yield running
    running.stop()


@pytest.fixture
def reached(spark: SparkSession, store: ObjectStore) -> SparkSession:
    """A Spark that reaches the store."""
    context: Any = spark.sparkContext
    for name, value in store.settings.items():
        context._jsc.hadoopConfiguration().set(name.removeprefix("spark.hadoop."), value)
    return spark


def finish(pipeline: Pipeline) -> None:
    """Run it to its end, again from its checkpoint if a Python worker misses the 10 s that Spark gives it."""
    while True:
        (query,) = pipeline.start()
        try:
            query.awaitTermination()
            return
        except PySparkException as error:
            if not transient(str(error)):
                raise


def test_each_row_is_in_the_store_once_whoever_is_killed(
    reached: SparkSession, store: ObjectStore, broker: StreamBroker, tmp_path: Path
) -> None:
    lake, files = f"s3a://{store.BUCKET}/killed", tmp_path / "pipelines"
    files.mkdir()
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"s3://{store.BUCKET}/warehouse"}
    catalog |= {"s3.endpoint": store.url, "s3.access-key-id": store.KEY, "s3.secret-access-key": store.SECRET}
    catalog |= {"s3.region": "us-east-1"}
    topics = {"servers": broker.url, "nodeTimeout": "60"}
    result = {"steps": [{"sql": "SELECT number, offset FROM rows"}], "dead_letter": {"path": f"{lake}/dead"}}
    ways: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "delta": ({"format": "delta", "path": f"{lake}/delta"}, {"steps": [{"sql": NUMBERS}]}),
        "parquet": (
            {"format": "parquet", "path": f"{lake}/parquet"},
            result | {"decode": {"format": "csv", "schema": "number int"}},
        ),
        "iceberg": (
            {"format": "iceberg", "path": "lake.plant.numbers", "options": catalog},
            {"steps": [{"sql": NUMBERS}]},
        ),
        "topics": (
            {"format": "topic", "options": topics},
            {"steps": [{"sql": "SELECT 'out/a' AS topic, payload FROM rows"}]},
        ),
    }
    for name, (sink, more) in ways.items():
        more |= {"checkpoint": f"{lake}/checkpoints/{name}", "spark": settings(files) | store.settings, "restarts": 50}
        pipeline(files, [broker.address], name, sink, source={"max_rows": 7}, **more)

    chance = random.Random()
    payloads = [b"%d" % number if number % 5 else b"bad %d" % number for number in range(3 * EACH)]
    for part in range(3):
        broker.publish(payloads[part * EACH : (part + 1) * EACH], "in/a")
        if part == 2:
            break
        driver = Driver(files)
        try:
            driver.batches(9)
            time.sleep(chance.random())  # no event to be waited for: any moment will do
        finally:
            driver.kill()
    Driver(files, "--once").finish()

    good = [number for number in range(3 * EACH) if number % 5]
    bad = [b"bad %d" % number for number in range(0, 3 * EACH, 5)]
    table = reached.read.format("delta").load(f"{lake}/delta")
    assert sorted(row.offset for row in table.collect()) == list(range(3 * EACH))
    assert sorted(row.number for row in reached.read.parquet(f"{lake}/parquet").collect()) == good
    dead = reached.read.parquet(f"{lake}/dead").collect()
    assert sorted(bytes(row.payload) for row in dead) == sorted(bad)
    found = load_catalog("lake", **catalog).load_table("plant.numbers").scan().to_arrow()
    assert sorted(found["offset"].to_pylist()) == list(range(3 * EACH))
    assert sorted(payload for _, payload in rows_of(broker.options | {"stream": "out", "token": TOKEN})) == sorted(
        payloads
    )
    stored = store.names("killed/checkpoints/")
    assert any(name.endswith("topics/result/starlingmq-sink.json") for name in stored), stored
    assert any(name.endswith("parquet/result/starlingmq-single-read") for name in stored), stored


def test_kafka_has_each_row_once_with_its_checkpoint_in_the_store(
    reached: SparkSession, store: ObjectStore, kafka: Kafka, broker: StreamBroker, tmp_path: Path
) -> None:
    options = {"kafka.bootstrap.servers": kafka.servers, "topic": "stored"}
    more = {"steps": [{"sql": "SELECT payload AS value FROM rows"}]}
    root = f"s3a://{store.BUCKET}/kafka"
    file = pipeline(
        tmp_path, [broker.address], "stored", {"format": "kafka", "options": options}, checkpoint=root, **more
    )
    for number in range(2):
        broker.publish([b"%d" % number], "in/a")
        finish(Pipeline(reached, read_pipeline(file), file))
    source = {"kafka.bootstrap.servers": kafka.servers, "subscribe": "stored"}
    rows = reached.read.format("kafka").options(**source).load().collect()
    assert sorted(bytes(row.value) for row in rows) == [b"0", b"1"]
    assert "kafka/result/starlingmq-kafka.json" in store.names("kafka/result/starlingmq-kafka.json")


def test_a_store_that_refuses_is_told_in_a_line(reached: SparkSession, broker: StreamBroker, tmp_path: Path) -> None:
    more = {"decode": {"format": "csv", "schema": "number int"}, "dead_letter": {"path": str(tmp_path / "dead")}}
    sink = {"format": "parquet", "path": str(tmp_path / "rows")}
    file = pipeline(tmp_path, [broker.address], "refused", sink, checkpoint="s3a://no-such-bucket/a", **more)
    with pytest.raises(PipelineError, match=r"refused\.yaml: checkpoint: s3a://no-such-bucket/a.*: .*") as told:
        Pipeline(reached, read_pipeline(file), file).start()
    assert "\n" not in str(told.value)
