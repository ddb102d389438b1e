"""Lists of which each node has a part: the requests, and the pages with the entries of all nodes.

In a request, ``cursor`` is ``next`` of the previous page, and ``node`` "" means all nodes.
"""

from __future__ import annotations

from msgspec import Struct

from starlingmq.admin.group_actions import GroupFigures
from starlingmq.admin.node_rpc import ListPart, Missing
from starlingmq.admin.sessions import ClientInfo, SessionInfo, SubscriptionInfo
from starlingmq.admin.typed_actions import FIRST, PAGE, After, Limit


class ClientList(Struct, frozen=True):
    """Clients, or their subscriptions. ``q``: a part of the client id."""

    q: str = ""
    cursor: str = ""
    limit: Limit = PAGE
    node: str = ""


class SessionList(Struct, frozen=True):
    """``connected``: "yes", "no", or "" for both."""

    q: str = ""
    connected: str = ""
    cursor: str = ""
    limit: Limit = PAGE
    node: str = ""


class GroupList(Struct, frozen=True):
    prefix: str = ""
    cursor: str = ""
    limit: Limit = PAGE
    node: str = ""


class ClientPage(Struct, frozen=True):
    node: str
    clients: list[ClientInfo]
    next: str | None
    missing: list[Missing]


class SessionPage(Struct, frozen=True):
    node: str
    sessions: list[SessionInfo]
    next: str | None
    missing: list[Missing]


class SubscriptionPage(Struct, frozen=True):
    node: str
    subscriptions: list[SubscriptionInfo]
    next: str | None
    missing: list[Missing]


class GroupInfo(GroupFigures, frozen=True):
    """A group as the node ``node`` reports it."""

    node: str = ""


class LedGroupsRequest(Struct, frozen=True):
    prefix: str = ""
    cursor: After = FIRST
    limit: Limit = PAGE


class LedGroups(ListPart, frozen=True):
    """The groups whose primary is the node that replies."""

    groups: list[GroupFigures]


class GroupPage(Struct, frozen=True):
    node: str
    groups: list[GroupInfo]
    next: str | None
    missing: list[Missing]
