"""The Spark data source ``starlingmq``: streams as rows, for batch and streaming queries, straight from the nodes.

A position is a map from node to offset. Rows between two positions are always the same ones, so a query that is run
again from its checkpoint, and writes to a sink that takes a batch once, loses nothing and doubles nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, cast

import pyarrow as pa  # type: ignore[import-untyped]
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

from starlingmq.bulk.protocol import Ticket
from starlingmq.spark.nodes import AGAIN_SECONDS, LostRows, NodeAway, NodeBook, NodeConnection, StreamError
from starlingmq.spark.read_options import EARLIEST, LATEST, OptionError, Options, read_options
from starlingmq.spark.sink import BatchWriter, StreamWriter, check_columns
from starlingmq.spark.sink_options import SinkOptions, read_sink_options

log = logging.getLogger("starlingmq.spark")

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

LOST: Final = "(lost)"  # in a position: how many rows up to it the query has gone on without

Position = dict[str, int]


def register(spark: SparkSession) -> None:
    """Make the format ``starlingmq`` known to a session."""
    spark.dataSource.register(StarlingSource)


class StarlingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "starlingmq"

    def schema(self) -> StructType:
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(read_options(cast(Mapping[str, str], self.options), streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return MicroBatchReader(read_options(cast(Mapping[str, str], self.options), streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(self._sink(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(self._sink(schema, overwrite))

    def _sink(self, schema: StructType, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise OptionError(
                "mode overwrite is not supported, because messages cannot be unpublished; use mode append"
            )
        options = read_sink_options(cast(Mapping[str, str], self.options))
        check_columns(schema, options)
        return options


class RowPartition(InputPartition):
    """Rows of one node, for one task. ``forgive``: what is not kept any more is left out."""

    def __init__(self, node: str, address: str, start: int, end: int, forgive: bool) -> None:
        super().__init__((node, start, end))
        self.node = node
        self.address = address
        self.start = start
        self.end = end
        self.forgive = forgive


def parts(book: NodeBook, start: Position, end: Position, forgiven: frozenset[str] = frozenset()) -> list[RowPartition]:
    """The rows between two positions, in pieces of about the same size."""
    options = book.options
    found: list[RowPartition] = []
    for node in sorted(end):
        if node == LOST:
            continue
        first, last = start.get(node, 0), end[node]
        rows = last - first
        if rows > 0 and node in options.without:
            log.warning(
                "node %s is gone, so %d rows of stream %s before offset %d are left out",
                node,
                rows,
                options.stream,
                last,
            )
            continue
        if rows <= 0:
            continue
        address = _address(book, node)
        pieces = -(-rows // options.rows_per_partition)
        edges = [first + rows * piece // pieces for piece in range(pieces + 1)]
        forgive = not options.fail_on_loss or node in forgiven
        found += [RowPartition(node, address, begin, until, forgive) for begin, until in pairwise(edges)]
    return found


def _address(book: NodeBook, node: str) -> str:
    if node not in book.addresses:
        book.patiently(book.look)
    address = book.addresses.get(node)
    if address is None:
        raise StreamError(
            f"node {node} has a part of stream {book.options.stream}, but none of "
            f"{', '.join(book.options.servers)} knows its address; start it, or add it to the option "
            "servers"
        )
    return address


def read_part(part: RowPartition, options: Options) -> Iterator[pa.RecordBatch]:
    """The rows of a part. A node that goes away meanwhile is waited for, and read on where it was left."""
    offset = part.start
    until = time.monotonic() + options.patience
    connection = NodeConnection(part.address, options)
    while offset < part.end:
        ticket = Ticket(
            stream=options.stream, start=offset, end=part.end, filters=list(options.filters), forgive=part.forgive
        )
        before = offset
        try:
            for batch, progress in connection.rows(ticket):
                if progress.lost:
                    _lost(part, options, progress.lost, progress.next)
                offset = progress.next
                until = time.monotonic() + options.patience
                if batch.num_rows:
                    yield batch
            if offset == before:
                raise NodeAway(f"the stream ends at offset {offset}, before {part.end}, which was readable earlier")
        except NodeAway as error:
            if time.monotonic() >= until:
                raise StreamError(
                    f"node {part.node} became unreachable while stream {options.stream} was read from "
                    f"offset {offset}: {error}"
                ) from None
            time.sleep(AGAIN_SECONDS)
            connection.close()
            connection = NodeConnection(part.address, options)
    connection.close()


def _lost(part: RowPartition, options: Options, count: int, before: int) -> None:
    what = f"{count} rows of stream {options.stream} on node {part.node} before offset {before}"
    if not part.forgive:
        raise LostRows(f"{what} are lost; set the option failOnDataLoss: false to continue without them")
    log.warning("%s are lost; the query continues without them", what)


def position_at(book: NodeBook, where: str | Position, bounds: dict[str, tuple[int, int]]) -> Position:
    """A position as an option gives it. Raises StreamError for nodes that are not there."""
    if where == EARLIEST:
        return {node: first for node, (first, _) in bounds.items()}
    if where == LATEST:
        return {node: last for node, (_, last) in bounds.items()}
    offsets = cast(Position, where)
    strangers = sorted(set(offsets) - set(bounds))
    if strangers:
        raise StreamError(f"offsets are given for {', '.join(strangers)}, but the stream is on {', '.join(bounds)}")
    for node, offset in offsets.items():
        if not 0 <= offset <= bounds[node][1]:
            raise StreamError(f"offset {offset} is given for node {node}, which has only {bounds[node][1]} so far")
    return {node: offsets.get(node, first) for node, (first, _) in bounds.items()}


def begin_at(book: NodeBook, bounds: dict[str, tuple[int, int]]) -> Position:
    options = book.options
    if options.since is None:
        return position_at(book, options.starting, bounds)
    return {node: book.seek(node, options.since) for node in bounds}


def check_kept(options: Options, start: Position, bounds: dict[str, tuple[int, int]]) -> int:
    """How many rows that are to be read are not kept any more. Raises LostRows, unless that is forgiven."""
    count = 0
    for node, offset in start.items():
        first, last = bounds.get(node, (offset, offset))
        if first > offset or last < offset:
            lost = f"{first - offset} rows" if first > offset else f"rows from offset {last} on"
            what = f"node {node} no longer has {lost} of stream {options.stream} (it has {first} to {last})"
            if options.fail_on_loss:
                raise LostRows(f"{what}; set the option failOnDataLoss: false to continue without them")
            log.warning("%s; the query continues without them", what)
            count += max(0, first - offset)
    return count


class BatchReader(DataSourceReader):
    def __init__(self, options: Options) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        book = NodeBook(self.options)
        try:
            bounds = book.bounds({})
            start = begin_at(book, bounds)
            end = position_at(book, self.options.ending, bounds)
            check_kept(self.options, start, bounds)
            return parts(book, start, end)
        finally:
            book.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_part(cast(RowPartition, partition), self.options)


class MicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans on the driver, in a process that lasts as long as the query; ``read`` is called elsewhere."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._book: NodeBook | None = None
        self._target: Position | None = None  # with Trigger.AvailableNow

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_book": None, "_target": None}

    @property
    def book(self) -> NodeBook:
        if self._book is None:
            self._book = NodeBook(self.options)
        return self._book

    def initialOffset(self) -> Position:
        return begin_at(self.book, self.book.bounds({}))

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.rows_max:
            return ReadMaxRows(self.options.rows_max)
        return ReadMaxBytes(self.options.bytes_max) if self.options.bytes_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {node: last for node, (_, last) in self.book.bounds({}).items()}

    def reportLatestOffset(self) -> Position | None:
        try:
            return {node: last for node, (_, last) in self.book.bounds({}).items()}
        except StreamError:
            return None

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:
        start = dict(start)
        lost = start.pop(LOST, 0)
        bounds = self.book.bounds(start)
        lost += check_kept(self.options, start, bounds)
        ends = {node: last for node, (_, last) in bounds.items()}
        # A node that has less than was read, which is forgiven by option, is read on from where it ends now.
        begins = {node: min(last, max(start.get(node, 0), first)) for node, (first, last) in bounds.items()}
        if self._target is not None:
            ends = {node: max(begins[node], min(end, self._target.get(node, 0))) for node, end in ends.items()}
        if isinstance(limit, ReadMaxRows):
            ends = self._rows(begins, ends, limit.max_rows)
        if isinstance(limit, ReadMaxBytes) or (isinstance(limit, ReadMaxRows) and self.options.bytes_max):
            size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.options.bytes_max
            ends = self._bytes(begins, ends, size)
        # A node without rows so far is left out until it has some, so that its beginning can not be mistaken.
        found = start | {node: end for node, end in ends.items() if end or node in start}
        return found | ({LOST: lost} if lost else {})

    @staticmethod
    def _rows(begins: Position, ends: Position, rows_max: int) -> Position:
        """Each node's share of the rows: as large as its share of what waits."""
        waiting = {node: max(0, ends[node] - begins[node]) for node in ends}
        total = sum(waiting.values())
        if total <= rows_max:
            return ends
        shares = {node: waiting[node] * rows_max // total for node in ends}
        left = rows_max - sum(shares.values())
        for node in sorted(ends, key=lambda node: (shares[node], node)):
            if left and shares[node] < waiting[node]:
                shares[node] += 1
                left -= 1
        return {node: ends[node] if not waiting[node] else begins[node] + shares[node] for node in ends}

    def _bytes(self, begins: Position, ends: Position, size: int) -> Position:
        busy = [node for node in ends if ends[node] > begins[node]]
        limited = dict(ends)
        for node in busy:
            limited[node] = min(ends[node], self.book.limit(node, begins[node], max(1, size // len(busy))))
        return limited

    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        return parts(self.book, start, end, frozenset(node for node in end if node not in start))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_part(cast(RowPartition, partition), self.options)

    def commit(self, end: Position) -> None:
        if self.options.consumer:
            for node, offset in end.items():
                if node != LOST and node not in self.options.without:
                    self.book.commit(node, offset)

    def stop(self) -> None:
        if self._book is not None:
            self._book.close()
            self._book = None
