"""One node's part of a cluster: takes the core's output and the frames of other nodes, and produces frames and
requests.

A shell calls ``start`` once; ``answered``, ``received``, ``connected`` and ``disconnected`` on these events; ``turn``
in each of its turns after ``BrokerState.turn``; and ``take_ready`` once the turn's frames were passed to their
transports (``cluster.links.peer_transport``: for peers, these are ports of this module). Without events it does so at
``wake_at``.

The work is in the subsystems; ``cluster.view.subsystem`` defines when each of their methods is called. Their order is
that of their dependencies:

    ====================  ==========================================================================================
    leadership            some of the others work only on the leader
    shares                answer the claims that takeovers wait for
    connections           determine the nodes that SUBACKs, takeovers and routes count on
    routes                are applied before messages of other nodes are processed, and have their version before it
                          is used
    inbox                 messages and takeover frames come in one stream: all of it is taken before takeovers go on
    takeovers             add and remove sessions, so they come before everything that looks at sessions
    lost_nodes            are not counted on any more by the following ones
    drain, rebalancing    send away clients and sessions that takeovers have left here
    groups                follow the members that sessions here have
    serving               is decided by the received input, before it is announced
    node_directory        tells clients nothing new while this node is isolated
    subacks               are sent before wills are published
    retained, wills       send the retained message of a will to etcd before they change the will's key there
    heartbeats            report everything that was decided
    qos2                  asks after sessions were added and removed
    streams               of JetStream: their requests do not wait for the others
    operator_rpc          comes last: an operator sees the result of this turn
    ====================  ==========================================================================================

Invariants, each of them a promise (docs/CLUSTER.md):

- A SUBACK is sent when every node that may publish has the route (``peers.suback_wait``).
- Nothing is published while routes of a connected node are missing here, so this node keeps the promise of a SUBACK
  that was sent there (``peers.serving``).
- A node that is not connected to a majority is isolated.
"""

from __future__ import annotations

from math import inf
from typing import Final

from starlingmq.cluster.balance.drain import Drain
from starlingmq.cluster.balance.rebalance import Rebalancing
from starlingmq.cluster.copies.copy_marks import CopyMarks
from starlingmq.cluster.etcd.election import Election
from starlingmq.cluster.etcd.etcd_requests import Answer
from starlingmq.cluster.groups.queue_groups import QueueGroups
from starlingmq.cluster.links.peer_frames import Envelope
from starlingmq.cluster.links.peer_transport import PeerTransport
from starlingmq.cluster.membership.isolation import Isolation
from starlingmq.cluster.membership.lease_fence import LeaseFence
from starlingmq.cluster.membership.members import ENDED, Members
from starlingmq.cluster.membership.quorum import Quorum
from starlingmq.cluster.peers.frame_receiver import ONLY_CLAIMS, ONLY_MESSAGES, FrameReceiver
from starlingmq.cluster.peers.frame_sender import FrameSender
from starlingmq.cluster.peers.heartbeats import Heartbeats
from starlingmq.cluster.peers.leadership import Leadership
from starlingmq.cluster.peers.lost_node_reports import LostNodeReports
from starlingmq.cluster.peers.lost_nodes import LostNodes
from starlingmq.cluster.peers.member_follower import MemberFollower
from starlingmq.cluster.peers.node_directory import NodeDirectory
from starlingmq.cluster.peers.peer_connections import PeerConnections
from starlingmq.cluster.peers.peer_inbox import PeerInbox
from starlingmq.cluster.peers.process_presence import MemberPresence
from starlingmq.cluster.peers.publishers import Publishers
from starlingmq.cluster.peers.route_exchange import RouteExchange
from starlingmq.cluster.peers.serving import ServingDecision
from starlingmq.cluster.peers.suback_wait import SubackWait
from starlingmq.cluster.qos2.qos2_adapter import Qos2Adapter
from starlingmq.cluster.retained.replay_notices import ReplayNotices
from starlingmq.cluster.retained.retained_records import TAG as RETAINED_TAG
from starlingmq.cluster.retained.retained_sync import RetainedSync
from starlingmq.cluster.routes.route_facts import last_epoch
from starlingmq.cluster.routes.route_table import RouteTable
from starlingmq.cluster.shares.holdings import Holdings
from starlingmq.cluster.shares.owner_requests import OwnerRequests
from starlingmq.cluster.shares.share_books import ShareBooks
from starlingmq.cluster.shares.shares import Shares
from starlingmq.cluster.shares.will_requests import WillRequests
from starlingmq.cluster.streams.cluster_streams import ClusterStreams
from starlingmq.cluster.streams.stream_frames import TAG as STREAM_TAG
from starlingmq.cluster.takeover.ownership import Ownership, OwnershipPorts
from starlingmq.cluster.takeover.takeover import Takeovers, first_number
from starlingmq.cluster.takeover.takeover_ports import TakeoverPorts
from starlingmq.cluster.takeover.takeover_subsystem import TakeoverSubsystem
from starlingmq.cluster.takeover.transfer_frames import Declined, Rebalance
from starlingmq.cluster.view.cluster_ready import ClusterReady
from starlingmq.cluster.view.cluster_view import ClusterView, PeerStatus
from starlingmq.cluster.view.operator_rpc import OperatorRpc
from starlingmq.cluster.view.pending_work import PendingWork
from starlingmq.cluster.view.subsystem import Subsystem, overriding
from starlingmq.cluster.wills.cluster_wills import ClusterWills
from starlingmq.config.settings import ClusterConfig
from starlingmq.core.broker import BrokerState

__all__ = ["ClusterReady", "ClusterState", "PeerStatus"]

SETTLE_TIMEOUTS: Final = 2  # member timeouts after which no node relies on earlier statements any longer


class ClusterState:
    def __init__(
        self,
        broker: BrokerState,
        config: ClusterConfig,
        name: str,
        address: str,
        facts: dict[bytes, bytes],
        now: float,
        version: str = "",
        copied: bool = False,
    ) -> None:
        """``facts``: of the data directory, see ``durable_tokens``; ``copied``: this process stores copies of data, so
        it knows the records of all of them."""
        self.broker = broker
        self.config = config
        self.name = name
        settle = SETTLE_TIMEOUTS * config.member_timeout
        last, first = last_epoch(facts), first_number(facts)
        self.members = Members(config.name, name, address, version, settle, last, first, CopyMarks(config.name, copied))
        view = self.view = ClusterView(self.members)
        ready = self._ready = ClusterReady()
        self._sender = FrameSender(view, self._ready, config)
        broker.ctx.cluster.join(broker.ctx.sessions.values(), config.forward_bytes)
        self._make_subsystems(now)
        subsystems = self.subsystems = self._in_order()
        self._beginning = overriding(subsystems, lambda kind: kind.begin_turn)
        self._registered = overriding(subsystems, lambda kind: kind.registered)
        self._looking = overriding(subsystems, lambda kind: kind.look)
        self._turning = overriding(subsystems, lambda kind: kind.turn)
        self._finishing = overriding(subsystems, lambda kind: kind.finish)
        self._with_frames = overriding(subsystems, lambda kind: kind.take_frames)
        self._with_notices = overriding(subsystems, lambda kind: kind.take_notices)
        self._with_requests = overriding(subsystems, lambda kind: kind.take_requests)
        self.pending_work = PendingWork(subsystems)
        self._follower = MemberFollower(broker, config, view, ready, self._connections, self._routes, subsystems, facts)
        self._receiver = FrameReceiver(
            broker.ctx,
            view,
            self._sender,
            self._follower,
            self.node_directory,
            self.groups,
            self.qos2,
            self.operator_rpc,
            self.shares,
            subsystems,
        )
        broker.peers.control = self._hear
        self.streams.wake = self._wake
        self._has_events = self._unfinished = True  # an event since the last turn; the last turn left work
        self._has_messages = self._has_claims = False  # since the last turn, of other nodes
        self._has_heard = False  # the same, for a subsystem
        self._quiet = False  # this turn had nothing to do
        self._due_at = 0.0  # when the next turn has work without an event

    def _make_subsystems(self, now: float) -> None:
        broker, config, view = self.broker, self.config, self.view
        self.node_directory = NodeDirectory(broker)
        self._lost_nodes = LostNodes(view, LeaseFence(config.name, config.member_timeout))
        self.reports = LostNodeReports(broker.ctx, view, self.node_directory, config.member_timeout)
        self._connections = PeerConnections(broker, config, view, self.node_directory, self._lost_nodes, self.reports)
        self._inbox = PeerInbox(view, self._ready)
        self._routes = RouteExchange(broker, config, view)
        self._publishers = Publishers(broker.ctx, config, view)
        self.leader = Election(f"/starlingmq/{config.name}/leader".encode())
        self._leadership = Leadership(view, self.leader)
        self.retained = RetainedSync(broker, config, view.is_connected, self._leadership.is_leading)
        self._replay_notices = ReplayNotices(broker.ctx, view.name_of)
        self._make_takeovers()
        rate = config.drain_rate
        self.drain = Drain(broker, self.node_directory, self.takeovers.send, self.takeovers.handing_over, rate)
        self.rebalancing = Rebalancing(broker, self.node_directory, rate)
        self.groups = QueueGroups(broker, config.name, view.is_connected)
        self.isolation = Isolation(broker, config.isolation_timeout, rate)
        refuse_all = self.takeovers.refuse_all
        self._serving = ServingDecision(broker, config, view, self._ready, self.isolation, refuse_all, now)
        self._serving.is_prepared = self.shares.is_prepared
        self._heartbeats = Heartbeats(broker.ctx, view, self._sender, self.node_directory, self._serving)
        self.qos2 = Qos2Adapter(broker, config, view.is_connected)
        self.shares.on_begin = (self.qos2.remembers_since, self.wills.taken.begin)
        self.operator_rpc = OperatorRpc(view.is_connected)
        self.streams = ClusterStreams(broker, config.name, self.name, view)

    def _make_takeovers(self) -> None:
        broker, config, view = self.broker, self.config, self.view
        ports = OwnershipPorts(
            lambda client_id: self.takeovers.floor(client_id),
            lambda client_id: self.takeovers.is_wanted(client_id),
            lambda client_id: self.wills.table.is_known(client_id),
            lambda client_id: self.wills.arm(client_id),
            lambda client_id, claimed: self.wills.claimed(client_id, claimed),
        )
        owners, books = OwnerRequests(), ShareBooks()
        will_store = WillRequests(books)
        self.ownership = Ownership(owners, ports)
        self.wills = ClusterWills(
            broker,
            config,
            self.ownership,
            owners,
            will_store,
            lambda number: self._lost_nodes.is_gone(number) and not view.is_copied(number),  # its successor knows them
            view.is_connected,
            self.retained.written_up_to,
        )
        takeover_ports = TakeoverPorts(
            view.is_connected,
            view.is_expected,
            view.applied_by,
            view.confirm,
            view.known_of,
            self._publishers.awaited,
            view.name_of,
            self._drain_frame_received,
            self.wills,
            config.link_window,
        )
        timeout, limit = config.takeover_timeout, config.takeover_limit
        self.takeovers = Takeovers(broker, self.ownership, owners, timeout, limit, takeover_ports)
        self._subacks = SubackWait(broker, view, self._publishers, self.takeovers.suback_hold.hold)
        self._sessions = TakeoverSubsystem(broker.ctx.cluster, view, self.takeovers, self.ownership)
        holds, gone = Holdings(self.takeovers, self.ownership, self.wills), self._lost_nodes.is_gone
        patience = config.takeover_timeout
        self.shares = Shares(view, config.name, patience, self.leader, owners, will_store, books, holds, gone)

    def _in_order(self) -> tuple[Subsystem, ...]:
        """The one list of all subsystems; the module's docstring has the reasons for its order."""
        return (
            self._leadership,
            self.shares,
            self._connections,
            self._routes,
            self._inbox,
            self._sessions,
            self._lost_nodes,
            self.reports,
            self.drain,
            self.rebalancing,
            self.groups,
            self._serving,
            self.node_directory,
            self._subacks,
            self.retained,
            self._replay_notices,
            self.wills,
            self._heartbeats,
            self.qos2,
            self.streams,
            self.operator_rpc,
        )

    # Events

    def start(self, now: float) -> None:
        self._has_events = True
        self.streams.start(now)
        self._follower.start(now)

    def answered(self, answer: Answer, now: float) -> None:
        """etcd has answered, or reports changes."""
        self._has_events = True
        for each in self.subsystems:
            each.answered(answer, now)
        self.members.answered(answer, now)
        self._follower.follow(now)

    def connected(self, number: int, now: float) -> None:
        """The stream to that peer is open: frames in transit on an earlier one may be lost."""
        self._has_events = True
        if self._connections.opened(number):
            for each in self.subsystems:
                each.connected(number)

    def disconnected(self, number: int, now: float) -> None:
        """The stream has closed."""
        self._has_events = True
        self._connections.closed(number, now)

    def process_gone(self, number: int, incarnation: int, now: float) -> None:
        """The process of that incarnation of a peer has ended, as its operating system shows."""
        self._has_events = True
        if self.view.quorum is not None:
            self.view.quorum.process_gone(number, incarnation, now)

    def received(self, envelope: Envelope, now: float) -> None:
        """A frame has arrived, for this node or to be relayed."""
        had_events, self._has_events = self._has_events, True
        brought = self._receiver.received(envelope, now)
        if brought == ONLY_MESSAGES:
            self._has_events, self._has_messages = had_events, True
        elif brought == ONLY_CLAIMS:
            self._has_events, self._has_claims = had_events, True

    def _hear(self, number: int, payload: bytes) -> None:
        """Handles a payload that another node sent in order with its messages."""
        if payload.startswith(STREAM_TAG):
            self.streams.take(number, payload)
            return
        self._has_heard = True
        if payload.startswith(RETAINED_TAG):
            self.retained.take(number, payload)
        else:
            self.takeovers.take(number, payload)

    # Operator requests

    def leave(self, now: float) -> None:
        """Stops serving, and leaves the cluster once nothing is owed to other nodes."""
        self._has_events = self.view.leaving = True
        self._leave_if_idle(now)

    def _leave_if_idle(self, now: float) -> None:
        if not self.view.leaving or self.members.state in ENDED:
            return
        if all(each.idle() for each in self.view.transports.values()) and len(self.retained.writer) == 0:
            self.members.leave(now)
            self._follower.follow(now)

    def begin_drain(self, now: float, seconds: float = inf, for_good: bool = False) -> None:
        """Serves no clients, and hands over their sessions; ``seconds``: within that time."""
        self.drain.begin(now, seconds, for_good)
        self._announce_directory()

    def end_drain(self) -> None:
        self.drain.cancel()
        self._announce_directory()

    def _announce_directory(self) -> None:
        self._has_events = self.node_directory.changed = True
        if self.view.quorum is not None:
            self.view.quorum.hasten()

    def flushed(self) -> bool:
        """Whether nothing is owed to connected nodes, nor to etcd while etcd answers."""
        view = self.view
        owed = any(view.is_connected(number) and not each.idle() for number, each in view.transports.items())
        return not owed and (self.ownership.idle() or not self.members.available)

    def rebalance(self, rate: int, now: float) -> None:
        """Makes all nodes send clients to nodes with fewer clients."""
        self._has_events = True
        for node in self.node_directory.welcoming():
            self.takeovers.send(node, Rebalance(rate))
        self.rebalancing.begin(now, rate)

    def _drain_frame_received(self, node: int, frame: Declined | Rebalance) -> None:
        if isinstance(frame, Rebalance):
            self.rebalancing.begin(self.broker.ctx.now, frame.rate)
        else:
            self.drain.refused(node, frame.client_ids)

    def forget(self, name: str, force: bool, now: float) -> str:
        """Removes a node that will not return. Returns "" or the reason for a refusal."""
        self._has_events = True
        refusal = self.members.forget(name, self.serving, force, now)
        self._follower.follow(now)
        return refusal

    # Turns

    def turn(self, now: float) -> None:
        """To be called between ``BrokerState.turn`` and ``BrokerState.take_ready``."""
        ctx = self.broker.ctx
        ctx.at(now)
        self._quiet = self._is_quiet(now)
        if not self._quiet:
            try:
                self._take_whole_turn(now)
            except Exception:
                self._has_events = True  # the next turn does the rest
                raise
        if self.streams.outbox.waits:
            self.streams.outbox.flush()
        ctx.peers_full(self._connections.full())

    def _wake(self) -> None:
        self._has_events = True

    def _is_quiet(self, now: float) -> bool:
        """Whether this turn has nothing to do: no event, nothing due, no input from the core. Messages of other nodes
        are passed to the core here; most of them need nothing else."""
        if self._has_events or self._unfinished or now >= self._due_at or self.pending_work.has_input():
            return False
        if not self._has_messages:
            return True
        self._has_heard = False
        self._inbox.look(now)
        self._has_messages = False
        has_more = self._has_heard or not self._inbox.is_empty() or len(self._ready.notices) != 0
        return not (has_more or self.pending_work.has_input())

    def _take_whole_turn(self, now: float) -> None:
        self._has_events = self._has_messages = False
        view = self.view
        for each in self._beginning:
            each.begin_turn(now)
        self._follower.tick(now)
        if view.is_registered():
            for each in self._registered:
                each.registered(now)
        quorum, routes = view.quorum, view.routes
        if quorum is None or routes is None:
            return
        quorum.tick(now)
        if self._connections.follow(quorum, routes):
            self.takeovers.changed()
            self._follower.connections_changed(quorum, now)
        for each in self._looking:
            each.look(now)
        for each in self._turning:
            each.turn(now)
        for each in self._finishing:
            each.finish(now)
        for each in self._with_frames:
            for target, body in each.take_frames():
                self._sender.send_if_known(target, body)
        for each in self._with_notices:
            self._ready.notices += each.take_notices()
        self._ready.news += self.reports.take_news()
        self._leave_if_idle(now)

    def take_ready(self) -> ClusterReady:
        """The output for the shell; to be called after the frames of the core's Ready were written."""
        now = self.broker.ctx.now
        for number, reply in self.qos2.take_replies():
            self._sender.send_if_known(number, reply)
        self._sender.send_data(now)
        ready = self._ready
        if self._quiet:
            if self._has_claims:
                self._send_owner_frames(now)
                self._due_at = min(self._due_at, self.shares.wake_at(now))
                self._unfinished = self.shares.is_pending()
            return ready.take() if ready.now else ready
        for each in self._with_requests:
            ready.requests += each.take_requests(now)
        self._send_owner_frames(now)
        ready.called, ready.outcomes = self.operator_rpc.take_called(), self.operator_rpc.take_outcomes()
        due_at = self.members.wake_at() or inf
        self._due_at = due_at if self.view.quorum is None else min(due_at, self.pending_work.due_at(now))
        self._unfinished = self.view.routes is None or self.pending_work.is_unfinished()
        return ready.take()

    def _send_owner_frames(self, now: float) -> None:
        self._has_claims = False
        for target, frame in self.shares.take_owner_frames(now):
            self._sender.send_if_known(target, frame)

    def pending(self) -> bool:
        """Whether the next turn has work that does not wait for anything."""
        return self._unfinished if self._quiet else self.pending_work.is_pending()

    def wake_at(self) -> float:
        """When ``turn`` has to be called without an event; 0.0: never."""
        soonest = self._sender.data_due_at(self._due_at)
        return 0.0 if soonest == inf else soonest

    # Status

    def presence(self) -> MemberPresence:
        """For the copies of this process: which members are there."""
        return MemberPresence(self.view, self._lost_nodes, self._leadership.is_leading)

    @property
    def number(self) -> int:
        """This node's number; 0 before it is known."""
        return self.view.number

    @property
    def serving(self) -> bool:
        return self._serving.serving

    @property
    def left(self) -> bool:
        """This node has left, or was forgotten or replaced: ``members.problem`` says which."""
        return self.view.left

    @property
    def quorum(self) -> Quorum | None:
        return self.view.quorum

    @property
    def routes(self) -> RouteTable | None:
        return self.view.routes

    @property
    def transports(self) -> dict[int, PeerTransport]:
        return self.view.transports

    @property
    def frames_relayed(self) -> int:
        """Frames relayed between two other nodes that could not reach each other."""
        return self._receiver.frames_relayed

    def data_frames(self) -> int:
        """Frames with messages that were sent to other nodes, including repetitions."""
        return sum(each.data_frames for each in self.view.transports.values())

    def status(self) -> list[PeerStatus]:
        return self.view.status()
