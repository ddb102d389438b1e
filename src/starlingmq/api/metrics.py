"""The metrics of a broker in Prometheus format, and as JSON."""

from __future__ import annotations

from typing import Final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from starlingmq.admin import metric_values
from starlingmq.admin.metric_samples import MetricsReply
from starlingmq.admin.metric_text import MetricText, merge
from starlingmq.admin.typed_actions import NoArguments
from starlingmq.api.own_metrics import TEXT
from starlingmq.api.served import served

CONTENT_TYPE: Final = "text/plain; version=0.0.4"  # Litestar adds the charset to text types


def routes(prefix: str) -> list[HTTPRouteHandler]:
    @get("/metrics", summary="Get all metrics in Prometheus format", tags=["metrics"], media_type=CONTENT_TYPE)
    async def metrics() -> Response[str]:
        if served().local_node.config().cluster.one_machine:
            found = await served().service.node_rpc.everywhere(TEXT, NoArguments(), MetricText)
            text = merge({worker: one.text for worker, one in found.results.items()})
        else:
            text = await served().metrics.text()
        return Response(text, media_type=CONTENT_TYPE)

    @get(f"{prefix}/metrics", summary="Get all metrics as JSON", tags=["metrics"])
    async def as_json() -> MetricsReply:
        return await metric_values.metrics(served().metrics.figures)

    return [metrics, as_json]
