"""A program for ``spark-submit``: ``submitted.py DIRECTORY``; options of source and sink are in options.json there.

It writes what it saw to told.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StringType, StructType

import starlingmq
from starlingmq.pipeline.restarts import transient
from starlingmq.spark import register
from starlingmq.spark.binary_payloads import BinaryFormat, decode_binary


@F.udf(StringType())
def place(number: int) -> str:
    """Where a task has the package from, and by which Python."""
    return f"{sys.version_info[0]}.{sys.version_info[1]} {starlingmq.__file__}"


def finish(writer: DataStreamWriter) -> None:
    """Run a query to its end, again from its checkpoint if a Python worker misses the 10 s that Spark gives it."""
    while True:
        try:
            writer.start().awaitTermination()
            return
        except PySparkException as error:
            if not transient(str(error)):
                raise


def main() -> None:
    directory = Path(sys.argv[1])
    options = json.loads((directory / "options.json").read_text())
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    rows = spark.readStream.format("starlingmq").options(**options["source"], startingOffsets="earliest").load()
    format = BinaryFormat(name="msgpack", columns=StructType().add("id", "string").json())
    decoded = decode_binary(rows, format).select("id", "offset")
    answers = decoded.selectExpr("'out/a' AS topic", "id AS payload").writeStream.format("starlingmq")
    files = decoded.writeStream.format("parquet").option("path", str(directory / "rows"))
    for name, writer in (("topics", answers.options(**options["sink"])), ("files", files)):
        finish(writer.option("checkpointLocation", str(directory / name)).trigger(availableNow=True))
    told = {
        "task": spark.range(1).select(place("id")).collect()[0][0],
        "driver": starlingmq.__file__,
        "files": sorted([row.id, row.offset] for row in spark.read.parquet(str(directory / "rows")).collect()),
    }
    (directory / "told.json").write_text(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main()
