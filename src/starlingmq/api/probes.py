"""Routes outside of ``/api/v1``, for load balancers, supervisors and collectors: health checks, metrics in Prometheus
format, and ``/varz``, ``/connz``, ``/subsz``, ``/jsz`` and ``/healthz`` as nats-server has them. Health checks need no
login.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Parameter
from msgspec import Struct

from starlingmq.admin.jetstream_monitor import Details
from starlingmq.admin.metric_text import METRIC_TEXT
from starlingmq.admin.nats_monitor import CONNECTIONS_MAX, Connz, Healthz, Sort, Subsz, Varz
from starlingmq.admin.readiness import Readiness, readiness
from starlingmq.api.guard import HEALTH
from starlingmq.api.served import served

CONTENT_TYPE: Final = "text/plain; version=0.0.4"  # Litestar adds the charset to text types


class Live(Struct, frozen=True):
    status: Literal["ok"]


@get("/health/live", summary="Check that the event loop runs", tags=["health"], opt=HEALTH)
async def live() -> Live:
    return Live("ok")


@get(
    "/health/ready",
    summary="Check whether this node accepts clients; status 503 if not",
    tags=["health"],
    opt=HEALTH,
    responses={503: ResponseSpec(Readiness, generate_examples=False, description="This node does not accept clients.")},
)
async def ready() -> Response[Readiness]:
    found = readiness(served().local_node)
    return Response(found, status_code=503 if found.reasons else 200)


@get("/metrics", summary="Get all metrics in Prometheus format", tags=["metrics"], media_type=CONTENT_TYPE)
async def metrics(request: Request[Any, Any, Any]) -> Response[str]:
    return Response((await served().ask(METRIC_TEXT, request))["text"], media_type=CONTENT_TYPE)


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


@get("/jsz", summary="Get figures of JetStream in the JSON format of nats-server", tags=["nats"])
async def jsz(
    accounts: Annotated[bool, Parameter(description="Include those of the account.")] = False,
    streams: Annotated[bool, Parameter(description="Include the streams.")] = False,
    consumers: Annotated[bool, Parameter(description="Include the streams and their consumers.")] = False,
    config: Annotated[bool, Parameter(description="Include the settings of streams and consumers.")] = False,
) -> dict[str, Any]:
    return served().nats.jsz(Details(accounts, streams, consumers, config))


@get(
    "/healthz",
    summary="Check whether this node accepts clients, in the JSON format of nats-server",
    tags=["nats"],
    opt=HEALTH,
)
async def healthz() -> Response[Healthz]:
    found = served().nats.healthz()
    return Response(found if found.error else Healthz("ok"), status_code=found.status_code)


ROUTES: Final[list[HTTPRouteHandler]] = [live, ready, metrics, varz, connz, subsz, jsz, healthz]
