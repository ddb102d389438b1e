"""Follows ``Members``: informs the other parts of the node about its number, its incarnations and the set of
members."""

from __future__ import annotations

from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.cluster.membership.members import ENDED
from starlingmq.cluster.membership.quorum import Quorum
from starlingmq.cluster.membership.relay import Relay
from starlingmq.cluster.peers.peer_connections import PeerConnections
from starlingmq.cluster.peers.route_exchange import RouteExchange
from starlingmq.cluster.routes.route_table import RouteTable
from starlingmq.cluster.view.cluster_ready import ClusterReady
from starlingmq.cluster.view.cluster_view import ClusterView
from starlingmq.cluster.view.subsystem import NodeLife, Subsystem, overriding
from starlingmq.config.settings import ClusterConfig
from starlingmq.core.broker import BrokerState


class MemberFollower:
    """``facts``: everything that an earlier incarnation has stored. Facts that no subsystem claims belong to the
    routes."""

    def __init__(
        self,
        broker: BrokerState,
        config: ClusterConfig,
        view: ClusterView,
        ready: ClusterReady,
        connections: PeerConnections,
        routes: RouteExchange,
        subsystems: tuple[Subsystem, ...],
        facts: dict[bytes, bytes],
    ) -> None:
        self._broker = broker
        self._config = config
        self._view = view
        self._ready = ready
        self._connections = connections
        self._routes = routes
        self._facts = facts
        self._subsystems = subsystems
        self._notified_of_members = overriding(subsystems, lambda kind: kind.set_members)
        self._problem = ""

    def start(self, now: float) -> None:
        self._view.members.start(now)
        self.follow(now)

    def tick(self, now: float) -> None:
        due = self._view.members.wake_at()
        if due and due <= now:
            self._view.members.tick(now)
            self.follow(now)

    def connections_changed(self, quorum: Quorum, now: float) -> None:
        """Connections to other nodes have changed."""
        self._view.members.known_by(quorum.nodes_with_membership(self._view.members.membership.revision), now)
        self.follow(now)

    def follow(self, now: float) -> None:
        """To be called after every input to ``Members``."""
        view = self._view
        members = view.members
        entered = members.me is not None and members.me.incarnation != view.incarnation
        if members.me is not None and entered:
            if view.quorum is None:
                self._enter(members.me, now)
            else:
                self._enter_again(members.me, view.quorum)
        quorum, routes = view.quorum, view.routes
        if quorum is not None and routes is not None:
            if entered or members.take_changes():
                quorum.set_members(members.membership, members.joining, now)
                self._set_members(routes)
                if view.counts_since == 0 and quorum.counts():
                    view.counts_since = members.membership.revision
                    self._connections.begin_to_count(now)
            members.known_by(quorum.nodes_with_membership(members.membership.revision), now)
        self._report()

    def _report(self) -> None:
        members, ready = self._view.members, self._ready
        ready.requests += members.take_requests()
        for result in members.take_results():
            if result.error:
                ready.notices.append(result.error)
            else:
                ready.news.append(f"{result.name} was forgotten and is no longer a member")
        if members.problem != self._problem:
            self._problem = members.problem
            if self._problem:
                ready.notices.append(self._problem)
        self._view.left = members.state in ENDED

    def _set_members(self, routes: RouteTable) -> None:
        peers = self._view.others()
        self._connections.set_peers(peers, routes)
        numbers = dict.fromkeys((self._view.number, *[member.number for member in peers]))
        for each in self._notified_of_members:
            each.set_members(numbers)
        self._ready.peers = tuple({member.number: member for member in peers}.values())

    def _enter(self, me: MemberInfo, now: float) -> None:
        """This node's number is known: starts everything that needs it."""
        view, config = self._view, self._config
        view.number, view.incarnation = me.number, me.incarnation
        view.quorum = Quorum(me, config.heartbeat_interval, config.member_timeout, config.one_machine)
        view.relay = Relay(me.number, view.quorum)
        of_others = tuple([each.fact_prefix for each in self._subsystems if each.fact_prefix])
        facts = {key: value for key, value in self._facts.items() if not key.startswith(of_others)}
        view.routes = RouteTable(me.number, me.incarnation, facts, config.route_log)
        self._broker.peers.join(me.number, me.incarnation)
        life = NodeLife(me, view.members.membership.revision, self._facts)
        self._facts = {}
        for each in self._subsystems:
            each.enter(life, now)
        self._restart_routes(me.number, view.routes)

    def _restart_routes(self, number: int, routes: RouteTable) -> None:
        """Replaces the routes of an earlier incarnation by the current subscriptions of this node's sessions."""
        interest = self._broker.ctx.cluster.interest
        assert interest is not None
        wanted = interest.all()
        for key in routes.table(number):
            if key.startswith(b"$share/") and not wanted.get(key):
                self._broker.groups.lost(key)  # before other nodes hear that it has no member here
        self._routes.restart(routes)

    def _enter_again(self, me: MemberInfo, quorum: Quorum) -> None:
        """This node's key in etcd was lost before the node was registered, so it joins once more. Some nodes have
        forgotten what the two had exchanged, others did not notice the loss. To both, this node is a new
        incarnation."""
        self._view.incarnation = me.incarnation
        quorum.begin_again(me)
        self._broker.peers.join(me.number, me.incarnation)
        self._connections.begin_again()
        for each in self._subsystems:
            each.enter_again(me)
