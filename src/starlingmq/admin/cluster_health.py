"""The health of a cluster in one line, as one of its nodes sees it: for commands, the dashboard and the HTTP API."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, Struct

from starlingmq.admin.sessions import when

if TYPE_CHECKING:
    from starlingmq.net.peers.cluster_shell import Cluster  # gRPC, which only a cluster needs

DAY: Final = 86_400.0
COPIES_NEXT: Final = "stop no other node yet; `starlingmq ctl cluster copies` shows how far the copies are"
ETCD_AWAY: Final = "etcd does not answer"
ETCD_NEXT: Final = "start the members of etcd, of which a majority must run; check their disks and the network"


class GoneNode(Struct, frozen=True):
    """A registered member that is not connected to the node that was asked, or whose data another node serves."""

    name: str
    since: str
    seconds: float
    queued: Annotated[int, Meta(description="Messages that wait for it on this node.")]
    served_by: Annotated[str, Meta(description="The node that serves its data; empty: none.")] = ""
    stopped: Annotated[bool, Meta(description="It had announced that it stops or drains.")] = False


class ClusterHealth(Struct, frozen=True):
    status: Annotated[
        Literal["healthy", "degraded", "unavailable"],
        Meta(description="degraded: nodes or etcd are gone, or copies missing; unavailable: this node does not serve."),
    ]
    reachable: int
    members: int
    quorum: bool
    gone: list[GoneNode]
    summary: Annotated[str, Meta(description="All of this in one line.")]
    next: Annotated[str, Meta(description="What to do; empty if nothing.")]
    at_risk: Annotated[list[str], Meta(description="Nodes of whose data no other node has a whole copy.")] = []


def cluster_health(cluster: Cluster, now: float, unready: tuple[str, ...] = ()) -> ClusterHealth:
    """``now``: of the broker's clock. ``unready``: why this node accepts no clients (``admin.readiness``); a node that
    does not serve its cluster says itself what it waits for."""
    state = cluster.state
    assert state is not None
    others = [status for status in state.status() if status.member.registered]
    registry = None if cluster.copies is None else cluster.copies.roles.registry
    away = served_elsewhere(cluster)
    there = {status.member.name for status in others if status.connected and status.member.name not in away}
    there.add(cluster.name)
    gone = []
    for status in others:
        name = status.member.name
        if not status.connected or name in away:
            since = state.reports.last_lost_at(status.member.number) or now
            seconds = round(max(now - since, 0.0), 1)
            server = away.get(name, "")  # which may have been lost itself
            stopped = state.reports.has_stopped(status.member.number)
            gone.append(GoneNode(name, when(since), seconds, status.queued, server if server in there else "", stopped))
    relayed = [status for status in others if status.connected and status.through and status.member.name not in away]
    members = len(state.members.membership.members)
    reachable = members - len(gone)
    quorum = state.quorum is not None and state.quorum.enough()
    parts = [f"{reachable} of {members} nodes reachable"]
    parts += [_lost(one) for one in gone]
    unserved = [one for one in gone if not one.served_by]
    waiting = sum(one.queued for one in unserved)
    if unserved:
        parts.append(f"{waiting:,} messages wait for {'it' if len(unserved) == 1 else 'them'}")
    if relayed:
        parts.append(f"{', '.join(status.member.name for status in relayed)} only through other nodes")
    at_risk = [] if registry is None else registry.origins_at_risk()
    if at_risk:
        parts.append(f"no other node has a whole copy of the data of {', '.join(at_risk)}")
    if state.serving or gone:
        parts.append("quorum holds" if quorum else "no quorum")
    if not state.members.available:
        parts.append(ETCD_AWAY)
    if not state.serving:
        parts.append(f"this node refuses clients: {cluster.waits_for()}")
        status_word: Literal["healthy", "degraded", "unavailable"] = "unavailable"
    elif unready:
        parts += unready
        status_word = "unavailable"
    else:
        status_word = "degraded" if gone or at_risk or not state.members.available else "healthy"
    next = _next(gone) or (COPIES_NEXT if at_risk else "")
    if not next and not state.members.available:
        next = ETCD_NEXT
    return ClusterHealth(status_word, reachable, members, quorum, gone, "; ".join(parts), next, at_risk)


def served_elsewhere(cluster: Cluster) -> dict[str, str]:
    """The nodes whose data another node serves, or has served before it was lost, with that node: until the node itself
    serves its data, so also while it is back and has no copy yet."""
    return {} if cluster.copies is None else dict(cluster.copies.roles.registry.served_elsewhere())


def _lost(one: GoneNode) -> str:
    lost = f"{one.name} {'stopped' if one.stopped else 'gone'} since {_clock(one.since, one.seconds)}"
    return f"{lost}, {one.served_by} serves its data" if one.served_by else lost


def _next(gone: list[GoneNode]) -> str:
    if not gone:
        return ""
    names = ", ".join(one.name for one in gone)
    return (
        f"start {names} again, or check the network; a node that will not return is removed with "
        f"`starlingmq ctl cluster forget {gone[0].name}`"
    )


def _clock(since: str, seconds: float) -> str:
    return f"{time_of_day(datetime.fromisoformat(since), seconds)} ({seconds:,.0f} s)"


def time_of_day(moment: datetime, seconds: float) -> str:
    """In the time zone of this machine; with the date if it was a day ago. ``seconds``: how long ago it was."""
    return moment.astimezone().strftime("%H:%M:%S" if seconds < DAY else "%Y-%m-%d %H:%M:%S")
