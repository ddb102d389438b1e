"""Decides whether this node serves clients.

Invariant: a node serves while it is connected to a majority and has the routes of all connected nodes. A serving node
may lack routes for ``subscribe_ack_timeout``. A node that has not served yet waits for all online nodes, but no longer
than ``member_timeout``.

Routes are complete once those of the node, and those of third nodes that it knows, are here (``RouteTable.caught_up``).
A node that starts to count asks each member for them again: earlier SUBACKs did not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable

from starlingmq.cluster.membership.isolation import Isolation
from starlingmq.cluster.membership.quorum import Quorum
from starlingmq.cluster.view.cluster_ready import ClusterReady
from starlingmq.cluster.view.cluster_view import ClusterView
from starlingmq.cluster.view.subsystem import Subsystem
from starlingmq.config.settings import ClusterConfig
from starlingmq.core.broker import BrokerState
from starlingmq.core.context.context import ISOLATED


class ServingDecision(Subsystem):
    """``refuse_all`` refuses the clients whose CONNECT waits."""

    serving: bool

    def __init__(
        self,
        broker: BrokerState,
        config: ClusterConfig,
        view: ClusterView,
        ready: ClusterReady,
        isolation: Isolation,
        refuse_all: Callable[[str], None],
        now: float,
    ) -> None:
        self.serving = False
        self._broker = broker
        self._config = config
        self._view = view
        self._ready = ready
        self._isolation = isolation
        self._refuse_all = refuse_all
        self.is_prepared: Callable[[], bool] = lambda: True  # a starting node waits for this without a limit
        self._began = False  # this node has served before
        self._enough_since = now  # when a majority was reached, before this node first served
        broker.ctx.isolate()

    def turn(self, now: float) -> None:
        quorum = self._view.quorum
        if quorum is None:
            return
        broker = self._broker
        behind = [each.behind_since for each in self._view.transports.values() if each.behind_since]
        patience = self._config.subscribe_ack_timeout if self.serving else 0.0
        serving = self._may_serve(quorum, now)
        if serving and behind and now >= min(behind) + patience:
            serving = False
        if serving:
            broker.ctx.serve(quorum.lasts_until())
        else:
            broker.ctx.isolate()
        if serving != self.serving:
            self.serving = serving
            if serving:
                self._ready.news.append("serving")
            else:
                self._ready.notices.append(self._why_not(quorum))
                self._refuse_all(ISOLATED)
        self._isolation.turn(serving, now)
        catching_up = serving and bool(behind)
        if catching_up != broker.ctx.catching_up:
            broker.catch_up(catching_up)

    def _may_serve(self, quorum: Quorum, now: float) -> bool:
        may = quorum.enough() and not self._view.left and not self._view.leaving
        if self._began:
            return may
        if may:
            waited = self._all_there(quorum) or now >= self._enough_since + self._config.member_timeout
            self._began = waited and self.is_prepared()
            return self._began
        self._enough_since = now
        return False

    def _all_there(self, quorum: Quorum) -> bool:
        """Whether every online node is connected. A starting node waits for that, for a limited time."""
        number = self._view.number
        return all(each == number or quorum.is_connected(each) for each in self._view.members.online)

    def _why_not(self, quorum: Quorum) -> str:
        if self._view.left or self._view.leaving:
            return "this node is leaving its cluster: clients are refused"
        if quorum.enough():
            return "this node is receiving the routes of other nodes: clients are refused until it has them"
        members = self._view.members.membership.members
        there = quorum.supporters()
        return (
            f"isolated: {there} of {len(members) - 1} other members are connected; "
            "clients are refused until a majority is connected"
        )

    def is_busy(self) -> bool:
        return not self.serving or self._view.leaving

    def wake_at(self, now: float) -> float:
        soonest = self._isolation.wake_at()
        quorum = self._view.quorum
        if not self._began and quorum is not None and quorum.enough() and self.is_prepared():
            soonest = min(soonest, self._enough_since + self._config.member_timeout)
        return soonest
