"""The rows between two offsets of a node, read in a task; ``parts`` cuts a batch into such pieces on the driver."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import InputPartition

from starlingmq.bulk.positions import StreamPosition
from starlingmq.bulk.protocol import Progress, Ticket
from starlingmq.spark.nodes import (
    AGAIN_SECONDS,
    LostRows,
    NodeAway,
    NodeBook,
    NoSuchStream,
    StreamError,
    StreamReplaced,
)
from starlingmq.spark.read_options import Options

log = logging.getLogger("starlingmq.spark")

FAIL_OR: Final = "set the option failOnDataLoss: false to continue without them"


class RowPartition(InputPartition):
    """Rows of one node, for one task. ``address``: the node's address at planning; ``stream``: the id of its stream;
    ``forgive``: deleted rows are skipped.
    """

    def __init__(self, node: str, address: str, start: int, end: int, forgive: bool, stream: str = "") -> None:
        super().__init__((node, start, end))
        self.node = node
        self.address = address
        self.start = start
        self.end = end
        self.forgive = forgive
        self.stream = stream


def parts(book: NodeBook, start: StreamPosition, end: StreamPosition) -> list[RowPartition]:
    """Split the rows between two positions into parts of about the same size: at least ``minPartitions``, if there are
    as many rows. Raises StreamError.
    """
    options = book.options
    counts = {node: max(0, last - first) for node in end.offsets for first, last in [start.rows(end, node)]}
    share = max(1, sum(counts.values()) // options.partitions_min)
    found: list[RowPartition] = []
    for node in sorted(end.offsets):
        first, last = start.rows(end, node)
        rows = counts[node]
        if not rows:
            continue
        if node in options.excluded_nodes:
            log.warning(
                "node %s is gone, so %d rows of stream %s before offset %d are left out",
                node,
                rows,
                options.stream,
                last,
            )
            continue
        address = book.address(node)
        pieces = -(-rows // min(options.rows_per_partition, share))
        edges = [first + rows * piece // pieces for piece in range(pieces + 1)]
        forgive = not options.fail_on_loss or node not in start.offsets  # the latter: a batch of an earlier release
        stream = end.streams.get(node, "")
        found += [RowPartition(node, address, begin, until, forgive, stream) for begin, until in pairwise(edges)]
    return found


def read_part(part: RowPartition, options: Options) -> Iterator[pa.RecordBatch]:
    """Read the rows of a part. If the node becomes unreachable, wait for it and continue at the same offset, at its new
    address.
    """
    offset = part.start
    until = time.monotonic() + options.node_timeout
    book = NodeBook(options)
    book.addresses[part.node] = part.address
    try:
        while offset < part.end:
            before = offset
            try:
                for batch, progress in _rows(book, part, offset):
                    if progress.lost:
                        _lost(part, options, progress.lost, progress.next)
                    offset = progress.next
                    until = time.monotonic() + options.node_timeout
                    if batch.num_rows:
                        yield batch
                if offset == before:
                    raise NodeAway(f"the stream ends at offset {offset}, before {part.end}, which was readable earlier")
            except (StreamReplaced, NoSuchStream) as error:
                if not part.forgive:
                    raise LostRows(f"{error}; {FAIL_OR}") from None
                _lost(part, options, part.end - offset, part.end)
                return
            except NodeAway as error:
                if time.monotonic() >= until:
                    raise StreamError(
                        f"node {part.node} became unreachable while stream {options.stream} was read from "
                        f"offset {offset}: {error}"
                    ) from None
                time.sleep(AGAIN_SECONDS)
                _look_again(book)
    finally:
        book.close()


def _rows(book: NodeBook, part: RowPartition, offset: int) -> Iterator[tuple[pa.RecordBatch, Progress]]:
    options = book.options
    ticket = Ticket(
        stream=options.stream,
        start=offset,
        end=part.end,
        filters=list(options.filters),
        forgive=part.forgive,
        id=part.stream,
        columns=list(options.columns),
    )
    address = book.addresses.get(part.node)
    if address is None:
        raise NodeAway(f"no server knows the address of node {part.node}")
    for batch, progress in book.at(address).rows(ticket, part.node):
        # A node of an earlier release sends all columns.
        yield batch.select(ticket.columns) if ticket.columns else batch, progress


def _look_again(book: NodeBook) -> None:
    """Look the node up again: it may have returned at another address."""
    book.close()
    with suppress(NodeAway, StreamError):
        book.look()


def _lost(part: RowPartition, options: Options, count: int, before: int) -> None:
    what = f"{count} rows of stream {options.stream} on node {part.node} before offset {before}"
    if not part.forgive:
        raise LostRows(f"{what} are lost; {FAIL_OR}")
    log.warning("%s are lost; the query continues without them", what)
