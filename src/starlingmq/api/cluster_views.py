"""Nodes, routes, groups, draining and leaving."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, Parameter
from msgspec import Meta, Struct, convert

from starlingmq._version import __version__
from starlingmq.admin.list_pages import GroupPage
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.service import ALONE
from starlingmq.admin.sorted_entries import GroupSort, SortedGroups
from starlingmq.api.paged_views import PAGE, AtNode, Cursor, Descending, Limit, Node
from starlingmq.api.served import served

Prefix = Annotated[str, Parameter(max_length=65535, description="Only filters with this prefix.")]
GroupPrefix = Annotated[str, Parameter(max_length=65535, description="Only groups with this prefix.")]
GroupOrder = Annotated[GroupSort, Parameter(description="Column to sort by.")]
ClientId = Annotated[str, Parameter(max_length=65535, description="A client id whose share is looked up. Empty: none.")]
Rate = Annotated[int, Parameter(ge=0, le=1_000_000, description="Clients per second and node; 0: cluster.drain_rate.")]
Force = Annotated[bool, Parameter(description="Leave even if sessions or messages are lost.")]


class Removal(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=1000, description="The node.")]
    force: Annotated[bool, Meta(description="Proceed even if data is lost.")] = False


def routes() -> list[HTTPRouteHandler]:
    @get("/nodes", summary="List the members of the cluster as this node sees them")
    async def nodes() -> dict[str, Any]:
        local_node = served().local_node
        if local_node.cluster is not None:
            return await served().ask("cluster.status")
        own = {
            "name": local_node.name,
            "version": __version__,
            "online": True,
            "connected": True,
            "this": True,
            "draining": False,
            "clients": local_node.state.ctx.counters.clients_connected,
        }
        return {"cluster": None, "node": local_node.name, "serving": local_node.serving, "members": [own]}

    @get("/routes", summary="List the routes of each node")
    async def wanted(prefix: Prefix = "", node: Node = "", limit: Limit = PAGE) -> dict[str, Any]:
        if served().local_node.cluster is None:
            raise AdminError(409, ALONE)
        return await served().ask("cluster.routes", prefix=prefix, name=node, limit=str(limit))

    @get("/copies", summary="Show which nodes store copies of whose data, and what would be lost with a node now")
    async def copies() -> dict[str, Any]:
        if served().local_node.cluster is None:
            raise AdminError(409, ALONE)
        return await served().ask("cluster.copies")

    @get("/shares", summary="Show which nodes lead the shares of client ids, and how far their deputies are")
    async def shares(client: ClientId = "") -> dict[str, Any]:
        if served().local_node.cluster is None:
            raise AdminError(409, ALONE)
        return await served().ask("cluster.shares", client=client)

    @get("/groups", summary="List shared subscriptions and queue groups, each as its primary reports it")
    async def groups(
        prefix: GroupPrefix = "", limit: Limit = PAGE, cursor: Cursor = None, node: Node = ""
    ) -> GroupPage:
        found = await served().ask("groups.all", prefix=prefix, limit=str(limit), cursor=cursor or "", node=node)
        return convert(found, GroupPage)

    return [nodes, wanted, copies, shares, groups, _group_search(), *_removal_routes()]


def _group_search() -> HTTPRouteHandler:
    @get("/groups/search", summary="Search groups as their primaries report them, in a chosen order, with their number")
    async def search_groups(
        prefix: GroupPrefix = "",
        limit: Limit = PAGE,
        cursor: Cursor = None,
        sort: GroupOrder = "name",
        descending: Descending = False,
        node: Node = "",
    ) -> SortedGroups:
        order = {"sort": sort, "descending": "yes" if descending else "no"}
        found = await served().ask(
            "groups.search", prefix=prefix, limit=str(limit), cursor=cursor or "", node=node, **order
        )
        return convert(found, SortedGroups)

    return search_groups


def _removal_routes() -> list[HTTPRouteHandler]:
    @get("/drain", summary="Get the progress of the drain")
    async def draining(node: AtNode = "") -> dict[str, Any]:
        return await served().ask("drain.state", node=node)

    @post("/drain", status_code=202, summary="Drain this node: redirect its clients and hand over their sessions")
    async def drain(request: Request[Any, Any, Any], node: AtNode = "") -> dict[str, Any]:
        return await served().ask("drain.begin", node=node, by=served().who(request))

    @delete("/drain", status_code=200, summary="End the drain, so that this node accepts clients again")
    async def undrain(request: Request[Any, Any, Any], node: AtNode = "") -> dict[str, Any]:
        return await served().ask("drain.cancel", node=node, by=served().who(request))

    @post("/cluster/leave", status_code=202, summary="Hand over everything, leave the cluster permanently, and stop")
    async def leave(request: Request[Any, Any, Any], node: AtNode = "", force: Force = False) -> dict[str, Any]:
        return await served().ask("leave", node=node, force="yes" if force else "", by=served().who(request))

    @post("/cluster/forget", status_code=200, summary="Remove a node that will not return, and what waits for it")
    async def forget(request: Request[Any, Any, Any], data: JSONBody[Removal]) -> dict[str, Any]:
        return await _removed(request, "cluster.forget", data)

    @post(
        "/cluster/give-up",
        status_code=200,
        summary="Give up data of a node whose copies in step are all lost; without force, say what would be lost",
    )
    async def give_up(request: Request[Any, Any, Any], data: JSONBody[Removal]) -> dict[str, Any]:
        return await _removed(request, "cluster.give_up", data)

    @post("/rebalance", status_code=200, summary="Distribute clients evenly: redirect MQTT 5 clients of busy nodes")
    async def rebalance(request: Request[Any, Any, Any], rate: Rate = 0) -> dict[str, Any]:
        return await served().ask("cluster.rebalance", rate=str(rate), by=served().who(request))

    return [draining, drain, undrain, rebalance, leave, forget, give_up]


async def _removed(request: Request[Any, Any, Any], action: str, data: Removal) -> dict[str, Any]:
    return await served().ask(action, name=data.name, force="yes" if data.force else "", by=served().who(request))
