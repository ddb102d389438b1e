"""``starlingmq pipeline archive | replay | report | audit | infer``: jobs that need no file."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from starlingmq.cli.control import JsonOption
from starlingmq.cli.declare import CommandError
from starlingmq.cli.pipeline_output import RunOutput
from starlingmq.cli.pipeline_running import follow, planned, session, tasks
from starlingmq.cli.progress import progress
from starlingmq.client.endpoint import parse_url
from starlingmq.config.section_types import ConfigError
from starlingmq.config.tree_builder import build
from starlingmq.pipeline.archive import Archive
from starlingmq.pipeline.config import PipelineConfig
from starlingmq.pipeline.delivery_audit import DeliveryAudit, Finding, Total
from starlingmq.pipeline.status import Status

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


SHOWN: Final = 40  # lines of a table, and findings listed
FOUND: Final = 1  # exit code of an audit with findings
HEADS: Final = ("client", "topic")
NOWHERE: Final = ["127.0.0.1:1"]  # a server that is not asked, for a config that is not about a stream

StreamOption = Annotated[str, typer.Option("--stream", metavar="NAME", help="Stream name.")]
UserOption = Annotated[str, typer.Option("--user", help="User to read (or publish) as, where rules apply to users.")]
PasswordOption = Annotated[str, typer.Option("--password-file", metavar="FILE", help="File with the password.")]
CaOption = Annotated[str, typer.Option("--tls-ca", metavar="FILE", help="CA certificate of the nodes.")]
NodeTimeoutOption = Annotated[
    int, typer.Option("--node-timeout", min=1, help="Seconds to wait for an unreachable node.")
]
TopicsOption = Annotated[
    list[str] | None, typer.Option("--topics", metavar="FILTER", help="Only topics that match; repeatable.")
]
SinceOption = Annotated[str, typer.Option("--since", metavar="TIME", help="Start time, such as 2026-01-31T12:00:00.")]
UntilOption = Annotated[str, typer.Option("--until", metavar="TIME", help="End time.")]
MasterOption = Annotated[
    str, typer.Option("--master", metavar="URL", help="Spark master: spark://host:7077. Default: local.")
]


@dataclass(kw_only=True)
class SourceArgs:
    """How a stream is read."""

    server: Annotated[
        list[str] | None, typer.Option("--server", metavar="HOST:PORT", help="streams.listen of a node; repeatable.")
    ] = None
    token_file: Annotated[
        str, typer.Option("--token-file", metavar="FILE", help="File with the token for streams.")
    ] = ""
    user: UserOption = ""
    password_file: PasswordOption = ""
    tls_ca: CaOption = ""
    node_timeout: NodeTimeoutOption = 30
    excluded_nodes: Annotated[
        list[str] | None,
        typer.Option("--exclude-node", metavar="NODE", help="Node that is down, whose rows are left out; repeatable."),
    ] = None
    json_: JsonOption = False

    def config(self, name: str, stream: str, topics: list[str] | None, **more: Any) -> PipelineConfig:
        """Build the config that a pipeline file would give. Raises CommandError."""
        if not self.server:
            raise CommandError("--server: name at least one node as host:port of its streams.listen")
        source = {
            "servers": self.server, "stream": stream, "token_file": self.token_file, "user": self.user,
            "password_file": self.password_file, "tls_ca": self.tls_ca, "node_timeout": self.node_timeout,
            "topics": topics or [], "excluded_nodes": self.excluded_nodes or [],
        }  # fmt: skip
        tree = {"name": name, "source": source, "sink": {"path": "none"}, "checkpoint": "none", **more}
        try:
            return build(PipelineConfig, tree)
        except ConfigError as error:
            raise CommandError(f"{name}: {error}") from None


@dataclass(kw_only=True)
class ArchiveArgs(SourceArgs):
    directory: Annotated[str, typer.Argument(metavar="DIRECTORY", help="Archive directory.")]
    stream: StreamOption
    topics: TopicsOption = None
    every: Annotated[str, typer.Option("--every", metavar="TIME", help="Time between two batches.")] = "10s"
    once: Annotated[bool, typer.Option("--once", help="Read the existing messages, then stop.")] = False
    master: MasterOption = ""


@dataclass(kw_only=True)
class ReportArgs(SourceArgs):
    out: Annotated[Path, typer.Argument(metavar="FILE", help="HTML file to write, such as report.html.")]
    archive: Annotated[
        str, typer.Option("--archive", metavar="DIRECTORY", help="Archive to read instead of a stream.")
    ] = ""
    stream: StreamOption = ""
    topics: TopicsOption = None
    since: SinceOption = ""
    until: UntilOption = ""
    master: MasterOption = ""


@dataclass(kw_only=True)
class InferArgs(SourceArgs):
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Stream name.")]
    topics: TopicsOption = None
    rows: Annotated[int, typer.Option("--rows", min=1, max=100_000, help="Rows to look at.")] = 1000


@dataclass(kw_only=True)
class AuditArgs(SourceArgs):
    stream: StreamOption
    since: SinceOption = ""
    until: UntilOption = ""
    out: Annotated[
        str, typer.Option("--out", metavar="DIRECTORY", help="Parquet output: one row for each message and receiver.")
    ] = ""
    master: MasterOption = ""


def archive(args: ArchiveArgs) -> int:
    """Archive a stream: Parquet files by date and topic root. It continues where it stopped; small files are
    merged."""
    kept = Archive(args.directory)
    name = re.sub(r"\W", "_", f"archive_{kept.path.name}", flags=re.ASCII)[:64]
    config = args.config(
        name, args.stream, args.topics, sink={"format": "archive", "path": args.directory}, checkpoint=kept.checkpoint,
        trigger={"every": args.every, "available_now": args.once},
    )  # fmt: skip
    status = Status(name=name, file=str(kept.path), pid=os.getpid(), began=time.time(), heard=0.0)
    output = RunOutput(status, args.json_)
    spark, pipeline = planned(name, config, args.master, True, output)
    try:
        follow(pipeline, status, name, output)
        with progress(args.json_) as report:
            fewer = kept.compact(spark, lambda done, of: report("merging", done, of, "directories"))
    except Exception as error:
        status.problem = str(error)
        raise
    finally:
        status.state = "ended"
        status.write()
        spark.stop()
    files = len(kept.files())
    if args.json_:
        print(json.dumps({"rows": status.rows, "files": files, "merged": fewer}))
    else:
        print(f"{args.directory}: {status.rows:,} rows archived; {files:,} files, {fewer:,} fewer by merging")
    return 0


def replay(
    directory: Annotated[str, typer.Argument(metavar="DIRECTORY", help="Archive directory.")],
    to: Annotated[str, typer.Option("--to", metavar="URL", help="Broker: mqtt://host:1883.")],
    speed: Annotated[str, typer.Option("--speed", help="1: original speed; 10: ten times as fast; max.")] = "1",
    prefix: Annotated[str, typer.Option("--prefix", help="Topic prefix to add, such as replay/.")] = "",
    topics: TopicsOption = None,
    since: SinceOption = "",
    until: UntilOption = "",
    user: UserOption = "",
    password_file: PasswordOption = "",
    tls_ca: CaOption = "",
    node_timeout: NodeTimeoutOption = 30,
    master: MasterOption = "",
    json_: JsonOption = False,
) -> None:
    """Replay an archive: publish its messages again, in order for each topic."""
    kept = Archive(directory, must_exist=True)
    pace, password = _speed(speed), _password(password_file)
    try:
        parse_url(to)
    except ValueError as error:
        raise CommandError(f"--to: {error}") from None
    config = SourceArgs(server=NOWHERE, node_timeout=node_timeout).config("replay", "none", None)
    spark = session("replay", config, master, False)
    try:
        from starlingmq.pipeline.replay import Replay, Target, in_order

        rows = in_order(_chosen(kept.read(spark), topics or [], since, until))
        with tasks(spark, "counting", json_):
            total = rows.count()
        with progress(json_) as report:
            target = Target(
                url=to,
                user=user,
                password=password,
                ca=tls_ca,
                speed=pace,
                prefix=prefix,
                node_timeout=float(node_timeout),
            )
            run = Replay(target, lambda done: report("publishing", done, total, "messages"))
            began = time.monotonic()
            asyncio.run(run.run(rows.toLocalIterator(prefetchPartitions=True)))
            seconds = time.monotonic() - began
    finally:
        spark.stop()
    if json_:
        print(json.dumps({"messages": run.published, "seconds": round(seconds, 3)}))
    else:
        print(f"{run.published:,} messages published in {seconds:,.1f} s")


def report(args: ReportArgs) -> int:
    """Report on the traffic of a stream or an archive: one HTML file with plots that loads nothing from the
    network."""
    out, archive, since, until = args.out, args.archive, args.since, args.until
    if bool(archive) == bool(args.stream):
        raise CommandError("nothing selected; give either --stream with --server, or --archive")
    if not out.parent.is_dir():
        raise CommandError(f"{out}: directory {out.parent} does not exist")
    kept = Archive(archive, must_exist=True) if archive else None
    if kept:
        args.server = NOWHERE
    config = args.config("report", args.stream or "none", args.topics)
    spark = session("report", config, args.master, kept is None)
    try:
        from starlingmq.pipeline.traffic import look_at
        from starlingmq.pipeline.traffic_page import page

        if kept:
            rows = _chosen(kept.read(spark), args.topics or [], since, until)
        else:
            rows = _rows(spark, config, since, until)
        filtered = bool(args.topics or since or until)
        with tasks(spark, "reading", args.json_):
            found = look_at(spark, rows, archive or f"stream {args.stream}", filtered)
    finally:
        spark.stop()
    out.write_text(page(found), encoding="utf-8")
    if args.json_:
        print(msgspec.json.encode(found).decode())
    else:
        print(f"{out}: {found.count:,} messages of {found.clients:,} clients on {found.topics:,} topics")
    return 0


def audit(args: AuditArgs) -> int:
    """Audit deliveries by the broker's own events: lost and duplicate messages. The exit code is 1 if there are
    any."""
    config = args.config("audit", args.stream, ["$events/#"])
    spark = session("audit", config, args.master, True)
    try:
        from starlingmq.pipeline.delivery_audit import audit as judge
        from starlingmq.pipeline.delivery_audit import events_of

        with tasks(spark, "reading", args.json_):
            found, messages = judge(spark, events_of(_rows(spark, config, args.since, args.until)))
            if args.out:
                messages.write.mode("overwrite").parquet(args.out)
    finally:
        spark.stop()
    if not found.events:
        raise CommandError(
            f"stream {args.stream} contains no audit events; it needs the topic $events/# (docs/STREAMS.md)"
        )
    if args.json_:
        print(msgspec.json.encode({**msgspec.structs.asdict(found), "clean": found.clean}).decode())
    else:
        show(found, Console())
    return 0 if found.clean else FOUND


def infer(args: InferArgs) -> int:
    """Recognize the payloads of a stream, and print the decode part of a pipeline file."""
    config = args.config("infer", args.stream, args.topics)
    try:
        from starlingmq.pipeline.inference import as_yaml
        from starlingmq.pipeline.inference import infer as recognize
        from starlingmq.pipeline.stream_sample import take_sample
    except ImportError as error:
        raise CommandError(f"pipeline needs {error.name}; install the extra [spark] (docs/DEPLOY.md)") from None
    found, total = take_sample(config, "infer", args.rows)
    result = recognize(found)
    if args.json_:
        print(json.dumps({**msgspec.structs.asdict(result), "rows": total}))
        return 0
    print(f"# {len(found):,} of {total:,} rows of stream {args.stream}; {result.fits:,} fit")
    print(as_yaml(result), end="")
    return 0


# Shared


def _rows(spark: Any, config: PipelineConfig, since: str, until: str) -> DataFrame:
    """Return the current rows of the stream."""
    from starlingmq.pipeline.run import runs_here, source_options

    _check_order(since, until)
    options = source_options(config.source, runs_here(spark))
    if since:
        del options["startingOffsets"]
        options["startingTimestamp"] = str(int(_time(since, "--since").timestamp() * 1000))
    return _chosen(spark.read.format("starlingmq").options(**options).load(), [], "", until)


def _chosen(rows: DataFrame, topics: list[str], since: str, until: str) -> DataFrame:
    from pyspark.sql import functions as F

    _check_order(since, until)
    if since:
        rows = rows.where(F.col("timestamp") >= F.lit(_time(since, "--since")))
    if until:
        rows = rows.where(F.col("timestamp") < F.lit(_time(until, "--until")))
    if topics:
        from starlingmq.core.topics.topics import matches

        filters = [topic.encode() for topic in topics]
        wanted = F.udf(lambda topic: any(matches(each, topic.encode()) for each in filters), "boolean")
        rows = rows.where(wanted("topic"))
    return rows


def _check_order(since: str, until: str) -> None:
    if since and until and _time(until, "--until") < _time(since, "--since"):
        raise CommandError(f"--until: {until} is before --since, {since}")


def _time(text: str, option: str) -> datetime:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(f"{option}: {text!r} is not a time such as 2026-01-31T12:00:00") from None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def _speed(text: str) -> float:
    if text == "max":
        return 0.0
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.0 < speed < 1e9:
        raise CommandError(f"--speed: {text!r} is not a number above 0, or max")
    return speed


def _password(path: str) -> str:
    from starlingmq.pipeline.config import secret

    return secret(path, "--password-file")


# Output of an audit


def show(audit: DeliveryAudit, screen: Console) -> None:
    if audit.totals:
        screen.print(table_of(audit.totals[:SHOWN]))
        if len(audit.totals) > SHOWN:
            screen.print(f"and {len(audit.totals) - SHOWN:,} more; --json has all")
    for finding in audit.findings[:SHOWN]:
        screen.print(sentence(finding), highlight=False, soft_wrap=True)
    if len(audit.findings) > SHOWN:
        screen.print(f"and {len(audit.findings) - SHOWN:,} more; --out has all")
    screen.print(verdict(audit), highlight=False, soft_wrap=True)


def table_of(totals: list[Total]) -> Table:
    """Build a table without empty columns."""
    lines = [line_of(total) for total in totals]
    heads = [head for head in lines[0] if head in HEADS or any(line[head] for line in lines)]
    table = Table(*heads, box=None)
    for line, total in zip(lines, totals, strict=True):
        table.add_row(*(line[head] for head in heads), style="red" if total.lost or total.doubled else None)
    return table


def line_of(total: Total) -> dict[str, str]:
    figures = {
        "accepted": total.accepted,
        "refused": total.refused,
        "due": total.due,
        "delivered": total.delivered,
        "again": total.redelivered + total.again,
        "acked": total.acknowledged,
        "lost": total.lost,
        "doubled": total.doubled,
    }
    line = {"client": total.client, "topic": total.topic}
    line |= {head: f"{figure:,}" if figure else "" for head, figure in figures.items()}
    line["dropped"] = ", ".join(f"{count:,} {reason}" for reason, count in sorted(total.dropped.items()))
    return line


def sentence(finding: Finding) -> str:
    message = f"message {finding.id} on {finding.topic} (QoS {finding.qos}, {_moment(finding.at)})"
    return f"{finding.what}: {message} {'for' if finding.what == 'lost' else 'more than once at'} {finding.client}"


def verdict(audit: DeliveryAudit) -> str:
    nodes = ", ".join(audit.nodes)
    if audit.until == 0.0:
        return (
            f"no result: the range has no complete census of {nodes} yet (one every 2 s; two of each node are needed)"
        )
    span = f"{_moment(audit.since)} to {_moment(audit.until)} UTC, {nodes}: {audit.events:,} events"
    if audit.missing:
        return f"{span}; {audit.missing:,} batches of events are missing, so nothing can be proven"
    if audit.clean:
        return f"{span}; nothing lost, nothing doubled, {audit.waiting:,} wait"
    return f"{span}; {audit.lost:,} lost, {audit.doubled:,} doubled, {audit.waiting:,} wait"


def _moment(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M:%S")
