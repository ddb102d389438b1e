"""The sink of the format ``starlingmq``: rows become messages, each published once, whatever the number of attempts.

A partition's rows are numbered in order, under a producer name that is the same at each attempt: for a streaming query
its id and the partition, with the batch as the epoch. The broker stores its progress (see ``core.publish.producers``).

A repeated batch write has no checkpoint that fixes which rows are in which partition: with other cores or another
partition size its input is split differently, and a row of partition 0 may move to partition 1. No task knows all
partitions, so a write with an idempotencyKey must have its rows in one partition, whose order the broker can check,
unless the caller promises the same split.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from starlingmq.core.topics.topics import valid_topic
from starlingmq.spark.checkpoint import Checkpoint
from starlingmq.spark.option_error import OptionError
from starlingmq.spark.placing import Placement
from starlingmq.spark.row_publishing import Message, PartitionRows, check_partition, names_at, publish
from starlingmq.spark.sink_options import SinkOptions
from starlingmq.wire.named_properties import encoded_pairs

QUERY_ID: Final = "sql.streaming.queryId"  # properties that Spark sets for the tasks of a streaming query ...
BATCH_ID: Final = "streaming.sql.batchId"  # ... and of its batch

NUMBERS: Final = (ByteType, ShortType, IntegerType, LongType)
WANTED: Final[dict[str, tuple[type[DataType], ...]]] = {
    "topic": (StringType,),
    "payload": (BinaryType, StringType),
    "qos": NUMBERS,
    "retain": (BooleanType,),
    "properties": (ArrayType,),
    "expiry": NUMBERS,
}
PASSED_OVER: Final = ("client_id", "timestamp", "node", "offset")  # columns of the source that the broker assigns again


class RowError(Exception):
    """A row cannot be published."""


class RowsWritten(WriterCommitMessage):
    """``name``: of the query or the write."""

    def __init__(self, partition: int, name: str, rows: PartitionRows) -> None:
        self.partition = partition
        self.name = name
        self.rows = rows


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Check the columns. Raises OptionError, which says what to change."""
    columns = {field.name: field.dataType for field in schema.fields}
    for name, kind in columns.items():
        if name in PASSED_OVER:
            continue
        if name not in WANTED:
            known = ", ".join(WANTED)
            raise OptionError(
                f"column {name}: unknown to the sink, which supports {known}; put it into the payload "
                "(to_json), or drop it"
            )
        if not isinstance(kind, WANTED[name]):
            wanted = " or ".join(each.typeName() for each in WANTED[name])
            raise OptionError(f"column {name} is {kind.simpleString()}, but must be {wanted}")
    if "payload" not in columns:
        raise OptionError("the column payload (binary or string) is missing")
    if "topic" not in columns and not options.topic:
        raise OptionError("the column topic is missing; add it, or set the option topic")
    properties = columns.get("properties")
    if isinstance(properties, ArrayType) and not (
        isinstance(properties.elementType, StructType) and properties.elementType.fieldNames() == ["name", "value"]
    ):
        raise OptionError("column properties must be an array of struct(name string, value string)")


def properties_of(pairs: list[dict[str, str | None]] | None, expiry: int | None) -> bytes:
    """Encode the column ``properties``, in the form of the source, and ``expiry`` in seconds. Raises RowError."""
    try:
        return encoded_pairs([(pair["name"], pair["value"]) for pair in pairs or ()], expiry)
    except ValueError as error:
        raise RowError(str(error)) from None


def messages_of(batch: pa.RecordBatch, options: SinkOptions) -> Iterator[Message]:
    """Convert rows to messages. Raises RowError."""
    rows = batch.num_rows
    columns = set(batch.schema.names)

    def column(name: str, otherwise: object) -> list[Any]:
        if name not in columns:
            return [otherwise] * rows
        values = batch.column(name)
        if values.null_count and otherwise is not None:
            values = pc.fill_null(values, otherwise)
        return list(values.to_pylist())

    payload = batch.column("payload").cast(pa.binary()).to_pylist()
    topics = column("topic", options.topic)
    pairs = column("properties", None) if "properties" in columns else None
    expiries = column("expiry", None) if "expiry" in columns else None
    known: dict[str, bytes] = {}
    plain = pairs is None and expiries is None
    for node, (topic, qos, retain) in enumerate(
        zip(topics, column("qos", options.qos), column("retain", options.retain), strict=True)
    ):
        name = known.get(topic)
        if name is None:
            if not topic:
                raise RowError("the topic of a row is null or empty; leave such rows out, or set the option topic")
            name = known[topic] = topic.encode()
            if not valid_topic(name):
                raise RowError(f"{topic!r} is not a valid topic to publish to")
        if qos not in (0, 1, 2):
            raise RowError(f"qos is {qos}, but must be 0, 1 or 2")
        if retain and payload[node] is None and not options.delete_retained:
            raise RowError(
                f"the payload to {topic} is null and the row has retain, which would delete the retained message; "
                "leave such rows out, or set deleteRetained: true"
            )
        properties = b""
        if not plain:
            properties = properties_of(
                None if pairs is None else pairs[node], None if expiries is None else expiries[node]
            )
        yield name, payload[node] or b"", qos, retain, properties


def write(
    options: SinkOptions, placement: Placement, name: str, epoch: int, batches: Iterator[pa.RecordBatch]
) -> RowsWritten:
    """Run one task. Raises PublishError, RowError, NowhereError."""
    context = TaskContext.get()
    assert context is not None
    partition = context.partitionId()
    rows = (message for batch in batches for message in messages_of(batch, options))
    node = placement.assign(epoch, partition, options.urls, options.excluded_nodes)
    return RowsWritten(partition, name, asyncio.run(publish(options, node, f"{name}/{partition}", epoch, rows)))


def check_next(
    options: SinkOptions, placement: Placement, epoch: int, written: list[WriterCommitMessage | None]
) -> None:
    """Check, when a batch is written that was begun before, that it had no more partitions then. Raises PublishError,
    NowhereError.
    """
    for name in {each.name for each in written if isinstance(each, RowsWritten) and each.rows.repeated}:
        node = placement.assign(epoch, len(written), options.urls, options.excluded_nodes)
        check_partition(options, node, f"{name}/{len(written)}", epoch)


def in_one_partition(batches: Iterator[pa.RecordBatch], partition: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches of partition 0; other partitions must be empty. Raises RowError."""
    for batch in batches:
        if partition and batch.num_rows:
            raise RowError(
                f"partition {partition} has rows, but another attempt with this idempotencyKey may split them "
                "elsewhere and publish some twice; write one partition (coalesce(1)), or set sameSplit: true if the "
                "split is always the same"
            )
        yield batch


class BatchWriter(DataSourceArrowWriter):
    """Created once, on the driver: all its tasks use its name at each attempt."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.name = options.key or f"write-{uuid.uuid4()}"
        self.placement = Placement().with_servers(options.urls, -1)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self.options.key and not self.options.same_split:
            context = TaskContext.get()
            assert context is not None
            iterator = in_one_partition(iterator, context.partitionId())
        return write(self.options, self.placement, self.name, self.options.batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        check_next(self.options, self.placement, self.options.batch, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Created on the driver: before each batch, and after it for ``commit``."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        checkpoint = Checkpoint(options.checkpoint)
        known = checkpoint.read()
        placement = known.with_servers(options.urls, checkpoint.begun())
        unmet = [url for url in options.urls if url not in placement.names]
        if options.checkpoint and unmet:  # before the first row, so that another node at this URL is recognized
            placement = placement.with_names(asyncio.run(names_at(options, unmet)))
        self.placement = placement
        if self.placement != known:
            checkpoint.write(self.placement)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(BATCH_ID) if context is not None else None
        if not query or not batch:
            raise RowError("Spark does not provide the query and batch number here; use foreachBatch")
        return write(self.options, self.placement, self.options.key or query, int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Everything is acknowledged; store the names of the nodes that did so."""
        check_next(self.options, self.placement, batchId, messages)
        met = {url: name for each in messages if isinstance(each, RowsWritten) for url, name in each.rows.met.items()}
        placement = self.placement.with_names(met)
        if placement is not self.placement:
            Checkpoint(self.options.checkpoint).write(placement)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Published rows remain published, and are skipped when the batch is retried."""
