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

from starlingmq.cli import pipeline_jobs
from starlingmq.cli.command_errors import USER_ERROR
from starlingmq.cli.control import JsonOption
from starlingmq.cli.declare import CommandError, command_of
from starlingmq.cli.pipeline_jobs import MasterOption
from starlingmq.cli.pipeline_output import RunOutput, table_of, unhealthy
from starlingmq.cli.pipeline_running import follow, planned, session
from starlingmq.config.section_types import parse_duration
from starlingmq.pipeline.config import COMPACTED, read_pipeline
from starlingmq.pipeline.status import Status, all_statuses, read_status

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="Pipeline file.")]

app = typer.Typer(help="Run pipelines: a stream, SQL steps, and a sink.", no_args_is_help=True)
app.command("archive")(command_of(pipeline_jobs.ArchiveArgs, pipeline_jobs.archive))
app.command()(pipeline_jobs.replay)
app.command("report")(command_of(pipeline_jobs.ReportArgs, pipeline_jobs.report))
app.command("audit")(command_of(pipeline_jobs.AuditArgs, pipeline_jobs.audit))
app.command("infer")(command_of(pipeline_jobs.InferArgs, pipeline_jobs.infer))


@app.command()
def run(
    file: FileArgument,
    master: MasterOption = "",
    once: Annotated[bool, typer.Option("--once", help="Read the existing messages, then stop.")] = False,
    metrics_file: Annotated[
        Path | None,
        typer.Option("--metrics-file", metavar="FILE", help="Keep the progress there, in Prometheus's text format."),
    ] = None,
    health_file: Annotated[
        Path | None,
        typer.Option("--health-file", metavar="FILE", help="Keep there whether it is healthy, for pipeline health."),
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log events as lines of JSON on stderr.")] = False,
    json_: JsonOption = False,
) -> int:
    """Run a pipeline until it is stopped (Ctrl-C), and show its progress."""
    config = read_pipeline(file)
    if once:
        config = msgspec.structs.replace(config, trigger=msgspec.structs.replace(config.trigger, available_now=True))
    status = Status(name=config.name, file=str(file.absolute()), pid=os.getpid(), began=time.time(), heard=0.0)
    output = RunOutput(status, json_, log_json, metrics_file, health_file)
    spark = None
    try:
        spark, pipeline = planned(file, config, master, True, output)
        status.write()
        follow(pipeline, status, file, output)
    except Exception as error:
        status.problem = str(error)
        if not log_json:
            raise
        return USER_ERROR  # the event says why
    finally:
        status.state = "ended"
        output.ended()
        if spark is not None:
            spark.stop()
    if not json_ and not log_json:
        print(f"{config.name} has finished: {status.rows:,} rows read")
    return 0


@app.command()
def compact(file: FileArgument, master: MasterOption = "", json_: JsonOption = False) -> None:
    """Rewrite the small files of a pipeline's table (Delta, Iceberg) as larger ones. The pipeline may run meanwhile."""
    config = read_pipeline(file)
    if config.sink.format not in COMPACTED:
        raise CommandError(f"{file}: sink.format: only {' and '.join(COMPACTED)} have files to compact")
    spark = session(file, config, master, False)
    from starlingmq.pipeline.compaction import compact_table

    try:
        before, after = compact_table(spark, config.sink)
    finally:
        spark.stop()
    if json_:
        print(json.dumps({"files_before": before, "files_after": after}))
    else:
        print(f"{config.sink.path}: {before:,} small files are {after:,} now")


@app.command()
def health(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of run --health-file.")],
    max_age: Annotated[str, typer.Option("--max-age", metavar="TIME", help="Maximum age of its last report.")] = "30s",
    max_behind: Annotated[
        str, typer.Option("--max-behind", metavar="TIME", help="Maximum time that it is behind. Default: any.")
    ] = "",
) -> int:
    """Check that a pipeline runs, as a probe of containers does; the exit code is 1 if it does not."""
    problem = unhealthy(file, _seconds(max_age, "--max-age"), _seconds(max_behind, "--max-behind"))
    print(problem or "healthy")
    return 1 if problem else 0


def _seconds(text: str, option: str) -> float:
    try:
        return parse_duration(text) if text else 0.0
    except ValueError as error:
        raise CommandError(f"{option}: {error}") from None


@app.command()
def validate(
    file: FileArgument,
    master: MasterOption = "",
    offline: Annotated[bool, typer.Option("--offline", help="Do not check whether the stream exists.")] = False,
    json_: JsonOption = False,
) -> None:
    """Check a pipeline: its settings, its SQL, and whether its stream exists."""
    config = read_pipeline(file)
    unused = Status(name=config.name, file=str(file), pid=os.getpid(), began=time.time(), heard=0.0)
    spark, pipeline = planned(file, config, master, not offline, RunOutput(unused))
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
