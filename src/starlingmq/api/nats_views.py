"""``/varz``, ``/connz``, ``/subsz`` and ``/healthz`` as nats-server has them. The first three require a login."""

from __future__ import annotations

from typing import Annotated

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter

from starlingmq.admin.nats_monitor import CONNECTIONS_MAX, Connz, Healthz, Sort, Subsz, Varz
from starlingmq.api.guard import HEALTH
from starlingmq.api.served import served


def routes() -> list[HTTPRouteHandler]:
    @get("/varz", summary="Get server information in the JSON format of nats-server", tags=["nats"])
    async def varz() -> Varz:
        return served().nats.varz()

    @get("/connz", summary="List NATS connections in the JSON format of nats-server", tags=["nats"])
    async def connz(
        sort: Annotated[Sort, Parameter(description="Sort order: by number, or largest first.")] = "cid",
        offset: Annotated[int, Parameter(ge=0, le=10_000_000, description="Number of connections to skip.")] = 0,
        limit: Annotated[
            int, Parameter(ge=1, description=f"Maximum number of connections, up to {CONNECTIONS_MAX:,}.")
        ] = CONNECTIONS_MAX,
        subs: Annotated[bool, Parameter(description="Include the subjects of each connection.")] = False,
    ) -> Connz:
        return served().nats.connz(sort, offset, limit, subs)

    @get("/subsz", summary="List NATS subscriptions in the JSON format of nats-server", tags=["nats"])
    async def subsz() -> Subsz:
        return served().nats.subsz()

    @get(
        "/healthz",
        summary="Check whether this node accepts clients, in the JSON format of nats-server",
        tags=["nats"],
        opt=HEALTH,
    )
    async def healthz() -> Response[Healthz]:
        found = served().nats.healthz()
        return Response(found if found.error else Healthz("ok"), status_code=found.status_code)

    return [varz, connz, subsz, healthz]
