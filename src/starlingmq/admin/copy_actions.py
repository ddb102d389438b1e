"""Copies for operators: what there is, and giving up what all nodes in step have lost.

A node that waits for an operator before it serves offers these actions, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta, Struct

from starlingmq.admin.copy_views import CopiesView, view_copies
from starlingmq.admin.declared_actions import action
from starlingmq.admin.operator_problem import ImpossibleAction
from starlingmq.net.control_socket import Report

if TYPE_CHECKING:
    from starlingmq.cluster.copies.copy_record import CopyRecord
    from starlingmq.net.copies.copy_process import CopyProcess

CONFIRM_SECONDS: Final = 10.0  # for etcd


class Removal(Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=1000, description="The node.")]
    force: Annotated[bool, Meta(description="Proceed even if data is lost.")] = False


class GivenUp(Struct, frozen=True):
    """The data of a node, after what the nodes in step had was given up."""

    node: str
    server: Annotated[str, Meta(description="The node that serves what it has of that data.")]
    lost: str


class CopyActions:
    """``process`` is None with ``cluster.copies: 1``."""

    def __init__(self, process: Callable[[], CopyProcess | None]) -> None:
        self._process = process

    @action("cluster.copies", "GET /copies", ctl="cluster/copies")
    async def copies(self) -> CopiesView:
        """Show which nodes store copies of whose data, and what would be lost with a node now."""
        return view_copies(self._process())

    @action(
        "cluster.give_up",
        "POST /cluster/give-up",
        body="Removal",
        ctl="cluster/give-up name",
        said="{server} serves what it has of the data of {node}",
        audit="gave up data of {name!r}; {server!r} serves what it has of it",
        level=logging.WARNING,
        waits=True,
    )
    async def give_up(self, report: Report, request: Removal) -> GivenUp:
        """Give up data of a node whose copies in step are all lost; without force, say what would be lost. Let the node
        with the fullest copy serve the data of a node, although none has everything."""
        from starlingmq.net.copies.copies_left import copies_left, fullest  # late: only nodes with copies need it

        process, origin = self._process(), request.name
        if process is None:
            raise ImpossibleAction("this node has no copies: cluster.copies is 1")
        registry = process.roles.registry
        record = registry.records.get(origin)
        if record is None:
            known = ", ".join(sorted(registry.records)) or "none"
            raise ImpossibleAction(f"there are no copies of the data of {origin}; there are copies of: {known}")
        if whole := registry.whole(record):
            raise ImpossibleAction(f"{', '.join(whole)} has everything that {origin} has acknowledged: nothing is lost")
        report("asking all nodes for their copies", 0, 0, "nodes")
        found = await copies_left(process, origin)
        server = fullest(found, origin)
        if not server:
            raise ImpossibleAction(
                f"no node has a copy of the data of {origin}, and {origin} is not there to begin with nothing; start "
                f"it, or remove it with `starlingmq ctl cluster forget {origin}`"
            )
        has_copy = any(each.node == server and each.position is not None for each in found)
        lost = _lost(record, server, has_copy)
        if not request.force:
            left = "; ".join(str(each) for each in found)
            raise ImpossibleAction(f"copies of the data of {origin}: {left}. {lost}. To do this, add --force")
        if problem := await process.give_up(origin, server, CONFIRM_SECONDS):
            raise ImpossibleAction(f"the data of {origin} is not given up: {problem}")
        return GivenUp(origin, server, lost)


def _lost(record: CopyRecord, server: str, has_copy: bool) -> str:
    in_step = ", ".join(sorted(record.in_step))
    if has_copy:
        begins = f"{server} would serve its copy, and what was acknowledged after its end would be lost"
    else:
        begins = f"{server} would serve what is in its data directory, and everything else would be lost"
    return f"{begins}. If the disk of a node in step ({in_step}) returns, what only that disk has is deleted"
