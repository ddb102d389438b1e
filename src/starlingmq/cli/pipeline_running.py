"""Shared by the pipeline commands: the Spark session, and the progress of its queries."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from starlingmq.cli.declare import CommandError
from starlingmq.cli.pipeline_output import RunOutput
from starlingmq.cli.progress import progress
from starlingmq.pipeline.config import PipelineConfig
from starlingmq.pipeline.restarts import Restarts
from starlingmq.pipeline.status import Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from starlingmq.pipeline.run import Pipeline

LOOK_SECONDS: Final = 0.25
IDLE: Final = "Waiting for data to arrive"  # a message of Spark: it has looked for rows, and there were none


def session(name: str | Path, config: PipelineConfig, master: str, ask: bool) -> Any:
    """Start Spark. ``ask``: first check that the stream exists, before slower steps."""
    try:
        from starlingmq.pipeline.run import begin_session, reach
    except ImportError as error:
        raise CommandError(
            f"pipeline needs {error.name}; install the extra [spark] (docs/DEPLOY.md), and Java 17"
        ) from None
    if ask:
        reach(config, name)
    try:
        return begin_session(config, master)
    except Exception as error:  # no Java or an unknown master: each has its own exception
        raise CommandError(f"{name}: Spark cannot start: {' '.join(str(error).split())[:300]}") from None


def planned(file: Path | str, config: PipelineConfig, master: str, ask: bool, output: RunOutput) -> tuple[Any, Any]:
    """Start Spark and plan the pipeline."""
    spark = session(file, config, master, ask)
    from starlingmq.pipeline.run import Pipeline, PipelineError

    restarts = Restarts(config.restarts)
    while True:
        try:
            return spark, Pipeline(spark, config, file)
        except PipelineError as error:
            wait = restarts.after(str(error), -1)
            if wait is None:
                spark.stop()
                raise
            output.restart(f"{file}: {config.name}", str(error), wait, restarts)
            time.sleep(wait)


@contextmanager
def tasks(spark: SparkSession, what: str, quiet: bool) -> Iterator[None]:
    """Show the number of completed and known Spark tasks during the block. Raises CommandError with Spark's message if
    one fails.
    """
    from pyspark.errors import PySparkException

    from starlingmq.pipeline.run import error_line

    over = Event()
    tracker = spark.sparkContext.statusTracker()
    seen: dict[int, tuple[int, int]] = {}  # per stage: done, all
    with progress(quiet) as report:

        def look() -> None:
            while not over.wait(LOOK_SECONDS):
                active = tracker.getActiveStageIds()
                for stage in active:
                    info = tracker.getStageInfo(stage)
                    if info is not None:
                        seen[stage] = (info.numCompletedTasks, info.numTasks)
                for stage in seen.keys() - set(active):
                    seen[stage] = (seen[stage][1], seen[stage][1])
                done = sum(done for done, _ in seen.values())
                report(what, done, sum(all_ for _, all_ in seen.values()), "tasks")

        looking = Thread(target=look, daemon=True)
        looking.start()
        try:
            yield
        except PySparkException as error:
            raise CommandError(f"{what} failed: {error_line(error)}") from None
        finally:
            over.set()
            looking.join()


def follow(pipeline: Pipeline, status: Status, file: Path | str, output: RunOutput) -> None:
    """Run the queries until one of them ends or a signal arrives (a second signal ends the process). After a transient
    failure they are restarted. Raises CommandError with the reason if one failed.
    """
    from starlingmq.pipeline.run import failure

    told = Event()
    before = {number: signal.signal(number, lambda *_: told.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    restarts = Restarts(pipeline.config.restarts)
    try:
        while True:
            queries = pipeline.start()
            output.started()
            for name, batch in pipeline.repeated:
                output.repeated(name, batch)
            _watch(queries, status, told, output, pipeline.config.trigger.every)
            found = [(problem, query) for query in queries if (problem := failure(file, query)) is not None]
            if told.is_set() or not found:
                return
            problem, query = found[0]
            text = str(query.exception())
            wait = restarts.after(text, status.batch)
            if wait is None:
                raise CommandError(str(problem))
            status.restarts += 1
            output.restart(f"{file}: {query.name}", text, wait, restarts)
            told.wait(wait)
            if told.is_set():
                return
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(queries: list[StreamingQuery], status: Status, told: Event, output: RunOutput, every: float) -> None:
    """Show the progress until a query has failed, all have ended, or a signal arrives."""
    with output.watching():
        while not told.is_set() and any(query.isActive for query in queries):
            _take(queries[0], status, every)
            output.look()
            if any(not query.isActive and query.exception() is not None for query in queries):
                break
            told.wait(LOOK_SECONDS)
        _take(queries[0], status, every)
        output.look()
    for query in queries:
        query.stop()


def _take(query: StreamingQuery, status: Status, every: float) -> None:
    for told in query.recentProgress:
        if told["batchId"] > status.batch:
            status.take(told)
    status.heard = time.time()
    if query.isActive and query.status["message"] == IDLE:  # the last look for rows was at most so long ago
        status.fresh = max(status.fresh, status.heard - every)
