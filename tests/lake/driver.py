"""A driver in a process of its own, to be killed: ``python -m tests.lake.driver DIRECTORY [--once]``.

It runs the pipelines of a directory in one Spark, and prints the name of each with every batch. A transient failure
starts the queries of a pipeline again, as ``pipeline run`` does.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from starlingmq.pipeline.config import TriggerConfig, read_pipeline
from starlingmq.pipeline.restarts import Restarts, transient
from starlingmq.pipeline.run import Pipeline, begin_session

POLL_SECONDS = 0.05


class Running:
    def __init__(self, spark: SparkSession, file: Path, once: bool) -> None:
        trigger = TriggerConfig(available_now=True) if once else TriggerConfig(every=0.2)
        config = msgspec.structs.replace(read_pipeline(file), trigger=trigger)
        self.name = config.name
        self._pipeline = Pipeline(spark, config, file)
        self._restarts = Restarts(config.restarts)
        (self._query,) = self._pipeline.start()
        self._batch = -1
        self._start_at = 0.0

    def look(self) -> bool:
        """Print a new batch, and start it again after a transient failure. Returns whether it runs."""
        if self._start_at:
            if time.monotonic() >= self._start_at:
                (self._query,) = self._pipeline.start()
                self._start_at = 0.0
            return True
        progress = self._query.lastProgress
        if progress is not None and progress["batchId"] > self._batch:
            self._batch = progress["batchId"]
            print("batch", self.name, self._batch, flush=True)
        if self._query.isActive:
            return True
        error = self._query.exception()
        if error is None:
            return False
        wait = self._restarts.after(str(error), self._batch)
        if wait is None:
            print("failed", self.name, str(error)[:2000], flush=True)
            sys.exit(1)
        print("again", self.name, transient(str(error)), flush=True)
        self._start_at = time.monotonic() + wait
        return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--once", action="store_true", help="read what is there, and end")
    given = parser.parse_args()
    files = sorted(given.directory.glob("*.yaml"))
    spark = begin_session(read_pipeline(files[0]), "local[2]")
    pipelines = [Running(spark, file, given.once) for file in files]
    running = pipelines
    while running:
        running = [each for each in running if each.look()]
        time.sleep(POLL_SECONDS)
    print("ended", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
