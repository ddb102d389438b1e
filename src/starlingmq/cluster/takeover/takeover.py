"""Sessions follow their clients from node to node: both sides of a takeover. docs/SESSIONS.md gives the reasons.

::

    new owner                          former owner                        every node
       |-- Takeover (epoch) ------------->| ends its connection
       |<------------- Head, Parts, Whole-| session state, inflight window, queue
       |  (the client is connected)       |
       |-- Barrier, once its routes are applied ---------------------------->|
       |<---------------------------------|<--------------------------- Mark-|
       |<------------------ Parts, Passed-| messages from before the markers
       |  (delivers those after them)     | done

The laws:

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
from starlingmq.cluster.takeover.migrations import ARRIVAL, DEPARTURE, EARLY, FACTS, FIRST, NUMBERS, Migrations, key
from starlingmq.cluster.takeover.orphaned_sessions import OrphanedSessions
from starlingmq.cluster.takeover.outbound import OutboundSession, departed
from starlingmq.cluster.takeover.ownership import CLEAN, Ownership
from starlingmq.cluster.takeover.state_table import NoTransition
from starlingmq.cluster.takeover.suback_hold import SubackHold
from starlingmq.cluster.takeover.takeover_ports import TakeoverPorts
from starlingmq.cluster.takeover.takeover_source import TakeoverSource
from starlingmq.cluster.takeover.takeover_target import TakeoverTarget
from starlingmq.cluster.takeover.transfer_frames import (
    Barrier,
    Declined,
    Mark,
    Offer,
    Rebalance,
    ReleaseKey,
    Said,
    Takeover,
    TransferError,
    Unknown,
    decode_arrival,
    decode_marks,
    encode_marks,
    unpack,
)
from starlingmq.cluster.takeover.waiting_connects import WaitingConnects
from starlingmq.core.broker import BrokerState
from starlingmq.core.ready import SESSION_PUT, Write
from starlingmq.core.session.owner_claims import OwnerClaim
from starlingmq.core.session.session import Session
from starlingmq.wire.reasons import Reason

__all__ = ["FACTS", "Takeovers"]


class Takeovers:
    def __init__(
        self,
        broker: BrokerState,
        ownership: Ownership,
        seconds: float,
        limit: float,
        ports: TakeoverPorts,
    ) -> None:
        self._broker = broker
        self._ctx = broker.ctx
        self._ownership = ownership
        self.moves = Migrations(broker, ownership, limit, ports)
        self.offers = DrainOffers(self._ctx, ownership)
        self.strays = OrphanedSessions(ownership)
        self._delivery = InboundDelivery(self.moves)
        self._connects = WaitingConnects(self.moves, self._delivery)
        self._target = TakeoverTarget(self.moves, self._delivery, self._connects)
        self._answers = InboundClaims(self.moves, self._target, self._connects, self.offers)
        self._leaving = TakeoverSource(self.moves, self._target, self._delivery)
        self._marks = CutMarkers(self.moves, self._delivery, self._leaving, self.strays)
        self._claims = self._ctx.cluster.claim_ids(2 * seconds, limit)
        self._later: dict[str, None] = {}  # orphaned sessions that are wanted and not claimed yet
        self._has_strays = False
        broker.peers.settled_until = self._settled_until
        ownership.floor = self._floor
        ownership.wanted = self._is_wanted
        self.promises = SubackHold(self.moves)
        broker.subscribing.waits_for_marks = self.promises.hold

    def _is_wanted(self, client_id: str) -> bool:
        return self._claims.still(client_id) is not None

    def _floor(self, client_id: str) -> int:
        """The floor that this claim publishes. Nodes with sessions below it have to discard them, and may not know that
        yet."""
        claim = self._claims.waiting.get(client_id)
        if claim is not None and claim.clean_start:
            return CLEAN
        thrown = [arrival.epoch for arrival in self.moves.of(client_id) if arrival.discarded and arrival.sources]
        return max(thrown, default=0)

    def _settled_until(self, node: int) -> int:
        """The newest epoch of sessions here that need no cut marker of that node any more. What enters there after that
        is given to them, and to no earlier owner."""
        unmarked = [arrival.epoch for arrival in self.moves.all_arrivals() if node not in arrival.marks]
        return min([self._ownership.newest, *[epoch - 1 for epoch in unmarked]])

    @property
    def completed(self) -> int:
        """Takeovers to this node that have completed."""
        return self.moves.completed

    @property
    def lost(self) -> dict[str, int]:
        """Sessions that clients lost (session present 0), by reason."""
        return self.moves.lost.counts

    @property
    def refused(self) -> int:
        """Takeovers refused because of their epoch."""
        return self.moves.refused

    def has(self, client_id: str) -> bool:
        """Whether this node has, or is claiming, any state of the client id."""
        moves = self.moves
        here = client_id in self._ctx.sessions or client_id in moves.arrivals or client_id in moves.departing
        here = here or client_id in moves.postponed
        return here or client_id in self._claims.waiting or self._ownership.claiming(client_id)

    def departing(self) -> int:
        """Sessions that are moving away from this node, including those that wait for an absent node."""
        return len(self.moves.departures)

    def giving(self) -> int:
        """Sessions that are moving and do not wait for an absent node."""
        return self._leaving.giving()

    # Start

    def enter(self, me: int, incarnation: int, facts: dict[bytes, bytes], first: int) -> bool:
        """Starts with this node's number and the stored ``facts`` of its earlier incarnations. Returns whether it had
        another number before."""
        moves = self.moves
        moves.me = me
        self._ownership.enter(me, incarnation)
        if FIRST not in facts:
            moves.fact(FIRST, encode_marks([first or me]))
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
            moves.fact(NUMBERS, encode_marks([ceiling, *numbers]))  # written last of these facts
        strays: dict[str, int] = {}
        for client_id, session in self._ctx.sessions.items():
            if 0 < session.epoch <= ceiling and departed(client_id) is None:
                strays[client_id] = session.epoch
        self.strays.enter(tuple(numbers), strays)
        self._has_strays = len(numbers) > 1
        return another

    def _call_off(self, facts: dict[bytes, bytes]) -> None:
        """This node had been removed from the cluster. The other nodes have abandoned all migrations from and to it."""
        moves, ctx = self.moves, self._ctx
        for name in facts:
            if name.startswith((ARRIVAL, EARLY)):
                moves.fact(name, None)
        for session in sorted(ctx.sessions.values(), key=_epoch, reverse=True):
            found = departed(session.client_id)
            if found is not None:
                session.epoch = max(session.epoch, 1)
                departure = OutboundSession(session, *found)
                moves.depart(departure)
                self._leaving.call_off(departure)
            elif session.will is not None and session.epoch != 0:
                session.will = None  # the leader has published it, or will
                session.will_at = 0.0
                if ctx.recording and session.kept:
                    ctx.write(Write(SESSION_PUT, session))

    def _go_on(self, facts: dict[bytes, bytes]) -> None:
        moves = self.moves
        sessions = self._ctx.sessions
        for session in list(sessions.values()):
            found = departed(session.client_id)
            if found is not None:
                departure = OutboundSession(session, *found)
                departure.restore(decode_marks(facts.get(key(DEPARTURE, found[2], found[1]), b"\x90")))
                moves.depart(departure)
        by_number = {session.number: session for session in sessions.values()}
        for name, fact in facts.items():
            if name.startswith(EARLY):
                moves.early[name[10:].decode(), int.from_bytes(name[2:10], "big")] = decode_marks(fact)
            elif name.startswith(ARRIVAL):
                arrival = InboundSession.restored(decode_arrival(fact), by_number)
                moves.add(arrival)
                for node in arrival.asked():  # the source may have deferred the request, and have crashed since
                    moves.say(node, arrival.asking())

    def _resume(self) -> None:
        """Once the members are known, continues the migrations of earlier incarnations."""
        moves = self.moves
        for arrival in moves.all_arrivals():
            self._delivery.attach(arrival)
        for (client_id, epoch), nodes in moves.early.items():
            session = self._ctx.sessions.get(client_id)
            if session is not None and session.moving is not None and session.epoch < epoch:
                session.moving.marked.update(dict.fromkeys(nodes))

    def enter_again(self, incarnation: int) -> None:
        """This node rejoins after it was not counted as a member. Other nodes may have forgotten its requests, so they
        are repeated."""
        self._ownership.enter(self.moves.me, incarnation)
        for node in self.moves.members:
            if node != self.moves.me:
                self.reborn(node)

    def set_members(self, members: Iterable[int]) -> None:
        """``members``: the numbers of all nodes, including this one."""
        moves = self.moves
        before, moves.members = moves.members, dict.fromkeys(members)
        if not before:
            self._resume()
        for node in moves.members:
            if node not in before:
                self._marks.member_came(node)
        strangers = moves.strangers()
        for node in strangers:
            self._marks.member_gone(node)
            for arrival in moves.from_node(node):
                self._target.source_gone(arrival, node)
            for departure in list(moves.departures.values()):
                if departure.target == node:
                    self._leaving.target_gone(departure)
        if strangers or before != moves.members:  # the markers of other nodes are wanted now
            for arrival in moves.all_arrivals():
                moves.touch(arrival)
                self._delivery.deliver(arrival.session)
            self._leaving.members_changed()

    def reborn(self, node: int) -> None:
        """That node has restarted, possibly without the sessions that it was handing over to this one."""
        self._marks.reborn(node)
        self._leaving.reborn(node)
        for arrival in self.moves.from_node(node):
            self.moves.say(node, arrival.asking())

    def changed(self) -> None:
        """A node has connected or disconnected."""
        moves = self.moves
        for node in moves.members:
            self._look_at_node(node)
        for arrival in moves.resetting():
            moves.touch(arrival)

    def _look_at_node(self, node: int) -> None:
        if self.moves.is_unreachable(node):
            for arrival in self.moves.from_node(node):
                self._target.late(arrival, node)

    # Messages between nodes

    def say(self, node: int, said: Said) -> None:
        """Sends to a node, in order with everything else it is sent about sessions."""
        self.moves.say(node, said)

    def take(self, node: int, payload: bytes) -> None:
        """Handles a message of another node."""
        try:
            all_said = unpack(payload)
        except TransferError as error:
            self.moves.notices.append(f"node {node}: {error}")
            return
        for said in all_said:
            try:
                self._heard(node, said)
            except NoTransition as error:
                self.moves.notices.append(f"message of node {node} was ignored: {error}")

    def _heard(self, node: int, said: Said) -> None:
        if isinstance(said, Takeover):
            self._leaving.asked(node, said)
        elif isinstance(said, Barrier):
            self._marks.put(node, said)
        elif isinstance(said, Mark):
            self._marks.came(node, said)
        elif isinstance(said, Unknown):
            self._leaving.unknown(node, said.client_id, said.epoch)
        elif isinstance(said, ReleaseKey):
            self._look_at_rewritten(said.client_id, self.moves.me, said.epoch)
        elif isinstance(said, Offer):
            strays = [client_id for client_id, _ in said.entries if client_id in self.strays]
            wanted = [entry for entry in said.entries if entry[0] not in self.strays]
            declined = strays + self.offers.offered(node, Offer(wanted))
            if declined:
                self.say(node, Declined(declined))
        elif isinstance(said, Declined | Rebalance):
            self.moves.ports.on_drain(node, said)
        else:
            self._target.heard(node, said)

    # Turns

    def look(self, now: float) -> None:
        """After input was taken: lets CONNECTs that are ready continue, and refuses those that have timed out."""
        moves = self.moves
        if moves.detoured:
            detoured, moves.detoured = moves.detoured, {}
            for node in detoured:
                self._look_at_node(node)
        for client_id in self._claims.take():
            if client_id in self.strays:
                self._later[client_id] = None
            else:
                self._ownership.claim(client_id, firm=False)
        self._look_at_strays()
        for owned in self._ownership.take_owned():
            self._later.pop(owned.client_id, None)
            self._answers.own(owned, now)
        for client_id, node, epoch in self._ownership.take_rewritten():
            self._look_at_rewritten(client_id, node, epoch)
        if self._ctx.cluster.aware:
            for session in self._ctx.cluster.take_aware():
                self._connects.noticed(session, now)
        for arrival in (*moves.due(now), *moves.settling):
            moves.touch(arrival)
        self._hear_own()
        while moves.touched:
            touched, moves.touched = moves.touched, {}
            for arrival in touched:
                self._target.look_at(arrival, now)
                self._marks.want(arrival)
                if arrival.finished:
                    self._marks.finished(arrival)
                if self.promises.waiting:
                    self.promises.look_at(arrival, now)
                if moves.deferred:
                    self._leaving.look_at(arrival.client_id)
                if moves.postponed:
                    self._answers.look_at_postponed(arrival.client_id, now)
            self._hear_own()
        self.promises.look(now)
        self._look_at_claims(now)

    def turn(self, version: int, route_epoch: int, now: float) -> bool:
        """Sends pending messages, once this node's routes have their version. Returns whether the next turn has more to
        send."""
        moves = self.moves
        self._marks.ask(version, route_epoch)
        busy = self._leaving.give_on(now)
        self._hear_own()  # a message to this node itself is stored in the turn in which it leaves the session
        moves.store()
        moves.flush_all()
        return busy or len(moves.touched) != 0 or len(moves.giving) != 0

    def _hear_own(self) -> None:
        said = self.moves.take_own()
        while said is not None:
            self._heard(self.moves.me, said)
            said = self.moves.take_own()

    def _look_at_strays(self) -> None:
        for client_id, ours in self.strays.take_decided():
            session = self._ctx.sessions.get(client_id)
            if session is not None and not ours:
                self._leaving.drop(session)
            elif session is not None:
                self._later[client_id] = None
            if client_id in self._later:
                self._ownership.claim(client_id)
        if self._has_strays and not self.strays and not self._later:
            self._has_strays = False
            self.moves.fact(NUMBERS, encode_marks([0, self.moves.me]))

    def _look_at_rewritten(self, client_id: str, node: int, epoch: int) -> None:
        """An owner key that was to be deleted belongs to a later claim. Only the node of that claim knows whether it
        uses the claim."""
        if node != self.moves.me and node in self.moves.members:
            self.say(node, ReleaseKey(client_id, epoch))
        elif node != self.moves.me or not self.has(client_id):
            self._ownership.release(client_id, node, epoch)

    def _look_at_claims(self, now: float) -> None:
        claims, connecting = self._claims, self._broker.connecting
        waiting = claims.waiting
        while waiting and now >= self._first(waiting) + claims.limit:
            connecting.not_claimed(
                next(iter(waiting)), Reason.SERVER_BUSY, "timed out waiting for its session from another node"
            )
        while claims.unowned and now >= self._etcd_is_silent_at():
            connecting.not_claimed(
                next(iter(claims.unowned)), Reason.SERVER_UNAVAILABLE, "timed out resolving the owner of this client id"
            )
        for client_id, epoch in self._claims.take_released():
            for arrival in self.moves.of(client_id):
                self.moves.touch(arrival)  # no client is left to receive the rest of the session
            if not (client_id in self._ctx.sessions or client_id in waiting or client_id in self.moves.arrivals):
                self._ownership.release(client_id, self.moves.me, epoch)

    def _first(self, claims: dict[str, OwnerClaim]) -> float:
        return next(iter(claims.values())).since

    def _etcd_is_silent_at(self) -> float:
        """When the CONNECT that has waited longest for etcd is refused, unless etcd answers something before."""
        return max(self._first(self._claims.unowned), self._ownership.answered_at) + self._claims.silence

    def refuse_all(self, detail: str) -> None:
        """Refuses all waiting CONNECTs: this node serves no clients now."""
        while self._claims.waiting:
            self._broker.connecting.not_claimed(next(iter(self._claims.waiting)), Reason.SERVER_UNAVAILABLE, detail)

    def busy(self) -> bool:
        """Whether any session is moving, or is orphaned."""
        return self._has_strays or self.moves.busy()

    def wake_at(self) -> float:
        """When ``turn`` has to be called without an event; ``inf``: never."""
        soonest = min(self.moves.wake_at(), self.promises.wake_at())
        if self._claims.waiting:
            soonest = min(soonest, self._first(self._claims.waiting) + self._claims.limit)
        if self._claims.unowned:
            soonest = min(soonest, self._etcd_is_silent_at())
        return soonest

    def take_notices(self) -> list[str]:
        notices = self.moves.notices
        self.moves.notices = []
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
