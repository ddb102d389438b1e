"""Nodes, routes, groups and draining: what there is in the cluster, as far as this node knows."""

from __future__ import annotations

import logging
from typing import Annotated, Any, Final

from litestar import Request, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter
from msgspec import Struct, convert

from starlingmq._version import __version__
from starlingmq.api.listing import PAGE, Cursor, Limit, number_after
from starlingmq.api.problem import ApiError
from starlingmq.api.served import Served

log = logging.getLogger("starlingmq.http")

ALONE: Final = "this broker is no member of a cluster (cluster.enabled)"

Prefix = Annotated[str, Parameter(max_length=65535, description="Only filters that begin so.")]
NodeName = Annotated[str, Parameter(max_length=1000, description="Only those of this node.")]


class GroupNode(Struct, frozen=True):
    """What is known of another node's part: beside ``members`` only at the primary."""

    members: int
    online: int | None = None
    room: int | None = None
    waiting: int | None = None


class GroupInfo(Struct, frozen=True):
    """What core.group_figures says, with the names of nodes."""

    name: str
    filter: str
    strategy: str
    primary: str
    here: bool
    epoch: int
    members: int
    members_here: int
    online_here: int
    cursor: int
    waiting_here: int
    lag: int
    lent: int
    received: int
    given: int
    redelivered: int
    nodes: dict[str, GroupNode]


class GroupPage(Struct, frozen=True):
    node: str
    groups: list[GroupInfo]
    next: str | None


def nothing_to_report(what: str, done: int, total: int, unit: str) -> None:
    """Whoever asks over HTTP looks again later."""


def routes(served: Served) -> list[HTTPRouteHandler]:
    state = served.state

    async def act(action: str, **arguments: str) -> dict[str, Any]:
        if served.cluster is None:
            raise ApiError(409, ALONE)
        return await served.actions[action](nothing_to_report, arguments)

    @get("/nodes", summary="The members of the cluster as this node sees them")
    async def nodes() -> dict[str, Any]:
        if served.cluster is not None:
            return await act("cluster.status")
        own = {
            "name": served.name,
            "version": __version__,
            "online": True,
            "connected": True,
            "this": True,
            "draining": False,
            "clients": state.ctx.counters.clients_connected,
        }
        return {"cluster": None, "node": served.name, "serving": served.serving, "members": [own]}

    @get("/routes", summary="Which node wants what")
    async def wanted(prefix: Prefix = "", node: NodeName = "", limit: Limit = PAGE) -> dict[str, Any]:
        return await act("cluster.routes", prefix=prefix, name=node, limit=str(limit))

    @get("/groups", summary="Shared subscriptions and queue groups: primary, members, and what waits for them")
    async def groups(limit: Limit = PAGE, cursor: Cursor = None) -> GroupPage:
        after = number_after(cursor)
        asked = {"after": str(after), "limit": str(limit)}
        found = await served.actions["groups"](nothing_to_report, asked)
        infos = convert(found["groups"], list[GroupInfo])
        return GroupPage(served.name, infos, str(after + limit) if found["more"] else None)

    @get("/drain", summary="How far draining is")
    async def draining() -> dict[str, Any]:
        if served.drain is None:
            raise ApiError(409, ALONE)
        return served.drain.result()

    @post("/drain", status_code=202, summary="Serve no clients from now on: send them, and their sessions, elsewhere")
    async def drain(request: Request[Any, Any, Any]) -> dict[str, Any]:
        if served.drain is None:
            raise ApiError(409, ALONE)
        await served.drain.start()
        log.info("%s has this node drained", request.scope["state"]["user"] or "somebody")
        return served.drain.result()

    @delete("/drain", status_code=200, summary="Serve clients again")
    async def undrain(request: Request[Any, Any, Any]) -> dict[str, Any]:
        if served.drain is None:
            raise ApiError(409, ALONE)
        await served.drain.cancel()
        log.info("%s has this node serve clients again", request.scope["state"]["user"] or "somebody")
        return served.drain.result()

    return [nodes, wanted, groups, draining, drain, undrain]
