"""What a pipeline's file may say, and where in it a line of SQL is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import yaml
from msgspec import Meta, field

from starlingmq.config.section_types import ConfigError, Count, Duration, Section, Size
from starlingmq.config.tree_builder import build, read_yaml

NAME: Final = r"^[A-Za-z_][A-Za-z0-9_]{0,63}(?!\n)$"
ROWS: Final = "rows"  # the table that the first step reads
FILES: Final = ("parquet", "json", "csv", "orc")
Name = Annotated[str, Meta(pattern=NAME)]


class SourceConfig(Section, frozen=True):
    servers: Annotated[tuple[str, ...], Meta(min_length=1, description="host:port of streams.listen of nodes.")]
    stream: Annotated[str, Meta(min_length=1, description="The stream.")]
    token: Annotated[str, Meta(description="What the nodes want to be shown.")] = ""
    token_file: Annotated[str, Meta(description="File with the token.")] = ""
    user: Annotated[str, Meta(description="Who reads, where rules are about users.")] = ""
    password_file: Annotated[str, Meta(description="File with the user's password.")] = ""
    tls_ca: Annotated[str, Meta(description="PEM file with the authority of the nodes' certificates.")] = ""
    start: Annotated[Literal["earliest", "latest"], Meta(description="Where it begins, without a checkpoint.")] = (
        "earliest"
    )
    topics: Annotated[tuple[str, ...], Meta(description="Topic filters, applied at the nodes; all without.")] = ()
    max_rows: Annotated[Count, Meta(description="Rows of a batch at most; 0 sets no limit.")] = 0
    max_bytes: Annotated[Size, Meta(description="Bytes of a batch at most, about; 0 sets no limit.")] = 0
    fail_on_data_loss: Annotated[bool, Meta(description="Whether rows that are not kept any more end it.")] = True
    go_on_without: Annotated[tuple[str, ...], Meta(description="Nodes that are gone for good.")] = ()
    patience: Annotated[int, Meta(ge=1, description="Seconds that a node which does not answer is waited for.")] = 30


class DecodeConfig(Section, frozen=True):
    format: Annotated[Literal["raw", "json", "csv"], Meta(description="What payloads are.")] = "raw"
    schema: Annotated[str, Meta(description="Columns and types of json and csv, as in SQL: id string, v double.")] = ""
    options: Annotated[dict[str, str], Meta(description="Options of Spark for csv and json, such as sep.")] = field(
        default_factory=dict
    )


class TableConfig(Section, frozen=True):
    name: Annotated[Name, Meta(description="What SQL calls it.")]
    path: Annotated[str, Meta(description="Where it is.")] = ""
    format: Annotated[str, Meta(description="What it is.")] = "parquet"
    options: Annotated[dict[str, str], Meta(description="Options of Spark.")] = field(default_factory=dict)


class WatermarkConfig(Section, frozen=True):
    column: Annotated[str, Meta(description="A timestamp.")] = "timestamp"
    delay: Annotated[Duration, Meta(description="How late rows may come.")] = 600.0


class StepConfig(Section, frozen=True):
    sql: Annotated[str, Meta(min_length=1, description="A query over rows, tables and the steps before.")]
    name: Annotated[Name, Meta(description="What the next steps call its result.")] = "result"


class SinkConfig(Section, frozen=True):
    format: Annotated[
        Literal["parquet", "json", "csv", "orc", "archive", "jdbc", "delta", "iceberg", "topic"],
        Meta(description="What is written; topic is back to topics, archive a directory of Parquet files by date."),
    ] = "parquet"
    path: Annotated[str, Meta(description="Where to; of iceberg the table.")] = ""
    partition_by: Annotated[tuple[str, ...], Meta(description="Columns that make directories.")] = ()
    mode: Annotated[Literal["append", "update", "complete"], Meta(description="Output mode of Spark.")] = "append"
    options: Annotated[dict[str, str], Meta(description="Options of the format: url and dbtable, servers.")] = field(
        default_factory=dict
    )


class DeadLetterConfig(Section, frozen=True):
    path: Annotated[str, Meta(min_length=1, description="Where payloads go that can not be decoded.")]
    format: Annotated[Literal["parquet", "json", "csv", "orc"], Meta(description="As what.")] = "parquet"


class TriggerConfig(Section, frozen=True):
    every: Annotated[Duration, Meta(description="Time between the beginnings of two batches.")] = 1.0
    available_now: Annotated[bool, Meta(description="Read what is there, and end.")] = False


class PipelineConfig(Section, frozen=True):
    name: Annotated[Name, Meta(description="Of the pipeline.")]
    source: Annotated[SourceConfig, Meta(description="What is read.")]
    sink: Annotated[SinkConfig, Meta(description="What is written.")]
    checkpoint: Annotated[str, Meta(min_length=1, description="Directory of how far it is.")]
    decode: Annotated[DecodeConfig, Meta(description="From payloads to columns.")] = DecodeConfig()
    tables: Annotated[tuple[TableConfig, ...], Meta(description="Static tables to join with.")] = ()
    watermark: Annotated[WatermarkConfig | None, Meta(description="How long windows wait for late rows.")] = None
    steps: Annotated[
        tuple[StepConfig, ...], Meta(description="One query after the other; none: rows as they are.")
    ] = ()
    dead_letter: Annotated[DeadLetterConfig | None, Meta(description="Another place for what can not be decoded.")] = (
        None
    )
    trigger: Annotated[TriggerConfig, Meta(description="When.")] = TriggerConfig()
    packages: Annotated[tuple[str, ...], Meta(description="Packages that Spark fetches: group:name:version.")] = ()
    spark: Annotated[dict[str, str], Meta(description="Settings of Spark.")] = field(default_factory=dict)


def read_pipeline(path: str | Path) -> PipelineConfig:
    """Raises ConfigError with one line that begins with the file."""
    tree = read_yaml(path)
    try:
        pipeline = build(PipelineConfig, tree)
        _check(pipeline)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return pipeline


def _check(pipeline: PipelineConfig) -> None:
    decode, sink = pipeline.decode, pipeline.sink
    if (decode.format == "raw") == bool(decode.schema):
        raise ConfigError("decode.schema: json and csv need one, and raw has none")
    if pipeline.dead_letter is not None and decode.format == "raw":
        raise ConfigError("dead_letter: raw payloads are not decoded, so none of them is malformed")
    if sink.format in (*FILES, "archive", "delta", "iceberg") and not sink.path:
        raise ConfigError(f"sink.path: where is the {sink.format} to be written?")
    needed = {"jdbc": ("url", "dbtable"), "topic": ("servers",)}.get(sink.format, ())
    for name in needed:
        if name not in sink.options:
            raise ConfigError(f"sink.options.{name}: {sink.format} needs it")
    if sink.format in (*FILES, "archive", "topic") and sink.mode != "append":
        raise ConfigError(f"sink.mode: {sink.format} takes append only; what is published or in a file stays so")
    taken = {ROWS}
    named = [(f"tables[{index}]", table.name) for index, table in enumerate(pipeline.tables)]
    named += [(f"steps[{index}]", step.name) for index, step in enumerate(pipeline.steps)]
    for where, name in named:
        if name in taken:
            raise ConfigError(f"{where}.name: {name} is there already")
        taken.add(name)
    for name in ("token_file", "password_file"):
        secret(getattr(pipeline.source, name), f"source.{name}")


def secret(path: str, what: str) -> str:
    """What is in a file, without white space around it; "" without one. Raises ConfigError."""
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{what}: {path} cannot be read: {error.strerror}") from None


def sql_line(path: str | Path, step: int) -> int:
    """The line of the file, from 1, on which the SQL of a step begins."""
    root = yaml.compose(Path(path).read_text(encoding="utf-8"), yaml.SafeLoader)
    steps = _below(root, "steps")
    assert isinstance(steps, yaml.SequenceNode)
    sql = _below(steps.value[step], "sql")
    assert isinstance(sql, yaml.ScalarNode)
    return int(sql.start_mark.line) + (2 if sql.style in ("|", ">") else 1)


def _below(node: yaml.Node | None, key: str) -> yaml.Node | None:
    assert isinstance(node, yaml.MappingNode)
    return next((below for name, below in node.value if name.value == key), None)
