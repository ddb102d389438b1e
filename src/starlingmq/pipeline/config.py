"""The settings of a pipeline file, and the line numbers of its SQL."""

from __future__ import annotations

import os
import posixpath
import re
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import yaml
from msgspec import Meta, field

from starlingmq.config.section_types import ConfigError, Count, Duration, Section, Size
from starlingmq.config.tree_builder import build, read_yaml
from starlingmq.pipeline.decode_options import check_options

NAME: Final = r"^[A-Za-z_][A-Za-z0-9_]{0,63}(?!\n)$"
ROWS: Final = "rows"  # the table that the first step reads
KEYED: Final = ("delta", "iceberg", "jdbc")
COMPACTED: Final = ("delta", "iceberg")
ICEBERG_PARTITION: Final = re.compile(r"(?P<transform>year|month|day|hour)\((?P<of>[^()]+)\)")
SERVERS: Final = "kafka.bootstrap.servers"
ONE_ATTEMPT: Final = {"spark.task.maxFailures": "1", "spark.speculation": "false"}  # of each task, with kafka
FILES: Final = ("parquet", "json", "csv", "orc")
ENDS: Final = ("earliest", "latest")  # of a stream
Name = Annotated[str, Meta(pattern=NAME)]


class SourceConfig(Section, frozen=True):
    servers: Annotated[
        tuple[str, ...], Meta(min_length=1, description="Addresses (host:port) of the nodes' streams.listen.")
    ]
    stream: Annotated[str, Meta(min_length=1, description="Stream name.")]
    token: Annotated[str, Meta(description="Token for streams (streams.token).")] = ""
    token_file: Annotated[str, Meta(description="File with the token.")] = ""
    user: Annotated[str, Meta(description="User to read as, where rules apply to users.")] = ""
    password_file: Annotated[str, Meta(description="File with the user's password.")] = ""
    tls_ca: Annotated[str, Meta(description="PEM file with the CA certificate of the nodes.")] = ""
    start: Annotated[
        str,
        Meta(description="Where to start without a checkpoint: earliest, latest, or a quoted ISO 8601 time."),
    ] = "earliest"
    topics: Annotated[
        tuple[str, ...], Meta(description="Topic filters, applied on the nodes. Default: all topics.")
    ] = ()
    max_rows: Annotated[Count, Meta(description="Maximum number of rows of a batch; 0 sets no limit.")] = 0
    max_bytes: Annotated[Size, Meta(description="Approximate maximum size of a batch; 0 sets no limit.")] = 0
    fail_on_data_loss: Annotated[
        bool, Meta(description="Whether the pipeline stops if rows have been deleted before it read them.")
    ] = True
    excluded_nodes: Annotated[tuple[str, ...], Meta(description="Nodes that will not return.")] = ()
    node_timeout: Annotated[int, Meta(ge=1, description="Seconds to wait for an unreachable node.")] = 30


class RegistryConfig(Section, frozen=True):
    url: Annotated[str, Meta(min_length=1, description="URL of the registry, such as https://registry:8081.")]
    user: Annotated[str, Meta(description="User for basic authentication.")] = ""
    password_file: Annotated[
        str, Meta(description="File with the user's password, which the driver and each executor read.")
    ] = ""
    password_env: Annotated[str, Meta(description="Instead of the file: an environment variable.")] = ""
    tls_ca: Annotated[str, Meta(description="PEM file with the CA certificate of the registry.")] = ""
    timeout: Annotated[Duration, Meta(description="Maximum time for an answer.")] = 10.0


class DecodeConfig(Section, frozen=True):
    format: Annotated[
        Literal["raw", "json", "csv", "avro", "protobuf", "cbor", "msgpack", "sparkplug"],
        Meta(description="Format of the payloads."),
    ] = "raw"
    schema: Annotated[
        str, Meta(description="Columns and types, as in SQL: id string, v double. Not for raw and sparkplug.")
    ] = ""
    schema_file: Annotated[
        str,
        Meta(
            description="Avro schema, or for protobuf the output of protoc --descriptor_set_out --include_imports; "
            "with framing a directory of schemas named ID.avsc or ID.proto."
        ),
    ] = ""
    message: Annotated[str, Meta(description="Full name of the message, for protobuf.")] = ""
    framing: Annotated[
        Literal["none", "confluent"],
        Meta(description="Whether Avro and Protobuf payloads begin with the id of a registry's schema."),
    ] = "none"
    registry: Annotated[RegistryConfig | None, Meta(description="With framing: registry of the schemas.")] = None
    state: Annotated[
        Literal["none", "aliases", "nodes"],
        Meta(
            description="State kept for each edge node, for sparkplug: with aliases metrics have the names of their "
            "births, and gaps are counted; with nodes the rows are the state of edge nodes and devices."
        ),
    ] = "none"
    options: Annotated[dict[str, str], Meta(description="Spark options for csv and json, such as sep.")] = field(
        default_factory=dict
    )
    timestamp_unit: Annotated[
        dict[str, Literal["s", "ms", "us", "ns"]],
        Meta(description="By timestamp column, such as sent_at or place.at: what its numbers count, since 1970."),
    ] = field(default_factory=dict)


class TableConfig(Section, frozen=True):
    name: Annotated[Name, Meta(description="Table name in SQL.")]
    path: Annotated[str, Meta(description="Path of the table.")] = ""
    format: Annotated[str, Meta(description="Format of the table.")] = "parquet"
    options: Annotated[dict[str, str], Meta(description="Spark options.")] = field(default_factory=dict)


class WatermarkConfig(Section, frozen=True):
    column: Annotated[str, Meta(description="A timestamp column.")] = "timestamp"
    delay: Annotated[Duration, Meta(description="Maximum delay of late rows.")] = 600.0


class StreamTableConfig(Section, frozen=True):
    name: Annotated[Name, Meta(description="Table name in SQL.")]
    source: Annotated[SourceConfig, Meta(description="Stream to read.")]
    decode: Annotated[DecodeConfig, Meta(description="Decoding of payloads into columns.")] = DecodeConfig()
    watermark: Annotated[WatermarkConfig | None, Meta(description="How long joins wait for late rows.")] = None


class StatefulConfig(Section, frozen=True):
    processor: Annotated[
        str,
        Meta(
            pattern=r"^.+\.py:[A-Za-z_][A-Za-z0-9_]*(?!\n)$",
            description="A StatefulProcessor of PySpark: FILE.py:CLASS, by a path from the pipeline file.",
        ),
    ]
    key: Annotated[tuple[str, ...], Meta(min_length=1, description="Columns; each combination has a state.")]
    schema: Annotated[str, Meta(min_length=1, description="Columns and types of the result, as in SQL.")]
    input: Annotated[Name, Meta(description="The table whose rows the processor gets.")] = ROWS
    time: Annotated[Literal["none", "processing", "event"], Meta(description="Clock of the processor's timers.")] = (
        "none"
    )


class StepConfig(Section, frozen=True):
    sql: Annotated[str, Meta(description="A query over rows, streams, tables and the previous steps.")] = ""
    stateful: Annotated[
        StatefulConfig | None, Meta(description="Instead of sql: a Python class that keeps a state for each key.")
    ] = None
    watermark: Annotated[
        WatermarkConfig | None, Meta(description="How long the following steps wait for late rows of this result.")
    ] = None
    name: Annotated[Name, Meta(description="Name of the result in the following steps.")] = "result"


class SinkConfig(Section, frozen=True):
    format: Annotated[
        Literal["parquet", "json", "csv", "orc", "archive", "jdbc", "delta", "iceberg", "kafka", "topic"],
        Meta(
            description="Format to write; topic publishes to topics, archive writes a directory of Parquet "
            "files by date."
        ),
    ] = "parquet"
    path: Annotated[str, Meta(description="Path to write to; for iceberg the table: catalog.namespace.table.")] = ""
    partition_by: Annotated[
        tuple[str, ...], Meta(description="Columns to partition by; for iceberg also year(column), month, day or hour.")
    ] = ()
    cluster_by: Annotated[tuple[str, ...], Meta(description="Columns to cluster a new Delta table by.")] = ()
    key: Annotated[
        tuple[str, ...],
        Meta(
            description="Columns of which each combination has one row: later rows replace it (delta, iceberg, jdbc)."
        ),
    ] = ()
    order_by: Annotated[
        tuple[str, ...], Meta(description="Columns that decide which row of a key is later. Required with key.")
    ] = ()
    mode: Annotated[Literal["append", "update", "complete"], Meta(description="Output mode of Spark.")] = "append"
    options: Annotated[
        dict[str, str],
        Meta(description="Options of the format, such as url and dbtable, servers, or kafka.bootstrap.servers."),
    ] = field(default_factory=dict)


class DeadLetterConfig(Section, frozen=True):
    path: Annotated[str, Meta(min_length=1, description="Path for payloads that cannot be decoded.")]
    format: Annotated[Literal["parquet", "json", "csv", "orc"], Meta(description="Format to write.")] = "parquet"


class TriggerConfig(Section, frozen=True):
    every: Annotated[Duration, Meta(description="Interval between the starts of two batches.")] = 1.0
    available_now: Annotated[bool, Meta(description="Read the existing messages, then stop.")] = False


class PipelineConfig(Section, frozen=True):
    name: Annotated[Name, Meta(description="Name of the pipeline.")]
    source: Annotated[SourceConfig, Meta(description="Stream to read.")]
    sink: Annotated[SinkConfig, Meta(description="Where results are written.")]
    checkpoint: Annotated[str, Meta(min_length=1, description="Checkpoint directory.")]
    decode: Annotated[DecodeConfig, Meta(description="Decoding of payloads into columns.")] = DecodeConfig()
    streams: Annotated[tuple[StreamTableConfig, ...], Meta(description="More streams, each a table of its own.")] = ()
    tables: Annotated[tuple[TableConfig, ...], Meta(description="Static tables to join with.")] = ()
    watermark: Annotated[WatermarkConfig | None, Meta(description="How long windows wait for late rows.")] = None
    steps: Annotated[
        tuple[StepConfig, ...], Meta(description="Queries in order; without any, rows are written as they are.")
    ] = ()
    dead_letter: Annotated[
        DeadLetterConfig | None, Meta(description="Separate output for payloads that cannot be decoded.")
    ] = None
    trigger: Annotated[TriggerConfig, Meta(description="When batches run.")] = TriggerConfig()
    restarts: Annotated[
        Count,
        Meta(
            description="Maximum consecutive restarts after transient failures: a Python worker of Spark did not start "
            "in time, or a node does not answer."
        ),
    ] = 5
    packages: Annotated[
        tuple[str, ...],
        Meta(description="Packages that Spark downloads: delta, kafka, postgresql, s3, or group:name:version."),
    ] = ()
    spark: Annotated[dict[str, str], Meta(description="Spark settings.")] = field(default_factory=dict)


def read_pipeline(path: str | Path) -> PipelineConfig:
    """Read a pipeline file. Raises ConfigError with one line that begins with the file."""
    tree = read_yaml(path)
    try:
        pipeline = build(PipelineConfig, tree)
        _check(pipeline)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return pipeline


def _check(pipeline: PipelineConfig) -> None:
    decode, sink = pipeline.decode, pipeline.sink
    _check_decode(decode)
    for index, stream in enumerate(pipeline.streams):
        try:
            _check_decode(stream.decode)
        except ConfigError as error:
            raise ConfigError(f"streams[{index}].{error}") from None
    for index, step in enumerate(pipeline.steps):
        if bool(step.sql) == (step.stateful is not None):
            raise ConfigError(f"steps[{index}]: needs either sql or stateful")
    if pipeline.dead_letter is not None and decode.format == "raw":
        raise ConfigError("dead_letter: has no effect with raw payloads, because they are not decoded; remove it")
    if sink.format in (*FILES, "archive", "delta", "iceberg") and not sink.path:
        raise ConfigError(f"sink.path: required for {sink.format}")
    needed = {"jdbc": ("url", "dbtable"), "topic": ("servers",), "kafka": (SERVERS,)}.get(sink.format, ())
    for name in needed:
        if name not in sink.options:
            raise ConfigError(f"sink.options.{name}: required for {sink.format}")
    for name, value in ONE_ATTEMPT.items():
        if sink.format == "kafka" and pipeline.spark.get(name, value).lower() != value:
            raise ConfigError(
                f"spark.{name}: must be {value} with kafka, because a repeated task publishes its rows again"
            )
    if sink.format == "iceberg" and sink.mode == "update" and not sink.key:
        raise ConfigError("sink.mode: iceberg replaces rows by key only; name sink.key, or use append or complete")
    if sink.key and sink.format not in KEYED:
        raise ConfigError(f"sink.key: {sink.format} cannot replace rows; only {', '.join(KEYED)} can")
    if bool(sink.key) != bool(sink.order_by):
        raise ConfigError("sink.key, sink.order_by: each needs the other one")
    if sink.key and sink.format == "jdbc" and not sink.options["url"].startswith("jdbc:postgresql:"):
        raise ConfigError("sink.key: with jdbc only PostgreSQL replaces rows; remove it, or use a jdbc:postgresql url")
    if sink.cluster_by and (sink.format != "delta" or sink.partition_by):
        raise ConfigError("sink.cluster_by: only for delta, without partition_by")
    if sink.format in (*FILES, "archive", "topic", "kafka") and sink.mode != "append":
        raise ConfigError(
            f"sink.mode: {sink.format} supports append only, because messages and files cannot be changed later"
        )
    _check_places(pipeline)
    taken = {ROWS}
    named = [(f"streams[{index}]", stream.name) for index, stream in enumerate(pipeline.streams)]
    named += [(f"tables[{index}]", table.name) for index, table in enumerate(pipeline.tables)]
    named += [(f"steps[{index}]", step.name) for index, step in enumerate(pipeline.steps)]
    for where, name in named:
        if name in taken:
            raise ConfigError(f"{where}.name: {name} is used twice; rename one of them")
        taken.add(name)
    for where, source in [
        ("source", pipeline.source),
        *((f"streams[{index}].source", stream.source) for index, stream in enumerate(pipeline.streams)),
    ]:
        if source.start not in ENDS:
            try:
                datetime.fromisoformat(source.start)
            except ValueError:
                form = "earliest, latest, or a time such as 2026-01-31T12:00:00+00:00"
                raise ConfigError(f"{where}.start: {source.start!r} is not {form}") from None
        for name in ("token_file", "password_file"):
            secret(getattr(source, name), f"{where}.{name}")


def _check_places(pipeline: PipelineConfig) -> None:
    """Result and dead letters are apart: in one directory they would share Spark's log of batches, so that the second
    finds the number of a batch there, and leaves out its rows.
    """
    sink, letters = pipeline.sink, pipeline.dead_letter
    result = sink.path if sink.format in (*FILES, "archive", "delta") else ""
    if letters is not None and inside(letters.path, result):
        raise ConfigError("dead_letter.path: is in sink.path; use a directory outside of it")
    if letters is not None and inside(result, letters.path):
        raise ConfigError("sink.path: is in dead_letter.path; use a directory outside of it")
    for where, path in (("sink.path", result), ("dead_letter.path", "" if letters is None else letters.path)):
        below = inside(pipeline.checkpoint, path)
        if below == "/":
            raise ConfigError(f"checkpoint: is {where}; use another directory")
        if below and sink.format == "delta" and not below.startswith("_"):
            raise ConfigError(
                f"checkpoint: is in {where}, where VACUUM would delete it; use a directory outside of it, or one in it "
                "that begins with _"
            )
        if inside(path, pipeline.checkpoint):
            raise ConfigError(f"{where}: is in checkpoint; use a directory outside of it")


def inside(path: str, directory: str) -> str:
    """Return the part of the path below a directory, "/" for the directory itself; "" if it is elsewhere."""
    if not path or not directory:
        return ""
    inner, outer = (_place(each).rstrip("/") + "/" for each in (path, directory))
    return (inner.removeprefix(outer) or "/") if inner.startswith(outer) else ""


def _place(path: str) -> str:
    """Return one spelling for all of a directory's: a local path without links, or scheme and path of a store."""
    scheme, colon, rest = path.partition(":")
    if colon and scheme.lower() == "file":
        path = "/" + rest.removeprefix("//localhost").lstrip("/")
    elif "://" in path:
        scheme, _, rest = path.partition("://")
        return f"{scheme.lower()}://" + posixpath.normpath("/" + rest).lstrip("/")
    return os.path.realpath(path)


def _check_decode(decode: DecodeConfig) -> None:
    if (decode.format in ("raw", "sparkplug")) == bool(decode.schema):
        raise ConfigError("decode.schema: required for all formats but raw and sparkplug, and not allowed for these")
    check_options(decode.format, decode.options)
    if decode.timestamp_unit and decode.format in ("raw", "sparkplug"):
        raise ConfigError(f"decode.timestamp_unit: has no meaning for {decode.format}; remove it")
    if decode.state != "none" and decode.format != "sparkplug":
        raise ConfigError(f"decode.state: only for sparkplug, not for {decode.format}")
    registry, framed = decode.registry, decode.framing == "confluent"
    if decode.format not in ("avro", "protobuf"):
        for name in ("schema_file", "message", "registry"):
            if getattr(decode, name):
                raise ConfigError(f"decode.{name}: has no meaning for {decode.format}; remove it")
        if framed:
            raise ConfigError(f"decode.framing: confluent is for avro and protobuf, not for {decode.format}")
        return
    if registry is not None and not framed:
        raise ConfigError("decode.registry: needs framing: confluent")
    if (registry is None) != bool(decode.schema_file):
        raise ConfigError(
            f"decode.schema_file: required for {decode.format}, unless there is a registry instead (with framing)"
        )
    if decode.message and decode.format == "avro":
        raise ConfigError("decode.message: only for protobuf")
    if decode.format == "protobuf" and not framed and not decode.message:
        raise ConfigError("decode.message: required for protobuf without framing")
    if registry is None:
        return
    parts = urlsplit(registry.url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError("decode.registry.url: expected a URL such as https://registry:8081")
    if parts.username is not None:
        raise ConfigError("decode.registry.url: a login in a URL would be shown; use user and password_file")
    if registry.timeout <= 0:
        raise ConfigError("decode.registry.timeout: must be above 0")
    passwords = [name for name in ("password_file", "password_env") if getattr(registry, name)]
    if len(passwords) > 1:
        raise ConfigError("decode.registry.password_env: password_file is set as well; set only one of them")
    if bool(passwords) != bool(registry.user):
        raise ConfigError("decode.registry.user, password_file (or password_env): each needs the other one")


def secret(path: str, what: str) -> str:
    """Return the content of a file without surrounding white space; "" without a file. Raises ConfigError."""
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{what}: {path} cannot be read: {error.strerror}") from None


def sql_line(path: str | Path, step: int) -> int:
    """Return the line of the file, from 1, on which the SQL of a step begins."""
    root = yaml.compose(Path(path).read_text(encoding="utf-8"), yaml.SafeLoader)
    steps = _below(root, "steps")
    assert isinstance(steps, yaml.SequenceNode)
    sql = _below(steps.value[step], "sql")
    assert isinstance(sql, yaml.ScalarNode)
    return int(sql.start_mark.line) + (2 if sql.style in ("|", ">") else 1)


def _below(node: yaml.Node | None, key: str) -> yaml.Node | None:
    assert isinstance(node, yaml.MappingNode)
    return next((below for name, below in node.value if name.value == key), None)


def source_column(partition: str) -> str:
    """Return the column of a partition of an Iceberg table: that of ``day(at)`` is ``at``."""
    found = ICEBERG_PARTITION.fullmatch(partition)
    return found["of"] if found else partition
