"""A program of someone who has Spark Connect: ``python -m tests.spark.connect_client URL DIRECTORY``. The first line of
its input is JSON with the options of the source and of the sink. It prints a line of JSON for each thing that it did.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from starlingmq.pipeline.restarts import transient
from starlingmq.spark import decode_json, register
from starlingmq.spark.binary_payloads import BinaryFormat, decode_binary

FIELDS = StructType().add("id", "string").add("value", "double")


def tell(what: str, value: Any) -> None:
    print(json.dumps({what: value}), flush=True)


def finish(writer: DataStreamWriter) -> None:
    """Run a query to its end, again from its checkpoint if a Python worker misses the 10 s that Spark gives it."""
    while True:
        try:
            writer.start().awaitTermination()
            return
        except PySparkException as error:
            if not transient(str(error)):
                raise


def refusal(spark: SparkSession, options: dict[str, str]) -> str:
    """Return what a program is told of options that the broker refuses; "" if they are taken."""
    while True:
        try:
            spark.read.format("starlingmq").options(**options).load().count()
            return ""
        except PySparkException as error:
            if not transient(str(error)):
                return str(error)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("directory", type=Path)
    given = parser.parse_args()
    options = json.loads(sys.stdin.readline())
    spark = SparkSession.builder.remote(given.url).getOrCreate()
    register(spark)

    rows = spark.read.format("starlingmq").options(**options["source"]).load()
    values = decode_json(rows.filter("topic = 'a/json'"), "id string, value double")
    tell("json", sorted([row.id, row.value] for row in values.select("id", "value").collect()))
    format = BinaryFormat(name="msgpack", columns=FIELDS.json())
    values = decode_binary(rows.filter("topic = 'a/msgpack'"), format)
    tell("msgpack", sorted([row.id, row.value] for row in values.select("id", "value").collect()))

    started = spark.readStream.format("starlingmq").options(**options["source"], startingOffsets="earliest").load()
    to_files = started.writeStream.format("parquet").trigger(availableNow=True)
    where = str(given.directory / "rows")
    for _ in range(2):  # the second goes on from the checkpoint of the first, where nothing waits
        finish(to_files.option("path", where).option("checkpointLocation", str(given.directory / "checkpoint")))
    tell("files", sorted(row.offset for row in spark.read.parquet(where).collect()))

    answers = started.filter("topic = 'a/json'").select(F.lit("out/a").alias("topic"), "payload")
    to_topics = answers.writeStream.format("starlingmq").options(**options["sink"]).trigger(availableNow=True)
    finish(to_topics.option("checkpointLocation", str(given.directory / "topics")))
    seen = spark.read.format("starlingmq").options(**options["source"], topicFilter="out/#").load()
    tell("topics", sorted(bytes(row.payload).decode() for row in seen.collect()))

    tell("error", refusal(spark, options["source"] | {"token": "another"}))
    spark.stop()


if __name__ == "__main__":
    main()
