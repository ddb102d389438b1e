"""Clients, sessions and subscriptions of all nodes: list and show them, disconnect clients, end sessions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from litestar import Request, delete, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter
from msgspec import convert

from starlingmq.admin.activity import Activity
from starlingmq.admin.cluster_actions import DoneAt
from starlingmq.admin.list_pages import ClientPage, SessionPage, SubscriptionPage
from starlingmq.admin.session_messages import SessionMessage
from starlingmq.admin.sessions import SessionDetail
from starlingmq.admin.sorted_entries import SortedSubscriptions, SubscriptionSort
from starlingmq.admin.sorted_lists import ClientSort, SessionSort, SortedClients, SortedSessions
from starlingmq.api.guard import CONTENT
from starlingmq.api.paged_views import PAGE, Cursor, Descending, Limit, Node, Search
from starlingmq.api.served import served

Name = Annotated[str, Parameter(min_length=1, max_length=65535, description="Client id.")]
Sort = Annotated[
    Literal["messages_in", "bytes_in", "bytes_out", "queued", "inflight", "dropped", "subscriptions"],
    Parameter(description="Sort order: clients with the highest value first."),
]
User = Annotated[str, Parameter(max_length=1000, description="Only clients whose user name contains this text.")]
Address = Annotated[str, Parameter(max_length=1000, description="Only clients whose address starts with this text.")]
ClientOrder = Annotated[ClientSort, Parameter(description="Column to sort by.")]
SessionOrder = Annotated[SessionSort, Parameter(description="Column to sort by.")]
SubscriptionOrder = Annotated[SubscriptionSort, Parameter(description="Column to sort by.")]
Place = Annotated[Literal["queue", "window"], Parameter(description="Where the message is.")]
Number = Annotated[
    int, Parameter(ge=0, le=10**9, description="Position in the queue, from 0; or packet id in the window.")
]
PartOfFilter = Annotated[
    str, Parameter(max_length=65535, description="Only subscriptions whose filter contains this text.")
]
ReceivedTopic = Annotated[
    str, Parameter(max_length=65535, description="Only subscriptions that receive messages of this topic.")
]
Connected = Annotated[bool | None, Parameter(description="Only connected sessions, or only disconnected ones.")]


def routes() -> list[HTTPRouteHandler]:
    return [*_list_routes(), *_search_routes(), *_session_routes()]


async def _listed(action: str, limit: int, cursor: str | None, **chosen: str) -> dict[str, Any]:
    return await served().ask(action, limit=str(limit), **({"cursor": cursor} if cursor else {}), **chosen)


def _list_routes() -> list[HTTPRouteHandler]:
    @get("/clients", summary="List connected clients")
    async def clients(limit: Limit = PAGE, cursor: Cursor = None, q: Search = "", node: Node = "") -> ClientPage:
        return convert(await _listed("clients", limit, cursor, q=q, node=node), ClientPage)

    @get("/activity", summary="List the most active clients")
    async def activity(sort: Sort = "messages_in", limit: Limit = PAGE, node: Node = "") -> Activity:
        return convert(await served().ask("activity", sort=sort, limit=str(limit), node=node), Activity)

    @get("/sessions", summary="List sessions, connected or not")
    async def sessions(
        limit: Limit = PAGE, cursor: Cursor = None, q: Search = "", connected: Connected = None, node: Node = ""
    ) -> SessionPage:
        wanted = "" if connected is None else "yes" if connected else "no"
        return convert(await _listed("sessions", limit, cursor, q=q, node=node, connected=wanted), SessionPage)

    @get("/subscriptions", summary="List subscriptions by session, at most 1,000 of each")
    async def subscriptions(
        limit: Limit = PAGE,
        cursor: Cursor = None,
        q: Search = "",
        filter: PartOfFilter = "",
        topic: ReceivedTopic = "",
        node: Node = "",
    ) -> SubscriptionPage:
        chosen = {"q": q, "filter": filter, "topic": topic, "node": node}
        return convert(await _listed("subscriptions", limit, cursor, **chosen), SubscriptionPage)

    return [clients, activity, sessions, subscriptions]


def _search_routes() -> list[HTTPRouteHandler]:
    @get("/clients/search", summary="Search connected clients, in a chosen order, with their number")
    async def search_clients(
        limit: Limit = PAGE,
        cursor: Cursor = None,
        q: Search = "",
        user: User = "",
        address: Address = "",
        sort: ClientOrder = "client_id",
        descending: Descending = False,
        node: Node = "",
    ) -> SortedClients:
        order = {"sort": sort, "descending": "yes" if descending else "no"}
        found = await _listed("clients.search", limit, cursor, q=q, user=user, address=address, node=node, **order)
        return convert(found, SortedClients)

    @get("/sessions/search", summary="Search sessions, in a chosen order, with their number")
    async def search_sessions(
        limit: Limit = PAGE,
        cursor: Cursor = None,
        q: Search = "",
        connected: Connected = None,
        sort: SessionOrder = "client_id",
        descending: Descending = False,
        node: Node = "",
    ) -> SortedSessions:
        wanted = "" if connected is None else "yes" if connected else "no"
        order = {"sort": sort, "descending": "yes" if descending else "no"}
        found = await _listed("sessions.search", limit, cursor, q=q, connected=wanted, node=node, **order)
        return convert(found, SortedSessions)

    @get("/subscriptions/search", summary="Search subscriptions, in a chosen order, with their number")
    async def search_subscriptions(
        limit: Limit = PAGE,
        cursor: Cursor = None,
        q: Search = "",
        filter: PartOfFilter = "",
        topic: ReceivedTopic = "",
        sort: SubscriptionOrder = "filter",
        descending: Descending = False,
        node: Node = "",
    ) -> SortedSubscriptions:
        order = {"sort": sort, "descending": "yes" if descending else "no"}
        chosen = {"q": q, "filter": filter, "topic": topic, "node": node}
        found = await _listed("subscriptions.search", limit, cursor, **chosen, **order)
        return convert(found, SortedSubscriptions)

    return [search_clients, search_sessions, search_subscriptions]


def _session_routes() -> list[HTTPRouteHandler]:
    @get("/session", summary="Get a session from any node: client, subscriptions, inflight window and queue")
    async def session(client_id: Name, node: Node = "") -> SessionDetail:
        return convert(await served().ask("session", client_id=client_id, node=node), SessionDetail)

    @get("/session/message", summary="Get one message of a session's queue or inflight window", opt=CONTENT)
    async def message(client_id: Name, number: Number = 0, place: Place = "queue", node: Node = "") -> SessionMessage:
        found = await served().ask(
            "session.message.at", client_id=client_id, place=place, number=str(number), node=node
        )
        return convert(found, SessionMessage)

    @delete("/client", status_code=200, summary="Disconnect a client; its session is kept according to its expiry")
    async def kick(request: Request[Any, Any, Any], client_id: Name, node: Node = "") -> DoneAt:
        done = await served().ask("client.kick", client_id=client_id, node=node, by=served().who(request))
        return convert(done, DoneAt)

    @delete("/session", status_code=200, summary="Delete a session: its subscriptions and its queue")
    async def end(request: Request[Any, Any, Any], client_id: Name, node: Node = "") -> DoneAt:
        done = await served().ask("session.end", client_id=client_id, node=node, by=served().who(request))
        return convert(done, DoneAt)

    return [session, message, kick, end]
