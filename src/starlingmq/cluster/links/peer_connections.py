"""The transports to all other nodes: which there are, which are connected, and which have told all their routes."""

from __future__ import annotations

from starlingmq.cluster.cluster_view import ClusterView
from starlingmq.cluster.links.peer_frames import MemberInfo
from starlingmq.cluster.links.peer_link import PeerLink
from starlingmq.cluster.links.peer_transport import PeerTransport
from starlingmq.cluster.membership.lost_nodes import LostNodes
from starlingmq.cluster.membership.node_directory import NodeDirectory
from starlingmq.cluster.membership.quorum import ConnectionChange, Quorum
from starlingmq.cluster.routes.route_table import RouteTable
from starlingmq.cluster.subsystem import Subsystem
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
    ) -> None:
        self._broker = broker
        self._config = config
        self._view = view
        self._node_directory = node_directory
        self._lost_nodes = lost_nodes
        self._broken: dict[int, float] = {}  # nodes to which the stream has ended, and when
        self._forgetful: dict[int, None] = {}  # nodes that may have forgotten us since we heard of them last
        self._strangers_gone = False

    # Which there are

    def set_peers(self, peers: list[MemberInfo], routes: RouteTable) -> None:
        """All other nodes."""
        others = {member.number: member for member in peers}
        transports = self._view.transports
        for number in [number for number in transports if number not in others]:
            del transports[number]
            self._lost_nodes.lives(number)
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
        """This node is another incarnation now: for the others its transports begin again."""
        for number in self._view.transports:
            self._broker.peers.release(number)
            self._forgetful[number] = None
        self._view.transports.clear()

    def begin_to_count(self, now: float) -> None:
        """What the others promised when they heard that this node counts has to be here before it serves."""
        for number, transport in self._view.transports.items():
            if self._view.is_connected(number):
                transport.behind_since = now

    # Streams

    def opened(self, number: int) -> bool:
        """The stream to that node is open: what was under way on an earlier one may be lost. False: it is no peer."""
        transport = self._view.transports.get(number)
        if transport is None:
            return False
        transport.link.resend()
        if self._view.is_connected(number):
            self._heard_again(number)
        return True

    def closed(self, number: int, now: float) -> None:
        """The stream is gone. Whether the node is, heartbeats tell; until it has taken one that was sent later, by
        whatever way, members of groups there are passed over."""
        if number in self._view.transports:
            self._broken[number] = now
            self._broker.groups.reach(number, False)

    def _heard_again(self, number: int) -> None:
        self._broken.pop(number, None)
        self._broker.groups.reach(number, True)

    # Connections

    def follow(self, quorum: Quorum, routes: RouteTable) -> bool:
        """Take in which nodes are connected now; whether that has changed."""
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
        transport.lost_at = 0.0
        self._lost_nodes.lives(change.number)
        transport.behind_since = self._broker.ctx.now
        transport.link.resend()
        self._broker.peers.up(transport.peer)
        self._heard_again(change.number)

    def _lost(self, transport: PeerTransport, change: ConnectionChange, quorum: Quorum) -> None:
        self._broker.groups.reach(change.number, False)
        transport.lost_at = self._broker.ctx.now
        self._lost_nodes.lost(change.number, transport.lost_at)
        transport.behind_since = 0.0
        if not quorum.is_connected(change.number):  # else it has begun another life, and told so
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
        """How many of them have all that may wait for them."""
        count, forward_bytes = 0, self._broker.ctx.cluster.forward_bytes
        for transport in self._view.transports.values():
            queue = transport.peer.session.queue
            if queue is not None and queue.bytes >= forward_bytes:
                count += 1
        return count
