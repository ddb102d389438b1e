"""Pipelines into sinks other than a directory of files, and state that is rebuilt."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from starlingmq.pipeline.run import PipelineError
from tests.spark.brokers import StreamBroker
from tests.spark.test_pipeline import plan, run, tree

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/spark/test_pipeline.py::test_a_pipeline_with_tables_steps_and_dead_letters"),
    pytest.mark.timeout(300),
]


def test_rows_into_a_table_of_a_database(spark: SparkSession, broker: StreamBroker, tmp_path: Path) -> None:
    """Derby, which comes with Spark."""
    options = {"url": f"jdbc:derby:{tmp_path}/base;create=true", "dbtable": "readings"}
    pipeline = tree(
        tmp_path,
        broker.address,
        steps=[{"sql": "SELECT node, offset AS number, string(payload) AS text FROM rows"}],
        sink={"format": "jdbc", "options": options},
    )
    for part in range(2):
        broker.publish([b"%d" % number for number in range(part * 5, part * 5 + 5)])
        run(spark, tmp_path, pipeline)
    found = spark.read.format("jdbc").options(**options).load().orderBy("number").collect()
    assert [(row.node, row.number, row.text) for row in found] == [("n1", n, str(n)) for n in range(10)]


def test_a_sink_that_cannot_be_written_and_a_wrong_type_are_one_line(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path
) -> None:
    for sink, told_of in (
        ({"format": "delta", "path": f"{tmp_path}/table"}, "sink: .*delta"),
        ({"format": "iceberg", "path": "base.table"}, "sink.path: .*write catalog.namespace.table"),
    ):
        planned = plan(spark, tmp_path, tree(tmp_path, broker.address, sink=sink))
        with pytest.raises(PipelineError, match=f"(?i)hot.yaml: {told_of}") as told:
            planned.start()
        assert "\n" not in str(told.value)
    steps = [{"sql": "SELECT array(topic) + 1 AS x FROM rows"}]
    with pytest.raises(PipelineError, match=r"hot.yaml:\d+: step result: .*DATATYPE_MISMATCH"):
        plan(spark, tmp_path, tree(tmp_path, broker.address, steps=steps))


def test_state_is_the_same_after_its_checkpoint_is_deleted(
    spark: SparkSession, broker: StreamBroker, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"

    def counted() -> dict[str, tuple[int, int]]:
        options = broker.options | {"startingOffsets": "earliest", "maxRowsPerTrigger": "20"}
        rows = spark.readStream.format("starlingmq").options(**options).load()
        counts = rows.groupBy("topic").agg(
            F.count("*").alias("n"), F.sum(F.col("payload").cast("string").cast("int")).alias("total")
        )
        writer = counts.writeStream.format("memory").outputMode("complete").queryName("counts")
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
        return {row.topic: (row.n, row.total) for row in spark.table("counts").collect()}

    for topic in ("a", "b"):
        broker.publish([b"%d" % number for number in range(25)], topic)
    assert counted() == {"a": (25, 300), "b": (25, 300)}
    broker.publish([b"7"], "b")
    kept = counted()
    assert kept == {"a": (25, 300), "b": (26, 307)}, "from its state"
    shutil.rmtree(checkpoint)
    assert counted() == kept, "from the stream"
