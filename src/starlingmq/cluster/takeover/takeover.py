"""Sessions follow their clients from node to node: both sides of a takeover.

::

    new owner                          former owners                       every node
       |-- Takeover (epoch) ------------->| ends its connection
       |<------------- Head, Parts, Whole-| session state, inflight window, queue
       |  (the client is connected)       |
       |-- Barrier, once its routes are applied ---------------------------->|
       |<---------------------------------|<--------------------------- Mark-|
       |<------------------ Parts, Passed-| messages from before the markers
       |  (delivers those after them)     | done

Invariants:

- The highest epoch of a client id owns it.
- An acknowledged message is at one node at least, and is delivered to the client by one node at most.
- Nothing waits for a node that is not connected.

The frames travel in order with the messages between two nodes, each once. After a crash every node therefore continues
from its stored state.

``takeover_target`` is the new owner's side (``inbound_states`` has its transitions), ``takeover_source`` the former
owner's, ``cut_markers`` that of every node. They share ``migrations``.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlingmq.cluster.takeover.cut_markers import CutMarkers
from starlingmq.cluster.takeover.drain_offers import DrainOffers
from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.cluster.takeover.inbound_claims import InboundClaims
from starlingmq.cluster.takeover.inbound_delivery import InboundDelivery
from starlingmq.cluster.takeover.migrations import (
    EARLY,
    FACTS,
    FIRST,
    INBOUND,
    KEPT,
    NUMBERS,
    OUTBOUND,
    Migrations,
    key,
)
from starlingmq.cluster.takeover.orphaned_sessions import OrphanedSessions
from starlingmq.cluster.takeover.outbound import OutboundSession, moved_session
from starlingmq.cluster.takeover.owner_store import CLEAN, OwnerStore
from starlingmq.cluster.takeover.ownership import Ownership
from starlingmq.cluster.takeover.session_handover import SessionHandover
from starlingmq.cluster.takeover.suback_hold import SubackHold
from starlingmq.cluster.takeover.takeover_ports import TakeoverPorts
from starlingmq.cluster.takeover.takeover_source import TakeoverSource
from starlingmq.cluster.takeover.takeover_target import TakeoverTarget
from starlingmq.cluster.takeover.transfer_frames import (
    Barrier,
    Declined,
    Head,
    Mark,
    Offer,
    Parts,
    Passed,
    ReleaseKey,
    ShortBarrier,
    ShortMark,
    Takeover,
    TransferError,
    TransferFrame,
    Unknown,
    Whole,
    decode_inbound,
    decode_kept,
    decode_marks,
    encode_marks,
    unpack,
)
from starlingmq.cluster.takeover.waiting_connects import WaitingConnects
from starlingmq.core.broker import BrokerState
from starlingmq.core.context.owner_claims import OwnerClaim
from starlingmq.core.context.ready import SESSION_PUT, Write
from starlingmq.core.session.session import Session
from starlingmq.core.structures.state_table import NoTransition
from starlingmq.wire.reasons import Reason

__all__ = ["FACTS", "Takeovers"]


class Takeovers:
    def __init__(
        self,
        broker: BrokerState,
        ownership: Ownership,
        owners: OwnerStore,
        seconds: float,
        limit: float,
        ports: TakeoverPorts,
    ) -> None:
        self._broker = broker
        self._ctx = broker.ctx
        self._ownership = ownership
        self.migrations = Migrations(broker, ownership, limit, ports)
        self.offers = DrainOffers(self._ctx, ownership)
        self.orphaned = OrphanedSessions(owners, lambda: self.migrations.members)
        self._delivery = InboundDelivery(self.migrations)
        self._connects = WaitingConnects(self.migrations, self._delivery)
        self._target = TakeoverTarget(self.migrations, self._delivery, self._connects)
        self._answers = InboundClaims(self.migrations, self._target, self._connects, self.offers)
        self._handover = SessionHandover(self.migrations, self._target, self._delivery)
        self._source = TakeoverSource(self.migrations, self._target, self._delivery, self._handover)
        self._cut_markers = CutMarkers(self.migrations, self._delivery, self._source, self.orphaned)
        self._claims = self._ctx.cluster.claim_ids(2 * seconds, limit)
        self._wanted_orphans: dict[str, None] = {}  # orphaned sessions that are wanted and not claimed yet
        self._has_orphaned = False
        broker.peers.settled_until = self._settled_until
        self.suback_hold = SubackHold(self.migrations)

    def is_wanted(self, client_id: str) -> bool:
        """Whether a CONNECT waits for the client id."""
        return self._claims.still(client_id) is not None

    def floor(self, client_id: str) -> int:
        """The floor that this claim publishes. Nodes with sessions below it have to discard them, and may not know that
        yet."""
        claim = self._claims.waiting.get(client_id)
        if claim is not None and claim.clean_start:
            return CLEAN
        return self.discarded_below(client_id)

    def discarded_below(self, client_id: str) -> int:
        """The epoch below which everything was discarded, as this node knows and others may not."""
        thrown = [inbound.epoch for inbound in self.migrations.of(client_id) if inbound.discarded and inbound.sources]
        return max(thrown, default=0)

    def _settled_until(self, node: int) -> int:
        """The newest epoch of sessions here that need no cut marker of that node any more. What enters there after that
        is given to them, and to no earlier owner."""
        unmarked = [inbound.epoch for inbound in self.migrations.all_inbound() if node not in inbound.marks]
        return min([self._ownership.settled_epoch(), *[epoch - 1 for epoch in unmarked]])

    @property
    def completed(self) -> int:
        """Takeovers to this node that have completed."""
        return self.migrations.completed

    @property
    def lost(self) -> dict[str, int]:
        """Sessions that clients lost (session present 0), by reason."""
        return self.migrations.lost.counts

    @property
    def refused(self) -> int:
        """Takeovers refused because of their epoch."""
        return self.migrations.refused

    def has(self, client_id: str) -> bool:
        """Whether this node has, or is claiming, any state of the client id."""
        migrations = self.migrations
        here = (
            client_id in self._ctx.sessions
            or client_id in migrations.inbound_sessions
            or client_id in migrations.outbound_of
        )
        here = here or client_id in migrations.postponed
        return here or client_id in self._claims.waiting or self._ownership.claiming(client_id)

    def outbound_count(self) -> int:
        """Sessions that are moving away from this node, including those that wait for an absent node."""
        return len(self.migrations.outbound_sessions)

    def handing_over(self) -> int:
        """Sessions that are moving and do not wait for an absent node."""
        return self._source.handing_over()

    # Start

    def enter(self, me: int, incarnation: int, facts: dict[bytes, bytes], first: int) -> bool:
        """Starts with this node's number and the stored ``facts`` of its earlier incarnations. Returns whether it had
        another number before."""
        migrations = self.migrations
        migrations.me = me
        self._ownership.enter(me)
        if FIRST not in facts:
            migrations.fact(FIRST, encode_marks([first or me]))
        known = facts.get(NUMBERS)
        ceiling, *numbers = (0, me) if known is None else decode_marks(known)
        another = numbers[-1] != me
        if not another:
            self._go_on(facts)
        else:
            numbers.append(me)
            self._call_off(facts)
            ceiling = max([session.epoch for session in self._ctx.sessions.values()], default=0)
        if known != encode_marks([ceiling, *numbers]):
            migrations.fact(NUMBERS, encode_marks([ceiling, *numbers]))  # written last of these facts
        orphaned: dict[str, int] = {}
        for client_id, session in self._ctx.sessions.items():
            if 0 < session.epoch <= ceiling and moved_session(client_id) is None:
                orphaned[client_id] = session.epoch
        self.orphaned.enter(tuple(numbers), orphaned)
        self._has_orphaned = len(numbers) > 1
        return another

    def _call_off(self, facts: dict[bytes, bytes]) -> None:
        """This node had been removed from the cluster. The other nodes have abandoned all migrations from and to it."""
        migrations, ctx = self.migrations, self._ctx
        for name in facts:
            if name.startswith((INBOUND, EARLY, KEPT)):
                migrations.fact(name, None)
        for session in sorted(ctx.sessions.values(), key=_epoch, reverse=True):
            found = moved_session(session.client_id)
            if found is not None:
                session.epoch = max(session.epoch, 1)
                outbound = self._restored(session, *found)
                migrations.add_outbound(outbound)
                self._source.call_off(outbound)
            elif session.will is not None and session.epoch != 0:
                session.will = None  # the leader has published it, or will
                session.will_at = 0.0
                if ctx.recording and session.kept:
                    ctx.write(Write(SESSION_PUT, session))

    def _restored(self, session: Session, target: int, epoch: int, client_id: str) -> OutboundSession:
        """A session that was leaving when this node ended. Its window is not in memory."""
        self._broker.mover.go_on_leaving(session)
        return OutboundSession(session, target, epoch, client_id)

    def _go_on(self, facts: dict[bytes, bytes]) -> None:
        migrations = self.migrations
        sessions = self._ctx.sessions
        for session in list(sessions.values()):
            found = moved_session(session.client_id)
            if found is not None:
                outbound = self._restored(session, *found)
                outbound.restore(decode_marks(facts.get(key(OUTBOUND, found[2], found[1]), b"\x90")))
                migrations.add_outbound(outbound)
        by_number = {session.number: session for session in sessions.values()}
        for name, fact in facts.items():
            if name.startswith(EARLY):
                migrations.early[name[10:].decode(), int.from_bytes(name[2:10], "big")] = decode_marks(fact)
            elif name.startswith(INBOUND):
                inbound = InboundSession.restored(decode_inbound(fact), by_number)
                kept = facts.get(key(KEPT, inbound.client_id, inbound.epoch))
                inbound.kept = [] if kept is None else decode_kept(kept)
                migrations.add(inbound)
                for node in inbound.asked():  # the source may have deferred the request, and have crashed since
                    migrations.send(node, inbound.asking())

    def _resume(self) -> None:
        """Once the members are known, continues the migrations of earlier incarnations."""
        migrations = self.migrations
        for outbound in list(migrations.outbound_sessions.values()):
            if outbound.target != migrations.me:
                self._source.describe_again(outbound)
        for inbound in migrations.all_inbound():
            self._delivery.attach(inbound)
        for (client_id, epoch), nodes in migrations.early.items():
            session = self._ctx.sessions.get(client_id)
            if session is not None and session.moving is not None and session.epoch < epoch:
                session.moving.marked.update(dict.fromkeys(nodes))

    def enter_again(self, incarnation: int) -> None:
        """This node rejoins after it was not counted as a member. Other nodes may have forgotten its requests, so they
        are repeated."""
        for node in self.migrations.members:
            if node != self.migrations.me:
                self.node_restarted(node)

    def set_members(self, members: Iterable[int]) -> None:
        """``members``: the numbers of all nodes, including this one."""
        migrations = self.migrations
        before, migrations.members = migrations.members, dict.fromkeys(members)
        if not before:
            self._resume()
        for node in migrations.members:
            if node not in before:
                self._cut_markers.member_came(node)
        former_members = migrations.former_members()
        for node in former_members:
            self._cut_markers.member_gone(node)
            for inbound in migrations.from_node(node):
                self._target.source_gone(inbound, node)
            for outbound in list(migrations.outbound_sessions.values()):
                if outbound.target == node:
                    self._source.target_gone(outbound)
        if former_members or before != migrations.members:  # the markers of other nodes are wanted now
            for inbound in migrations.all_inbound():
                migrations.touch(inbound)
                self._delivery.deliver(inbound.session)
            self._source.members_changed()

    def node_restarted(self, node: int) -> None:
        """That node has restarted, possibly without the sessions that it was handing over to this one."""
        self._cut_markers.node_restarted(node)
        self._source.node_restarted(node)
        for inbound in self.migrations.from_node(node):
            self.migrations.send(node, inbound.asking())

    def changed(self) -> None:
        """A node has connected or disconnected."""
        migrations = self.migrations
        for node in migrations.members:
            self._look_at_node(node)
        for inbound in migrations.resetting():
            migrations.touch(inbound)

    def _look_at_node(self, node: int) -> None:
        if self.migrations.is_unreachable(node):
            for inbound in self.migrations.from_node(node):
                self._target.late(inbound, node)

    # Messages between nodes

    def send(self, node: int, frame: TransferFrame) -> None:
        """Sends to a node, in order with everything else it is sent about sessions."""
        self.migrations.send(node, frame)

    def take(self, node: int, payload: bytes) -> None:
        """Handles a message of another node."""
        try:
            frames = unpack(payload)
        except TransferError as error:
            self.migrations.notices.append(f"node {node}: {error}")
            return
        for frame in frames:
            try:
                self._received(node, frame)
            except NoTransition as error:
                self.migrations.notices.append(f"message of node {node} was ignored: {error}")

    def _received(self, node: int, frame: TransferFrame) -> None:
        # Frequent ones first: for each other struct that a frame is compared with, isinstance asks its metaclass.
        if isinstance(frame, Takeover):
            self._source.asked(node, frame)
        elif isinstance(frame, (Head, Whole, Passed, Parts)):
            self._target.received(node, frame)
        elif isinstance(frame, (Barrier, ShortBarrier)):
            self._cut_markers.put(node, frame)
        elif isinstance(frame, (Mark, ShortMark)):
            self._cut_markers.came(node, frame)
        elif isinstance(frame, Unknown):
            self._source.unknown(node, frame.client_id, frame.epoch)
        elif isinstance(frame, ReleaseKey):
            self._look_at_rewritten(frame.client_id, self.migrations.me, frame.epoch)
        elif isinstance(frame, Offer):
            orphaned = [client_id for client_id, _ in frame.entries if client_id in self.orphaned]
            wanted = [entry for entry in frame.entries if entry[0] not in self.orphaned]
            declined = orphaned + self.offers.offered(node, Offer(wanted))
            if declined:
                self.send(node, Declined(declined))
        else:
            self.migrations.ports.on_drain(node, frame)

    # Turns

    def look(self, now: float) -> None:
        """After input was taken: lets CONNECTs that are ready continue, and refuses those that have timed out."""
        migrations = self.migrations
        if migrations.relay_awaited:
            relay_awaited, migrations.relay_awaited = migrations.relay_awaited, {}
            for node in relay_awaited:
                self._look_at_node(node)
        for client_id in self._claims.take():
            if client_id in self.orphaned:
                self._wanted_orphans[client_id] = None
            else:
                self._ownership.claim(client_id, unconditional=False)
        self._look_at_orphaned()
        for owned in self._ownership.take_owned():
            self._wanted_orphans.pop(owned.client_id, None)
            self._answers.own(owned, now)
        for client_id, node, epoch in self._ownership.take_rewritten():
            self._look_at_rewritten(client_id, node, epoch)
        for client_id, epoch in self.migrations.ports.wills.take_cleared(self.has):
            self._ownership.release(client_id, self.migrations.me, epoch)
        if self._ctx.cluster.reset_confirmed:
            for session in self._ctx.cluster.take_reset_confirmed():
                self._connects.noticed(session, now)
        for inbound in (*migrations.due(now), *migrations.settling):
            migrations.touch(inbound)
        self._source.look_at_links()
        self._receive_own()
        while migrations.touched:
            touched, migrations.touched = migrations.touched, {}
            for inbound in touched:
                self._target.look_at(inbound, now)
                self._cut_markers.want(inbound)
                if inbound.finished:
                    self._cut_markers.finished(inbound)
                if self.suback_hold.waiting:
                    self.suback_hold.look_at(inbound, now)
                if migrations.deferred:
                    self._source.look_at(inbound.client_id)
                if migrations.postponed:
                    self._answers.look_at_postponed(inbound.client_id, now)
            self._receive_own()
        self.suback_hold.look(now)
        self._look_at_claims(now)

    def turn(self, version: int, route_epoch: int, now: float) -> bool:
        """Sends pending messages, once this node's routes have their version. Returns whether the next turn has more to
        send."""
        migrations, interest = self.migrations, self._ctx.cluster.interest
        self._cut_markers.ask(version, route_epoch, interest is not None and len(interest.arriving) != 0)
        busy = self._handover.give_on(now)
        self._receive_own()  # a message to this node itself is stored in the turn in which it leaves the session
        migrations.store()
        migrations.flush_all()
        return busy or len(migrations.touched) != 0 or len(migrations.with_output) != 0

    def _receive_own(self) -> None:
        frame = self.migrations.take_own()
        while frame is not None:
            self._received(self.migrations.me, frame)
            frame = self.migrations.take_own()

    def _look_at_orphaned(self) -> None:
        for client_id, ours in self.orphaned.take_decided():
            session = self._ctx.sessions.get(client_id)
            if session is not None and not ours:
                self._source.drop(session)
            elif session is not None:
                self._wanted_orphans[client_id] = None
            if client_id in self._wanted_orphans:
                self._ownership.claim(client_id)
        if self._has_orphaned and not self.orphaned and not self._wanted_orphans:
            self._has_orphaned = False
            self.migrations.fact(NUMBERS, encode_marks([0, self.migrations.me]))

    def _look_at_rewritten(self, client_id: str, node: int, epoch: int) -> None:
        """An owner key that was to be deleted belongs to a later claim. Only the node of that claim knows whether it
        uses the claim."""
        if node != self.migrations.me and node in self.migrations.members:
            self.send(node, ReleaseKey(client_id, epoch))
        elif node != self.migrations.me or not self.has(client_id):
            self._ownership.release(client_id, node, epoch)

    def _look_at_claims(self, now: float) -> None:
        claims, connecting = self._claims, self._broker.connecting
        waiting = claims.waiting
        while waiting and now >= self._first(waiting) + claims.limit:
            detail = "timed out waiting for its session from another node (cluster.takeover_limit)"
            connecting.not_claimed(next(iter(waiting)), Reason.SERVER_BUSY, detail, "session_not_here")
        while claims.unowned and now >= self._etcd_is_silent_at():
            detail = "timed out resolving the owner of this client id"
            connecting.not_claimed(next(iter(claims.unowned)), Reason.SERVER_UNAVAILABLE, detail, "owner_unresolved")
        for client_id, epoch in self._claims.take_released():
            for inbound in self.migrations.of(client_id):
                self.migrations.touch(inbound)  # no client is left to receive the rest of the session
            if not (
                client_id in self._ctx.sessions or client_id in waiting or client_id in self.migrations.inbound_sessions
            ):
                self._ownership.release(client_id, self.migrations.me, epoch)

    def _first(self, claims: dict[str, OwnerClaim]) -> float:
        return next(iter(claims.values())).since

    def _etcd_is_silent_at(self) -> float:
        """When the CONNECT that has waited longest for its claim is refused, unless a leader answers before."""
        return max(self._first(self._claims.unowned), self._ownership.answered_at) + self._claims.silence

    def refuse_all(self, detail: str) -> None:
        """Refuses all waiting CONNECTs: this node serves no clients now."""
        while self._claims.waiting:
            client_id = next(iter(self._claims.waiting))
            self._broker.connecting.not_claimed(client_id, Reason.SERVER_UNAVAILABLE, detail, "isolated")

    def busy(self) -> bool:
        """Whether any session is moving, or is orphaned."""
        return self._has_orphaned or self.migrations.busy()

    def wake_at(self) -> float:
        """When ``turn`` has to be called without an event; ``inf``: never."""
        soonest = min(self.migrations.wake_at(), self.suback_hold.wake_at())
        if self._claims.waiting:
            soonest = min(soonest, self._first(self._claims.waiting) + self._claims.limit)
        if self._claims.unowned:
            soonest = min(soonest, self._etcd_is_silent_at())
        return soonest

    def take_notices(self) -> list[str]:
        notices = self.migrations.notices
        self.migrations.notices = []
        return notices


def first_number(facts: dict[bytes, bytes]) -> int:
    """The first number that the data directory with these facts was used with; 0: none yet."""
    first = facts.get(FIRST)
    if first is not None:
        return decode_marks(first)[0]
    numbers = facts.get(NUMBERS)  # of a version without ``FIRST``
    return 0 if numbers is None else decode_marks(numbers)[1]


def _epoch(session: Session) -> int:
    return session.epoch
