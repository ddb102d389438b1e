"""``starlingmq pipeline``: pipelines from files, run, checked and looked at."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from starlingmq.cli.control import JsonOption
from starlingmq.cli.declare import CommandError
from starlingmq.pipeline.config import PipelineConfig, read_pipeline
from starlingmq.pipeline.status import Status, all_statuses, read_status

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_SECONDS: Final = 0.25

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline.")]
MasterOption = Annotated[
    str, typer.Option("--master", metavar="URL", help="Where Spark runs: spark://host:7077; here, without.")
]

app = typer.Typer(help="Pipelines: a stream, through SQL, into a sink.", no_args_is_help=True)


@app.command()
def run(
    file: FileArgument,
    master: MasterOption = "",
    once: Annotated[bool, typer.Option("--once", help="Read what is there, and end.")] = False,
    json_: JsonOption = False,
) -> None:
    """Run a pipeline until it is told to end (Ctrl-C), and show how far it is."""
    config = read_pipeline(file)
    if once:
        config = msgspec.structs.replace(config, trigger=msgspec.structs.replace(config.trigger, available_now=True))
    spark, pipeline = _planned(file, config, master, True)
    try:
        status = Status(name=config.name, file=str(file.absolute()), pid=os.getpid(), began=time.time(), heard=0.0)
        status.write()
        try:
            _follow(pipeline.start(), status, file, json_)
        except Exception as error:
            status.problem = str(error)
            raise
        finally:
            status.state = "ended"
            status.write()
    finally:
        spark.stop()
    if not json_:
        print(f"{config.name} has ended: {status.rows:,} rows read")


@app.command()
def validate(
    file: FileArgument,
    master: MasterOption = "",
    offline: Annotated[bool, typer.Option("--offline", help="Do not look whether the stream is there.")] = False,
) -> None:
    """Check a pipeline: its settings, its SQL, and whether its stream is there."""
    config = read_pipeline(file)
    spark, pipeline = _planned(file, config, master, not offline)
    try:
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in pipeline.result.schema.fields)
        print(f"{file}: {config.name} is well; into {config.sink.format}: {columns}")
    finally:
        spark.stop()


@app.command(name="list")
def list_(json_: JsonOption = False) -> None:
    """List the pipelines that run on this machine, or have run."""
    found = all_statuses()
    if json_:
        print(json.dumps([msgspec.to_builtins(one) for one in found]))
        return
    Console().print(table_of(found) if found else "no pipeline has run here")


@app.command()
def status(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The pipeline.")], json_: JsonOption = False
) -> None:
    """Say how far a pipeline is, and why it has ended if it has."""
    found = read_status(name)
    if found is None:
        known = ", ".join(one.name for one in all_statuses()) or "none"
        raise CommandError(f"no pipeline {name} has run here; there are: {known}")
    if json_:
        print(json.dumps(msgspec.to_builtins(found)))
        return
    Console().print(table_of([found]))
    print(f"file           {found.file}")
    if found.problem:
        print(f"problem        {found.problem}")


def _planned(file: Path, config: PipelineConfig, master: str, ask: bool) -> tuple[Any, Any]:
    """Spark, and the pipeline in it. ``ask``: whether its stream is there, before anything that takes long."""
    try:
        from starlingmq.pipeline.run import Pipeline, PipelineError, begin_session, reach
    except ImportError as error:
        raise CommandError(f"pipeline needs {error.name}: pip install 'starlingmq[spark]', and Java 17") from None
    if ask:
        reach(config, file)
    try:
        spark = begin_session(config, master)
    except Exception as error:  # no Java, no such master: each says it in its own way
        raise CommandError(f"{file}: Spark does not start: {' '.join(str(error).split())[:300]}") from None
    try:
        return spark, Pipeline(spark, config, file)
    except PipelineError:
        spark.stop()
        raise


def _follow(queries: list[StreamingQuery], status: Status, file: Path, quiet: bool) -> None:
    """Until one of them ends, or we are told to. Raises CommandError with why one failed."""
    from starlingmq.pipeline.run import failure

    told = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: told.set())
    screen = Console(file=sys.stderr, quiet=quiet)
    with Live(table_of([status]), console=screen, auto_refresh=False, transient=True) as live:
        while not told.is_set() and any(query.isActive for query in queries):
            _take(queries[0], status)
            live.update(table_of([status]), refresh=True)
            if any(not query.isActive and query.exception() is not None for query in queries):
                break
            told.wait(LOOK_SECONDS)
    _take(queries[0], status)
    for query in queries:
        query.stop()
    for query in queries:
        problem = failure(file, query)
        if problem is not None and not told.is_set():
            raise CommandError(str(problem))


def _take(query: StreamingQuery, status: Status) -> None:
    for progress in query.recentProgress:
        if progress["batchId"] > status.batch:
            status.take(progress)
    status.heard = time.time()
    status.write()


def table_of(statuses: list[Status]) -> Table:
    table = Table("pipeline", "state", "rows in", "rows/s", "lag", "last batch", "took")
    for one in statuses:
        table.add_row(
            one.name,
            one.state if not one.problem else "failed",
            f"{one.rows:,}",
            f"{one.rate:,.0f}",
            f"{one.lag:,}",
            str(one.batch) if one.batch >= 0 else "",
            f"{one.batch_seconds:.1f} s" if one.batch >= 0 else "",
        )
    return table
