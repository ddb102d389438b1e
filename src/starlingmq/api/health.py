"""Health checks: whether the process is alive, and whether it should receive clients; for load balancers and
supervisors."""

from __future__ import annotations

from typing import Literal

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from msgspec import Struct

from starlingmq.admin.readiness import Readiness, readiness
from starlingmq.api.guard import HEALTH
from starlingmq.api.served import served


class Live(Struct, frozen=True):
    status: Literal["ok"]


def routes() -> list[HTTPRouteHandler]:
    @get("/health/live", summary="Check that the event loop runs", tags=["health"], opt=HEALTH)
    async def live() -> Live:
        return Live("ok")

    @get(
        "/health/ready",
        summary="Check whether this node accepts clients; status 503 if not",
        tags=["health"],
        opt=HEALTH,
        responses={
            503: ResponseSpec(Readiness, generate_examples=False, description="This node does not accept clients.")
        },
    )
    async def ready() -> Response[Readiness]:
        found = readiness(served().local_node)
        return Response(found, status_code=503 if found.reasons else 200)

    return [live, ready]
