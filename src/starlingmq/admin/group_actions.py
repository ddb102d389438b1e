"""What an operator may ask about queue groups, through the control socket and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from starlingmq.core.broker import BrokerState
from starlingmq.core.groups.group import Group
from starlingmq.core.groups.group_stats import figures
from starlingmq.net.control_socket import Action

GROUPS_MAX: Final = 10_000  # in one answer
GROUPS_AT_ONCE: Final = 200  # below 5 ms


class GroupActions:
    """Of one node that runs; ``names`` tells those of the nodes of its cluster, by number."""

    def __init__(self, state: BrokerState, names: Callable[[], dict[int, str]]) -> None:
        self.state = state
        self.names = names

    def actions(self) -> dict[str, Action]:
        return {"groups": lambda report, arguments: self.groups(arguments)}

    async def groups(self, arguments: dict[str, str]) -> dict[str, Any]:
        """The groups that this node knows of whose names begin with ``prefix``: all, or ``limit`` of them after the
        first ``after``; ``more``: there are others."""
        prefix = arguments.get("prefix", "").encode()
        after, limit = int(arguments.get("after", "0")), int(arguments.get("limit", str(GROUPS_MAX)))
        chosen = [group for group in self.state.router.groups() if group.name.startswith(prefix)]
        names = self.names()
        found = []
        for group in chosen[after : after + limit]:
            found.append(self._told(group, names))
            if len(found) % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)  # everybody else gets a turn
        found.sort(key=lambda told: (str(told["name"]), str(told["filter"])))
        return {"groups": found, "more": len(chosen) > after + limit}

    def _told(self, group: Group, names: dict[int, str]) -> dict[str, Any]:
        """Its figures, with names of nodes for numbers."""

        def name_of(number: int) -> str:
            return names.get(number, f"node {number}")

        told: dict[str, Any] = figures(group)
        told["primary"] = name_of(group.chooser) if group.chooser else ("" if group.epoch else "this node")
        told["nodes"] = {name_of(number): there for number, there in told["nodes"].items()}
        return told
