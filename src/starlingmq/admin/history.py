"""The last hour of this node: figures sampled every few seconds into a ring of bounded size, in memory only.

A sample has totals (``TOTALS``), from which a reply computes rates, and states at its time (``STATES``). A reply covers
a time in buckets of equal length whose ends are multiples of that length, so that the buckets of several nodes match.
A bucket without a sample is None: the node did not run, or did not get to it.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from math import ceil, floor
from operator import itemgetter
from time import process_time
from typing import Annotated, Final

from msgspec import Meta, Struct

from starlingmq.admin.declared_actions import action
from starlingmq.admin.droppers import Droppers
from starlingmq.admin.local_node import LocalNode
from starlingmq.admin.node_rpc import Missing
from starlingmq.admin.overview import quantile_ms
from starlingmq.admin.periodic import Periodic
from starlingmq.admin.session_totals_job import SessionTotalsJob
from starlingmq.core.observe.counters import BUCKETS, Histogram
from starlingmq.core.reports.sys_topics import count_own_retained
from starlingmq.net.process import memory
from starlingmq.storage.opening import directory_of

STEP: Final = 5  # seconds between two samples
SECONDS_MAX: Final = 3600  # that a node keeps; Prometheus keeps more
KEPT: Final = SECONDS_MAX // STEP  # samples; about 170 KiB
POINTS_MAX: Final = 720
PIECE: Final = 200  # rows that a reply reads in one turn of the event loop
TOTALS: Final = ("in", "out", "bytes_in", "bytes_out", "dropped", "connections", "cpu")
LATENCIES: Final = ("turn_ms", "turn_p99_ms", "delivery_ms", "delivery_p99_ms", "commit_ms", "fsync_ms")
"""Means and 99th percentiles since the sample before. A bucket shows the largest; of other states the last."""
STATES: Final = ("clients", "sessions", "queued", "inflight", "retained", "memory", *LATENCIES)

Series = dict[str, list[float | None]]


class HistoryRequest(Struct, frozen=True):
    """``end``: the end of the last bucket in broker time. Reads as many buckets of ``step`` seconds as ``points``."""

    end: int = 0
    step: int = STEP
    points: int = 60


class NodeHistory(Struct, frozen=True):
    series: Series


class History(Struct, frozen=True):
    """``nodes``: the series of each node, by name. Each has the same number of values; the last one ends at ``end``."""

    node: str
    end: Annotated[int, Meta(description="Unix time at which the last bucket ends.")]
    step: Annotated[int, Meta(description="Length of a bucket in seconds.")]
    kept: Annotated[int, Meta(description="Seconds that a node keeps, since its start.")]
    nodes: dict[str, Series]
    missing: list[Missing]


def buckets(now: float, seconds: int, points: int) -> HistoryRequest:
    """The request for the last ``seconds``, in at most ``points`` buckets."""
    step = max(ceil(seconds / points / STEP), 1) * STEP
    return HistoryRequest(floor(now / step) * step, step, max(ceil(seconds / step), 1))


def since(rows: Iterable[array[float]], time: float) -> list[array[float]]:
    """Those from the last one before ``time`` on. Each row has the time, ``TOTALS`` and ``STATES``."""
    found = list(rows)
    return found[max(bisect_left(found, time, key=itemgetter(0)) - 1, 0) :]


async def series_of(rows: Sequence[array[float]], request: HistoryRequest) -> Series:
    """Other work continues meanwhile."""
    step, points = request.step, request.points
    first = request.end - step * points
    found: Series = {name: [None] * points for name in (*TOTALS, *STATES)}
    totals = list(enumerate(TOTALS, 1))
    states = list(enumerate(STATES, 1 + len(TOTALS)))
    before: array[float] | None = None  # the last row of an earlier bucket
    last: array[float] | None = None
    at: int | None = None
    for number, row in enumerate(rows, 1):
        if number % PIECE == 0:
            await asyncio.sleep(0)
        bucket = ceil((row[0] - first) / step) - 1
        if bucket >= points:
            break
        if bucket != at:
            before, at = last, bucket
        last = row
        if bucket < 0:
            continue
        for column, name in states:
            values = found[name]
            old = values[bucket]
            values[bucket] = max(old, row[column]) if name in LATENCIES and old is not None else row[column]
        if before is not None and row[0] > before[0]:
            for column, name in totals:
                found[name][bucket] = round(max(row[column] - before[column], 0.0) / (row[0] - before[0]), 3)
    return found


class NodeSampler:
    """Samples of this node, taken by ``periodic``."""

    def __init__(self, local_node: LocalNode, session_totals_job: SessionTotalsJob) -> None:
        self._local_node = local_node
        self._session_totals_job = session_totals_job
        self.samples: deque[array[float]] = deque(maxlen=KEPT)
        self.droppers = Droppers(
            local_node.state.ctx.counters, local_node.driver.clock, local_node.user_of, local_node.why_refused
        )
        self._turns, self._delays, self._commits, self._syncs = Since(), Since(), Since(), Since()
        self.periodic = Periodic("taking a sample", STEP, self.sample, at_once=True)

    @action("history")
    async def history(self, request: HistoryRequest) -> NodeHistory:
        wanted = HistoryRequest(request.end, max(request.step, STEP), min(request.points, POINTS_MAX))
        rows = since(self.samples, wanted.end - wanted.step * wanted.points)
        return NodeHistory(await series_of(rows, wanted))

    async def sample(self) -> None:
        survey = await self._session_totals_job.count()
        local_node = self._local_node
        state = local_node.state
        counters = state.ctx.counters
        self.droppers.take()
        store = directory_of(local_node.driver.store)
        turn, delay = self._turns.mean_and_p99(counters.turns), self._delays.mean_and_p99(counters.delays)
        commit, _ = self._commits.mean_and_p99(counters.commits)
        sync, _ = (0.0, 0.0) if store is None else self._syncs.mean_and_p99(store.syncs)
        self.samples.append(array("d", (
            local_node.driver.clock(),
            counters.publish_received, counters.publish_sent, counters.bytes_received, counters.bytes_sent,
            sum(counters.dropped.values()), counters.connections_opened, process_time(),
            counters.clients_connected, survey.connected + survey.away, survey.queued, survey.inflight,
            len(state.retained) - count_own_retained(state.retained), memory(), *turn, *delay, commit, sync,
        )))  # fmt: skip


class Since:
    """The durations that a histogram has counted since the last look."""

    def __init__(self) -> None:
        self._counts = [0] * BUCKETS
        self._total = 0.0

    def mean_and_p99(self, found: Histogram) -> tuple[float, float]:
        """In milliseconds, and 0 if nothing was counted. The second one is an upper bound."""
        since = [new - old for new, old in zip(found.counts, self._counts, strict=True)]
        seconds = found.total - self._total
        self._counts, self._total = list(found.counts), found.total
        total = sum(since)
        return round(seconds / total * 1000, 4) if total else 0.0, quantile_ms(since, 0.99)
