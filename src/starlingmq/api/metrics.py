"""The figures of a broker as Prometheus reads them, and the same as JSON."""

from __future__ import annotations

from typing import Final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct
from prometheus_client import CollectorRegistry, generate_latest

from starlingmq.admin.metric_values import MetricValues, Sample, samples
from starlingmq.api.served import Served

CONTENT_TYPE: Final = "text/plain; version=0.0.4"  # Litestar adds the charset to what is text


class Metrics(Struct, frozen=True):
    node: str
    samples: list[Sample]


def routes(served: Served, prefix: str) -> list[HTTPRouteHandler]:
    figures = MetricValues(served.office)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(figures)

    @get("/metrics", summary="Get all metrics in Prometheus format", tags=["metrics"], media_type=CONTENT_TYPE)
    async def metrics() -> Response[bytes]:
        figures.survey = await served.office.surveyor.survey()
        return Response(generate_latest(registry), media_type=CONTENT_TYPE)

    @get(f"{prefix}/metrics", summary="Get all metrics as JSON", tags=["metrics"])
    async def as_json() -> Metrics:
        return Metrics(served.place.name, await samples(figures))

    return [metrics, as_json]
