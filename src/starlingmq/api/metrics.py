"""The metrics of a broker in Prometheus format, and as JSON."""

from __future__ import annotations

from typing import Final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from prometheus_client import CollectorRegistry, generate_latest

from starlingmq.admin import metric_values
from starlingmq.admin.metric_samples import MetricsReply
from starlingmq.admin.metric_text import MetricText, merge
from starlingmq.admin.metric_values import MetricValues
from starlingmq.admin.typed_actions import NoArguments, typed
from starlingmq.api.served import Served
from starlingmq.net.control_socket import Report

TEXT: Final = "metrics.text"  # the action by which workers of one machine ask each other
CONTENT_TYPE: Final = "text/plain; version=0.0.4"  # Litestar adds the charset to text types


def routes(served: Served, prefix: str) -> list[HTTPRouteHandler]:
    figures = MetricValues(served.service)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(figures)

    async def own_text() -> str:
        figures.session_totals = await served.service.session_totals_job.count()
        return generate_latest(registry).decode()

    async def answer(report: Report, request: NoArguments) -> MetricText:
        return MetricText(await own_text())

    served.service.node_rpc.actions[TEXT] = typed(NoArguments, answer)

    @get("/metrics", summary="Get all metrics in Prometheus format", tags=["metrics"], media_type=CONTENT_TYPE)
    async def metrics() -> Response[str]:
        if served.local_node.config().cluster.one_machine:
            found = await served.service.node_rpc.everywhere(TEXT, NoArguments(), MetricText)
            text = merge({worker: one.text for worker, one in found.results.items()})
        else:
            text = await own_text()
        return Response(text, media_type=CONTENT_TYPE)

    @get(f"{prefix}/metrics", summary="Get all metrics as JSON", tags=["metrics"])
    async def as_json() -> MetricsReply:
        return await metric_values.metrics(figures)

    return [metrics, as_json]
