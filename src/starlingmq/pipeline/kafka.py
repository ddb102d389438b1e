"""Batches into Kafka topics, each once.

Spark's own Kafka sink publishes the rows of a repeated batch again. So the first attempt at a batch stores, beside the
checkpoint, its rows, and then the ends of the topics. A later attempt reads the messages published since with the
header ``starlingmq-batch`` of this query and batch, and publishes the remaining stored rows: a multiset difference of
key, value and topic. Since rows are stored, results that change when they are evaluated again (``rand()``,
``current_timestamp()``, tables that have changed) do not matter.

Relies on: an earlier attempt has ended, with its tasks and its producers, because Spark's producers have no transaction
that would fence them; and a task is not repeated within an attempt (``spark.task.maxFailures`` 1 without speculation,
which pipelines with this sink set): the pipeline repeats the batch instead. Topics must keep the messages of a batch
until it is complete: an attempt fails if retention has deleted them. Compaction cannot be seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import functions as F

from starlingmq.pipeline.checkpoint_files import CheckpointFiles
from starlingmq.pipeline.config import SinkConfig
from starlingmq.spark.sink import QUERY_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE: Final = "starlingmq-kafka.json"
ROWS: Final = "starlingmq-kafka-rows"
HEADER: Final = "starlingmq-batch"
OF_CLIENTS: Final = "kafka."
COLUMNS: Final = "topic string, key binary, value binary"
COMPARED: Final = ("topic", "key", "value")


class Begun(msgspec.Struct, frozen=True):
    """A batch that may have begun, and the ends of its topics before: by topic and partition."""

    batch: int
    ends: dict[str, dict[str, int]]


class Offsets(msgspec.Struct, frozen=True):
    """Of a topic, by partition."""

    starts: dict[str, int]
    ends: dict[str, int]


class DeletedMessages(Exception):
    """Messages of a batch that has begun may have been deleted."""


class KafkaTopics:
    def __init__(self, sink: SinkConfig, checkpoint: str) -> None:
        self._options = dict(sink.options)
        self._topic = self._options.pop("topic", "")
        self._checkpoint = checkpoint
        self._stored = f"{checkpoint}/{ROWS}"

    def write(self, batch: DataFrame, number: int) -> None:
        spark = batch.sparkSession
        mark = f"{spark.sparkContext.getLocalProperty(QUERY_ID)}/{number}"
        files = CheckpointFiles(spark, self._checkpoint)
        begun = self._begun(files)
        repeated = begun is not None and begun.batch == number
        if not repeated:
            self._rows(batch).write.mode("overwrite").parquet(self._stored)
        rows = spark.read.schema(COLUMNS).parquet(self._stored)
        if begun is not None and repeated:
            rows = rows.exceptAll(self._published(spark, begun, mark))
        else:
            topics = [self._topic] if self._topic else [row[0] for row in rows.select("topic").distinct().collect()]
            begun = Begun(number, {topic: self._offsets(spark, topic).ends for topic in topics})
            files.write_file(FILE, msgspec.json.encode(begun))
        header = F.array(F.struct(F.lit(HEADER).alias("key"), F.lit(mark.encode()).alias("value")))
        rows.withColumn("headers", header).write.format("kafka").options(**self._options).save()

    def _rows(self, batch: DataFrame) -> DataFrame:
        topic = F.lit(self._topic) if self._topic else F.col("topic")
        key = F.col("key").cast("binary") if "key" in batch.columns else F.lit(None).cast("binary")
        return batch.select(topic.alias("topic"), key.alias("key"), F.col("value").cast("binary").alias("value"))

    def _begun(self, files: CheckpointFiles) -> Begun | None:
        found = files.read_file(FILE)
        return None if found is None else msgspec.json.decode(found, type=Begun)

    def _published(self, spark: SparkSession, begun: Begun, mark: str) -> DataFrame:
        topics: dict[str, dict[str, int]] = {}
        for topic, ends in begun.ends.items():
            now = self._offsets(spark, topic)
            for part, first in now.starts.items():
                if first > ends.get(part, 0):
                    raise DeletedMessages(
                        f"topic {topic}, partition {part}: messages from offset {ends.get(part, 0)} on were deleted "
                        f"before batch {begun.batch} was complete, so its published rows are unknown; to publish all "
                        f"of its rows, also those published before, delete {FILE} in the checkpoint"
                    )
            if now.ends:  # a partition or topic that was created since is read from its beginning
                topics[topic] = {part: ends.get(part, 0) for part in now.ends}
        if not topics:
            return spark.createDataFrame([], COLUMNS)
        options = {**self._options, "includeHeaders": "true", "startingOffsets": json.dumps(topics)}
        parts = json.dumps({topic: [int(part) for part in ends] for topic, ends in topics.items()})
        found = spark.read.format("kafka").options(**options, assign=parts).load()
        ours = F.exists("headers", lambda one: (one["key"] == HEADER) & (one["value"] == F.lit(mark.encode())))
        return found.where(ours).select(*COMPARED)

    def _offsets(self, spark: SparkSession, topic: str) -> Offsets:
        """Return the offsets of each partition; none if there is no such topic."""
        jvm: Any = spark.sparkContext._jvm
        properties = jvm.java.util.Properties()
        bytes_of = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
        settings = {"key.deserializer": bytes_of, "value.deserializer": bytes_of, "allow.auto.create.topics": "false"}
        given = {k.removeprefix(OF_CLIENTS): v for k, v in self._options.items() if k.startswith(OF_CLIENTS)}
        for name, value in (settings | given).items():
            properties.setProperty(name, value)
        consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(properties)
        try:
            parts = consumer.listTopics().get(topic)
            if parts is None:
                return Offsets({}, {})
            named = jvm.java.util.ArrayList()
            for part in parts:
                named.add(jvm.org.apache.kafka.common.TopicPartition(topic, part.partition()))
            return Offsets(_by_part(consumer.beginningOffsets(named)), _by_part(consumer.endOffsets(named)))
        finally:
            consumer.close()


def _by_part(offsets: Any) -> dict[str, int]:
    return {str(each.getKey().partition()): int(each.getValue()) for each in offsets.entrySet()}


def into_kafka(sink: SinkConfig, checkpoint: str) -> Callable[[DataFrame, int], None]:
    return KafkaTopics(sink, checkpoint).write
