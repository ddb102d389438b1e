"""Overview of a node: the totals from which rates are computed, and the state of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from starlingmq._version import __version__
from starlingmq.admin.cluster_health import ClusterHealth, cluster_health
from starlingmq.admin.declared_actions import NODE, action
from starlingmq.admin.local_node import LocalNode
from starlingmq.admin.readiness import Readiness, readiness
from starlingmq.admin.session_totals_job import SessionTotalsJob
from starlingmq.core.observe.counters import BUCKETS, Histogram
from starlingmq.core.reports.sys_topics import count_own_retained
from starlingmq.storage.opening import directory_of


def quantile_ms(counts: Sequence[int], share: float) -> float:
    """An upper bound in milliseconds; 0 if nothing was counted."""
    total, seen, bucket = sum(counts), 0, 0
    while bucket < BUCKETS - 1 and seen + counts[bucket] < share * total:
        seen += counts[bucket]
        bucket += 1
    return round(1e-3 * 2**bucket, 3) if total else 0.0


class Slow(Struct, frozen=True):
    client_id: str
    queued: int


class Overview(Struct, frozen=True):
    """``totals`` count since the start; a caller computes rates from two overviews. ``now`` is broker time in
    seconds."""

    node: str
    version: str
    now: float
    uptime: float
    ready: Readiness
    cluster: Annotated[ClusterHealth | None, Meta(description="As this node sees it; null without a cluster.")]
    totals: dict[str, int]
    dropped: dict[str, int]
    closed: dict[str, int]
    holds: dict[str, int]
    slowest: list[Slow]
    latency: dict[str, dict[str, Any]]


class OverviewActions:
    def __init__(self, local_node: LocalNode, session_totals_job: SessionTotalsJob) -> None:
        self.local_node = local_node
        self.session_totals_job = session_totals_job

    @action("overview", "GET /overview", NODE)
    async def overview(self) -> Overview:
        """Get an overview of this node."""
        local_node = self.local_node
        survey = await self.session_totals_job.count()
        counters = local_node.state.ctx.counters
        now = local_node.driver.clock()
        seen = {
            "turn": counters.turns,
            "delivery": counters.delays,
            "commit": counters.commits,
            "lag": local_node.lag.seen,
        }
        latency = {name: summary(histogram) for name, histogram in seen.items()}
        store = directory_of(local_node.driver.store)
        if store is not None:
            latency["fsync"] = summary(store.syncs)
        return Overview(
            local_node.name,
            __version__,
            now,
            now - local_node.state.sys.started_at,
            readiness(local_node),
            _cluster(local_node),
            {
                "messages_received": counters.publish_received,
                "messages_sent": counters.publish_sent,
                "bytes_received": counters.bytes_received,
                "bytes_sent": counters.bytes_sent,
                "dropped": sum(counters.dropped.values()),
                "connections_opened": counters.connections_opened,
                "forwards_sent": counters.forwards_sent,
                "forwards_received": counters.forwards_received,
            },
            dict(counters.dropped),
            dict(counters.errors),
            {
                "connections": counters.connections_open,
                "clients": counters.clients_connected,
                "sessions": survey.connected + survey.away,
                "sessions_away": survey.away,
                "subscriptions": survey.subscriptions,
                "retained": len(local_node.state.retained) - count_own_retained(local_node.state.retained),
                "queued": survey.queued,
                "inflight": survey.inflight,
                "groups": len(local_node.state.router.groups()),
            },
            [Slow(client_id, queued) for queued, client_id in survey.slow],
            latency,
        )


def _cluster(local_node: LocalNode) -> ClusterHealth | None:
    if local_node.cluster is None or local_node.cluster.state is None:
        return None
    return cluster_health(local_node.cluster, local_node.driver.clock(), readiness(local_node).reasons)


def summary(found: Histogram) -> dict[str, Any]:
    """Count, mean, and upper bounds of quantiles in milliseconds."""
    total = sum(found.counts)
    return {
        "count": total,
        "mean_ms": round(found.total / total * 1000, 3) if total else 0.0,
        "p50_ms": quantile_ms(found.counts, 0.5),
        "p99_ms": quantile_ms(found.counts, 0.99),
    }
