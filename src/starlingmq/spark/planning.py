"""Plans on the driver where a query of a stream begins, and where its next batch ends."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Final, cast

from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows

from starlingmq.bulk.positions import StreamPosition
from starlingmq.bulk.protocol import Bounds
from starlingmq.spark.nodes import LostRows, NodeBook, StreamError
from starlingmq.spark.read_options import EARLIEST, LATEST, Options
from starlingmq.spark.row_reading import FAIL_OR

log = logging.getLogger("starlingmq.spark")

Offsets = dict[str, int]
FROM_THE_BEGINNING: Final = 0.0  # for a node in ``waiting``
FIRST, LAST = -2, -1  # an offset in an option, as in Kafka's source: the earliest, the latest


def ids(bounds: dict[str, Bounds]) -> dict[str, str]:
    return {node: each.id for node, each in bounds.items()}


def begin_at(book: NodeBook, bounds: dict[str, Bounds]) -> StreamPosition:
    """Return the first position of a query. It includes unreachable nodes: their rows are read from the same time on
    when they return. Raises StreamError.
    """
    options = book.options
    offsets = begin_offsets(book, bounds)
    waiting = {node: _begin_time(options, node) for node in book.missing() if node not in offsets}
    return StreamPosition(offsets=offsets, streams=ids(bounds), waiting=waiting)


def refuse_future(options: Options) -> None:
    """A streaming query begins at an offset, so rows would be read that come before that time. Raises StreamError."""
    since = options.since if isinstance(options.since, dict) else {"": options.since or 0.0}
    for node, when in since.items():
        if when > time.time():
            told = datetime.fromtimestamp(when, UTC).isoformat()
            raise StreamError(
                f"startingTimestamp: {told}{node and f' of node {node}'} is in the future, and the query would read "
                "the rows until then as well; start it after that time, or set startingOffsets to latest"
            )


def _begin_time(options: Options, node: str) -> float:
    if options.since is None:
        where = options.starting if isinstance(options.starting, str) else options.starting.get(node, FIRST)
        return time.time() if where in (LATEST, LAST) else FROM_THE_BEGINNING
    return options.since.get(node, FROM_THE_BEGINNING) if isinstance(options.since, dict) else options.since


def begin_offsets(book: NodeBook, bounds: dict[str, Bounds]) -> Offsets:
    if book.options.since is None:
        return offsets_at(book.options.starting, bounds, book.away | set(book.options.excluded_nodes))
    return {node: each.first for node, each in bounds.items()} | _seek(book, bounds, book.options.since)


def end_offsets(book: NodeBook, bounds: dict[str, Bounds]) -> Offsets:
    """Return the end of a batch query. Raises StreamError."""
    if book.options.until is None:
        return offsets_at(book.options.ending, bounds, set(book.options.excluded_nodes), LATEST)
    return {node: each.next for node, each in bounds.items()} | _seek(book, bounds, book.options.until)


def _seek(book: NodeBook, bounds: dict[str, Bounds], when: float | dict[str, float]) -> Offsets:
    times = when if isinstance(when, dict) else dict.fromkeys(bounds, when)
    _check_nodes("timestamps", set(times), bounds, book.away)
    return {node: book.seek(node, times[node]) for node in bounds if node in times}


def _check_nodes(what: str, given: set[str], bounds: dict[str, Bounds], away: set[str]) -> None:
    strangers = sorted(given - set(bounds) - away)
    if strangers:
        raise StreamError(f"{what} are given for {', '.join(strangers)}, but the stream is on {', '.join(bounds)}")


def offsets_at(where: str | Offsets, bounds: dict[str, Bounds], away: set[str], otherwise: str = EARLIEST) -> Offsets:
    """Return the offsets given by an option; ``otherwise``: for nodes that it does not name. Raises StreamError for
    nodes that do not exist.
    """
    if where == EARLIEST:
        return {node: each.first for node, each in bounds.items()}
    if where == LATEST:
        return {node: each.next for node, each in bounds.items()}
    given = cast(Offsets, where)
    _check_nodes("offsets", set(given), bounds, away)
    offsets = {node: offset for node, offset in given.items() if offset >= 0}
    for node in set(given) & set(bounds):
        last = bounds[node].next
        if given[node] == LAST:
            offsets[node] = last
        elif given[node] != FIRST and not 0 <= given[node] <= last:
            raise StreamError(
                f"offset {given[node]} is given for node {node}, which has offsets up to {last}; {FIRST} is the "
                f"earliest one that it has, {LAST} the end"
            )
    return offsets_at(otherwise, bounds, away) | offsets


class NextBatch:
    """The next batch after a position. ``begins`` and ``ends``: of the nodes that may contribute rows. Raises
    StreamError; LostRows for rows that no longer exist, unless ``failOnDataLoss`` is false.
    """

    def __init__(self, book: NodeBook, start: StreamPosition, bounds: dict[str, Bounds]) -> None:
        self.book = book
        self.options: Options = book.options
        self.begins: Offsets = {}
        self.ends: Offsets = {}
        self._lost = start.lost
        self._again = start.again
        self._offsets = dict(start.offsets)
        self._streams = dict(start.streams)
        self._waiting = dict(start.waiting)
        for node, offset in start.offsets.items():
            if node in bounds:
                self._go_on(node, offset, bounds[node])
            elif node not in self.options.excluded_nodes and node not in book.without:
                self._forgiven(f"stream {self.options.stream} has been deleted on node {node}")
                book.without.add(node)
        book.without -= bounds.keys()
        for node in bounds.keys() - start.offsets.keys():
            self._begin(node, bounds[node])

    def _go_on(self, node: str, offset: int, there: Bounds) -> None:
        known = self._streams.get(node, "")
        if known and there.id and known != there.id:
            if offset > there.earlier.get(known, -1):
                self._begin_again(node, offset, there)
            self._streams[node] = there.id
            return
        self._streams[node] = there.id or known
        if there.first > offset:
            self._trimmed(node, there.first - offset, there)
        elif there.next < offset:
            what = f"node {node} no longer has rows from offset {there.next} on of stream {self.options.stream}"
            self._forgiven(f"{what} (it has {there.first} to {there.next})")
        # A node with fewer rows than were read, if the option allows it, is read from its current end on.
        self.begins[node] = min(there.next, max(offset, there.first))
        self.ends[node] = there.next

    def _begin_again(self, node: str, offset: int, there: Bounds) -> None:
        """The stream is another one of the same name; its rows are in the batch after this one."""
        self._forgiven(
            f"stream {self.options.stream} on node {node} is not the one that was read up to offset {offset}: it was "
            "deleted and created again, or the node has lost its disk, or was restored from a backup"
        )
        self._again += 1
        self._lost += there.first - there.begin
        self._offsets[node] = there.first

    def _begin(self, node: str, there: Bounds) -> None:
        """Begin a node that the position lacks, or that was unreachable when the query began. Its rows are in the next
        batch.
        """
        address = self.book.addresses.get(node, "")
        since = self._waiting.pop(node, None)
        by_address = self._waiting.pop(address, None)
        since = by_address if since is None else since
        if since is None:
            if there.first > there.begin:
                self._trimmed(node, there.first - there.begin, there)
            self._offsets[node] = there.first
        else:
            self._offsets[node] = there.first if since == FROM_THE_BEGINNING else self.book.seek(node, since)
        self._streams[node] = there.id

    def _trimmed(self, node: str, count: int, there: Bounds) -> None:
        what = f"node {node} no longer has {count} rows of stream {self.options.stream}"
        self._forgiven(f"{what} (it has {there.first} to {there.next})")
        self._lost += count

    def _forgiven(self, what: str) -> None:
        if self.options.fail_on_loss:
            raise LostRows(f"{what}; {FAIL_OR}")
        log.warning("%s; the query continues without them", what)

    @property
    def rows(self) -> int:
        """Rows that wait now."""
        return sum(max(0, end - self.begins[node]) for node, end in self.ends.items())

    def until(self, target: Offsets | None, limit: ReadLimit) -> StreamPosition:
        """Return the end of the batch. ``target``: the maximum."""
        ends = self.ends
        if target is not None:
            ends = {node: max(self.begins[node], min(end, target.get(node, 0))) for node, end in ends.items()}
        if isinstance(limit, ReadMaxRows):
            ends = shares(self.begins, ends, limit.max_rows)
        if isinstance(limit, ReadMaxBytes) or (isinstance(limit, ReadMaxRows) and self.options.bytes_max):
            ends = self._bytes(ends, limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.options.bytes_max)
        return StreamPosition(
            offsets=self._offsets | ends,
            streams=self._streams,
            waiting=self._waiting,
            lost=self._lost,
            again=self._again,
        )

    def _bytes(self, ends: Offsets, size: int) -> Offsets:
        busy = [node for node in ends if ends[node] > self.begins[node]]
        limited = dict(ends)
        for node in busy:
            limited[node] = min(ends[node], self.book.limit(node, self.begins[node], max(1, size // len(busy))))
        return limited


def shares(begins: Offsets, ends: Offsets, rows_max: int) -> Offsets:
    """Return each node's number of rows, in proportion to its waiting rows."""
    waiting = {node: max(0, ends[node] - begins[node]) for node in ends}
    total = sum(waiting.values())
    if total <= rows_max:
        return ends
    found = {node: waiting[node] * rows_max // total for node in ends}
    left = rows_max - sum(found.values())
    for node in sorted(ends, key=lambda node: (found[node], node)):
        if left and found[node] < waiting[node]:
            found[node] += 1
            left -= 1
    return {node: ends[node] if not waiting[node] else begins[node] + found[node] for node in ends}
