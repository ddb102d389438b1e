"""Result and dead letters of a pipeline from one query, which reads the stream once.

    a batch of decoded rows, kept in memory (or on disk) until both are written
      rows with ``_malformed``   -> dead letters, into files by Spark's own log: a batch that is there is left out
      the others, and the steps  -> the result, by a sink that accepts a batch once

A batch that is repeated after a failure between the two finds its dead letters written, and writes its result.

The steps run for each batch on its own. So each step must treat each row on its own, as SELECT, WHERE and a join with a
static table do; ``by_row`` looks for anything else in Spark's plan. Otherwise, and for sinks that only a streaming
query writes exactly once, the dead letters are a query of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec import json
from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]
from pyspark.sql import functions as F

from starlingmq.config.section_types import ConfigError
from starlingmq.pipeline.checkpoint_files import COMMITS, CheckpointFiles
from starlingmq.pipeline.config import FILES, ROWS, PipelineConfig
from starlingmq.pipeline.file_target import FileTarget
from starlingmq.spark.payloads import MALFORMED, WHOLE
from starlingmq.spark.sink import QUERY_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BatchWriter = Callable[["DataFrame", int], None]
SINKS: Final = (*FILES, "archive", "iceberg", "jdbc", "kafka")  # and tables by key
RULES: Final = 3  # number of the release's rules about payloads that are malformed: one more when they change
MARK: Final = "starlingmq-single-read"
BY_ROW: Final = ("Project", "Filter", "SubqueryAlias", "View", "EventTimeWatermark", "Generate", "Union")
FILE_SINK: Final = "org.apache.spark.sql.execution.streaming.sinks.FileStreamSink"  # in Spark 4.3
FILE_FORMATS: Final = {
    "parquet": "parquet.ParquetFileFormat",
    "json": "json.JsonFileFormat",
    "csv": "csv.CSVFileFormat",
    "orc": "orc.OrcFileFormat",
}


def single_read(config: PipelineConfig, rows: DataFrame, result: DataFrame, root: str) -> bool:
    """Whether one query can write both; ``rows``: those that the steps get. A checkpoint ``root`` of two queries, as of
    earlier releases, is continued by two.
    """
    if config.dead_letter is None or config.streams or config.sink.mode == "complete":
        return False
    if config.sink.format not in SINKS and not config.sink.key:
        return False
    if any(step.stateful is not None for step in config.steps) or not by_row(result, rows):
        return False
    if not isinstance(_class(result.sparkSession, FILE_SINK), JavaClass):
        return False
    return CheckpointFiles(result.sparkSession, f"{root}/dead_letter").begun() < 0


def by_row(result: DataFrame, rows: DataFrame) -> bool:
    """Whether each row of the result depends on one of ``rows``, and on static tables."""
    plans: Any = (result, rows)
    analyzed, source = (each._jdf.queryExecution().analyzed() for each in plans)
    return _by_row(analyzed, source)


def _by_row(plan: Any, source: Any) -> bool:
    if not plan.isStreaming() or plan.equals(source):
        return True
    children = plan.children()
    found = [children.apply(index) for index in range(children.size())]
    name = str(plan.nodeName())
    if name == "Join":
        if sum(bool(child.isStreaming()) for child in found) != 1:
            return False
    elif name not in BY_ROW:
        return False
    return bool(found) and all(_by_row(child, source) for child in found)


class FileBatches:
    """Writes batches into a directory as a streaming query of Spark does: its log there has the files of each batch."""

    def __init__(self, spark: SparkSession, path: str, format: str, parts: tuple[str, ...], options: dict[str, str]):
        self._path = _absolute(spark, path)
        self._parts, self._options = list(parts), options | {"path": self._path}
        self._sink = _class(spark, FILE_SINK)
        self._format = _class(spark, f"org.apache.spark.sql.execution.datasources.{FILE_FORMATS[format]}")
        self._scala = _class(spark, "org.apache.spark.api.python.PythonUtils")
        self._target = FileTarget(spark, path)

    def write(self, batch: DataFrame, number: int) -> None:
        """Raises TakenDirectory: another query has written there since this one was started."""
        frame: Any = batch
        self._target.claim(str(batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID)))
        parts, options = self._scala.toSeq(self._parts), self._scala.toScalaMap(self._options)
        sink = self._sink(frame._jdf.sparkSession(), self._path, self._format(), parts, options)
        sink.addBatch(number, frame._jdf)


def _absolute(spark: SparkSession, path: str) -> str:
    """Return a path with its file system and directory, as Spark completes it."""
    context: Any = spark.sparkContext
    found = _class(spark, "org.apache.hadoop.fs.Path")(path)
    return str(found.getFileSystem(context._jsc.hadoopConfiguration()).makeQualified(found).toString())


def _class(spark: SparkSession, name: str) -> Any:
    """Return a class of Spark; a JavaPackage if there is none of this name."""
    found: Any = spark.sparkContext._jvm
    for part in name.split("."):
        found = getattr(found, part)
    return found


class OpenBatch(ConfigError):
    """The batch that was not completed has been decoded with other settings; one line."""


def config_of_letters(config: PipelineConfig) -> bytes:
    """Return what decides which payloads are dead letters, and where they go."""
    decode, letter = config.decode, config.dead_letter
    registry = "" if decode.registry is None else decode.registry.url
    chosen = [decode.format, decode.schema, decode.schema_file, decode.message, decode.framing, decode.state, registry]
    where = [] if letter is None else [letter.path, letter.format]
    return json.encode([chosen, decode.options, where, decode.timestamp_unit, RULES], order="sorted")


def same_letters(checkpoint: CheckpointFiles, chosen: bytes) -> None:
    """Store beside the checkpoint what decides about dead letters. Raises OpenBatch if it has changed since a batch
    began that was not completed: its dead letters may be written, and its rows would be lost or written as well.
    """
    begun, completed = checkpoint.begun(), max(checkpoint.numbers(COMMITS), default=-1)
    known = checkpoint.read_file(MARK)
    if known and known != chosen and begun > completed:
        raise OpenBatch(
            f"decode, dead_letter: batch {begun} was not completed with the earlier settings, and its dead letters may "
            "be written; run it once with the earlier settings (or the earlier release), then change them"
        )
    if known != chosen:
        checkpoint.write_file(MARK, chosen)


class BothWriter:
    """``steps``: names and SQL."""

    def __init__(
        self,
        result: BatchWriter,
        letters: BatchWriter,
        as_letters: Callable[[DataFrame], DataFrame],
        steps: list[tuple[str, str]],
    ) -> None:
        self._result = result
        self._letters = letters
        self._as_letters = as_letters
        self._steps = steps

    def write(self, batch: DataFrame, number: int) -> None:
        batch.persist()
        try:
            self._letters(self._as_letters(batch), number)
            found = batch.where(F.col(MALFORMED).isNull()).drop(MALFORMED, WHOLE)
            found.createOrReplaceTempView(ROWS)
            for name, sql in self._steps:
                found = batch.sparkSession.sql(sql)
                found.createOrReplaceTempView(name)
            self._result(found, number)
        finally:
            batch.unpersist()
