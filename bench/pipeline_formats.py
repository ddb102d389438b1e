"""Parts of ``make bench-pipeline`` that compare with other sources of the same rows, by CPU:

parquet    the stream into Parquet files, beside those files into Parquet files
kafka      the stream into a sink that does nothing, beside a Kafka topic with the same rows by Spark's Kafka source;
           needs the packages of ``make test-lake`` (STARLINGMQ_LAKE)
decode     binary payloads to columns: rows (Sparkplug: metrics) per second of Spark's CPU
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import cbor2
import fastavro
import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from bench.process import cpu_seconds
from bench.streams_broker import TOKEN, Broker
from starlingmq.spark.binary_payloads import BinaryFormat, decode_binary
from starlingmq.spark.sparkplug import decode_sparkplug, payload_class

READING: Final = {"id": "device-0042", "value": 21.5}
FIELDS: Final = StructType().add("id", "string").add("value", "double")
AVRO: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": "id", "type": "string"}, {"name": "value", "type": "double"}],
}
METRICS: Final = 10  # of a Sparkplug payload


def spark_cpu(act: Callable[[], object], rounds: int, *servers: int) -> float:
    """Return the least CPU seconds of this process and its children without these servers, after a warm-up."""

    def seconds() -> float:
        return cpu_seconds(os.getpid()) - sum(map(cpu_seconds, servers))

    act()
    found = []
    for _ in range(rounds):
        before = seconds()
        act()
        found.append(seconds() - before)
    return min(found)


def stream(spark: SparkSession, broker: Broker) -> DataFrame:
    options = {"servers": broker.address, "token": TOKEN, "stream": "all"}
    return spark.read.format("starlingmq").options(**options).load()


def into_nothing(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def parquet(spark: SparkSession, broker: Broker, rows: int, directory: str, rounds: int) -> dict[str, Any]:
    here, there = f"{directory}/rows.parquet", f"{directory}/again.parquet"
    of_stream = spark_cpu(
        lambda: stream(spark, broker).write.mode("overwrite").parquet(here), rounds, broker.process.pid
    )
    of_files = spark_cpu(
        lambda: spark.read.parquet(here).write.mode("overwrite").parquet(there), rounds, broker.process.pid
    )
    return {
        "rows_per_s_of_cpu": round(rows / of_stream),
        "of_files_rows_per_s_of_cpu": round(rows / of_files),
        "times_the_cpu": round(of_stream / of_files, 2),
    }


def decode(spark: SparkSession, broker: Broker, rows: int, directory: str, rounds: int) -> dict[str, Any]:
    found = {}
    for name, (value, each, make) in formats().items():
        file = f"{directory}/{name}.payloads"
        count = rows // each
        columns = [F.lit("spBv1.0/g/DDATA/n/d").alias("topic"), F.lit(value).alias("payload")]
        spark.range(count, numPartitions=2).select(*columns).write.mode("overwrite").parquet(file)
        frame = spark.read.parquet(file)
        seconds = spark_cpu(partial(into_nothing, make(frame)), rounds, broker.process.pid)
        found[name] = round(rows / seconds)
    return found


def formats() -> dict[str, tuple[bytes, int, Callable[[DataFrame], DataFrame]]]:
    """By name, a payload, its rows, and what decodes it."""
    columns = FIELDS.json()
    descriptors = descriptor_pb2.FileDescriptorSet()
    file = descriptors.file.add(name="reading.proto", package="plant", syntax="proto3")
    message = file.message_type.add(name="Reading")
    field = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="id", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    message.field.add(name="value", number=2, type=field.TYPE_DOUBLE, label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("plant.Reading"))
    avro = io.BytesIO()
    fastavro.schemaless_writer(avro, fastavro.parse_schema(AVRO), READING)
    metrics = payload_class()(timestamp=int(time.time() * 1000), seq=1)
    for alias in range(METRICS):
        metrics.metrics.add(alias=alias, datatype=9, float_value=21.5, timestamp=metrics.timestamp)
    ways = {
        "avro": (avro.getvalue(), BinaryFormat(name="avro", columns=columns, writer=json.dumps(AVRO))),
        "protobuf": (
            kind(**READING).SerializeToString(),
            BinaryFormat(
                name="protobuf", columns=columns, descriptors=descriptors.SerializeToString(), message="plant.Reading"
            ),
        ),
        "cbor": (cbor2.dumps(READING), BinaryFormat(name="cbor", columns=columns)),
        "msgpack": (msgspec.msgpack.encode(READING), BinaryFormat(name="msgpack", columns=columns)),
    }
    found: dict[str, tuple[bytes, int, Callable[[DataFrame], DataFrame]]] = {
        name: (payload, 1, partial(decode_binary, format=format)) for name, (payload, format) in ways.items()
    }
    return found | {"sparkplug": (metrics.SerializeToString(), METRICS, decode_sparkplug)}


def kafka(spark: SparkSession, broker: Broker, rows: int, rounds: int) -> dict[str, Any]:
    from tests.lake.services import Kafka
    from tests.lake.session import LAKE

    with tempfile.TemporaryDirectory(prefix="bench-kafka-") as directory:
        server = Kafka(Path(directory) / "kafka", LAKE)
        try:
            options = {"kafka.bootstrap.servers": server.servers}
            table = stream(spark, broker).selectExpr("topic AS key", "payload AS value")
            table.write.format("kafka").options(**options, topic="all").save()
            frame = spark.read.format("kafka").options(**options, subscribe="all").load()
            assert server.process is not None
            servers = (broker.process.pid, server.process.pid)
            theirs = spark_cpu(lambda: into_nothing(frame), rounds, *servers)
            ours = spark_cpu(lambda: into_nothing(stream(spark, broker)), rounds, *servers)
        finally:
            server.kill()
    return {
        "rows_per_s_of_cpu": round(rows / ours),
        "kafka_rows_per_s_of_cpu": round(rows / theirs),
        "times_kafka": round(theirs / ours, 2),
    }
