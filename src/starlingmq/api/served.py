"""The broker as the HTTP side uses it: the state of this node, and the operator actions.

A process has one HTTP application, whose routes ask ``served()`` for the broker that received the request: to make one
takes a quarter of a second, and a program or its tests may start many brokers.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

from litestar import Request

from starlingmq.admin.local_node import LocalNode
from starlingmq.admin.nats_monitor import NatsMonitor
from starlingmq.admin.node_rpc import nothing_to_report
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.service import AdminService
from starlingmq.api.connection_limit import Slots
from starlingmq.net.operators import on_behalf_of, operator

OPEN_MAX: Final = 24  # concurrent live streams
OPEN_PER_ADDRESS: Final = 8


class Served:
    def __init__(self, local_node: LocalNode, service: AdminService) -> None:
        self.local_node = local_node
        self.service = service
        self.nats = NatsMonitor(local_node)
        self.streams = Slots(OPEN_MAX, OPEN_PER_ADDRESS, "streams")

    async def ask(self, action: str, request: Request[Any, Any, Any], **arguments: str) -> dict[str, Any]:
        """Perform an action for the operator of a request, on this node or on those that it concerns. Raises
        AdminError."""
        for name, value in arguments.items():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise AdminError(400, f"{name}: is not valid text") from None
        name = f"{request.scope['state']['user'] or 'an operator'} on {self.local_node.name}"
        client = request.scope["client"]
        with on_behalf_of(operator(name, client[0] if client else "")):
            return await self.service.action_named(action)(nothing_to_report, arguments)


serving: Final[ContextVar[Served]] = ContextVar("serving")
"""Set for each request, by ``Entrance``."""


def served() -> Served:
    return serving.get()
