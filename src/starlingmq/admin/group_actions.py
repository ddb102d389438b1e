"""What an operator may ask about queue groups, through the control socket and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType, convert

from starlingmq.admin.typed_actions import typed
from starlingmq.core.broker import BrokerState
from starlingmq.core.groups.group import Group
from starlingmq.core.groups.group_stats import figures
from starlingmq.net.control_socket import Action, Report

GROUPS_MAX: Final = 10_000  # in one answer
GROUPS_AT_ONCE: Final = 200  # below 5 ms


class GroupsRequest(Struct, frozen=True):
    """Groups whose names begin with ``prefix``: ``limit`` of them after the first ``after``."""

    prefix: str = ""
    after: int = 0
    limit: int = GROUPS_MAX


class GroupPart(Struct, frozen=True):
    """What another node has of a group; all but ``members`` is known at the primary only."""

    members: int
    online: int | UnsetType = UNSET
    room: int | UnsetType = UNSET
    waiting: int | UnsetType = UNSET


class GroupFigures(Struct, frozen=True):
    """What core.groups.group_stats says, with the names of nodes."""

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


class Groups(Struct, frozen=True):
    """``more``: there are others."""

    groups: list[GroupFigures]
    more: bool


class GroupActions:
    """Of one node that runs; ``names`` tells those of the nodes of its cluster, by number."""

    def __init__(self, state: BrokerState, names: Callable[[], dict[int, str]]) -> None:
        self.state = state
        self.names = names

    def actions(self) -> dict[str, Action]:
        return {"groups": typed(GroupsRequest, self.groups)}

    async def groups(self, report: Report, request: GroupsRequest) -> Groups:
        """The groups that this node knows of."""
        prefix, after, limit = request.prefix.encode(), request.after, request.limit
        chosen = [group for group in self.state.router.groups() if group.name.startswith(prefix)]
        names = self.names()
        found = []
        for group in chosen[after : after + limit]:
            found.append(self._told(group, names))
            if len(found) % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)  # everybody else gets a turn
        found.sort(key=lambda told: (told.name, told.filter))
        return Groups(found, len(chosen) > after + limit)

    def _told(self, group: Group, names: dict[int, str]) -> GroupFigures:
        """Its figures, with names of nodes for numbers."""

        def name_of(number: int) -> str:
            return names.get(number, f"node {number}")

        told: dict[str, Any] = figures(group)
        told["primary"] = name_of(group.chooser) if group.chooser else ("" if group.epoch else "this node")
        told["nodes"] = {name_of(number): there for number, there in told["nodes"].items()}
        return convert(told, GroupFigures)
