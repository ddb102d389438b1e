"""Draining a node, temporarily or permanently, and rebalancing clients over the nodes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta, Struct

from starlingmq.admin.declared_actions import action
from starlingmq.admin.operator_problem import ImpossibleAction
from starlingmq.net.control_socket import Report

if TYPE_CHECKING:
    from starlingmq.cluster.cluster_state import ClusterState
    from starlingmq.net.listeners.listener_set import ListenerSet
    from starlingmq.net.peers.cluster_shell import Cluster

REPORT_SECONDS: Final = 0.1
QUIET_SECONDS: Final = 3.0  # a rebalance is over after so long without a change in the numbers of clients


class DrainRequest(Struct, frozen=True):
    """``no_wait``: for copies."""

    no_wait: bool = False


class RebalanceRequest(Struct, frozen=True):
    rate: Annotated[
        int, Meta(ge=0, le=1_000_000, description="Clients per second and node; 0: cluster.drain_rate.")
    ] = 0


class DrainProgress(Struct, frozen=True):
    """``only_here``: nodes whose data would be lost if this one was lost now, because no other node that is there has a
    whole copy; ``waits_for_copies``: ``cluster.drain_copy_timeout`` is not over yet."""

    node: str
    draining: bool
    done: bool
    moved: int
    closed: int
    handed_over: int
    declined: int
    clients_left: int
    sessions_left: int
    on_the_way: int
    only_here: list[str]
    waits_for_copies: bool


class Rebalanced(Struct, frozen=True):
    """``before`` and ``after``: clients by the name of the node."""

    before: dict[str, int]
    after: dict[str, int]
    moved: int


class DrainActions:
    """The actions of one running node."""

    def __init__(self, cluster: Cluster, listener_set: ListenerSet) -> None:
        self.cluster = cluster
        self.listener_set = listener_set
        self._done_at: float | None = None  # when clients and sessions had moved

    @property
    def state(self) -> ClusterState:
        state = self.cluster.state
        assert state is not None
        return state

    @action("cluster.drain", audit="drained this node", waits=True)
    async def drain(self, report: Report, request: DrainRequest) -> DrainProgress:
        """Stop serving clients, and wait until all clients and sessions have moved."""
        await self.start()
        await self.follow(report)
        result = self.result()
        while result.waits_for_copies and not request.no_wait:
            report(f"waiting for copies of the data of {', '.join(result.only_here)} at other nodes", 0, 0, "steps")
            await asyncio.sleep(REPORT_SECONDS)
            result = self.result()
        return result

    async def start(self) -> None:
        """Raises ImpossibleAction if no other node accepts clients."""
        if not self.state.drain.active and not self.state.node_directory.welcoming():
            raise ImpossibleAction(
                "no other node accepts clients at the moment, so the clients of this node cannot be "
                "redirected; try again when another node serves"
            )
        await self.begin()

    async def begin(self, for_good: bool = False) -> None:
        self._done_at = None
        await self.listener_set.close()
        self.state.begin_drain(self.cluster.clock(), for_good=for_good)
        self.cluster.request_turn()

    async def cancel(self) -> None:
        """Accept clients again. Raises ListenerError if another process has taken a port meanwhile; then the drain
        continues."""
        if self.state.drain.active:
            await self.listener_set.open_again()
            self.state.end_drain()
            self.cluster.request_turn()

    async def follow(self, report: Report) -> None:
        """Report progress until no client or session is left here, or no other node accepts what is left."""
        drain = self.state.drain
        clients = drain.clients_left
        sessions = drain.sessions_left
        while drain.active and not drain.done:
            clients = max(clients, drain.clients_left)
            sessions = max(sessions, drain.sessions_left)
            if drain.clients_left:
                report("redirecting clients", clients - drain.clients_left, clients, "clients")
            else:
                report("handing over sessions", sessions - drain.sessions_left, sessions, "sessions")
            await asyncio.sleep(REPORT_SECONDS)

    def result(self) -> DrainProgress:
        drain, now = self.state.drain, self.cluster.clock()
        if drain.done and self._done_at is None:
            self._done_at = now
        copies = self.cluster.copies
        only_here = [] if copies is None else copies.roles.registry.only_at(self.cluster.name)
        until = (now if self._done_at is None else self._done_at) + self.cluster.config.cluster.drain_copy_timeout
        return DrainProgress(
            node=self.cluster.name,
            draining=drain.active,
            done=drain.done,
            moved=drain.moved,
            closed=drain.closed + self.state.broker.nats.leaving.closed,
            handed_over=drain.handed,
            declined=drain.declined,
            clients_left=drain.clients_left,
            sessions_left=drain.sessions_left,
            on_the_way=self.state.takeovers.outbound_count(),
            only_here=only_here,
            waits_for_copies=drain.active and bool(only_here) and now < until,
        )

    @action(
        "cluster.rebalance",
        "POST /rebalance",
        waits=True,
        ctl="rebalance",
        audit="distributed clients evenly; {moved:,} were redirected",
    )
    async def rebalance(self, report: Report, request: RebalanceRequest) -> Rebalanced:
        """Distribute clients evenly: redirect MQTT 5 clients of busy nodes. Returns when all have arrived, or when no
        further ones arrive."""
        state = self.state
        if not state.node_directory.welcoming():
            raise ImpossibleAction("no other node accepts clients at the moment; try again when one serves")
        before = self._counts()
        total = surplus(before)
        state.rebalance(request.rate, self.cluster.clock())
        self.cluster.request_turn()
        left, since = total, self.cluster.clock()
        while state.rebalancing.active or (left and self.cluster.clock() < since + QUIET_SECONDS):
            await asyncio.sleep(REPORT_SECONDS)
            now_left = min(surplus(self._counts()), total)
            if now_left != left:
                left, since = now_left, self.cluster.clock()
            report("moving clients", total - left, total, "clients")
        return Rebalanced(before, self._counts(), state.rebalancing.moved)

    def _counts(self) -> dict[str, int]:
        """Clients by the name of the node, for the nodes that accept clients."""
        state = self.state
        names = {status.member.number: status.member.name for status in state.status()}
        counts = {
            names[node]: state.node_directory.clients(node)
            for node in state.node_directory.welcoming()
            if node in names
        }
        if not state.drain.active:
            counts[self.cluster.name] = state.broker.ctx.counters.clients_connected
        return dict(sorted(counts.items()))


def surplus(counts: dict[str, int]) -> int:
    """The number of clients above the average, summed over the nodes."""
    if not counts:
        return 0
    share = -(-sum(counts.values()) // len(counts))
    return sum(max(count - share, 0) for count in counts.values())
