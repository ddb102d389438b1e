"""Cluster actions of the control socket on one member: status, routes, shares of client ids, leave, forget."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType, convert, field
from msgspec.structs import replace

from starlingmq._version import __version__
from starlingmq.admin.cluster_health import ClusterHealth, cluster_health
from starlingmq.admin.copy_actions import CopyActions, Removal
from starlingmq.admin.declared_actions import action, bound
from starlingmq.admin.drain_actions import DrainActions
from starlingmq.admin.noted_actions import Note
from starlingmq.admin.operator_problem import ImpossibleAction
from starlingmq.admin.sessions import when
from starlingmq.core.connect.session_reset import UNSETTLED
from starlingmq.core.router.filter_summary import is_summary, parse_shape
from starlingmq.net.control_socket import Action, Report

if TYPE_CHECKING:
    from starlingmq.cluster.cluster_state import ClusterState
    from starlingmq.net.peers.cluster_shell import Cluster


class SharesRequest(Struct, frozen=True):
    client: Annotated[str, Meta(max_length=65535, description="A client id whose share is looked up. Empty: none.")] = (
        ""
    )


class ShareNodeView(Struct, frozen=True):
    node: str
    leads: Annotated[int, Meta(description="Shares that the node leads.")]
    deputizes: Annotated[int, Meta(description="Shares whose deputy it is.")]
    behind: Annotated[
        int, Meta(description="Messages about owners from this node that the node has not acknowledged yet.")
    ]
    unknown: Annotated[
        bool, Meta(description="What the node has could not be asked: each claim here counts it as a former owner.")
    ]


class ShareLookup(Struct, frozen=True):
    """The share of one client id."""

    client: str
    share: int
    leader: Annotated[str, Meta(description="Empty: no node.")]
    deputy: Annotated[str, Meta(description="Empty: no node, as in a cluster of one.")]


class SharesView(Struct, frozen=True):
    """``asking`` and what follows concern the shares that this node leads."""

    version: Annotated[int, Meta(description="Version of the table of shares.")] = 0
    listed: Annotated[bool, Meta(description="Whether this node takes part in this version.")] = False
    nodes: list[ShareNodeView] = []
    asking: Annotated[int, Meta(description="Shares whose keys are being collected from the nodes.")] = 0
    copying: Annotated[int, Meta(description="Shares whose deputy has no copy yet.")] = 0
    waiting: Annotated[int, Meta(description="Requests that wait for these shares.")] = 0
    client_ids: Annotated[int, Meta(description="Client ids with an owner key.")] = 0
    granted: Annotated[int, Meta(description="Claims granted since the node started.")] = 0
    lookup: ShareLookup | None = None


def view_shares(state: ClusterState, client: str) -> SharesView:
    from starlingmq.cluster.shares.share_figures import figures_of  # late: only a member of a cluster has them
    from starlingmq.cluster.shares.share_table import share_of

    shares = state.shares
    found = figures_of(shares)
    numbers = sorted({*found.led, *found.deputized, *found.behind, *found.unknown} - {0})
    name_of = state.view.name_of
    nodes = [
        ShareNodeView(
            name_of(number),
            found.led.get(number, 0),
            found.deputized.get(number, 0),
            found.behind.get(number, 0),
            number in found.unknown,
        )
        for number in numbers
    ]
    lookup = None
    if client:
        pair = shares.table.of(client)
        names = ["" if not number else name_of(number) for number in pair[:2]]
        lookup = ShareLookup(client, share_of(client), names[0], names[1])
    return replace(convert(found._asdict(), SharesView), nodes=nodes, lookup=lookup)


LEAVE_SECONDS: Final = 30.0  # for other nodes to acknowledge what is queued for them, and for etcd to confirm
LINES_SECONDS: Final = 10.0  # for members of shared groups to receive the messages that wait on this node
REPORT_SECONDS: Final = 0.2
NAMED: Final = 5  # streams in a line
TRAFFIC: Final = ("envelopes_out", "envelopes_in", "bytes_out", "bytes_in")


class RoutesRequest(Struct, frozen=True):
    """Routes of one node (``name``) or of all, whose filters begin with ``prefix``."""

    prefix: Annotated[str, Meta(max_length=65535, description="Only filters with this prefix.")] = ""
    name: Annotated[str, Meta(max_length=1000, description="Only this node. Default: all nodes of the cluster.")] = (
        field(default="", name="node")
    )
    limit: Annotated[int, Meta(ge=1, le=10_000, description="Maximum number of entries per node.")] = 100


class LeaveRequest(Struct, frozen=True):
    force: bool = False


class RouteView(Struct, frozen=True):
    """``members`` of a shared subscription, ``durable`` of any other. ``summary``: ``filter`` is the shape of many."""

    filter: str
    members: int | UnsetType = UNSET
    durable: bool | UnsetType = UNSET
    summary: bool | UnsetType = UNSET


class NodeRoutes(Struct, frozen=True):
    """``routes`` is the number of routes, ``listed`` are those that were requested."""

    name: str
    epoch: int
    version: int
    routes: int
    listed: list[RouteView]


class ClusterRoutes(Struct, frozen=True):
    nodes: list[NodeRoutes]


class NodeLeft(Struct, frozen=True):
    left: str


class NodeForgotten(Struct, frozen=True):
    forgot: str


UNDISTURBED: Final = {"through": "", "queued": 0, "queued_bytes": 0, "unacknowledged": 0, "behind": False}
"""Of this node itself. ``through``: the node that relays frames to a member."""
THERE: Final = {"gone": False, "gone_since": None, "served_by": ""}
"""``gone``: as in ``health``; then ``served_by`` is the node that serves its data, "" if none does."""


def _members(cluster: Cluster, state: ClusterState, health: ClusterHealth) -> Iterator[dict[str, Any]]:
    """As this node sees them."""
    me, tables = state.members.me, state.routes
    yield {
        "name": cluster.name,
        "number": state.number,
        "incarnation": me.incarnation if me is not None else 0,
        "address": cluster.peers.address,
        "version": __version__,
        "state": state.members.state,
        "online": state.number in state.members.online,
        "connected": True,
        "this": True,
        **UNDISTURBED,
        "routes": len(tables.table(state.number)) if tables is not None else 0,
        "draining": state.drain.active,
        "clients": state.broker.ctx.counters.clients_connected,
        **THERE,
    }
    gone = {one.name: one for one in health.gone}
    names = {status.member.number: status.member.name for status in state.status()}
    for status in state.status():
        member, lost = status.member, gone.get(status.member.name)
        since = state.reports.last_lost_at(member.number)
        yield {
            "name": member.name,
            "number": member.number,
            "incarnation": member.incarnation,
            "address": member.address,
            "version": member.version,
            "state": "registered" if member.registered else "joining",
            "online": status.online,
            "connected": status.connected,
            "this": False,
            **{name: getattr(status, name) for name in UNDISTURBED},
            "through": names.get(status.through, ""),
            "routes": len(tables.table(member.number)) if tables is not None else 0,
            "draining": state.node_directory.drains(member.number),
            "clients": state.node_directory.clients(member.number),
            **(THERE if lost is None else {"gone": True, "gone_since": when(since) if since else None}),
            "served_by": "" if lost is None else lost.served_by,
        }


def _listed(table: Mapping[bytes, int], prefix: bytes, limit: int) -> list[RouteView]:
    views: list[RouteView] = []
    for key, value in table.items():
        shape = parse_shape(key) if is_summary(key) else None
        filter = key if shape is None else shape[2]
        if (is_summary(key) and shape is None) or not filter.startswith(prefix):
            continue
        text = filter.decode()
        if filter.startswith(b"$share/"):
            views.append(RouteView(text, members=value))
        else:
            views.append(RouteView(text, durable=value > 1, summary=UNSET if shape is None else True))
        if len(views) == limit:
            break
    return sorted(views, key=lambda view: view.filter)


class MemberActions:
    """The actions of one running node. ``unready`` returns why it accepts no clients; ``note``: as of ``bound``."""

    def __init__(
        self, cluster: Cluster, drain: DrainActions, unready: Callable[[], tuple[str, ...]], note: Note
    ) -> None:
        self.cluster = cluster
        self.drain = drain
        self._unready = unready
        self._note = note

    def actions(self) -> dict[str, Action]:
        return bound(self, self.drain, CopyActions(lambda: self.cluster.copies), note=self._note)

    @action("cluster.status", "GET /nodes")
    async def nodes(self) -> dict[str, Any]:
        """List the members of the cluster as this node sees them. A single broker answers with less."""
        cluster, state = self.cluster, self.drain.state
        counters, takeovers, traffic = state.broker.ctx.counters, state.takeovers, cluster.peers.traffic
        health = cluster_health(cluster, cluster.clock(), self._unready())
        return {
            "cluster": cluster.config.cluster.name,
            "node": cluster.name,
            "serving": state.serving,
            "waits_for": "" if state.serving else cluster.waits_for(),
            "members": sorted(_members(cluster, state, health), key=itemgetter("name")),
            "revision": state.members.membership.revision,
            "etcd": {  # ``own``: this node runs it
                "own": cluster.server is not None,
                "endpoints": cluster.endpoints,
                "restarts": cluster.server.restarts if cluster.server is not None else 0,
            },
            "messages": {
                "forwarded": counters.forwards_sent,
                "received": counters.forwards_received,
                "doubled": counters.forwards_doubled,
            },
            "sessions": {
                "came": takeovers.completed,
                "lost": dict(takeovers.lost),
                UNSETTLED: counters.dropped.get(UNSETTLED, 0),
            },
            "handshakes": state.qos2.counters.figures(),
            "frames": {"data": state.data_frames(), "passed_on": state.frames_relayed},
            "traffic": {name: getattr(traffic, name) for name in TRAFFIC} | {"dropped": dict(traffic.dropped)},
            "health": health,
        }

    @action("cluster.shares", "GET /shares", ctl="cluster/shares client?")
    async def shares(self, request: SharesRequest) -> SharesView:
        """Show which nodes lead the shares of client ids, and how far their deputies are."""
        return view_shares(self.drain.state, request.client)

    @action("cluster.routes", "GET /routes", ctl="cluster/routes prefix?")
    async def wanted(self, request: RoutesRequest) -> ClusterRoutes:
        """List the routes of each node."""
        state = self.drain.state
        if state.routes is None:
            raise ImpossibleAction("this node has not joined the cluster yet, so it has no routes; try again later")
        prefix, wanted = request.prefix.encode(), request.name
        names = self.cluster.names()
        if wanted and wanted not in names.values():
            raise ImpossibleAction(f"there is no node {wanted}; the members are {', '.join(sorted(names.values()))}")
        nodes = []
        for number, name in sorted(names.items(), key=lambda item: item[1]):
            if wanted in ("", name):
                table = state.routes.table(number)
                listed = _listed(table, prefix, request.limit)
                epoch, version = state.routes.vector().get(number, (0, 0))
                nodes.append(NodeRoutes(name, epoch, version, len(table), listed))
        return ClusterRoutes(nodes)

    @action(
        "cluster.leave", audit="told this node to leave its cluster, and it has left", level=logging.WARNING, waits=True
    )
    async def leave(self, report: Report, request: LeaveRequest) -> NodeLeft:
        """Hand over all sessions and queued messages, leave the membership, and stop."""
        state = self.drain.state
        if len(state.members.membership.members) == 1:
            raise ImpossibleAction("this node is the only member of its cluster; stop it instead")
        copies = self.cluster.copies
        only_here = [] if copies is None else copies.only_here()
        if only_here and not request.force:
            raise ImpossibleAction(
                f"no other node has a whole copy of the data of {', '.join(only_here)}, and it would be lost; "
                "wait until `starlingmq ctl cluster copies` shows another node in step, or leave with --force"
            )
        if not request.force:
            self._refuse_home(self.cluster.name, "leave")
        drained = state.drain.active
        await self.drain.begin(for_good=True)
        await self.drain.follow(report)
        left = state.drain.sessions_left
        waiting = await self._wait_for_departures(report)
        if (left or waiting) and not request.force:
            if not drained:
                await self.drain.cancel()
            raise ImpossibleAction(
                f"{left + waiting:,} persistent sessions cannot be handed over and would be lost"
                + (f" ({waiting:,} wait for unreachable nodes)" if waiting else ": no other node accepts them")
                + "; try again when all nodes serve, or use --force"
            )
        messages = await self._wait_for_lines(report)
        if messages and not request.force:
            if not drained:
                await self.drain.cancel()
            raise ImpossibleAction(
                f"{messages:,} messages wait at {self.cluster.name} for members of shared groups and would be lost; "
                "let members receive them, or use --force"
            )
        if copies is not None:
            copies.gives_up = request.force
        task = asyncio.create_task(self.cluster.leave(LEAVE_SECONDS))
        owed = self._owed()
        while not task.done():
            left = self._owed()
            report("handing over", owed - left if left < owed else 0, owed, "messages")
            if state.left and copies is not None and (only_here := copies.only_here()):
                report(f"waiting for copies of the data of {', '.join(only_here)} at other nodes", 0, 0, "steps")
            await asyncio.wait([task], timeout=REPORT_SECONDS)
        if not task.result():
            left = self._owed()
            raise ImpossibleAction(
                f"this node is still leaving: {left:,} messages have yet to be taken by other nodes"
                if left
                else "this node is still leaving: etcd has not confirmed it"
            )
        return NodeLeft(self.cluster.name)

    def _refuse_home(self, name: str, verb: str) -> None:
        """A stream of JetStream is at one node. Raises ImpossibleAction."""
        streams = self.drain.state.streams.at_home(name)
        if streams:
            shown = ", ".join(streams[:NAMED]) + (f" and {len(streams) - NAMED} more" if len(streams) > NAMED else "")
            raise ImpossibleAction(
                f"{name} has streams of JetStream, which would be lost: {shown}; delete them, or {verb} with --force"
            )

    async def _wait_for_departures(self, report: Report) -> int:
        """Wait until no session is being handed over. Returns how many could not be handed over, because their target
        is unreachable."""
        state = self.drain.state
        while state.takeovers.handing_over():
            report("handing sessions over", 0, state.takeovers.outbound_count(), "sessions")
            await asyncio.sleep(REPORT_SECONDS)
        return state.takeovers.outbound_count()

    async def _wait_for_lines(self, report: Report) -> int:
        """Wait until no message waits here for a shared group, at most ``LINES_SECONDS``. Returns how many still
        wait."""
        state = self.drain.state
        lines = [session for session in state.broker.ctx.sessions.values() if session.is_group_queue]
        until = self.cluster.clock() + LINES_SECONDS
        while True:
            left = sum(0 if line.queue is None else len(line.queue) for line in lines)
            left += sum(0 if line.window is None else line.window.unanswered() for line in lines)
            if not left or self.cluster.clock() >= until:
                return left
            report("handing over messages of groups", 0, left, "messages")
            await asyncio.sleep(REPORT_SECONDS)

    def _owed(self) -> int:
        return sum(status.queued for status in self.drain.state.status())

    @action(
        "cluster.forget",
        "POST /cluster/forget",
        body="Removal",
        waits=True,
        ctl="cluster/forget name",
        hint="Messages that wait for it are dropped. Run this on another node.",
        said="{forgot} was removed from the cluster",
        audit="removed {name!r} from the cluster",
        level=logging.WARNING,
    )
    async def forget(self, report: Report, request: Removal) -> NodeForgotten:
        """Remove a node that will not return, and what waits for it."""
        from starlingmq.admin.copied_nodes import CopiedNode  # late: it loads what only members of a cluster have

        cluster, copies, name = self.cluster, self.cluster.copies, request.name
        if not request.force:
            self._refuse_home(name, "forget it")
        known = False
        if copies is not None and name != cluster.name:
            known = await CopiedNode(cluster, copies, name, request.force).hand_over(report)
        report(f"forgetting {name}", 0, 0, "steps")
        left = self.drain.state.streams.at_home(name)  # it was forgotten before, or has left, and etcd kept them
        if name in cluster.names().values() or not (known or left):
            problem = await cluster.forget(name, request.force, LEAVE_SECONDS)
            if problem:
                raise ImpossibleAction(problem)
        else:
            await cluster.forget_server(name)
        if why := await cluster.forget_streams(name):
            raise ImpossibleAction(f"{name} was removed, but not its streams of JetStream: {why}; try again")
        if copies is not None and not await copies.forget(name, LEAVE_SECONDS):
            raise ImpossibleAction(f"{name} was removed, but etcd has not confirmed the end of its copies; try again")
        return NodeForgotten(name)
