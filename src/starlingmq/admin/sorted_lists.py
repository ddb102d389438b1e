"""Clients, sessions, subscriptions, groups and retained messages in an order that the operator chooses, with the number
of all that match: the part of one node. ``declared_actions`` makes one page of those of all nodes.

The order is total: by the chosen value, then by a name and numbers. A cursor is such a place, and each node replies
with the first entries behind it, so a page costs each node one pass, in pieces. Where a value changes between two
pages, an entry may be listed twice or not at all; ``paging`` has lists without that. Of subscriptions, groups and
retained messages a node looks at ``EXAMINED_MAX`` at most for a page, in its own order: if there are more, ``complete``
is false, and the page and the total are those of the entries that were looked at.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Final, Generic, Literal, TypeVar, get_args

from msgspec import Meta, Struct, json

from starlingmq.admin.declared_actions import NODE, SORTED, FoundPart, Place, Value, action
from starlingmq.admin.group_actions import GroupFigures, LedGroups, LedGroupsRequest
from starlingmq.admin.messages import Filter, RetainedInfo, encoded, info_of
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.paging import PIECE, PLACE, WRONG_CURSOR, in_pieces, number_after, pack, place_of
from starlingmq.admin.printable import PAGE_MAX
from starlingmq.admin.sessions import (
    ClientInfo,
    PartOfFilter,
    ReceivedTopic,
    SearchText,
    SessionInfo,
    SubscriptionInfo,
    SubscriptionsRequest,
    client_info,
    inflight,
    named_subscriptions,
    queued,
    session_info,
    subscription_info,
)
from starlingmq.admin.typed_actions import FIRST, PAGE, After, Cursor, Limit
from starlingmq.core.messages.message import Message
from starlingmq.core.reports.session_totals import of_clients, subscription_count
from starlingmq.core.session.session import Session, Subscription
from starlingmq.core.topics.topics import valid_filter
from starlingmq.net.control_socket import Report
from starlingmq.net.driver import Driver

EXAMINED_MAX: Final = 100_000  # entries for one page: a fraction of a second of one core
RETAINED_AT_ONCE: Final = 250  # per turn of the event loop
SORT_TEXT_MAX: Final = 200  # characters of a text that count for the order

ClientSort = Literal["client_id", "username", "peer", "connected_at", "subscriptions", "queued", "inflight", "dropped"]
SessionSort = Literal[
    "client_id", "connected", "subscriptions", "queued", "queued_bytes", "inflight", "dropped", "expires_at"
]
SubscriptionSort = Literal["filter", "client_id", "qos"]
GroupSort = Literal["name", "filter", "strategy", "primary", "members", "waiting_here", "lag", "given", "redelivered"]
RetainedSort = Literal["topic", "qos", "size", "publisher", "published_at"]
SORT: Final = Meta(description="Column to sort by.")

SESSION_KEYS: Final[dict[str, Callable[[Session], Value]]] = {
    "client_id": lambda one: one.client_id,
    "subscriptions": subscription_count,
    "queued": queued,
    "inflight": inflight,
    "dropped": lambda one: one.dropped,
    "username": lambda one: "" if one.client is None else one.client.username,
    "peer": lambda one: "" if one.client is None else one.client.peer,
    "connected_at": lambda one: 0.0 if one.client is None else one.client.connected_at,
    "queued_bytes": lambda one: 0 if one.queue is None else one.queue.bytes,
    "expires_at": lambda one: one.expires_at,
    "connected": lambda one: float(one.client is not None),
}
Named = tuple[Session, bytes, Subscription]
SUBSCRIPTION_KEYS: Final[dict[str, Callable[[Named], Value]]] = {
    "filter": lambda one: one[1].decode("utf-8", "replace"),
    "client_id": lambda one: one[0].client_id,
    "qos": lambda one: one[2].qos,
}
GROUP_KEYS: Final[dict[str, Callable[[GroupFigures], Value]]] = {
    name: lambda one, name=name: getattr(one, name)  # type: ignore[misc]
    for name in get_args(GroupSort)
}
RETAINED_KEYS: Final[dict[str, Callable[[Message], Value]]] = {
    "topic": lambda one: one.topic.decode("utf-8", "replace"),
    "qos": lambda one: one.qos,
    "size": lambda one: len(one.payload) if one.loaded else -1,  # its payload is at other nodes
    "publisher": lambda one: one.publisher,
    "published_at": lambda one: one.published_at,
}
TEXTS: Final = (
    "filter", "client_id", "username", "peer", "name", "strategy", "primary", "topic", "publisher",
)  # fmt: skip


class OrderedRequest(Struct, frozen=True, kw_only=True):
    """``cursor``: ``next`` of the previous page."""

    sort: str
    descending: Annotated[bool, Meta(description="Whether the highest value comes first.")] = False
    cursor: Cursor = ""
    limit: Limit = PAGE


class SessionSearch(OrderedRequest, frozen=True, kw_only=True):
    q: SearchText = ""
    connected: Annotated[bool | None, Meta(description="Only connected sessions, or only disconnected ones.")] = None
    sort: Annotated[SessionSort, SORT] = "client_id"

    def selects(self, one: Session) -> bool:
        return self.connected in (None, one.client is not None) and self.q in one.client_id


class ClientSearch(OrderedRequest, frozen=True, kw_only=True):
    q: SearchText = ""
    user: Annotated[str, Meta(max_length=1000, description="Only clients whose user name contains this text.")] = ""
    address: Annotated[str, Meta(max_length=1000, description="Only clients whose address starts with this text.")] = ""
    sort: Annotated[ClientSort, SORT] = "client_id"

    def selects(self, one: Session) -> bool:
        client = one.client
        return (
            client is not None
            and self.user in client.username
            and client.peer.startswith(self.address)
            and self.q in one.client_id
        )


class SubscriptionSearch(OrderedRequest, frozen=True, kw_only=True):
    q: SearchText = ""
    filter: PartOfFilter = ""
    topic: ReceivedTopic = ""
    sort: Annotated[SubscriptionSort, SORT] = "filter"


class GroupSearch(OrderedRequest, frozen=True, kw_only=True):
    prefix: Annotated[str, Meta(max_length=65535, description="Only groups with this prefix.")] = ""
    sort: Annotated[GroupSort, SORT] = "name"


class RetainedSearch(OrderedRequest, frozen=True, kw_only=True):
    filter: Filter = "#"
    sort: Annotated[RetainedSort, SORT] = "topic"


class SortedRetained(Struct, frozen=True):
    retained: list[RetainedInfo]
    total: int
    complete: bool
    next: str | None


T = TypeVar("T")


class Selection(Generic[T]):
    """The first ``limit`` entries behind a place, and the number of all. Raises AdminError for a cursor of another
    order."""

    def __init__(self, wanted: OrderedRequest, keys: Mapping[str, Callable[[T], Value]]) -> None:
        self._key = keys[wanted.sort]
        self._after: Place | None = place_of(wanted.cursor, Place)
        if self._after is not None and isinstance(self._after[0], str) != (wanted.sort in TEXTS):
            raise AdminError(400, WRONG_CURSOR)
        self._descending = wanted.descending
        self._limit: int = wanted.limit
        self._new: list[tuple[Place, T]] = []
        self.found: list[tuple[Place, T]] = []
        self.total = 0
        self.examined = 0

    @property
    def is_full(self) -> bool:
        return self.examined >= EXAMINED_MAX

    def add(self, entry: T, name: str, number: int = 0, index: int = 0) -> None:
        """Until ``settle``, what is behind the place is kept."""
        value = self._key(entry)
        place = (value[:SORT_TEXT_MAX] if isinstance(value, str) else value, name, number, index)
        self.total += 1
        if self._after is None or (place < self._after if self._descending else place > self._after):
            self._new.append((place, entry))

    async def settle(self) -> None:
        """Keep only the first ``limit``, and let other tasks run."""
        if self._new:
            select = heapq.nlargest if self._descending else heapq.nsmallest
            self.found = select(self._limit, self.found + self._new, key=PLACE)
            self._new.clear()
        await asyncio.sleep(0)

    @property
    def places(self) -> list[Place]:
        return [place for place, _ in self.found]

    @property
    def entries(self) -> list[T]:
        return [entry for _, entry in self.found]


async def select_sessions(
    sessions: dict[str, Session], node: str, wanted: SessionSearch | ClientSearch
) -> Selection[Session]:
    selection: Selection[Session] = Selection(wanted, SESSION_KEYS)
    for piece in in_pieces(sessions):
        for one in piece:
            if of_clients(one) and not one.ended and wanted.selects(one):
                selection.add(one, node, one.number)
        await selection.settle()
    return selection


class SortedLists:
    """``led`` lists the groups that the node reports, as the action ``groups.led``."""

    def __init__(
        self, driver: Driver, name: str, led: Callable[[Report, LedGroupsRequest], Awaitable[LedGroups]]
    ) -> None:
        self._state = driver.state
        self._sessions = driver.state.ctx.sessions
        self._name = name
        self._led = led

    @action("clients.sorted", "GET /clients/search", SORTED)
    async def search_clients(self, request: ClientSearch) -> FoundPart[ClientInfo]:
        """Search connected clients, in a chosen order, with their number."""
        selection = await select_sessions(self._sessions, self._name, request)
        there = [(place, client_info(one, one.client)) for place, one in selection.found if one.client is not None]
        return FoundPart([info for _, info in there], [place for place, _ in there], selection.total)

    @action("sessions.sorted", "GET /sessions/search", SORTED)
    async def search_sessions(self, request: SessionSearch) -> FoundPart[SessionInfo]:
        """Search sessions, in a chosen order, with their number."""
        selection = await select_sessions(self._sessions, self._name, request)
        return FoundPart([session_info(one) for one in selection.entries], selection.places, selection.total)

    @action("subscriptions.sorted", "GET /subscriptions/search", SORTED)
    async def search_subscriptions(self, request: SubscriptionSearch) -> FoundPart[SubscriptionInfo]:
        """Search subscriptions, in a chosen order, with their number."""
        selection: Selection[Named] = Selection(request, SUBSCRIPTION_KEYS)
        wanted = SubscriptionsRequest(request.q, request.filter, request.topic)
        settled = 0
        for session in list(self._sessions.values()):
            selection.examined += 1
            if selection.is_full:
                break
            if of_clients(session) and not session.ended and request.q in session.client_id:
                for index, (name, one) in enumerate(named_subscriptions(session)):
                    selection.examined += 1
                    if selection.is_full:
                        break
                    if wanted.selects(name):
                        selection.add((session, name, one), self._name, session.number, index)
                    if selection.examined - settled >= PIECE:
                        settled = selection.examined
                        await selection.settle()
            if selection.examined - settled >= PIECE:
                settled = selection.examined
                await selection.settle()
        await selection.settle()
        entries = [subscription_info(session, name, one) for session, name, one in selection.entries]
        return FoundPart(entries, selection.places, selection.total, not selection.is_full)

    @action("groups.sorted", "GET /groups/search", SORTED)
    async def search_groups(self, report: Report, request: GroupSearch) -> FoundPart[GroupFigures]:
        """Search groups as their primaries report them, in a chosen order, with their number."""
        selection: Selection[GroupFigures] = Selection(request, GROUP_KEYS)
        after = FIRST
        while True:
            part = await self._led(report, LedGroupsRequest(request.prefix, after, Limit(PAGE_MAX)))
            for group in part.groups:
                selection.add(group, f"{group.name}/{group.filter} {self._name}")
            selection.examined += PAGE_MAX
            await selection.settle()
            if part.next is None or selection.is_full:
                break
            after = After(number_after(part.next))
        return FoundPart(selection.entries, selection.places, selection.total, part.next is None)

    @action("retained.sorted", "GET /retained/search", NODE)
    async def search_retained(self, request: RetainedSearch) -> SortedRetained:
        """Search retained messages, in a chosen order, with their number. They are the same on all nodes."""
        wanted = encoded(request.filter)
        if not valid_filter(wanted):
            raise AdminError(400, "filter: is not a valid topic filter")
        selection: Selection[Message] = Selection(request, RETAINED_KEYS)
        walk = self._state.retained.cursor(wanted, b"")
        while not walk.done and walk.looks < EXAMINED_MAX:
            for message in walk.next(RETAINED_AT_ONCE):
                selection.add(message, message.topic.decode("utf-8", "replace"))
            await selection.settle()
        found = selection.found
        following = pack(json.encode(found[-1][0])) if len(found) == request.limit else None
        entries = [info_of(message) for message in selection.entries]
        return SortedRetained(entries, selection.total, walk.done, following)
