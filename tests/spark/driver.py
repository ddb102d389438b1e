"""A driver in a process of its own, there to be killed: ``python -m tests.spark.driver SERVER TOKEN DIRECTORY`` runs a
query from stream ``all`` into Parquet files, in batches of a few rows, and says how far it is after each."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.spark.session import begin


def main() -> None:
    server, token, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    spark = begin("local[2]", directory / "warehouse")
    options = {"servers": server, "stream": "all", "token": token, "startingOffsets": "earliest"}
    rows = spark.readStream.format("starlingmq").options(**options, maxRowsPerTrigger="7", rowsPerPartition="4").load()
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
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
