"""Overview of a node: the totals from which rates are computed, and the state of its parts."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from starlingmq._version import __version__
from starlingmq.admin.cluster_health import ClusterHealth, cluster_health
from starlingmq.admin.local_node import LocalNode
from starlingmq.admin.readiness import Readiness, readiness
from starlingmq.admin.session_totals_job import SessionTotalsJob
from starlingmq.admin.typed_actions import NoArguments, typed
from starlingmq.core.observe.counters import BUCKETS, Histogram
from starlingmq.net.control_socket import Action, Report
from starlingmq.storage.opening import directory_of


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
    def __init__(self, place: LocalNode, surveyor: SessionTotalsJob) -> None:
        self.place = place
        self.surveyor = surveyor

    def actions(self) -> dict[str, Action]:
        return {"overview": typed(NoArguments, self.overview)}

    async def overview(self, report: Report, request: NoArguments) -> Overview:
        place = self.place
        survey = await self.surveyor.survey()
        counters = place.state.ctx.counters
        now = place.driver.clock()
        seen = {
            "turn": counters.turns,
            "delivery": counters.delays,
            "commit": counters.commits,
            "lag": place.lag.seen,
        }
        latency = {name: summary(histogram) for name, histogram in seen.items()}
        store = directory_of(place.driver.store)
        if store is not None:
            latency["fsync"] = summary(store.syncs)
        return Overview(
            place.name,
            __version__,
            now,
            now - place.state.sys.started_at,
            readiness(place),
            _cluster(place),
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
                "subscriptions": int(place.state.sys.figures()["subscriptions/count"]),
                "retained": len(place.state.retained),
                "queued": survey.queued,
                "inflight": survey.inflight,
                "groups": len(place.state.router.groups()),
            },
            [Slow(client_id, queued) for queued, client_id in survey.slow],
            latency,
        )


def _cluster(place: LocalNode) -> ClusterHealth | None:
    if place.cluster is None or place.cluster.state is None:
        return None
    return cluster_health(place.cluster, place.driver.clock())


def summary(found: Histogram) -> dict[str, Any]:
    """Count, mean, and upper bounds of quantiles in milliseconds."""
    total = sum(found.counts)
    shown: dict[str, Any] = {"count": total, "mean_ms": round(found.total / total * 1000, 3) if total else 0.0}
    for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99)):
        seen, place = 0, 0
        while place < BUCKETS - 1 and seen + found.counts[place] < share * total:
            seen += found.counts[place]
            place += 1
        shown[name] = round(1e-3 * 2**place, 3) if total else 0.0
    return shown
