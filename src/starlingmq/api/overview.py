"""One look at a node: what is needed to draw rates, and to see what is wrong."""

from __future__ import annotations

from typing import Any

from litestar import get
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from starlingmq._version import __version__
from starlingmq.api.health import Ready, readiness
from starlingmq.api.lag import Lag
from starlingmq.api.metrics import summary
from starlingmq.api.served import Served
from starlingmq.api.survey import Surveyor
from starlingmq.storage.opening import DirectoryStore


class Slow(Struct, frozen=True):
    client_id: str
    queued: int


class Overview(Struct, frozen=True):
    """Totals since start under ``totals``: whoever wants rates asks twice. ``now`` is broker time in seconds."""

    node: str
    version: str
    now: float
    uptime: float
    ready: Ready
    totals: dict[str, int]
    dropped: dict[str, int]
    closed: dict[str, int]
    holds: dict[str, int]
    slowest: list[Slow]
    latency: dict[str, dict[str, Any]]


def routes(served: Served, surveyor: Surveyor, lag: Lag) -> list[HTTPRouteHandler]:
    state = served.state

    @get("/overview", summary="This node at a glance")
    async def overview() -> Overview:
        survey = await surveyor.survey()
        counters = state.ctx.counters
        now = served.driver.clock()
        latency = {"turn": summary(counters.turns), "commit": summary(counters.commits), "lag": summary(lag.seen)}
        if isinstance(served.driver.store, DirectoryStore):
            latency["fsync"] = summary(served.driver.store.syncs)
        return Overview(
            served.name,
            __version__,
            now,
            now - state.sys.started_at,
            readiness(served),
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
                "subscriptions": int(state.sys.figures()["subscriptions/count"]),
                "retained": len(state.retained),
                "queued": survey.queued,
                "inflight": survey.inflight,
                "groups": len(state.router.groups()),
            },
            [Slow(client_id, queued) for queued, client_id in survey.slow],
            latency,
        )

    return [overview]
