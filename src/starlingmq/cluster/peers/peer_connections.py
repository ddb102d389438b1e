"""The transports to all other nodes: creates and removes them, and knows which are connected and have current
routes."""

from __future__ import annotations

from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.cluster.links.peer_link import PeerLink
from starlingmq.cluster.links.peer_transport import PeerTransport
from starlingmq.cluster.membership.quorum import ConnectionChange, Quorum
from starlingmq.cluster.peers.lost_node_reports import LostNodeReports
from starlingmq.cluster.peers.lost_nodes import LostNodes
from starlingmq.cluster.peers.node_directory import NodeDirectory
from starlingmq.cluster.routes.route_table import RouteTable
from starlingmq.cluster.view.cluster_view import ClusterView
from starlingmq.cluster.view.subsystem import Subsystem
from starlingmq.config.settings import ClusterConfig
from starlingmq.core.broker import BrokerState


class PeerConnections(Subsystem):
    def __init__(
        self,
        broker: BrokerState,
        config: ClusterConfig,
        view: ClusterView,
        node_directory: NodeDirectory,
        lost_nodes: LostNodes,
        reports: LostNodeReports,
    ) -> None:
        self._broker = broker
        self._config = config
        self._view = view
        self._node_directory = node_directory
        self._lost_nodes = lost_nodes
        self._reports = reports
        self._broken: dict[int, float] = {}  # nodes whose stream has closed -> when
        self._forgetful: dict[int, None] = {}  # nodes that may have forgotten this one since they were last heard
        self._strangers_gone = False

    # Members

    def set_peers(self, peers: list[MemberInfo], routes: RouteTable) -> None:
        """``peers``: all other nodes."""
        others = {member.number: member for member in peers}
        transports = self._view.transports
        for number in [number for number in transports if number not in others]:
            del transports[number]
            self._lost_nodes.recovered(number)
            self._node_directory.lost(number)
            routes.member_gone(number)
            self._broker.peers.remove(number)
            self._broken.pop(number, None)
            self._broker.groups.reach(number, True)
        config = self._config
        for number, member in others.items():
            if number not in transports:
                link = PeerLink(self._view.incarnation, config.link_window, config.resend_interval)
                transports[number] = PeerTransport(self._broker, member, link, config.link_window)
                routes.member(number)
        if not self._strangers_gone and self._view.is_registered():
            self._strangers_gone = True
            for number in routes.nodes():
                if number not in others:
                    routes.member_gone(number)
            self._broker.peers.strangers(dict.fromkeys(others))

    def begin_again(self) -> None:
        """This node is a new incarnation: its transports start from the beginning."""
        for number in self._view.transports:
            self._broker.peers.release(number)
            self._forgetful[number] = None
        self._view.transports.clear()

    def begin_to_count(self, now: float) -> None:
        """Once this node is registered, it has to have the routes that the others promised on learning that, before it
        serves."""
        for number, transport in self._view.transports.items():
            if self._view.is_connected(number):
                transport.behind_since = now

    # Streams

    def opened(self, number: int) -> bool:
        """The stream to that node is open: frames in transit on an earlier stream may be lost. Returns False for a node
        that is no peer."""
        transport = self._view.transports.get(number)
        if transport is None:
            return False
        transport.link.resend()
        self._reports.stream_opened(number)
        if self._view.quorum is not None:
            self._view.quorum.beat_now()
        if self._view.is_connected(number):
            self._heard_again(number)
        return True

    def closed(self, number: int, now: float) -> None:
        """The stream has closed. Heartbeats tell whether the node is gone. Until the node has confirmed a later
        heartbeat, by any path, group members there are passed over."""
        if number in self._view.transports:
            self._broken[number] = now
            self._reports.stream_closed(number, now)
            self._broker.groups.reach(number, False)

    def _heard_again(self, number: int) -> None:
        self._broken.pop(number, None)
        self._broker.groups.reach(number, True)

    # Connections

    def follow(self, quorum: Quorum, routes: RouteTable) -> bool:
        """Takes the current connections of ``quorum``. Returns whether they have changed."""
        changes = quorum.take_changes()
        for change in changes:
            transport = self._view.transports.get(change.number)
            if transport is None:
                continue
            if change.connected:
                self._connected(transport, change, routes)
            else:
                self._lost(transport, change, quorum)
        for number, broken_at in list(self._broken.items()):
            if quorum.is_connected(number) and quorum.took_after(number, broken_at):
                self._heard_again(number)
        return bool(changes)

    def _connected(self, transport: PeerTransport, change: ConnectionChange, routes: RouteTable) -> None:
        if change.number in self._forgetful:
            del self._forgetful[change.number]
            routes.unknown_at(change.number)
        routes.connected(change.number, self._broker.ctx.now)
        transport.lost_at = 0.0
        self._lost_nodes.recovered(change.number)
        transport.behind_since = self._broker.ctx.now
        transport.keep(self._config.member_timeout)
        self._reports.back(change.number, self._broker.ctx.now)
        transport.link.resend()
        self._broker.peers.up(transport.peer)
        self._heard_again(change.number)

    def _lost(self, transport: PeerTransport, change: ConnectionChange, quorum: Quorum) -> None:
        self._broker.groups.reach(change.number, False)
        transport.lose()
        self._lost_nodes.lost(change.number, transport.lost_at)
        self._reports.gone(change.number, transport.lost_at)
        transport.behind_since = 0.0
        if not quorum.is_connected(change.number):  # otherwise it has restarted, and has reported that
            self._node_directory.lost(change.number)
        self._broker.peers.down(transport.peer)

    def look(self, now: float) -> None:
        quorum, routes = self._view.quorum, self._view.routes
        if quorum is None or routes is None:
            return
        for number, transport in self._view.transports.items():
            if transport.behind_since and routes.caught_up(number) and quorum.knows(number, self._view.counts_since):
                transport.behind_since = 0.0

    def is_busy(self) -> bool:
        return any(transport.behind_since or transport.waits() for transport in self._view.transports.values())

    def full(self) -> int:
        """The number of transports whose forwarding queue is full."""
        count, forward_bytes = 0, self._broker.ctx.cluster.forward_bytes
        for transport in self._view.transports.values():
            queue = transport.peer.session.queue
            if queue is not None and queue.bytes >= forward_bytes:
                count += 1
        return count
