"""The broker as the HTTP side uses it: the state of this node, and the operator actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from litestar import Request

from starlingmq.admin.local_node import LocalNode
from starlingmq.admin.node_rpc import nothing_to_report
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.service import AdminService


@dataclass(slots=True)
class Served:
    local_node: LocalNode
    service: AdminService

    async def ask(self, action: str, **arguments: str) -> dict[str, Any]:
        """Perform an action, on this node or on those that it concerns. Raises AdminError."""
        for name, value in arguments.items():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise AdminError(400, f"{name}: is not valid text") from None
        return await self.service.actions[action](nothing_to_report, arguments)

    def who(self, request: Request[Any, Any, Any]) -> str:
        """The operator, as the logs of all nodes name the request."""
        return f"{request.scope['state']['user'] or 'an operator'} on {self.local_node.name}"
