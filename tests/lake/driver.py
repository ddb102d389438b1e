"""A driver in a process of its own, to be killed: ``python -m tests.lake.driver DIRECTORY [--once]``.

It runs the pipelines of a directory in one Spark, and prints the name of each with every batch. A transient failure
starts the queries of a pipeline again, as ``pipeline run`` does.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from starlingmq.pipeline.config import TriggerConfig, read_pipeline
from starlingmq.pipeline.restarts import Restarts, transient
from starlingmq.pipeline.run import Pipeline, begin_session

POLL_SECONDS = 0.05
BEGIN_SECONDS = 10.0  # until the next one is started, if one has no batch to do


class Running:
    """A pipeline, which is due to be started at ``due`` (monotonic seconds)."""

    def __init__(self, spark: SparkSession, file: Path, once: bool) -> None:
        trigger = TriggerConfig(available_now=True) if once else TriggerConfig(every=0.2)
        config = msgspec.structs.replace(read_pipeline(file), trigger=trigger)
        self.name = config.name
        self._pipeline = Pipeline(spark, config, file)
        self._restarts = Restarts(config.restarts)
        self._query: StreamingQuery | None = None
        self._batch = -1
        self._started = 0.0
        self.due = 0.0
        self.ended = False

    def start(self) -> None:
        (self._query,) = self._pipeline.start()
        self._started = time.monotonic()

    @property
    def waits(self) -> bool:
        return self._query is None and not self.ended

    @property
    def begun(self) -> bool:
        """Whether its Python workers have started, as far as can be seen from here."""
        query = self._query
        return query is None or query.lastProgress is not None or time.monotonic() - self._started > BEGIN_SECONDS

    def look(self) -> None:
        """Print a new batch. After a transient failure it is due again."""
        query = self._query
        if query is None:
            return
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > self._batch:
            self._batch = progress["batchId"]
            print("batch", self.name, self._batch, flush=True)
        if query.isActive:
            return
        self._query = None
        error = query.exception()
        if error is None:
            self.ended = True
            return
        wait = self._restarts.after(str(error), self._batch)
        if wait is None:
            print("failed", self.name, one_line(str(error)), flush=True)
            sys.exit(1)
        print("again", self.name, transient(str(error)), flush=True)
        self.due = time.monotonic() + wait


def one_line(error: str) -> str:
    """Of a text with the traces of Python and of the JVM: where they begin, and what they end with."""
    return " | ".join(line.strip() for line in error.splitlines() if line.strip() and not line.startswith("\tat "))


def run(pipelines: list[Running]) -> None:
    """Start them one after the other: all at once, their Python workers would miss Spark's fixed 10 s."""
    starting: Running | None = None
    while not all(each.ended for each in pipelines):
        for each in pipelines:
            each.look()
        if starting is None or starting.begun:
            starting = next((each for each in pipelines if each.waits and each.due <= time.monotonic()), None)
            if starting is not None:
                starting.start()
        time.sleep(POLL_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--once", action="store_true", help="read what is there, and end")
    given = parser.parse_args()
    files = sorted(given.directory.glob("*.yaml"))
    spark = begin_session(read_pipeline(files[0]), "local[2]")
    random.shuffle(files)  # each of them is the last one now and then
    run([Running(spark, file, given.once) for file in files])
    print("ended", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
