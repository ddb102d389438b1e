"""The metrics of one broker, and its answer to the workers that ask for them."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, generate_latest

from starlingmq.admin.metric_text import MetricText
from starlingmq.admin.metric_values import MetricValues
from starlingmq.admin.service import AdminService
from starlingmq.admin.typed_actions import NoArguments, typed
from starlingmq.net.control_socket import Report

TEXT: Final = "metrics.text"  # the action by which workers of one machine ask each other


class OwnMetrics:
    def __init__(self, service: AdminService) -> None:
        self.figures = MetricValues(service)
        self._service = service
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self.figures)
        service.node_rpc.actions[TEXT] = typed(NoArguments, self._answer)

    async def text(self) -> str:
        """In the format of Prometheus."""
        self.figures.session_totals = await self._service.session_totals_job.count()
        return generate_latest(self._registry).decode()

    async def _answer(self, report: Report, request: NoArguments) -> MetricText:
        return MetricText(await self.text())
