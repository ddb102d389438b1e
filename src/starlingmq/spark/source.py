"""The Spark data source ``starlingmq``: streams as rows, for batch and streaming queries, straight from the nodes.

A position is a map from node to stream and offset. The rows between two positions are always the same, so a query that
restarts from its checkpoint and writes to an idempotent sink loses no row and duplicates none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast
from zipimport import zipimporter

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from pyspark.sql.utils import is_remote

from starlingmq.bulk.positions import StreamPosition, position_of
from starlingmq.spark.nodes import NodeBook, StreamError
from starlingmq.spark.option_error import OptionError
from starlingmq.spark.planning import NextBatch, begin_at, end_offsets, ids, refuse_future
from starlingmq.spark.read_options import Options, read_columns, read_options
from starlingmq.spark.row_reading import RowPartition, parts, read_part

if TYPE_CHECKING:
    from starlingmq.spark.sink_options import SinkOptions

COLUMNS: Final = StructType(
    [
        StructField("topic", StringType(), False),
        StructField("payload", BinaryType(), False),
        StructField("qos", ByteType(), False),
        StructField("retain", BooleanType(), False),
        StructField("client_id", StringType(), False),
        StructField(
            "properties",
            ArrayType(
                StructType([StructField("name", StringType(), False), StructField("value", StringType(), False)]), False
            ),
            False,
        ),
        StructField("timestamp", TimestampType(), False),
        StructField("node", StringType(), False),
        StructField("offset", LongType(), False),
    ]
)

Told = dict[str, Any]  # a position as Spark stores it


def register(spark: SparkSession) -> None:
    """Register the format ``starlingmq`` in a session."""
    _tell_planners(spark)
    spark.dataSource.register(StarlingSource)


def _tell_planners(spark: SparkSession) -> None:
    """Of a file of ``--py-files``: Spark 4.2 lets the planner of a streaming query look for it in a directory where it
    is not (``userFiles/streaming_job``), so its path is told in the environment too.
    """
    loader = __spec__.loader
    if isinstance(loader, zipimporter) and not is_remote():
        environment = spark.sparkContext.environment
        places = list(filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)))
        if loader.archive not in places:
            environment["PYTHONPATH"] = os.pathsep.join([*places, loader.archive])


class StarlingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "starlingmq"

    def schema(self) -> StructType:
        """All columns; those of the option ``columns``, for a reader."""
        names = read_columns(cast(Mapping[str, str], self.options))
        return StructType([COLUMNS[name] for name in names]) if names else COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(read_options(cast(Mapping[str, str], self.options), streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return MicroBatchReader(read_options(cast(Mapping[str, str], self.options), streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from starlingmq.spark.sink import BatchWriter

        return BatchWriter(self._sink(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from starlingmq.spark.sink import StreamWriter

        options = self._sink(schema, overwrite)
        if not options.checkpoint:
            raise OptionError(
                "checkpointLocation: set this option of the writer, since the sink stores beside the checkpoint which "
                "node gets which rows; it does not see the setting spark.sql.streaming.checkpointLocation"
            )
        return StreamWriter(options)

    def _sink(self, schema: StructType, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise OptionError(
                "mode overwrite is not supported, because messages cannot be unpublished; use mode append"
            )
        from starlingmq.spark.sink import check_columns  # imports the MQTT client, which readers do not need
        from starlingmq.spark.sink_options import read_sink_options

        options = read_sink_options(cast(Mapping[str, str], self.options))
        check_columns(schema, options)
        return options.for_columns(schema.names)


def rows_of(partition: InputPartition, options: Options) -> Iterator[Any]:
    """Return a part's rows. For a batch without partitions Spark creates an empty one."""
    return read_part(partition, options) if isinstance(partition, RowPartition) else iter(())


class BatchReader(DataSourceReader):
    """Has no ``pushFilters``: Spark 4.3 keeps what it returns for the DataFrame, so that a second query on the same
    DataFrame with fewer predicates would lack rows.
    """

    def __init__(self, options: Options) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        book = NodeBook(self.options)
        try:
            bounds = book.all_bounds()
            start = begin_at(book, bounds)
            batch = NextBatch(book, start, bounds)
            end = StreamPosition(offsets=end_offsets(book, bounds), streams=start.streams)
            option = "endingOffsets" if self.options.until is None else "endingTimestamp"
            given = isinstance(self.options.ending, dict) or self.options.until is not None
            for node, first in start.offsets.items():
                if given and end.offsets.get(node, first) < first:
                    raise StreamError(
                        f"{option}: offset {end.offsets[node]} on node {node} is before its start, {first}"
                    )
            return parts(book, StreamPosition(offsets=batch.begins, streams=start.streams), end)
        finally:
            book.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return rows_of(partition, self.options)


class MicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans on the driver, in a process that lives as long as the query; executors call ``read``. Spark stores
    positions as JSON (``starlingmq.bulk.positions``).
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._book: NodeBook | None = None
        self._target: dict[str, int] | None = None  # with Trigger.AvailableNow
        self._planned_at = time.monotonic()  # the last batch

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_book": None, "_target": None, "_planned_at": 0.0}

    @property
    def book(self) -> NodeBook:
        if self._book is None:
            self._book = NodeBook(self.options)
        return self._book

    def initialOffset(self) -> Told:
        refuse_future(self.options)
        return begin_at(self.book, self.book.bounds()).as_json_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.rows_max:
            return ReadMaxRows(self.options.rows_max)
        return ReadMaxBytes(self.options.bytes_max) if self.options.bytes_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {node: each.next for node, each in self.book.bounds().items()}

    def reportLatestOffset(self) -> Told | None:
        try:
            bounds = self.book.bounds()
        except StreamError:
            return None
        return StreamPosition(
            offsets={node: each.next for node, each in bounds.items()}, streams=ids(bounds)
        ).as_json_dict()

    def latestOffset(self, start: Told, limit: ReadLimit) -> Told:
        begin = position_of(start)
        batch = NextBatch(self.book, begin, self.book.bounds(begin.offsets))
        now = time.monotonic()
        due = self._target is not None or now >= self._planned_at + self.options.trigger_delay
        if batch.rows < self.options.rows_min and not due:
            return start
        self._planned_at = now
        return batch.until(self._target, limit).as_json_dict()

    def partitions(self, start: Told, end: Told) -> Sequence[InputPartition]:
        return parts(self.book, position_of(start), position_of(end))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return rows_of(partition, self.options)

    def commit(self, end: Told) -> None:
        if self.options.consumer:
            done = position_of(end)
            for node, offset in done.offsets.items():
                if node not in self.options.excluded_nodes:
                    self.book.commit(node, offset, done.streams.get(node, ""))

    def stop(self) -> None:
        if self._book is not None:
            self._book.close()
            self._book = None
