"""The metrics of a broker in Prometheus format, and as JSON."""

from __future__ import annotations

from typing import Final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from msgspec import convert

from starlingmq.admin.metric_samples import MetricsReply
from starlingmq.admin.metric_text import METRIC_TEXT
from starlingmq.api.served import served

CONTENT_TYPE: Final = "text/plain; version=0.0.4"  # Litestar adds the charset to text types


def routes(prefix: str) -> list[HTTPRouteHandler]:
    @get("/metrics", summary="Get all metrics in Prometheus format", tags=["metrics"], media_type=CONTENT_TYPE)
    async def metrics() -> Response[str]:
        return Response((await served().ask(METRIC_TEXT))["text"], media_type=CONTENT_TYPE)

    @get(f"{prefix}/metrics", summary="Get all metrics as JSON", tags=["metrics"])
    async def as_json() -> MetricsReply:
        return convert(await served().ask("metrics"), MetricsReply)

    return [metrics, as_json]
