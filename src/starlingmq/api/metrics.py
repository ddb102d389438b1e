"""The metrics of a broker in Prometheus format, and as JSON."""

from __future__ import annotations

from typing import Final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from prometheus_client import CollectorRegistry, generate_latest

from starlingmq.admin import metric_values
from starlingmq.admin.metric_samples import MetricsReply
from starlingmq.admin.metric_values import MetricValues
from starlingmq.api.served import Served

CONTENT_TYPE: Final = "text/plain; version=0.0.4"  # Litestar adds the charset to text types


def routes(served: Served, prefix: str) -> list[HTTPRouteHandler]:
    figures = MetricValues(served.service)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(figures)

    @get("/metrics", summary="Get all metrics in Prometheus format", tags=["metrics"], media_type=CONTENT_TYPE)
    async def metrics() -> Response[bytes]:
        figures.session_totals = await served.service.session_totals_job.count()
        return Response(generate_latest(registry), media_type=CONTENT_TYPE)

    @get(f"{prefix}/metrics", summary="Get all metrics as JSON", tags=["metrics"])
    async def as_json() -> MetricsReply:
        return await metric_values.metrics(figures)

    return [metrics, as_json]
