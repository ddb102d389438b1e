"""Services outside the broker that it calls, and a test of each."""

from __future__ import annotations

from typing import Annotated

from litestar import get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody
from msgspec import Meta, Struct, convert

from starlingmq.admin.connectors import ConnectorTestedAt, ListedConnectors
from starlingmq.api.paged_views import Node
from starlingmq.api.served import served


class TestedConnector(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=100, description="Its name, such as auth.http.")]
    node: Annotated[str, Meta(max_length=1000, description="The node that calls it. Default: this node.")] = ""


def routes() -> list[HTTPRouteHandler]:
    @get("/connectors", summary="List services that nodes call, with requests accepted and failed")
    async def connectors(node: Node = "") -> ListedConnectors:
        return convert(await served().ask("connectors.all", node=node), ListedConnectors)

    @post("/connectors/test", status_code=200, summary="Call a service once, and report whether it accepts")
    async def test(data: JSONBody[TestedConnector]) -> ConnectorTestedAt:
        found = await served().ask("connectors.test", name=data.name, node=data.node)
        return convert(found, ConnectorTestedAt)

    return [connectors, test]
