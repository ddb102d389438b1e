"""Lists of which each node has a part: the requests, and the pages with the entries of all nodes."""

from __future__ import annotations

from msgspec import Struct

from starlingmq.admin.group_actions import GroupFigures
from starlingmq.admin.node_rpc import ListPart, ListRequest, Missing
from starlingmq.admin.sessions import ClientInfo, SessionInfo, SubscriptionInfo
from starlingmq.admin.typed_actions import FIRST, PAGE, After, Limit


class ClientList(ListRequest, frozen=True):
    """Clients. ``q``: a part of the client id."""

    q: str = ""


class SubscriptionList(ClientList, frozen=True):
    """``filter``: a part of the filter. ``topic``: only subscriptions that receive it."""

    filter: str = ""
    topic: str = ""


class SessionList(ClientList, frozen=True):
    """``connected``: "yes", "no", or "" for both."""

    connected: str = ""


class GroupList(ListRequest, frozen=True):
    prefix: str = ""


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
