"""A driver in a process of its own, there to be killed: ``python -m tests.spark.driver SERVER TOKEN DIRECTORY [URL]``.

It runs a query in batches of a few rows, and says how far it is after each: from stream ``all`` into Parquet files, or
from stream ``in`` to topics of the broker at the URL.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import functions as F

from tests.spark.session import begin


def main() -> None:
    server, token, directory, url = sys.argv[1], sys.argv[2], Path(sys.argv[3]), (*sys.argv[4:], "")[0]
    spark = begin("local[2]", directory / "warehouse")
    stream = "in" if url else "all"
    options = {"servers": server, "stream": stream, "token": token, "startingOffsets": "earliest"}
    rows = spark.readStream.format("starlingmq").options(**options, maxRowsPerTrigger="7", rowsPerPartition="4").load()
    if url:
        writer = (
            rows.withColumn("topic", F.lit("out/a")).writeStream.format("starlingmq").options(servers=url, window="3")
        )
    else:
        writer = rows.writeStream.format("parquet")
    query = (
        writer.option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start(str(directory / "rows"))
    )
    said = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] != said:
            said = progress["batchId"]
            print("batch", said, flush=True)
        time.sleep(0.05)
    print("ended", query.exception(), flush=True)


if __name__ == "__main__":
    main()
