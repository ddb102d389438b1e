"""``/varz``, ``/connz``, ``/subsz`` and ``/healthz`` as nats-server has them. The first three ask for a log-in."""

from __future__ import annotations

from typing import Annotated

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter

from starlingmq.admin.nats_monitor import CONNECTIONS_MAX, Connz, Healthz, NatsMonitor, Sort, Subsz, Varz
from starlingmq.api.guard import HEALTH
from starlingmq.api.served import Served


def routes(served: Served) -> list[HTTPRouteHandler]:
    monitor = NatsMonitor(served.place)

    @get("/varz", summary="The server, in nats-server's JSON", tags=["nats"])
    async def varz() -> Varz:
        return monitor.varz()

    @get("/connz", summary="NATS connections, in nats-server's JSON", tags=["nats"])
    async def connz(
        sort: Annotated[Sort, Parameter(description="By number, or the largest first.")] = "cid",
        offset: Annotated[int, Parameter(ge=0, le=10_000_000, description="Connections to skip.")] = 0,
        limit: Annotated[
            int, Parameter(ge=1, description=f"At most {CONNECTIONS_MAX:,} are listed.")
        ] = CONNECTIONS_MAX,
        subs: Annotated[bool, Parameter(description="List the subjects of each connection.")] = False,
    ) -> Connz:
        return monitor.connz(sort, offset, limit, subs)

    @get("/subsz", summary="NATS subscriptions, in nats-server's JSON", tags=["nats"])
    async def subsz() -> Subsz:
        return monitor.subsz()

    @get("/healthz", summary="Whether clients should come here, in nats-server's JSON", tags=["nats"], opt=HEALTH)
    async def healthz() -> Response[Healthz]:
        found = monitor.healthz()
        return Response(found if found.error else Healthz("ok"), status_code=found.status_code)

    return [varz, connz, subsz, healthz]
