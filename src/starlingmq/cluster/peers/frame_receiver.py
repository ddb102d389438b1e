"""Receives frames of other nodes and passes each to its subsystem."""

from __future__ import annotations

from typing import Final

from starlingmq.cluster.groups.queue_groups import QueueGroups
from starlingmq.cluster.links.control_frames import (
    GroupPull,
    GroupReport,
    HandshakeCall,
    HandshakeReply,
    Heartbeat,
    OperatorCall,
    OperatorReply,
)
from starlingmq.cluster.links.peer_frames import Data, DataAck, Envelope, RouteApplied, RouteRecords, ShareFrame
from starlingmq.cluster.links.peer_transport import PeerTransport
from starlingmq.cluster.membership.quorum import Quorum
from starlingmq.cluster.peers.frame_sender import FrameSender
from starlingmq.cluster.peers.member_follower import MemberFollower
from starlingmq.cluster.peers.node_directory import NodeDirectory
from starlingmq.cluster.qos2.qos2_adapter import Qos2Adapter
from starlingmq.cluster.routes.route_table import RouteTable
from starlingmq.cluster.shares.shares import Shares
from starlingmq.cluster.view.cluster_view import ClusterView
from starlingmq.cluster.view.operator_rpc import OperatorRpc
from starlingmq.cluster.view.subsystem import Subsystem, overriding
from starlingmq.core.context.context import Context

NEEDS_TURN: Final = 0
ONLY_MESSAGES: Final = 1  # for the inbox (``PeerInbox``)
ONLY_CLAIMS: Final = 2  # of other nodes, to shares that this node leads or whose deputy it is


class FrameReceiver:
    frames_relayed: int  # frames relayed between two other nodes that cannot reach each other

    def __init__(
        self,
        ctx: Context,
        view: ClusterView,
        sender: FrameSender,
        follower: MemberFollower,
        node_directory: NodeDirectory,
        groups: QueueGroups,
        qos2: Qos2Adapter,
        operator_rpc: OperatorRpc,
        shares: Shares,
        subsystems: tuple[Subsystem, ...],
    ) -> None:
        self.frames_relayed = 0
        self._ctx = ctx
        self._view = view
        self._sender = sender
        self._follower = follower
        self._node_directory = node_directory
        self._groups = groups
        self._qos2 = qos2
        self._operator_rpc = operator_rpc
        self._shares = shares
        self._notified_of_restarts = overriding(subsystems, lambda kind: kind.node_restarted)

    def received(self, envelope: Envelope, now: float) -> int:
        """Returns what it brought: NEEDS_TURN, ONLY_MESSAGES or ONLY_CLAIMS."""
        view = self._view
        quorum, relay, routes = view.quorum, view.relay, view.routes
        if quorum is None or relay is None or routes is None or envelope.source == view.number:
            return NEEDS_TURN
        body = envelope.body
        if type(body) is Heartbeat and envelope.target == view.number:
            beat = view.heartbeats.read(envelope.source, envelope.incarnation, body)
            envelope = envelope.with_body(beat)
        changes = quorum.changes
        if not quorum.took(envelope, now):
            return NEEDS_TURN
        if envelope.target != view.number:
            hop = relay.pass_on(envelope)
            if hop is not None:
                self.frames_relayed += 1
                self._sender.pass_on(hop, envelope.passed_on())
            return NEEDS_TURN
        transport = view.transports.get(envelope.source)
        if transport is None:
            return NEEDS_TURN
        begins = envelope.incarnation > transport.link.target_incarnation
        if begins:
            restarted = transport.link.target_incarnation != 0
            transport.link.reset_sender(envelope.incarnation)
            if restarted:
                for each in self._notified_of_restarts:
                    each.node_restarted(envelope.source)
        brought = self._take(transport, envelope, quorum, routes, now)
        return NEEDS_TURN if begins or quorum.changes != changes else brought

    def _take(
        self, transport: PeerTransport, envelope: Envelope, quorum: Quorum, routes: RouteTable, now: float
    ) -> int:
        body = envelope.body
        source, target = envelope.incarnation, envelope.target_incarnation
        # Compiled classes first, which come with each message or client: to tell a struct costs ten times as much.
        if isinstance(body, Data):
            blob = transport.link.received(body, source, target)
            if blob is not None:
                transport.received(blob, source, body.sequence, now - body.waited, body.kept)
            return ONLY_MESSAGES
        if isinstance(body, DataAck):
            transport.acknowledged(transport.link.acknowledged(body, source, target, now), now)
        elif isinstance(body, ShareFrame):
            if target == self._view.incarnation:
                return ONLY_CLAIMS if self._shares.received(envelope.source, source, body) else NEEDS_TURN
        elif isinstance(body, (RouteRecords, RouteApplied)):
            routes.received(envelope.source, body, now)
            if isinstance(body, RouteApplied):
                self._note_retained(envelope.source, body.retained)
        elif isinstance(body, HandshakeCall):
            self._qos2.called(envelope.source, body)
        elif isinstance(body, HandshakeReply):
            self._qos2.replied(envelope.source, body, now)
        elif isinstance(body, (OperatorCall, OperatorReply)):
            if target == self._view.incarnation and isinstance(body, OperatorCall):
                self._operator_rpc.called(envelope.source, source, body)
            elif target == self._view.incarnation and isinstance(body, OperatorReply):
                self._operator_rpc.replied(envelope.source, body, now)
        elif isinstance(body, (GroupPull, GroupReport)):
            if target == self._view.incarnation:  # a frame for an earlier incarnation must not count for this one
                self._groups.received(envelope.source, source, body, now)
        elif isinstance(body, Heartbeat) and body.since != 0:
            pass  # it could not be read
        elif isinstance(body, Heartbeat):
            routes.heartbeat(envelope.source, body, now)
            self._note_retained(envelope.source, body.retained)
            if quorum.is_connected(envelope.source):
                self._node_directory.heartbeat_received(envelope.source, body)
            self._view.members.adopt(body.membership, now)
            self._follower.follow(now)
        else:
            routes.received(envelope.source, body, now)
        return NEEDS_TURN

    def _note_retained(self, number: int, sequence: int) -> None:
        """Retained messages of that node up to ``sequence`` were published before the event that its frame reports."""
        retaining = self._ctx.cluster.retained
        if retaining is not None:
            retaining.note_accepted(number, sequence)
