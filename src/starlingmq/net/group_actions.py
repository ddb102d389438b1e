"""What an operator may ask about queue groups, through the control socket."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from starlingmq.core.broker import BrokerState
from starlingmq.core.group_figures import figures
from starlingmq.net.control import Action

GROUPS_MAX: Final = 10_000  # in one answer


class GroupActions:
    """Of one node that runs; ``names`` tells those of the nodes of its cluster, by number."""

    def __init__(self, state: BrokerState, names: Callable[[], dict[int, str]]) -> None:
        self.state = state
        self.names = names

    def actions(self) -> dict[str, Action]:
        return {"groups": lambda report, arguments: self.groups(arguments)}

    async def groups(self, arguments: dict[str, str]) -> dict[str, Any]:
        """All groups that this node knows of whose names begin with a text."""
        prefix = arguments.get("prefix", "").encode()
        chosen = (group for group in self.state.router.groups() if group.name.startswith(prefix))
        names = self.names()

        def name_of(number: int) -> str:
            return names.get(number, f"node {number}")

        found = []
        for group in islice(chosen, GROUPS_MAX):
            told = figures(group)
            told["primary"] = name_of(group.chooser) if group.chooser else ("" if group.epoch else "this node")
            told["nodes"] = {name_of(number): count for number, count in sorted(group.counts.items())}
            found.append(told)
        return {"groups": sorted(found, key=lambda told: (str(told["name"]), str(told["filter"])))}
