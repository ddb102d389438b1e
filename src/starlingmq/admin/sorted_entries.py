"""Subscriptions, groups and retained messages in an order that the operator chooses, with the number of all that match.

As in ``sorted_lists``: the order is total, a cursor is a place in it, and a page costs each node one pass in pieces. A
node looks at ``EXAMINED_MAX`` entries at most for a page, in its own order. A list that is longer has ``complete``
false: its page and its total are those of the entries that were looked at.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from msgspec import Meta, Struct, json
from msgspec.structs import asdict, replace

from starlingmq.admin.group_actions import GroupFigures
from starlingmq.admin.list_pages import GroupInfo, LedGroups, LedGroupsRequest
from starlingmq.admin.messages import RetainedInfo, encoded, info_of
from starlingmq.admin.node_rpc import Answers, Missing, NodeRpc
from starlingmq.admin.operator_problem import AdminError
from starlingmq.admin.paging import PIECE, PLACE, WRONG_CURSOR, first_of, number_after, pack, place_of
from starlingmq.admin.printable import PAGE_MAX
from starlingmq.admin.sessions import SubscriptionInfo, SubscriptionsRequest, named_subscriptions, subscription_info
from starlingmq.admin.sorted_lists import SORT_TEXT_MAX, Value
from starlingmq.admin.typed_actions import FIRST, PAGE, After, Limit, typed
from starlingmq.core.messages.message import Message
from starlingmq.core.reports.session_totals import of_clients
from starlingmq.core.session.session import Session, Subscription
from starlingmq.core.topics.topics import valid_filter
from starlingmq.net.control_socket import Action, Report
from starlingmq.net.driver import Driver

EXAMINED_MAX: Final = 100_000  # entries for one page: a fraction of a second of one core
RETAINED_AT_ONCE: Final = 250  # per turn of the event loop

Place = tuple[Value, str, int, int]
"""The value of the sort key, and a name and numbers that tell entries with the same value apart."""

SubscriptionSort = Literal["filter", "client_id", "qos"]
GroupSort = Literal["name", "filter", "strategy", "primary", "members", "waiting_here", "lag", "given", "redelivered"]
RetainedSort = Literal["topic", "qos", "size", "publisher", "published_at"]
Total = Annotated[int, Meta(description="Number of all entries that match, on the nodes that answered.")]
Complete = Annotated[
    bool, Meta(description=f"False: a node has more than {EXAMINED_MAX:,} entries, and looked at that many.")
]

Named = tuple[Session, bytes, Subscription]
SUBSCRIPTION_KEYS: Final[dict[str, Callable[[Named], Value]]] = {
    "filter": lambda one: one[1].decode("utf-8", "replace")[:SORT_TEXT_MAX],
    "client_id": lambda one: one[0].client_id[:SORT_TEXT_MAX],
    "qos": lambda one: one[2].qos,
}
GROUP_KEYS: Final[dict[str, Callable[[GroupFigures], Value]]] = {
    "name": lambda one: one.name[:SORT_TEXT_MAX],
    "filter": lambda one: one.filter[:SORT_TEXT_MAX],
    "strategy": lambda one: one.strategy,
    "primary": lambda one: one.primary,
    "members": lambda one: one.members,
    "waiting_here": lambda one: one.waiting_here,
    "lag": lambda one: one.lag,
    "given": lambda one: one.given,
    "redelivered": lambda one: one.redelivered,
}
RETAINED_KEYS: Final[dict[str, Callable[[Message], Value]]] = {
    "topic": lambda one: one.topic.decode("utf-8", "replace")[:SORT_TEXT_MAX],
    "qos": lambda one: one.qos,
    "size": lambda one: len(one.payload),
    "publisher": lambda one: one.publisher[:SORT_TEXT_MAX],
    "published_at": lambda one: one.published_at,
}
TEXTS: Final = ("filter", "client_id", "name", "strategy", "primary", "topic", "publisher")


class OrderedRequest(Struct, frozen=True):
    """``cursor``: ``next`` of the previous page."""

    sort: str = ""
    descending: bool = False
    cursor: str = ""
    limit: Limit = PAGE


class SubscriptionSearch(OrderedRequest, frozen=True):
    """``q``, ``filter`` and ``topic`` as in SubscriptionsRequest."""

    q: str = ""
    filter: str = ""
    topic: str = ""


class SubscriptionSearchAt(SubscriptionSearch, frozen=True):
    """``node``: "" for all."""

    node: str = ""


class GroupSearch(OrderedRequest, frozen=True):
    prefix: str = ""


class GroupSearchAt(GroupSearch, frozen=True):
    node: str = ""


class RetainedSearch(OrderedRequest, frozen=True):
    filter: str = "#"


class FoundPart(Struct, frozen=True):
    """The entries of one node. ``places`` are those of the entries."""

    places: list[Place]
    total: int
    complete: bool


class SubscriptionsFound(FoundPart, frozen=True, kw_only=True):
    entries: list[SubscriptionInfo]


class GroupsFound(FoundPart, frozen=True, kw_only=True):
    entries: list[GroupFigures]


class SortedSubscriptions(Struct, frozen=True):
    node: str
    subscriptions: list[SubscriptionInfo]
    total: Total
    complete: Complete
    next: str | None
    missing: list[Missing]


class SortedGroups(Struct, frozen=True):
    node: str
    groups: list[GroupInfo]
    total: Total
    complete: Complete
    next: str | None
    missing: list[Missing]


class SortedRetained(Struct, frozen=True):
    retained: list[RetainedInfo]
    total: Total
    complete: Complete
    next: str | None


T = TypeVar("T")


class Selection(Generic[T]):
    """The first ``limit`` entries behind a place, and the number of all. Raises AdminError for an order that this list
    does not have, or a cursor of another order."""

    def __init__(self, wanted: OrderedRequest, keys: Mapping[str, Callable[[T], Value]]) -> None:
        sort = wanted.sort or next(iter(keys))
        if sort not in keys:
            raise AdminError(400, f"sort: must be one of {', '.join(keys)}")
        self._key = keys[sort]
        self._after: Place | None = place_of(wanted.cursor, Place)
        if self._after is not None and isinstance(self._after[0], str) != (sort in TEXTS):
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
        place = (self._key(entry), name, number, index)
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


class SortedEntriesNode:
    """The part of one node. ``led`` lists the groups that it reports, as the action ``groups.led``."""

    def __init__(
        self, driver: Driver, name: str, led: Callable[[Report, LedGroupsRequest], Awaitable[LedGroups]]
    ) -> None:
        self._state = driver.state
        self._name = name
        self._led = led

    def actions(self) -> dict[str, Action]:
        return {
            "subscriptions.sorted": typed(SubscriptionSearch, self.subscriptions),
            "groups.sorted": typed(GroupSearch, self.groups),
            "retained.search": typed(RetainedSearch, self.retained),
        }

    async def subscriptions(self, report: Report, request: SubscriptionSearch) -> SubscriptionsFound:
        selection: Selection[Named] = Selection(request, SUBSCRIPTION_KEYS)
        wanted = SubscriptionsRequest(request.q, request.filter, request.topic)
        settled = 0
        for session in list(self._state.ctx.sessions.values()):
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
        return SubscriptionsFound(selection.places, selection.total, not selection.is_full, entries=entries)

    async def groups(self, report: Report, request: GroupSearch) -> GroupsFound:
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
        return GroupsFound(selection.places, selection.total, part.next is None, entries=selection.entries)

    async def retained(self, report: Report, request: RetainedSearch) -> SortedRetained:
        """They are the same on all nodes."""
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


class SortedEntries:
    """The lists of all nodes."""

    def __init__(self, rpc: NodeRpc) -> None:
        self._rpc = rpc

    def actions(self) -> dict[str, Action]:
        return {
            "subscriptions.search": typed(SubscriptionSearchAt, self.subscriptions),
            "groups.search": typed(GroupSearchAt, self.groups),
        }

    async def subscriptions(self, report: Report, request: SubscriptionSearchAt) -> SortedSubscriptions:
        asked = _narrowed(request, SubscriptionSearch)
        answers = await self._rpc.everywhere("subscriptions.sorted", asked, SubscriptionsFound, request.node)
        rows = [
            (place, replace(entry, node=node))
            for node, part in answers.results.items()
            for place, entry in zip(part.places, part.entries, strict=True)
        ]
        return SortedSubscriptions(self._rpc.name, *_page(rows, answers, request), answers.missing)

    async def groups(self, report: Report, request: GroupSearchAt) -> SortedGroups:
        asked = _narrowed(request, GroupSearch)
        answers = await self._rpc.everywhere("groups.sorted", asked, GroupsFound, request.node)
        rows = [
            (place, GroupInfo(**asdict(entry), node=node))
            for node, part in answers.results.items()
            for place, entry in zip(part.places, part.entries, strict=True)
        ]
        return SortedGroups(self._rpc.name, *_page(rows, answers, request), answers.missing)


Q = TypeVar("Q", bound=OrderedRequest)


def _narrowed(request: OrderedRequest, kind: type[Q]) -> Q:
    return kind(**{name: getattr(request, name) for name in kind.__struct_fields__})


def _page(
    rows: list[tuple[Place, T]], answers: Answers[Any], request: OrderedRequest
) -> tuple[list[T], int, bool, str | None]:
    """Entries, total, whether all were looked at, and the cursor behind the entries."""
    parts: list[FoundPart] = list(answers.results.values())
    more = any(len(part.places) == request.limit for part in parts)
    entries, following = first_of(rows, request.limit, request.descending, more)
    return entries, sum(part.total for part in parts), all(part.complete for part in parts), following
