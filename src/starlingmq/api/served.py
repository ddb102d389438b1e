"""The broker as the HTTP side sees it: what it may look at, and what it may have done."""

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
    place: LocalNode
    office: AdminService

    async def ask(self, action: str, **arguments: str) -> dict[str, Any]:
        """Have it answered, here or by whoever can. Raises AdminError."""
        for name, value in arguments.items():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise AdminError(400, f"{name}: is not valid text") from None
        return await self.office.actions[action](nothing_to_report, arguments)

    def who(self, request: Request[Any, Any, Any]) -> str:
        """Who asks, for the logs of all nodes."""
        return f"{request.scope['state']['user'] or 'an operator'} on {self.place.name}"
