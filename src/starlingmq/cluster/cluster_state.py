"""One node's part of a cluster, put together: what the core wants and what other nodes say, in; frames, requests, out.

A shell calls ``start`` once, ``answered``, ``received``, ``connected`` and ``disconnected`` as things happen, ``turn``
in each of its turns after ``BrokerState.turn``, and ``take_ready`` once the turn's frames were handed to their
transports (see ``cluster.links.peer_transport``: for peers those are ports of ours). When nothing happens it does so at
``wake_at``.

The laws, each of them one promise (docs/CLUSTER.md):

- a SUBACK goes out when every node that may publish has the route: those connected, those that are to somebody who
  is, and those lost so lately that they may not know it yet. A process that has ended does not publish;
- nothing is published while a connected node's routes are not all here, so what a SUBACK there promised is kept here;
- a node that is not connected to a majority is isolated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from starlingmq.cluster.balance.drain import Drain
from starlingmq.cluster.balance.rebalance import Rebalancing
from starlingmq.cluster.etcd.election import Election
from starlingmq.cluster.etcd.etcd_requests import Answer, Request, TxnAnswer
from starlingmq.cluster.groups.queue_groups import QueueGroups
from starlingmq.cluster.links.peer_frames import (
    Body,
    Data,
    DataAck,
    Envelope,
    GroupPull,
    GroupReport,
    HandshakeCall,
    HandshakeReply,
    Heartbeat,
    MemberInfo,
    OperatorCall,
    OperatorReply,
    RouteApplied,
)
from starlingmq.cluster.links.peer_link import PeerLink
from starlingmq.cluster.links.peer_transport import PeerTransport
from starlingmq.cluster.links.relay import Relay
from starlingmq.cluster.membership.isolation import Isolation
from starlingmq.cluster.membership.lease_fence import LeaseFence
from starlingmq.cluster.membership.members import Members
from starlingmq.cluster.membership.node_directory import NodeDirectory
from starlingmq.cluster.membership.quorum import Quorum
from starlingmq.cluster.operator_rpc import Called, OperatorRpc, Outcome
from starlingmq.cluster.pending_work import PendingWork
from starlingmq.cluster.qos2.qos2_adapter import Qos2Adapter
from starlingmq.cluster.qos2.qos2_store import FACTS as HANDSHAKE_FACTS
from starlingmq.cluster.retained.retained_records import TAG as RETAINED_TAG
from starlingmq.cluster.retained.retained_sync import FACTS as RETAINED_FACTS
from starlingmq.cluster.retained.retained_sync import RetainedSync
from starlingmq.cluster.routes.route_facts import last_epoch
from starlingmq.cluster.routes.route_table import RouteTable
from starlingmq.cluster.takeover.owner_key_gc import OwnerKeyGc
from starlingmq.cluster.takeover.ownership import Ownership
from starlingmq.cluster.takeover.takeover import FACTS, Takeovers, first_number
from starlingmq.cluster.takeover.takeover_ports import TakeoverPorts
from starlingmq.cluster.takeover.transfer_frames import Declined, Rebalance
from starlingmq.cluster.wills.cluster_wills import FACTS as WILL_FACTS
from starlingmq.cluster.wills.cluster_wills import ClusterWills
from starlingmq.config.settings import ClusterConfig
from starlingmq.core.broker import BrokerState
from starlingmq.core.context import ISOLATED
from starlingmq.core.ready import FACT_DELETE, FACT_PUT, Write
from starlingmq.core.routing.forward_batch import ForwardError

FRAME_BYTES: Final = 4 << 20  # of data given to the shell for one peer in one turn
SETTLE_TIMEOUTS: Final = 2  # member timeouts after which nobody relies on what was said before


class ClusterReady:
    """What the shell has to do now."""

    requests: list[Request]  # to etcd
    now: list[tuple[int, Envelope]]  # (next hop, envelope)
    peers: tuple[MemberInfo, ...] | None  # whom to have streams to, when that changed
    notices: list[str]  # of what somebody may have to look after
    news: list[str]  # of what is well again
    called: list[Called]  # what operators ask of this node at others, to be answered
    outcomes: list[Outcome]  # of what they ask of others here

    def __init__(self) -> None:
        self.requests = []
        self.now = []
        self.peers = None
        self.notices = []
        self.news = []
        self.called = []
        self.outcomes = []


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """Another member as this node sees it."""

    member: MemberInfo
    online: bool
    connected: bool
    through: int  # the third node frames for it go through; 0: none
    queued: int  # messages that wait for it
    queued_bytes: int
    unacknowledged: int  # data frames
    behind: bool  # its routes are not all here
    heard_at: float | None  # when something of it came last, directly or through a third node


class ClusterState:
    serving: bool
    left: bool  # or forgotten, or replaced: ``members.problem`` says so
    frames_passed_on: int  # for others, because they could not reach each other

    def __init__(
        self,
        broker: BrokerState,
        config: ClusterConfig,
        name: str,
        address: str,
        facts: dict[bytes, bytes],
        now: float,
        version: str = "",
    ) -> None:
        self.broker = broker
        self.config = config
        self.name = name
        self.serving = False
        self.left = False
        self.frames_passed_on = 0
        settle = SETTLE_TIMEOUTS * config.member_timeout
        self.members = Members(config.name, name, address, version, settle, last_epoch(facts), first_number(facts))
        self.reception = NodeDirectory(broker.ctx.doors)
        self.lines: dict[int, PeerTransport] = {}
        self.quorum: Quorum | None = None
        self.relay: Relay | None = None
        self.routes: RouteTable | None = None
        of_others = (FACTS, HANDSHAKE_FACTS, RETAINED_FACTS, WILL_FACTS)
        self._facts = {key: value for key, value in facts.items() if not key.startswith(of_others)}
        self._handshake_facts = {key: value for key, value in facts.items() if key.startswith(HANDSHAKE_FACTS)}
        self._session_facts = {key: value for key, value in facts.items() if key.startswith(FACTS)}
        self._retained_facts = {key: value for key, value in facts.items() if key.startswith(RETAINED_FACTS)}
        self._will_facts = {key: value for key, value in facts.items() if key.startswith(WILL_FACTS)}
        self.ownership = Ownership(config.name)
        self.leader = Election(f"/starlingmq/{config.name}/leader".encode())
        gone, connected, leading = self._is_gone, self._is_connected, self._is_leading
        self.wills = ClusterWills(broker, config, self.ownership, gone, connected, leading, self._retained_up_to)
        self.takeovers = Takeovers(
            broker, self.ownership, config.takeover_timeout, config.takeover_limit, self._takeover_ports()
        )
        self.lease_fence = LeaseFence(config.name, config.member_timeout)
        self.owner_sweep = OwnerKeyGc(self.ownership, self.takeovers.has)
        rate = config.drain_rate
        self.drain = Drain(broker, self.reception, self.takeovers.say, self.takeovers.giving, rate)
        self.rebalancing = Rebalancing(broker, self.reception, rate)
        self.isolation = Isolation(broker, config.isolation_timeout, rate)
        self.handshakes = Qos2Adapter(broker, config, self._is_connected)
        self.calls = OperatorRpc(self._is_connected)
        self.retained = RetainedSync(broker, config, self._is_connected, self._is_leading)
        broker.peers.control = self._hear
        self._number = 0
        self._incarnation = 0
        self._ready = ClusterReady()
        self._problem = ""
        self._strangers_gone = False
        self._leaving = False
        self._pending = False
        self._stirred = True  # something came in since the last turn
        self._unfinished = True  # the last one left something to be looked at
        self._quiet = False  # there was nothing to do in this turn
        self._due_at = 0.0  # when there is, though nothing comes in
        self._began = False  # it has served
        self._forgetful: dict[int, None] = {}  # nodes that may have forgotten us since we heard of them last
        self._counts_since = 0  # revision of the first membership in which this life counts; 0: it does not yet
        self._enough_since = now  # that there is a majority, while it has not
        ctx = broker.ctx
        ctx.isolate()
        ctx.cluster.join(ctx.sessions.values(), config.forward_bytes)
        self._broken: dict[int, float] = {}  # nodes to which the stream has ended, and when
        self.groups = QueueGroups(broker, config.name, self._is_connected)
        self.errands = PendingWork(
            broker,
            self.takeovers,
            self.ownership,
            self.retained,
            self.wills,
            self.reception,
            self.drain,
            self.rebalancing,
            self.calls,
        )

    # What happens

    def start(self, now: float) -> None:
        self._stirred = True
        self.members.start(now)
        self._look_at_members(now)

    def answered(self, answer: Answer, now: float) -> None:
        """etcd has answered, or tells of changes."""
        self._stirred = True
        if isinstance(answer, TxnAnswer):
            self.ownership.answered(answer, now)
            self.owner_sweep.answered(answer, now)
            self.lease_fence.answered(answer, now)
            self.takeovers.strays.answered(answer, self.takeovers.moves.members, now)
        self.leader.answered(answer, now)
        self.groups.answered(answer, now)
        self.retained.answered(answer, now)
        self.wills.answered(answer, now)
        self.members.answered(answer, now)
        self._look_at_members(now)

    def connected(self, number: int, now: float) -> None:
        """The stream to that peer is open: what was under way on an earlier one may be lost."""
        self._stirred = True
        line = self.lines.get(number)
        if line is not None:
            line.link.resend()
            self.groups.connected(number)
            if self._is_connected(number):
                self._broken.pop(number, None)
                self.broker.groups.reach(number, True)

    def disconnected(self, number: int, now: float) -> None:
        """The stream is gone. Whether the peer is, heartbeats tell; until it has taken one that was sent later, by
        whatever way, members of groups there are passed over."""
        self._stirred = True
        if number in self.lines:
            self._broken[number] = now
            self.broker.groups.reach(number, False)

    def process_gone(self, number: int, incarnation: int, now: float) -> None:
        """The process of that incarnation of a peer has ended, as its operating system shows."""
        self._stirred = True
        if self.quorum is not None:
            self.quorum.process_gone(number, incarnation, now)

    def leave(self, now: float) -> None:
        """Take no more clients' work; leave once nothing is owed to anybody."""
        self._stirred = self._leaving = True
        self._leave_if_idle(now)

    def begin_drain(self, now: float, seconds: float = inf, for_good: bool = False) -> None:
        """Serve no clients, and hand over their sessions; ``seconds``: within that time."""
        self.drain.begin(now, seconds, for_good)
        self._changed_reception()

    def end_drain(self) -> None:
        self.drain.cancel()
        self._changed_reception()

    def _changed_reception(self) -> None:
        self._stirred = self.reception.changed = True
        if self.quorum is not None:
            self.quorum.hasten()

    def flushed(self) -> bool:
        """Whether nothing is owed to nodes that are connected, nor to etcd, as far as that answers."""
        owed = any(self._is_connected(number) and not line.idle() for number, line in self.lines.items())
        return not owed and (self.ownership.idle() or not self.members.available)

    def rebalance(self, rate: int, now: float) -> None:
        """Have all nodes send clients to where there are fewer."""
        self._stirred = True
        for node in self.reception.welcoming():
            self.takeovers.say(node, Rebalance(rate))
        self.rebalancing.begin(now, rate)

    def _heard_of_drain(self, node: int, said: Declined | Rebalance) -> None:
        if isinstance(said, Rebalance):
            self.rebalancing.begin(self.broker.ctx.now, said.rate)
        else:
            self.drain.refused(node, said.client_ids)

    def forget(self, name: str, force: bool, now: float) -> str:
        """Take out a node that will not come back; "" or why not."""
        self._stirred = True
        refusal = self.members.forget(name, self.serving, force, now)
        self._look_at_members(now)
        return refusal

    def received(self, envelope: Envelope, now: float) -> None:
        self._stirred = True
        quorum, relay, routes = self.quorum, self.relay, self.routes
        if quorum is None or relay is None or routes is None or envelope.source == self._number:
            return
        if not quorum.took(envelope, now):
            return
        if envelope.target != self._number:
            hop = relay.pass_on(envelope)
            if hop is not None:
                self.frames_passed_on += 1
                self._ready.now.append((hop, replace(envelope, relayed=True)))
            return
        line = self.lines.get(envelope.source)
        if line is None:
            return
        if envelope.incarnation > line.link.target_incarnation:
            reborn = line.link.target_incarnation != 0
            line.link.reset_sender(envelope.incarnation)
            if reborn:
                self.takeovers.reborn(envelope.source)
                self.groups.reborn(envelope.source)
        self._take(line, envelope, quorum, routes, now)

    def _take(self, line: PeerTransport, envelope: Envelope, quorum: Quorum, routes: RouteTable, now: float) -> None:
        body = envelope.body
        source, target = envelope.incarnation, envelope.target_incarnation
        if isinstance(body, Data):
            blob = line.link.received(body, source, target)
            if blob is not None:
                line.received(blob, source, body.sequence, now - body.waited)
        elif isinstance(body, DataAck):
            line.acknowledged(line.link.acknowledged(body, source, target, now), now)
        elif isinstance(body, HandshakeCall):
            self.handshakes.called(envelope.source, body)
        elif isinstance(body, HandshakeReply):
            self.handshakes.replied(envelope.source, body, now)
        elif isinstance(body, (OperatorCall, OperatorReply)):
            if target == self._incarnation and isinstance(body, OperatorCall):
                self.calls.called(envelope.source, source, body)
            elif target == self._incarnation and isinstance(body, OperatorReply):
                self.calls.replied(envelope.source, body, now)
        elif isinstance(body, (GroupPull, GroupReport)):
            if target == self._incarnation:  # what was meant for an earlier life of ours would count as one of this
                self.groups.received(envelope.source, source, body, now)
        elif isinstance(body, Heartbeat):
            routes.heartbeat(envelope.source, body, now)
            self._tell_retained(envelope.source, body.retained)
            if quorum.is_connected(envelope.source):
                self.reception.heard(envelope.source, body)
            self.members.adopt(body.membership, now)
            self._look_at_members(now)
        else:
            routes.received(envelope.source, body, now)
            if isinstance(body, RouteApplied):
                self._tell_retained(envelope.source, body.retained)

    def _tell_retained(self, number: int, sequence: int) -> None:
        """What that node retains was published up to there before it knew what its message knows."""
        retaining = self.broker.ctx.cluster.retained
        if retaining is not None:
            retaining.tell(number, sequence)

    def _hear(self, number: int, payload: bytes) -> None:
        """What a node has to say to this one, in order with its messages."""
        if payload.startswith(RETAINED_TAG):
            self.retained.take(number, payload)
        else:
            self.takeovers.take(number, payload)

    # Members

    def _look_at_members(self, now: float) -> None:
        """Follow what has become of us and of the others."""
        members = self.members
        entered = members.me is not None and members.me.incarnation != self._incarnation
        if members.me is not None and entered:
            if self.quorum is None:
                self._enter(members.me)
            else:
                self._enter_again(members.me, self.quorum)
        quorum = self.quorum
        if quorum is not None:
            if entered or members.take_changes():
                quorum.set_members(members.membership, members.joining, now)
                self._set_lines()
                if self._counts_since == 0 and quorum.counts():
                    self._begin_to_count(quorum, now)
            members.heard_by(quorum.vouching(members.membership.revision), now)
        self._ready.requests += members.take_requests()
        for result in members.take_results():
            if result.error:
                self._ready.notices.append(result.error)
            else:
                self._ready.news.append(f"{result.name} was forgotten and is no longer a member")
        if members.problem != self._problem:
            self._problem = members.problem
            if self._problem:
                self._ready.notices.append(self._problem)
        self.left = members.state in ("left", "forgotten", "replaced")

    def _begin_to_count(self, quorum: Quorum, now: float) -> None:
        """SUBACKs of others have not waited for us so far: what they had promised when they heard that we count has to
        be here before we serve."""
        self._counts_since = self.members.membership.revision
        for number, line in self.lines.items():
            if quorum.is_connected(number):
                line.behind_since = now

    def _enter(self, me: MemberInfo) -> None:
        """Our number is known: from here on there are others."""
        config = self.config
        self._number, self._incarnation = me.number, me.incarnation
        self.quorum = Quorum(me, config.heartbeat_interval, config.member_timeout)
        self.relay = Relay(me.number, self.quorum)
        self.routes = RouteTable(me.number, me.incarnation, self._facts, config.route_log)
        self._facts = {}
        another = self.takeovers.enter(me.number, me.incarnation, self._session_facts, me.first)
        self.calls.enter(me.incarnation)
        self.owner_sweep.enter(me.number, me.incarnation, self.broker.ctx.now)
        self.groups.enter(me.number, me.incarnation)
        self.broker.peers.join(me.number, me.incarnation)
        self.handshakes.enter(me.number, me.incarnation, self.members.membership.revision, self._handshake_facts)
        self._handshake_facts = {}
        self.retained.enter(me.number, self._retained_facts)
        self._retained_facts = {}
        if another:
            self.wills.give_up(self._will_facts)
            self._will_facts = {}
        self.wills.enter(me.number, self._will_facts)
        self._will_facts = {}
        interest = self.broker.ctx.cluster.interest
        assert interest is not None
        wanted = interest.all()
        for key in self.routes.table(me.number):
            if key.startswith(b"$share/") and not wanted.get(key):
                self.broker.groups.lost(key)  # before the others hear that it has no member here
        self.routes.restart(interest.all())
        interest.take()

    def _enter_again(self, me: MemberInfo, quorum: Quorum) -> None:
        """Our key was gone before we counted, and we join once more. Others have forgotten what we had said and what we
        had heard, or do not know that it was gone: for both of them we are what began as another incarnation."""
        self._incarnation = me.incarnation
        quorum.begin_again(me)
        self.groups.enter(me.number, me.incarnation)
        self.broker.peers.join(me.number, me.incarnation)
        for number in self.lines:
            self.broker.peers.release(number)
            self._forgetful[number] = None
        self.lines.clear()
        self.takeovers.enter_again(me.incarnation)

    def _others(self) -> list[MemberInfo]:
        found = [*self.members.membership.members, *self.members.joining]
        return [member for member in found if member.number != self._number]

    def _set_lines(self) -> None:
        routes = self.routes
        assert routes is not None
        others = {member.number: member for member in self._others()}
        for number in [number for number in self.lines if number not in others]:
            del self.lines[number]
            self.lease_fence.lives(number)
            self.reception.lost(number)
            routes.member_gone(number)
            self.broker.peers.remove(number)
            self._broken.pop(number, None)
            self.broker.groups.reach(number, True)
        config = self.config
        for number, member in others.items():
            if number not in self.lines:
                link = PeerLink(self._incarnation, config.link_window, config.resend_interval)
                self.lines[number] = PeerTransport(self.broker, member, link, config.link_window)
                routes.member(number)
        if not self._strangers_gone and self.members.state == "registered":
            self._strangers_gone = True
            for number in routes.nodes():
                if number not in others:
                    routes.member_gone(number)
            self.broker.peers.strangers(dict.fromkeys(others))
        self.takeovers.set_members((self._number, *others))
        self.handshakes.set_members((self._number, *others))
        self.groups.set_members(tuple(others))
        self.retained.set_members(dict.fromkeys((self._number, *others)))
        self.wills.foreign.set_members(dict.fromkeys((self._number, *others)))
        self._ready.peers = tuple(others.values())

    def _leave_if_idle(self, now: float) -> None:
        if not self._leaving or self.members.state in ("left", "forgotten", "replaced"):
            return
        if all(line.idle() for line in self.lines.values()) and len(self.retained.writer) == 0:
            self.members.leave(now)
            self._look_at_members(now)

    # Turns

    def turn(self, now: float) -> None:
        """Between ``BrokerState.turn`` and ``BrokerState.take_ready``."""
        broker = self.broker
        broker.ctx.at(now)
        self._quiet = self._is_quiet(now)
        if self._quiet:
            broker.ctx.peers_full(self._full_peers())
            return
        self._stirred = False
        self.wills.remember(now)
        due = self.members.wake_at()
        if due and due <= now:
            self.members.tick(now)
            self._look_at_members(now)
        if self.members.state == "registered":
            self.leader.campaign(b"%d/%d" % (self._number, self._incarnation), now)
            self.leader.tick(now)
            self._ready.requests += self.leader.take_requests()
            self.retained.registered(now)
            self.wills.registered(now)
        quorum, relay, routes = self.quorum, self.relay, self.routes
        if quorum is None or relay is None or routes is None:
            return
        quorum.tick(now)
        self._look_at_connections(quorum, routes, now)
        for node, key, value in routes.take_changes():
            broker.peers.route(node, key, value)
        self._pending = False
        for line in self.lines.values():
            self._pending = self._deliver(line) or self._pending
        self.takeovers.look(now)
        self.drain.turn(now)
        self.rebalancing.turn(now)
        self._originate(routes, now)
        self._pending = self.takeovers.turn(routes.version, routes.epoch, now) or self._pending
        self._ready.notices += self.takeovers.take_notices()
        self._ready.requests += self.ownership.take_requests(now)
        self._ready.requests += self.owner_sweep.take_requests(now)
        self._ready.requests += self.lease_fence.take_requests(self.members, quorum, now)
        if self.members.state == "registered":
            self._ready.requests += self.takeovers.strays.take_requests(now)
        self.groups.turn(now)
        self._ready.requests += self.groups.take_requests(now)
        self._look_at_serving(quorum, routes, now)
        self._tell_where_to_go()
        self._answer_subscribers(quorum, routes, now)
        self.wills.turn(now)
        self.retained.turn(now)
        self._ready.notices += [*self.retained.take_notices(), *self.wills.take_notices()]
        self._beat(quorum, relay, routes, now)
        for node, call in self.handshakes.turn(now):
            self._tell(node, call, relay)
        self._pending = self._pending or self.handshakes.pending() or self.groups.pending()
        self.calls.turn(now)
        for target, body in (*routes.take_out(), *self.groups.take_out(), *self.calls.take_out()):
            self._tell(target, body, relay)
        for key, fact in routes.take_facts():
            if broker.ctx.recording:
                broker.ctx.write(Write(FACT_DELETE if fact is None else FACT_PUT, topic=key, value=fact or b""))
        broker.ctx.peers_full(self._full_peers())
        self._leave_if_idle(now)

    def _is_quiet(self, now: float) -> bool:
        """Whether there is nothing for a turn to do: nothing came, nothing is due, the core has nothing for us."""
        return not (self._stirred or self._unfinished or now >= self._due_at or self.errands.any())

    def _is_unfinished(self) -> bool:
        """Whether this turn has left something that the next one has to look at, though nothing comes in."""
        if self._pending or not self.serving or self._leaving or self.routes is None or self.routes.pending():
            return True
        for line in self.lines.values():
            if line.behind_since or line.waits():
                return True
        return self.errands.unfinished()

    def _tell_where_to_go(self) -> None:
        """Tell NATS clients where else they may go. A node that is cut off sees nobody, and says nothing new."""
        reception = self.reception
        if reception.changed and not self.broker.ctx.isolated:
            reception.changed = False
            own = () if reception.draining else reception.own
            self.broker.nats.reach(own, [url for urls in reception.open().values() for url in urls])

    def _full_peers(self) -> int:
        count = 0
        for line in self.lines.values():
            queue = line.peer.session.queue
            if queue is not None and queue.bytes >= self.config.forward_bytes:
                count += 1
        return count

    def _deliver(self, line: PeerTransport) -> bool:
        try:
            return line.deliver()
        except ForwardError as error:
            self._ready.notices.append(f"node {line.peer.number} sent a malformed frame: {error}")
            line.drop_unreadable()
            return True

    def _look_at_connections(self, quorum: Quorum, routes: RouteTable, now: float) -> None:
        changes = quorum.take_changes()
        for change in changes:
            line = self.lines.get(change.number)
            if line is None:
                continue
            if change.connected:
                if change.number in self._forgetful:
                    del self._forgetful[change.number]
                    routes.unknown_at(change.number)
                line.lost_at = 0.0
                self.lease_fence.lives(change.number)
                line.behind_since = now
                line.link.resend()
                self.broker.peers.up(line.peer)
                self._broken.pop(change.number, None)
                self.broker.groups.reach(change.number, True)
            else:
                self.broker.groups.reach(change.number, False)
                line.lost_at = now
                self.lease_fence.lost(change.number, now)
                line.behind_since = 0.0
                if not quorum.is_connected(change.number):  # else it has begun anew, and told so
                    self.reception.lost(change.number)
                self.broker.peers.down(line.peer)
        for number, broken_at in list(self._broken.items()):
            if quorum.is_connected(number) and quorum.took_after(number, broken_at):
                del self._broken[number]
                self.broker.groups.reach(number, True)
        if changes:
            self.takeovers.changed()
            self.members.heard_by(quorum.vouching(self.members.membership.revision), now)
            self._look_at_members(now)
        for number, line in self.lines.items():
            if line.behind_since and routes.caught_up(number) and quorum.knows(number, self._counts_since):
                line.behind_since = 0.0

    # What takeovers ask

    def _takeover_ports(self) -> TakeoverPorts:
        return TakeoverPorts(
            self._is_connected,
            self._is_heard_elsewhere,
            self._applied_by,
            self._known_of,
            self._awaited,
            self._name_of,
            self._heard_of_drain,
            self.wills,
        )

    def _is_leading(self) -> bool:
        return self.leader.leading

    def _is_gone(self, number: int) -> bool:
        """Whether a node is no member any more; or is not connected, and its lease has expired or no node hears it."""
        members = self.members
        if not any(member.number == number for member in members.membership.members):
            return True
        if self._is_connected(number):
            return False
        return number not in members.online or self.lease_fence.is_gone(number, self.quorum)

    def _is_connected(self, number: int) -> bool:
        return self.quorum is not None and self.quorum.is_connected(number)

    def _is_heard_elsewhere(self, number: int) -> bool:
        return self.quorum is not None and self.quorum.is_connected_to_others(number)

    def _name_of(self, number: int) -> str:
        members = self.members.membership.members
        return next((member.name for member in members if member.number == number), str(number))

    def _applied_by(self, number: int) -> int:
        return 0 if self.routes is None else self.routes.applied_by((number,))

    def _known_of(self, number: int) -> tuple[int, int]:
        return (0, 0) if self.routes is None else self.routes.vector().get(number, (0, 0))

    def _originate(self, routes: RouteTable, now: float) -> None:
        interest = self.broker.ctx.cluster.interest
        assert interest is not None
        if interest.changed:
            routes.originate([(key, interest.value(key)) for key in interest.take()])
        if self.broker.subscribing.held:
            self.broker.subscribing.stamp(routes.version, now + self.config.subscribe_ack_timeout)

    def _answer_subscribers(self, quorum: Quorum, routes: RouteTable, now: float) -> None:
        subscribing = self.broker.subscribing
        if subscribing.held:
            if quorum.enough():  # a node that is cut off knows nobody who publishes, and knows nothing
                subscribing.applied(routes.applied_by(self._publishers(quorum, now)))
            subscribing.overdue()

    def _awaited(self) -> list[int] | None:
        """Whose marks a SUBACK waits for."""
        quorum = self.quorum
        if quorum is None or not quorum.enough():
            return None
        return [self.number, *self._publishers(quorum, self.broker.ctx.now)]

    def _publishers(self, quorum: Quorum, now: float) -> Iterator[int]:
        """The registered nodes that may be publishing by the routes they have: those connected, to this node or to
        another that is, and those lost within the last timeout, which may not have noticed. Not those that are dead,
        or that all others say they do not hear."""
        for member in self.members.membership.members:
            number = member.number
            line = self.lines.get(number)
            if line is None or quorum.is_dead(number):
                continue
            lately = line.lost_at and now < line.lost_at + self.config.member_timeout
            if (
                quorum.is_connected(number)
                or quorum.is_connected_to_others(number)
                or (lately and not quorum.is_heard_by_nobody(number, line.lost_at))
            ):
                yield number

    def _look_at_serving(self, quorum: Quorum, routes: RouteTable, now: float) -> None:
        broker = self.broker
        behind = [line.behind_since for line in self.lines.values() if line.behind_since]
        patience = self.config.subscribe_ack_timeout if self.serving else 0.0
        serving = quorum.enough() and not self.left and not self._leaving
        if serving and not self._began:
            self._began = self._all_there(quorum) or now >= self._enough_since + self.config.member_timeout
            serving = self._began
        elif not self._began:
            self._enough_since = now
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
                self._ready.notices.append(self._why_isolated(quorum))
                self.takeovers.refuse_all(ISOLATED)
        self.isolation.turn(serving, now)
        catching_up = serving and bool(behind)
        if catching_up != broker.ctx.catching_up:
            broker.catch_up(catching_up)

    def _all_there(self, quorum: Quorum) -> bool:
        """Whether every node that is online is connected: at its start a node waits for them, for a while."""
        return all(number == self._number or quorum.is_connected(number) for number in self.members.online)

    def _why_isolated(self, quorum: Quorum) -> str:
        if self.left or self._leaving:
            return "this node is leaving its cluster: clients are refused"
        if quorum.enough():
            return "this node is receiving the routes of other nodes: clients are refused until it has them"
        others = len(self.members.membership.members) - 1
        there = quorum.supporters()
        return (
            f"isolated: {there} of {others} other members are connected; clients are refused until a majority "
            "is connected"
        )

    # Frames

    def _envelope(self, number: int, body: Body) -> Envelope:
        return Envelope(self._number, self._incarnation, number, self.lines[number].link.target_incarnation, body)

    def _send(self, number: int, body: Body, relay: Relay) -> bool:
        hop = relay.next_hop(number)
        if hop is None:
            return False
        self._ready.now.append((hop, self._envelope(number, body)))
        return True

    def _tell(self, target: int | None, body: Body, relay: Relay) -> None:
        if isinstance(body, RouteApplied):
            body = replace(body, retained=self._retained_here())
        for number in self.lines if target is None else (target,):
            if number in self.lines:
                self._send(number, body, relay)

    def _retained_up_to(self) -> int:
        return self.retained.writer.mark

    def _retained_here(self) -> int:
        retaining = self.broker.ctx.cluster.retained
        return 0 if retaining is None else retaining.last

    def _beat(self, quorum: Quorum, relay: Relay, routes: RouteTable, now: float) -> None:
        number = quorum.beat(now)
        if number == 0:
            return
        heartbeat = Heartbeat(
            epoch=routes.epoch,
            version=routes.version,
            vector=routes.vector(),
            heard=quorum.heard_directly(),
            connected=quorum.connected(),
            serving=self.serving,
            membership=self.members.membership,
            relayed=quorum.heard_relayed(),
            number=number,
            taken=quorum.taken(),
            listeners=self.reception.own,
            draining=self.reception.draining,
            clients=self.broker.ctx.counters.clients_connected,
            retained=self._retained_here(),
            gone=quorum.missed(),
        )
        for target in self.lines:
            envelope = self._envelope(target, heartbeat)
            for hop in relay.heartbeat_ways(target):
                self._ready.now.append((hop, envelope))

    def take_ready(self) -> ClusterReady:
        """What is to be done; called after the frames of the core's Ready were written."""
        relay = self.relay
        now = self.broker.ctx.now
        if relay is not None:
            for number, reply in self.handshakes.take_replies():
                self._tell(number, reply, relay)
            for number, line in self.lines.items():
                frames: list[Data] = []
                if line.link.wake_at() <= now and relay.next_hop(number) is not None:
                    frames = line.link.take(now, FRAME_BYTES)
                ack = line.take_ack(now, bool(frames))
                if ack is not None:
                    self._send(number, ack, relay)
                for data in frames:
                    line.data_frames += 1
                    self._send(number, data, relay)
        ready = self._ready
        if self._quiet:
            if ready.now:
                self._ready = ClusterReady()
            return ready
        ready.requests += [*self.retained.take_requests(now), *self.wills.take_requests(now)]
        ready.called, ready.outcomes = self.calls.take_called(), self.calls.take_outcomes()
        self._ready = ClusterReady()
        self._due_at = self._find_due()
        self._unfinished = self._is_unfinished()
        return ready

    def pending(self) -> bool:
        """Whether there is work left for a next turn, without waiting for anything."""
        if self._quiet:
            return False
        return self._pending or (self.routes is not None and self.routes.pending()) or self.wills.pending()

    def wake_at(self) -> float:
        """When ``turn`` is to be called at the latest though nothing happened; 0.0: never."""
        soonest = self._due_at
        if self.relay is not None:
            for number, line in self.lines.items():
                due = line.link.wake_at()
                if due < soonest and self.relay.next_hop(number) is not None:
                    soonest = due
                soonest = min(soonest, line.wake_at(self.config))
        return 0.0 if soonest == inf else soonest

    def _find_due(self) -> float:
        """When a turn has something to do though nothing comes in, what is on its way between nodes left out."""
        soonest = min(self.members.wake_at() or inf, self.leader.wake_at() or inf)
        if self.quorum is not None:
            soonest = min(soonest, self.quorum.wake_at())
            if not self._began and self.quorum.enough():
                soonest = min(soonest, self._enough_since + self.config.member_timeout)
            held = self.broker.subscribing.held
            if held and held[0].version >= 0:
                soonest = min(soonest, held[0].deadline)
            soonest = min(
                soonest, self.takeovers.wake_at(), self.ownership.wake_at() or inf, self.owner_sweep.wake_at() or inf
            )
            if self.members.state == "registered":
                soonest = min(soonest, self.takeovers.strays.wake_at() or inf)
            now = self.broker.ctx.now
            soonest = min(soonest, self.drain.wake_at(now), self.rebalancing.wake_at(now), self.isolation.wake_at())
            soonest = min(soonest, self.handshakes.wake_at(), self.groups.wake_at(), self.retained.wake_at())
            soonest = min(soonest, self.wills.wake_at() or inf, self.calls.wake_at())
            soonest = min(soonest, self.lease_fence.wake_at(now))
        return soonest

    # What is there to be seen

    @property
    def number(self) -> int:
        """Our own; 0 before it is known."""
        return self._number

    def data_frames(self) -> int:
        """Frames with messages that were sent to other nodes, those sent again included."""
        return sum(line.data_frames for line in self.lines.values())

    def status(self) -> list[PeerStatus]:
        found: list[PeerStatus] = []
        for member in self._others():
            line = self.lines[member.number]
            queue = line.peer.session.queue
            hop = self.relay.next_hop(member.number) if self.relay is not None else None
            found.append(
                PeerStatus(
                    member,
                    member.number in self.members.online,
                    self.quorum is not None and self.quorum.is_connected(member.number),
                    hop if hop is not None and hop != member.number else 0,
                    0 if queue is None else len(queue),
                    0 if queue is None else queue.bytes,
                    line.link.unacknowledged(),
                    line.behind_since != 0.0,
                    None if self.quorum is None else self.quorum.heard_at(member.number),
                )
            )
        return found
