"""Which nodes store copies of whose data, and what would be lost with a node now: for ``ctl cluster copies``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from starlingmq.cluster.copies.copy_record import CopyRecord, too_few

if TYPE_CHECKING:
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
