"""``starlingmq pipeline``: run, validate and inspect pipelines from files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from starlingmq.cli import pipeline_infer, pipeline_jobs
from starlingmq.cli.control import JsonOption
from starlingmq.cli.declare import CommandError
from starlingmq.cli.pipeline_jobs import MasterOption
from starlingmq.cli.pipeline_running import follow, planned, table_of, write_status
from starlingmq.pipeline.config import read_pipeline
from starlingmq.pipeline.status import Status, all_statuses, read_status

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="Pipeline file.")]

app = typer.Typer(help="Run pipelines: a stream, SQL steps, and a sink.", no_args_is_help=True)
for job in (pipeline_jobs.archive, pipeline_jobs.replay, pipeline_jobs.report, pipeline_jobs.audit):
    app.command()(job)
app.command()(pipeline_infer.infer)


@app.command()
def run(
    file: FileArgument,
    master: MasterOption = "",
    once: Annotated[bool, typer.Option("--once", help="Read the existing messages, then stop.")] = False,
    metrics_file: Annotated[
        Path | None,
        typer.Option("--metrics-file", metavar="FILE", help="Keep the progress there, in Prometheus's text format."),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Run a pipeline until it is stopped (Ctrl-C), and show its progress."""
    config = read_pipeline(file)
    if once:
        config = msgspec.structs.replace(config, trigger=msgspec.structs.replace(config.trigger, available_now=True))
    spark, pipeline = planned(file, config, master, True)
    try:
        status = Status(name=config.name, file=str(file.absolute()), pid=os.getpid(), began=time.time(), heard=0.0)
        status.write()
        try:
            follow(pipeline, status, file, json_, metrics_file)
        except Exception as error:
            status.problem = str(error)
            raise
        finally:
            status.state = "ended"
            write_status(status, metrics_file)
    finally:
        spark.stop()
    if not json_:
        print(f"{config.name} has finished: {status.rows:,} rows read")


@app.command()
def validate(
    file: FileArgument,
    master: MasterOption = "",
    offline: Annotated[bool, typer.Option("--offline", help="Do not check whether the stream exists.")] = False,
    json_: JsonOption = False,
) -> None:
    """Check a pipeline: its settings, its SQL, and whether its stream exists."""
    config = read_pipeline(file)
    spark, pipeline = planned(file, config, master, not offline)
    try:
        columns = {field.name: field.dataType.simpleString() for field in pipeline.result.schema.fields}
        if json_:
            print(json.dumps({"name": config.name, "sink": config.sink.format, "columns": columns}))
        else:
            told = ", ".join(f"{name} {kind}" for name, kind in columns.items())
            print(f"{file}: {config.name} is valid; into {config.sink.format}: {told}")
    finally:
        spark.stop()


@app.command(name="list")
def list_(json_: JsonOption = False) -> None:
    """List the pipelines that run or have run on this machine."""
    found = all_statuses()
    if json_:
        print(json.dumps([msgspec.to_builtins(one) for one in found]))
        return
    Console().print(table_of(found) if found else "no pipeline has run on this machine")


@app.command()
def status(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Pipeline name.")], json_: JsonOption = False
) -> None:
    """Show the progress of a pipeline, and why it stopped."""
    found = read_status(name)
    if found is None:
        known = ", ".join(one.name for one in all_statuses()) or "none"
        raise CommandError(f"no pipeline {name} has run on this machine; known are: {known}")
    if json_:
        print(json.dumps(msgspec.to_builtins(found)))
        return
    Console().print(table_of([found]))
    print(f"file           {found.file}")
    if found.problem:
        print(f"problem        {found.problem}")
