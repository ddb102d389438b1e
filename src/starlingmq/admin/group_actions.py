"""Actions on queue groups, for the control socket and the HTTP API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType, convert

from starlingmq.admin.declared_actions import action
from starlingmq.admin.node_rpc import ListPart
from starlingmq.admin.typed_actions import FIRST, PAGE, After, Limit
from starlingmq.core.broker import BrokerState
from starlingmq.core.groups.group import Group
from starlingmq.core.groups.group_stats import figures

GROUPS_MAX: Final = 10_000  # in one reply
GROUPS_AT_ONCE: Final = 200  # per turn of the event loop; takes less than 5 ms


class GroupsRequest(Struct, frozen=True):
    """Groups whose names begin with ``prefix``: ``limit`` of them, after the first ``after``."""

    prefix: str = ""
    after: int = 0
    limit: int = GROUPS_MAX


class GroupPart(Struct, frozen=True):
    """The part of another node in a group. All fields but ``members`` are known at the primary only."""

    members: int
    online: int | UnsetType = UNSET
    room: int | UnsetType = UNSET
    waiting: int | UnsetType = UNSET


class GroupFigures(Struct, frozen=True):
    """The figures of ``core.groups.group_stats``, with names of nodes in place of numbers. ``node`` is set in lists of
    several nodes."""

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
    nodes: dict[str, GroupPart]
    node: str = ""


class Groups(Struct, frozen=True):
    """``more``: the list continues."""

    groups: list[GroupFigures]
    more: bool


class LedGroupsRequest(Struct, frozen=True):
    prefix: Annotated[str, Meta(max_length=65535, description="Only groups with this prefix.")] = ""
    cursor: After = FIRST
    limit: Limit = PAGE


class LedGroups(ListPart, frozen=True):
    """The groups whose primary is the node that replies."""

    groups: list[GroupFigures]


class GroupActions:
    """The actions of one running node. ``names`` returns the names of the cluster's nodes, by number."""

    def __init__(self, state: BrokerState, names: Callable[[], dict[int, str]]) -> None:
        self.state = state
        self.names = names

    @action("groups")
    async def groups(self, request: GroupsRequest) -> Groups:
        """The groups that this node knows."""
        prefix, after, limit = request.prefix.encode(), request.after, request.limit
        chosen = [group for group in self.state.router.groups() if group.name.startswith(prefix)]
        names = self.names()
        found = []
        for group in chosen[after : after + limit]:
            found.append(self._told(group, names))
            if len(found) % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)  # lets other tasks run
        found.sort(key=lambda told: (told.name, told.filter))
        return Groups(found, len(chosen) > after + limit)

    def _told(self, group: Group, names: dict[int, str]) -> GroupFigures:
        """The figures of a group, with names of nodes in place of numbers."""

        def name_of(number: int) -> str:
            return names.get(number, f"node {number}")

        told: dict[str, Any] = figures(group)
        told["primary"] = name_of(group.chooser) if group.chooser else ("" if group.epoch else "this node")
        told["nodes"] = {name_of(number): there for number, there in told["nodes"].items()}
        return convert(told, GroupFigures)
