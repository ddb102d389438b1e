"""Copies for operators: which nodes store copies of whose data, what would be lost with a node now, and giving up what
all nodes in step have lost.

A node that waits for an operator before it serves offers these actions, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta, Struct

from starlingmq.admin.declared_actions import action
from starlingmq.admin.operator_problem import ImpossibleAction
from starlingmq.cluster.copies.copy_record import CopyRecord, too_few
from starlingmq.net.control_socket import Report

if TYPE_CHECKING:
    from starlingmq.cluster.copies.copy_record import CopyRecord
    from starlingmq.net.copies.copy_process import CopyProcess


class FollowerView(Struct, frozen=True):
    """``behind_bytes``, ``behind_seconds``: what it has not confirmed yet; null: it is not connected, or is still
    catching up. ``sent`` of ``total``: bytes sent to bring it up to date; the total is an estimate."""

    node: str
    state: Annotated[str, Meta(description="in step, following, catching up, away, or unknown at another node.")]
    why: Annotated[str, Meta(description="Why it is away; empty: it is not.")]
    behind_bytes: int | None
    behind_seconds: float | None
    sent: int
    total: int


class CopyView(Struct, frozen=True):
    """The data of one node. Only the node that serves it knows how far its followers are."""

    node: str
    server: Annotated[str, Meta(description="The node that serves the data now.")]
    generation: int
    in_step: Annotated[list[str], Meta(description="Nodes whose disks have everything that was acknowledged.")]
    followers: list[FollowerView]
    refused: Annotated[str, Meta(description="Why nothing is accepted; empty: it is.")]
    unserved: Annotated[str, Meta(description="Why no node serves the data, and what to do; empty: one does or will.")]
    at_risk: Annotated[str, Meta(description="What would be lost if the serving node was lost now; empty: nothing.")]


class CopiesView(Struct, frozen=True):
    """``copies`` and ``min_copies`` are the settings; with ``copies`` 1 there are none."""

    copies: int
    min_copies: int
    nodes: list[CopyView]


def view_copies(process: CopyProcess | None) -> CopiesView:
    if process is None:
        return CopiesView(1, 1, [])
    cluster = process.config.cluster
    records = process.roles.registry.records
    nodes = [_view(process, record) for _, record in sorted(records.items())]
    return CopiesView(cluster.copies, cluster.copies_required, nodes)


def _view(process: CopyProcess, record: CopyRecord) -> CopyView:
    server = process.roles.servers.get(record.origin)
    at_risk = process.roles.registry.is_at_risk(record)
    required = process.config.cluster.copies_required
    return CopyView(
        node=record.origin,
        server=record.server,
        generation=record.generation,
        in_step=sorted(record.in_step),
        followers=[_follower(process, record, name) for name in record.followers],
        refused=too_few(len(record.in_step), required) if server is None else server.refusal,
        unserved=_unserved(record, process.roles.registry.whole(record)),
        at_risk=f"the data of {record.origin}, since no other node that is there has all of it" if at_risk else "",
    )


def _unserved(record: CopyRecord, whole: list[str]) -> str:
    if whole:
        return ""
    in_step = ", ".join(sorted(record.in_step))
    return (
        f"no node that is there has everything that was acknowledged (in step: {in_step}); start one of those with its "
        f"disk, or, if their disks are lost, run `starlingmq ctl cluster give-up {record.origin}`"
    )


def _follower(process: CopyProcess, record: CopyRecord, name: str) -> FollowerView:
    part = process.part_of(record.origin)
    if part is None or part.source is None:
        return FollowerView(name, "in step" if name in record.in_step else "unknown", "", None, None, 0, 0)
    behind = part.source.behind(name)
    feed = part.feeds.get(name)
    if feed is None:
        state = "away"
    elif feed.phase == "catching up":
        state = "catching up"
    else:
        state = "in step" if name in record.in_step else "following"
    return FollowerView(
        name,
        state,
        part.why_away(name) if feed is None else "",
        None if behind is None else behind[0],
        None if behind is None else round(behind[1], 3),
        0 if feed is None else feed.sent,
        0 if feed is None else max(feed.sent, feed.total),
    )


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
