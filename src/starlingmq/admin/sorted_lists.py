"""Clients and sessions of all nodes in an order that the operator chooses, with the number of all that match.

The order is total: by the chosen value, then by node and by the number of the session. A cursor is such a place, and
each node replies with the first entries behind it, so a page costs each node one pass over its sessions, in pieces.
Where a value changes between two pages, an entry may be listed twice or not at all; ``paging`` has lists without that.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Annotated, Any, Final, Generic, Literal, NamedTuple, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace

from starlingmq.admin.node_rpc import Missing, NodeRpc
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.paging import PLACE, first_of, in_pieces, place_of
from starlingmq.admin.sessions import (
    ClientInfo,
    SessionInfo,
    client_info,
    inflight,
    queued,
    session_info,
)
from starlingmq.admin.typed_actions import PAGE, Limit, typed
from starlingmq.core.reports.session_totals import of_clients, subscription_count
from starlingmq.core.session.session import Session
from starlingmq.net.control_socket import Action, Report
from starlingmq.net.driver import Driver

Value = str | float
Place = tuple[Value, str, int]
"""The value of the sort key, the name of the node, and the number of the session."""
Key = Callable[[Session], Value]

SORT_TEXT_MAX: Final = 200  # characters of a text that count for the order
COMMON_KEYS: Final[dict[str, Key]] = {
    "client_id": lambda one: one.client_id[:SORT_TEXT_MAX],
    "subscriptions": subscription_count,
    "queued": queued,
    "inflight": inflight,
    "dropped": lambda one: one.dropped,
}
CLIENT_KEYS: Final[dict[str, Key]] = COMMON_KEYS | {
    "username": lambda one: "" if one.client is None else one.client.username[:SORT_TEXT_MAX],
    "peer": lambda one: "" if one.client is None else one.client.peer,
    "connected_at": lambda one: 0.0 if one.client is None else one.client.connected_at,
}
SESSION_KEYS: Final[dict[str, Key]] = COMMON_KEYS | {
    "queued_bytes": lambda one: 0 if one.queue is None else one.queue.bytes,
    "expires_at": lambda one: one.expires_at,
    "connected": lambda one: float(one.client is not None),
}

ClientSort = Literal["client_id", "username", "peer", "connected_at", "subscriptions", "queued", "inflight", "dropped"]
SessionSort = Literal[
    "client_id", "connected", "subscriptions", "queued", "queued_bytes", "inflight", "dropped", "expires_at"
]


class Search(Struct, frozen=True):
    """``q``: a part of the client id; ``user``: of the user name; ``address``: the start of the address;
    ``connected``: "yes", "no" or "" for both. ``cursor``: ``next`` of the previous page."""

    q: str = ""
    user: str = ""
    address: str = ""
    connected: str = ""
    sort: str = "client_id"
    descending: bool = False
    cursor: str = ""
    limit: Limit = PAGE

    def selects(self, one: Session) -> bool:
        client = one.client
        if self.connected and (self.connected == "yes") != (client is not None):
            return False
        if self.user and (client is None or self.user not in client.username):
            return False
        if self.address and (client is None or not client.peer.startswith(self.address)):
            return False
        return self.q in one.client_id


class SearchAt(Search, frozen=True):
    """``node``: "" for all."""

    node: str = ""


class ClientsFound(Struct, frozen=True):
    """``places`` are those of the entries."""

    entries: list[ClientInfo]
    places: list[Place]
    total: int


class SessionsFound(Struct, frozen=True):
    entries: list[SessionInfo]
    places: list[Place]
    total: int


class SortedClients(Struct, frozen=True):
    node: str
    clients: list[ClientInfo]
    total: Annotated[int, Meta(description="Number of all clients that match, on the nodes that answered.")]
    next: str | None
    missing: list[Missing]


class SortedSessions(Struct, frozen=True):
    node: str
    sessions: list[SessionInfo]
    total: Annotated[int, Meta(description="Number of all sessions that match, on the nodes that answered.")]
    next: str | None
    missing: list[Missing]


E = TypeVar("E", ClientInfo, SessionInfo)
F = TypeVar("F", ClientsFound, SessionsFound)


class Merged(NamedTuple, Generic[E]):
    entries: list[E]
    total: int
    next: str | None
    missing: list[Missing]


async def first_behind(
    sessions: dict[str, Session], node: str, keys: dict[str, Key], wanted: Search
) -> tuple[list[tuple[Place, Session]], int]:
    """The first ``limit`` of the selected sessions behind a place, and the number of all selected ones. Raises
    AdminError."""
    key = keys.get(wanted.sort)
    if key is None:
        raise AdminError(400, f"sort: must be one of {', '.join(keys)}")
    after: Place | None = place_of(wanted.cursor, Place)
    total = 0
    if after is not None and isinstance(after[0], str) != isinstance(key(Session("", 0)), str):
        raise AdminError(400, "cursor: must be the value of next in the previous page")
    select = heapq.nlargest if wanted.descending else heapq.nsmallest
    found: list[tuple[Place, Session]] = []
    for piece in in_pieces(sessions):
        matching = [
            ((key(one), node, one.number), one)
            for one in piece
            if of_clients(one) and not one.ended and wanted.selects(one)
        ]
        total += len(matching)
        if after is not None:
            matching = [one for one in matching if (one[0] < after if wanted.descending else one[0] > after)]
        if matching:
            found = select(wanted.limit, found + matching, key=PLACE)
        await asyncio.sleep(0)
    return found, total


class SortedNode:
    """The part of one node."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._sessions = driver.state.ctx.sessions
        self._name = name

    def actions(self) -> dict[str, Action]:
        return {"clients.sorted": typed(Search, self.clients), "sessions.sorted": typed(Search, self.sessions)}

    async def clients(self, report: Report, request: Search) -> ClientsFound:
        wanted = replace(request, connected="yes")
        found, total = await first_behind(self._sessions, self._name, CLIENT_KEYS, wanted)
        there = [(place, client_info(one, one.client)) for place, one in found if one.client is not None]
        return ClientsFound([info for _, info in there], [place for place, _ in there], total)

    async def sessions(self, report: Report, request: Search) -> SessionsFound:
        found, total = await first_behind(self._sessions, self._name, SESSION_KEYS, request)
        return SessionsFound([session_info(one) for _, one in found], [place for place, _ in found], total)


class SortedLists:
    """The lists of all nodes."""

    def __init__(self, rpc: NodeRpc) -> None:
        self._rpc = rpc

    def actions(self) -> dict[str, Action]:
        return {"clients.search": typed(SearchAt, self.clients), "sessions.search": typed(SearchAt, self.sessions)}

    async def clients(self, report: Report, request: SearchAt) -> SortedClients:
        page: Merged[ClientInfo] = await self._merged("clients.sorted", ClientsFound, request)
        return SortedClients(self._rpc.name, page.entries, page.total, page.next, page.missing)

    async def sessions(self, report: Report, request: SearchAt) -> SortedSessions:
        page: Merged[SessionInfo] = await self._merged("sessions.sorted", SessionsFound, request)
        return SortedSessions(self._rpc.name, page.entries, page.total, page.next, page.missing)

    async def _merged(self, action: str, reply: type[F], request: SearchAt) -> Merged[Any]:
        wanted = Search(**{name: getattr(request, name) for name in Search.__struct_fields__})
        answers = await self._rpc.everywhere(action, wanted, reply, request.node)
        found = [
            (place, replace(entry, node=node))
            for node, one in answers.results.items()
            for place, entry in zip(one.places, one.entries, strict=True)
        ]
        more = any(len(one.entries) == request.limit for one in answers.results.values())
        entries, following = first_of(found, request.limit, request.descending, more)
        total = sum(one.total for one in answers.results.values())
        return Merged(entries, total, following, answers.missing)
