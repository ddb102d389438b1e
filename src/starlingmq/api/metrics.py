"""The metrics of a broker in Prometheus format."""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from starlingmq.admin.metric_text import METRIC_TEXT
from starlingmq.api.served import served

CONTENT_TYPE: Final = "text/plain; version=0.0.4"  # Litestar adds the charset to text types


def routes() -> list[HTTPRouteHandler]:
    @get("/metrics", summary="Get all metrics in Prometheus format", tags=["metrics"], media_type=CONTENT_TYPE)
    async def metrics(request: Request[Any, Any, Any]) -> Response[str]:
        return Response((await served().ask(METRIC_TEXT, request))["text"], media_type=CONTENT_TYPE)

    return [metrics]
