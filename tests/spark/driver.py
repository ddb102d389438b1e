"""A driver in a process of its own, there to be killed: ``python -m tests.spark.driver SERVERS TOKEN DIRECTORY``.

It runs queries in batches of a few rows, and says how far they are after each: from stream ``all`` into Parquet files;
with ``--to URLS`` from stream ``in`` to topics of the brokers; with ``--both`` from stream ``in`` to either; with
``--pipeline FILE`` those of the pipeline.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from starlingmq.pipeline.config import read_pipeline
from starlingmq.pipeline.run import Pipeline
from tests.spark.session import begin


def to_topics(rows: DataFrame, servers: str) -> DataStreamWriter:
    writer = rows.withColumn("topic", F.lit("out/a")).writeStream.format("starlingmq")
    return writer.options(servers=servers, window="3")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("servers")
    parser.add_argument("token")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--to", default="", metavar="URLS")
    parser.add_argument("--pipeline", type=Path, metavar="FILE")
    parser.add_argument("--both", action="store_true")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--once", action="store_true", help="read what is there, and end")
    given = parser.parse_args()
    spark = begin(given.master, given.directory / "warehouse")
    stream = "in" if given.to else "all"
    options = {"servers": given.servers, "stream": stream, "token": given.token, "startingOffsets": "earliest"}
    options |= {"maxRowsPerTrigger": "70" if given.once else "7", "rowsPerPartition": "4"}
    rows = spark.readStream.format("starlingmq").options(**options).load()

    def start(writer: DataStreamWriter, checkpoint: str) -> StreamingQuery:
        writer = writer.option("checkpointLocation", str(given.directory / checkpoint))
        trigger = writer.trigger(availableNow=True) if given.once else writer.trigger(processingTime="0 seconds")
        return trigger.start(str(given.directory / "rows"))

    queries = [start(to_topics(rows, given.to), "checkpoint")] if given.to else []
    if given.pipeline:
        queries = Pipeline(spark, read_pipeline(given.pipeline), given.pipeline).start()
    elif given.both or not given.to:
        queries.append(start(rows.writeStream.format("parquet"), "files" if given.both else "checkpoint"))
    said: dict[str, int] = {}
    while all(query.isActive for query in queries) or (given.once and any(query.isActive for query in queries)):
        for query in queries:
            progress = query.lastProgress
            if progress is not None and progress["batchId"] != said.get(query.id, -1):
                said[query.id] = progress["batchId"]
                print("batch", progress["batchId"], flush=True)
        time.sleep(0.05)
    for query in queries:
        print("ended", query.exception(), flush=True)


if __name__ == "__main__":
    main()
