"""A pipeline in Spark: plans its tables and steps, which checks them, and starts its queries."""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType

from starlingmq.config.section_types import ConfigError
from starlingmq.pipeline.archive import NEEDED, PARTITIONS, Archive, ArchiveError
from starlingmq.pipeline.checkpoint_files import COMMITS, CheckpointFiles
from starlingmq.pipeline.config import (
    ENDS,
    FILES,
    ONE_ATTEMPT,
    ROWS,
    DeadLetterConfig,
    PipelineConfig,
    SourceConfig,
    StatefulConfig,
    StreamTableConfig,
    TableConfig,
    WatermarkConfig,
    inside,
    secret,
    source_column,
    sql_line,
)
from starlingmq.pipeline.decoding import dead_letters, decoded, with_whole
from starlingmq.pipeline.file_target import FileTarget, TakenDirectory
from starlingmq.pipeline.jdbc import into_database
from starlingmq.pipeline.kafka import into_kafka
from starlingmq.pipeline.keyed_rows import create_table, merging
from starlingmq.pipeline.object_store import arrow_environment
from starlingmq.pipeline.packages import resolve
from starlingmq.pipeline.single_read import (
    MARK,
    BatchWriter,
    BothWriter,
    FileBatches,
    OpenBatch,
    config_of_letters,
    same_letters,
    single_read,
)
from starlingmq.pipeline.stateful import read_processor, with_state
from starlingmq.spark import register
from starlingmq.spark.column_names import comparison, same_names
from starlingmq.spark.nodes import NodeBook, StreamError
from starlingmq.spark.option_error import OptionError
from starlingmq.spark.payloads import MALFORMED
from starlingmq.spark.read_options import read_options
from starlingmq.spark.sink import QUERY_ID, check_columns
from starlingmq.spark.sink_options import read_sink_options

T = TypeVar("T")
UNFIT: Final[dict[str, tuple[type[DataType], ...]]] = {  # types that a sink cannot store
    "csv": (ArrayType, BinaryType, MapType, StructType),
    "jdbc": (MapType, StructType),
}
MERGE_BATCHES: Final = 100  # batches of an archive between two merges
OF_SPARK: Final = (
    PySparkException,
    Py4JJavaError,
)  # the latter if it has no Python class: unknown format
OUR_ERRORS: Final = (
    *("StreamError", "PublishError", "RowError", "OptionError", "LostRows", "ArchiveError", "PipelineError"),
    *(
        "CheckpointError",
        "DeletedMessages",
        "DatabaseAway",
        "RegistryError",
        "RegistryUnreachable",
        "IcebergError",
        "CommitConflict",
        "CatalogAway",
        "TakenDirectory",
    ),
)
OURS: Final = re.compile(f"(?:{'|'.join(OUR_ERRORS)}): (.*)")
LINE_NUMBER: Final = re.compile(r"line (\d+),? pos(?:ition)? \d+")


class PipelineError(ConfigError):
    """A pipeline cannot run; one line, which begins with its file."""


def begin_session(pipeline: PipelineConfig, master: str) -> SparkSession:
    """Start Spark, locally or on a cluster; ``master`` "" means all cores of this machine."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not master:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for variable, value in arrow_environment(pipeline.spark).items():
        os.environ.setdefault(variable, value)
    packages = resolve(pipeline.packages, pipeline.sink.format)
    settings = {
        **packages.settings,
        **(ONE_ATTEMPT if pipeline.sink.format == "kafka" else {}),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        **({"spark.jars.packages": ",".join(packages.coordinates)} if packages.coordinates else {}),
        **({"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"} if not master else {}),
        **pipeline.spark,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # part of the pipeline's error
        builder = SparkSession.builder.appName(pipeline.name).master(master or "local[*]")
        session = builder.config(map=dict(settings)).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    return session


def runs_here(spark: SparkSession) -> bool:
    """Whether all tasks run on this machine."""
    return (spark.sparkContext.master or "").startswith("local")


def source_options(source: SourceConfig, here: bool = True) -> dict[str, str]:
    """``here``: the result of ``runs_here``; if True, tasks read secret files themselves. Workers on other machines may
    not have these files.
    """
    secrets = {
        "token": source.token or secret(source.token_file, "source.token_file"),
        "password": secret(source.password_file, "source.password_file"),
    }
    if here:
        secrets = {
            "token": source.token,
            "tokenFile": "" if source.token or not source.token_file else os.path.abspath(source.token_file),
            "passwordFile": os.path.abspath(source.password_file) if source.password_file else "",
        }
    options = {
        **secrets,
        "servers": ",".join(source.servers),
        "stream": source.stream,
        "user": source.user,
        "tlsCa": source.tls_ca,
        "startingOffsets" if source.start in ENDS else "startingTimestamp": source.start,
        "topicFilter": ",".join(source.topics),
        "maxRowsPerTrigger": str(source.max_rows or ""),
        "maxBytesPerTrigger": str(source.max_bytes or ""),
        "failOnDataLoss": str(source.fail_on_data_loss).lower(),
        "excludedNodes": ",".join(source.excluded_nodes),
        "nodeTimeout": str(source.node_timeout),
    }
    return {name: value for name, value in options.items() if value}


def reach(pipeline: PipelineConfig, path: str | Path) -> None:
    """Check that the streams exist, without Spark. Raises PipelineError."""
    sources = {f"streams[{index}].source": stream.source for index, stream in enumerate(pipeline.streams)}
    for where, source in {"source": pipeline.source, **sources}.items():
        book = None
        try:
            book = NodeBook(read_options(source_options(source), streaming=True))
            book.bounds({})
        except (StreamError, OptionError) as error:
            raise PipelineError(f"{path}: {where}: {error}") from None
        finally:
            if book is not None:
                book.close()


class Pipeline:
    """Error messages name ``path``. The constructor makes no requests; ``result`` is the result of the last step."""

    def __init__(self, spark: SparkSession, pipeline: PipelineConfig, path: str | Path) -> None:
        self.spark = spark
        self.config = pipeline
        self.path = path
        self.repeated: list[tuple[str, int]] = []  # queries, and batches that had begun before their last start
        self.malformed: DataFrame | None = None  # of the query of the dead letters
        self.both: DataFrame | None = None  # rows with and without _malformed: one query writes result and dead letters
        self.result = self._plan()

    # Planning

    def _plan(self) -> DataFrame:
        config = self.config
        source = self._explained("source", lambda: self._read(config.source, config.name))
        rows = self._explained("decode.schema", lambda: decoded(source, config.decode, config.sink.mode))
        if config.dead_letter is not None:
            rows = rows.where(F.col(MALFORMED).isNull()).drop(MALFORMED)
        rows = self._marked("watermark", rows, config.watermark)
        rows.createOrReplaceTempView(ROWS)
        for index, stream in enumerate(config.streams):
            self._stream(f"streams[{index}]", stream).createOrReplaceTempView(stream.name)
        for index, table in enumerate(config.tables):
            found = self._explained(f"tables[{index}]", partial(self._table, table))
            found.createOrReplaceTempView(table.name)
        result = rows
        for index, step in enumerate(config.steps):
            result = self._step(index, step.sql) if step.stateful is None else self._stateful(index, step.stateful)
            result = self._marked(f"steps[{index}].watermark", result, step.watermark)
            result.createOrReplaceTempView(step.name)
        self._check_sink(result)
        if config.dead_letter is not None:
            self._plan_dead_letters(source, rows, result, config.dead_letter)
        return result

    def _plan_dead_letters(
        self, source: DataFrame, rows: DataFrame, result: DataFrame, letter: DeadLetterConfig
    ) -> None:
        config = self.config
        root = config.checkpoint
        if self._explained("checkpoint", lambda: single_read(config, rows, result, root)):
            self.both = with_whole(source, config.decode, config.sink.mode)
            return
        if self._explained("checkpoint", lambda: self._files("result").read_file(MARK)) is not None:
            raise PipelineError(
                f"{self.path}: steps: the query of this checkpoint writes the dead letters as well, which these steps "
                "or this sink do not allow; use another checkpoint and another dead_letter.path"
            )
        again = self._read(config.source, f"{config.name}_dead_letter")
        self.malformed = dead_letters(with_whole(again, config.decode), config.decode, letter)

    def _read(self, source: SourceConfig, consumer: str) -> DataFrame:
        """``consumer``: each query reports its own progress."""
        options = source_options(source, runs_here(self.spark))
        return self.spark.readStream.format("starlingmq").options(**options, consumer=consumer).load()

    def _stream(self, where: str, stream: StreamTableConfig) -> DataFrame:
        rows = self._explained(
            f"{where}.source", lambda: self._read(stream.source, f"{self.config.name}_{stream.name}")
        )
        rows = self._explained(f"{where}.decode.schema", lambda: decoded(rows, stream.decode, self.config.sink.mode))
        return self._marked(f"{where}.watermark", rows, stream.watermark)

    def _marked(self, where: str, rows: DataFrame, mark: WatermarkConfig | None) -> DataFrame:
        if mark is None:
            return rows
        return self._explained(where, lambda: rows.withWatermark(mark.column, f"{mark.delay} seconds"))

    def _stateful(self, index: int, stateful: StatefulConfig) -> DataFrame:
        try:
            processor = read_processor(self.path, stateful.processor)
        except ConfigError as error:
            raise PipelineError(f"{self.path}: steps[{index}].stateful.processor: {error}") from None
        name = self.config.steps[index].name
        make = partial(with_state, self.spark, stateful, processor, self.config.sink.mode)
        return self._explained(f"step {name}", make)

    def _table(self, table: TableConfig) -> DataFrame:
        reader = self.spark.read.format(table.format).options(**table.options)
        return reader.load(table.path) if table.path else reader.load()

    def _explained(self, where: str, make: Callable[[], T]) -> T:
        try:
            return make()
        except (*OF_SPARK, OptionError, TakenDirectory, OpenBatch) as error:
            raise PipelineError(f"{self.path}: {where}: {error_line(error)}") from None

    def _step(self, index: int, sql: str) -> DataFrame:
        try:
            found = self.spark.sql(sql)
            _ = found.schema
            return found
        except OF_SPARK as error:
            line_match = LINE_NUMBER.search(str(error))
            line = sql_line(self.path, index) + (int(line_match[1]) - 1 if line_match else 0)
            name = self.config.steps[index].name
            raise PipelineError(f"{self.path}:{line}: step {name}: {error_line(error)}") from None

    def _check_sink(self, result: DataFrame) -> None:
        sink = self.config.sink
        twice = same_names(result.schema, comparison(self.spark))
        if twice:
            raise PipelineError(
                f"{self.path}: sink: columns {' and '.join(twice)} of the result have one name for Spark, which could "
                "not read them any more; leave one out in a step, or rename it"
            )
        for setting in ("partition_by", "cluster_by", "key", "order_by"):
            names = [source_column(name) if sink.format == "iceberg" else name for name in getattr(sink, setting)]
            missing = [name for name in names if name not in result.columns]
            if missing:
                raise PipelineError(f"{self.path}: sink.{setting}: the result has no column {', '.join(missing)}")
        if sink.format == "kafka":
            self._check_kafka(result)
        if sink.format == "archive":
            absent = [name for name in NEEDED if name not in result.columns]
            if absent:
                raise PipelineError(f"{self.path}: sink: an archive needs column {', '.join(absent)}")
            taken = [name for name in PARTITIONS if name in result.columns]
            if taken:
                raise PipelineError(
                    f"{self.path}: sink: an archive has its own column {', '.join(taken)}; rename yours"
                )
        if sink.format in UNFIT:
            for field in result.schema.fields:
                if isinstance(field.dataType, UNFIT[sink.format]):
                    kind = field.dataType.simpleString()
                    raise PipelineError(
                        f"{self.path}: sink: {sink.format} cannot hold column {field.name} ({kind}); leave it out in a "
                        "step, or convert it there, as with to_json or base64"
                    )
        if sink.format == "topic":
            try:
                check_columns(result.schema, read_sink_options(sink.options))
            except OptionError as error:
                raise PipelineError(f"{self.path}: sink: {error}") from None

    def _check_kafka(self, result: DataFrame) -> None:
        wanted = ["value"] if self.config.sink.options.get("topic") else ["value", "topic"]
        strange = sorted({*result.columns} - {"key", "value", "topic"} | ({*wanted} - {*result.columns}))
        if strange:
            raise PipelineError(
                f"{self.path}: sink: kafka takes the columns value, key and (or as an option) topic; "
                f"not so: {', '.join(strange)}"
            )

    # Running

    def start(self) -> list[StreamingQuery]:
        """Start its queries: the pipeline, and the dead letters unless it writes them too. Raises PipelineError."""
        letter, sink = self.config.dead_letter, self.config.sink
        self.repeated = []
        files = [("sink.path", sink.path)] if sink.format in FILES else []
        if letter is not None and self.both is not None:
            both = [*files, ("dead_letter.path", letter.path)]
            return [self._begin(self.config.name, self._writer_of_both(self.both, letter), "result", both)]
        queries = [self._begin(self.config.name, self._writer(), "result", files)]
        if letter is not None and self.malformed is not None:
            writer = self.malformed.writeStream.format(letter.format).option("path", letter.path)
            files = [("dead_letter.path", letter.path)]
            queries.append(self._begin(f"{self.config.name}_dead_letter", writer, "dead_letter", files))
        return queries

    def _begin(self, name: str, writer: DataStreamWriter, part: str, files: list[tuple[str, str]]) -> StreamingQuery:
        """``files``: setting and directory of the files that it writes."""
        checkpoint = self._explained("checkpoint", partial(self._files, part))
        begun = self._explained("checkpoint", checkpoint.begun)
        if begun > self._explained("checkpoint", lambda: max(checkpoint.numbers(COMMITS), default=-1)):
            self.repeated.append((name, begun))
        targets = [(where, self._target(where, path)) for where, path in files]
        for where, target in targets:
            self._explained(where, partial(target.check, checkpoint))
        query = self._started(name, writer, part)
        try:
            for where, target in targets:
                self._explained(where, partial(target.claim, str(query.id)))
        except PipelineError:
            query.stop()
            raise
        return query

    def _target(self, where: str, path: str) -> FileTarget:
        own = inside(self.config.checkpoint, path).partition("/")[0]
        return self._explained(where, partial(FileTarget, self.spark, path, own))

    def _started(self, name: str, writer: DataStreamWriter, part: str) -> StreamingQuery:
        trigger = self.config.trigger
        checkpoint = self._checkpoint(part)
        writer = writer.queryName(name).option("checkpointLocation", checkpoint)
        if trigger.available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{int(trigger.every * 1000)} milliseconds")
        try:
            return writer.start()
        except OF_SPARK as error:
            raise PipelineError(f"{self.path}: sink: {error_line(error)}") from None

    def _checkpoint(self, part: str) -> str:
        root = self.config.checkpoint
        return f"{root}/{part}" if "://" in root else str(Path(root) / part)

    def _files(self, part: str) -> CheckpointFiles:
        return CheckpointFiles(self.spark, self._checkpoint(part))

    def _writer(self) -> DataStreamWriter:
        sink = self.config.sink
        writer = self.result.writeStream.outputMode(sink.mode)
        batches = self._batch_writer()
        if batches is not None:
            return writer.foreachBatch(batches)
        writer = writer.format("starlingmq" if sink.format == "topic" else sink.format).options(**sink.options)
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        return writer.option("path", sink.path) if sink.format in (*FILES, "delta") else writer

    def _batch_writer(self) -> BatchWriter | None:
        """Return the function that writes a batch; None for a sink that a streaming query of Spark writes."""
        sink = self.config.sink
        if sink.format == "delta":
            self._explained("sink", lambda: create_table(self.spark, sink, self.result.schema))
        match sink.format:
            case "jdbc":
                return into_database(sink)
            case "archive":
                return archiving(sink.path)
            case "kafka":
                return into_kafka(sink, self._checkpoint("result"))
            case "iceberg":
                from starlingmq.pipeline.iceberg import into_iceberg

                try:
                    return into_iceberg(sink, self.result.schema)
                except ConfigError as error:
                    raise PipelineError(f"{self.path}: {error}") from None
            case "delta" if sink.key:
                return merging(sink)
        return None

    def _writer_of_both(self, rows: DataFrame, letter: DeadLetterConfig) -> DataStreamWriter:
        sink, decode = self.config.sink, self.config.decode
        result = self._batch_writer()
        if result is None:
            result = FileBatches(self.spark, sink.path, sink.format, sink.partition_by, sink.options).write
        letters = FileBatches(self.spark, letter.path, letter.format, (), {}).write
        steps = [(step.name, step.sql) for step in self.config.steps]
        both = BothWriter(result, letters, lambda batch: dead_letters(batch, decode, letter), steps)
        self._explained("checkpoint", lambda: same_letters(self._files("result"), config_of_letters(self.config)))
        return rows.writeStream.outputMode(sink.mode).foreachBatch(both.write)


def archiving(path: str) -> Callable[[DataFrame, int], None]:
    """Write batches into an archive, and merge its files periodically. Raises ArchiveError."""
    archive = Archive(path)

    def write(batch: DataFrame, number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        if not query:
            raise ArchiveError("Spark does not tell the id of the query here, so an archive cannot be written")
        archive.write(batch, number, query)
        if number % MERGE_BATCHES == MERGE_BATCHES - 1:
            archive.compact(batch.sparkSession, lambda done, of: None)

    return write


def error_line(error: Exception) -> str:
    """Return Spark's error message in one line, without the query and the plan."""
    told = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    text = told.split("== SQL")[0].split("JVM stacktrace")[0].split(";\n")[0]
    found = OURS.search(str(error))
    return " ".join((found[1] if found else text).split())


def failure(path: str | Path, query: StreamingQuery) -> PipelineError | None:
    """Return why a query has failed; "" if it has not."""
    error = query.exception()
    return None if error is None else PipelineError(f"{path}: {query.name}: {error_line(error)}")
