"""Whether the broker lives, and whether it should be sent clients: for load balancers and whoever restarts it."""

from __future__ import annotations

from typing import Annotated, Literal

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from msgspec import Meta, Struct

from starlingmq.api.served import Served


class Live(Struct, frozen=True):
    status: Literal["ok"]


class Ready(Struct, frozen=True):
    status: Literal["ok", "not_ready"]
    storage: Annotated[str, Meta(description="ok, full or failing; none where nothing is kept.")]
    cluster: Annotated[str, Meta(description="serving, isolated, joining or draining; none without a cluster.")]
    reasons: Annotated[tuple[str, ...], Meta(description="Why it is not ready.")]


def readiness(served: Served) -> Ready:
    ctx = served.state.ctx
    storage = ctx.storage_state.partition(" ")[0] if ctx.recording else "none"
    cluster = _cluster(served)
    reasons = []
    if not served.serving:
        reasons.append("clients can not come yet, or any more")
    if ctx.refusing:
        reasons.append(f"nothing can be stored: the disk is {storage}")
    if cluster not in ("none", "serving"):
        reasons.append(f"this node is {cluster}")
    return Ready("not_ready" if reasons else "ok", storage, cluster, tuple(reasons))


def _cluster(served: Served) -> str:
    if served.cluster is None:
        return "none"
    state = served.cluster.state
    if state is None or not (state.serving or served.serving):
        return "joining"
    if state.drain.active:
        return "draining"
    return "isolated" if served.state.ctx.isolated or not state.serving else "serving"


def routes(served: Served) -> list[HTTPRouteHandler]:
    @get("/health/live", summary="Whether the event loop turns", tags=["health"])
    async def live() -> Live:
        return Live("ok")

    @get("/health/ready", summary="Whether clients should come here; status 503 if not", tags=["health"])
    async def ready() -> Response[Ready]:
        found = readiness(served)
        return Response(found, status_code=503 if found.reasons else 200)

    return [live, ready]
