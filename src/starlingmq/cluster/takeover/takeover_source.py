"""The takeover source: sessions that leave this node, because another node owns their client ids. This node hands over
their state, and the messages that still arrive here for them.
"""

from __future__ import annotations

from starlingmq.cluster.takeover.inbound import InboundSession, Source
from starlingmq.cluster.takeover.inbound_delivery import InboundDelivery
from starlingmq.cluster.takeover.inbound_states import InboundEvent, InboundState, SourceState
from starlingmq.cluster.takeover.migrations import Migrations
from starlingmq.cluster.takeover.outbound import OutboundSession
from starlingmq.cluster.takeover.takeover_target import TakeoverTarget
from starlingmq.cluster.takeover.transfer_frames import (
    CANCELLED,
    NOTHING,
    OVERTAKEN,
    OWES,
    PASSED_ON,
    Head,
    Part,
    Parts,
    Passed,
    SubscriptionFrame,
    Takeover,
    Whole,
)
from starlingmq.core.session.outgoing import Outgoing
from starlingmq.core.session.session import NEVER, Session
from starlingmq.core.session.session_user import ANOTHER_USER, REFUSE, is_anothers


class TakeoverSource:
    def __init__(self, moves: Migrations, target: TakeoverTarget, delivery: InboundDelivery) -> None:
        self._moves = moves
        self._target = target
        self._delivery = delivery
        self._ctx = moves.ctx

    # Requests

    def asked(self, node: int, said: Takeover) -> None:
        """Another node claims to own this client id now."""
        moves = self._moves
        client_id, epoch = said.client_id, said.epoch
        if (client_id, epoch) in moves.departures or node not in moves.members:
            return
        claiming = moves.ownership.claiming(client_id)
        if claiming or client_id in moves.postponed:  # etcd's answer decides which of the two claims is newer
            moves.overtaken[client_id] = max(epoch, moves.overtaken.get(client_id, 0))
        session = self._ctx.sessions.get(client_id)
        arrivals = [] if node == moves.me else moves.of(client_id)
        if session is not None and self.stays(session, said.user):
            moves.refused += 1
            moves.take_early((client_id, epoch))
            moves.say(node, Head(client_id, epoch, OVERTAKEN, owner=session.owner))
            return
        back = said.offered and session is not None and session.client is not None
        if back or self._is_newer(client_id, epoch, arrivals, session):
            moves.refused += 1
            moves.take_early((client_id, epoch))
            moves.say(node, Head(client_id, epoch, OVERTAKEN, owner=self._kept_for(client_id, session)))
            return
        if not claiming:
            moves.broker.connecting.overtaken(client_id, epoch)
        anothers = self._is_anothers(session, arrivals, said.user)
        if said.clean or anothers:
            self._discard(client_id, epoch, arrivals)
        if any(arrival.wanted() for arrival in arrivals):
            self._defer(node, said)
        else:
            self._give(node, client_id, epoch, said.clean or anothers, ANOTHER_USER if anothers else "session_ended")

    def stays(self, session: Session, user: str | None) -> bool:
        """Whether the session stays here, reserved for its user, while another user asks for it."""
        ctx = self._ctx
        over = session.client is None and session.expires_at != 0.0 and session.expires_at <= ctx.now
        return ctx.session_owner == REFUSE and not over and is_anothers(REFUSE, session.owner, user)

    def _kept_for(self, client_id: str, session: Session | None) -> str | None:
        """The user that the session is reserved for, even if it is moving to a later owner: another user who asks gets
        a new session instead."""
        if self._ctx.session_owner != REFUSE:
            return None
        departing = self._moves.departing.get(client_id)
        if session is None and departing:
            session = max(departing, key=lambda departure: departure.epoch).session
        return None if session is None else session.owner

    def _is_anothers(self, session: Session | None, arrivals: list[InboundSession], user: str | None) -> bool:
        """Whether the session here, or the one moving here, belongs to another user."""
        owner = None
        if session is not None:
            owner = session.owner
        elif arrivals:
            owner = max(arrivals, key=_epoch).user
        return is_anothers(self._ctx.session_owner, owner, user)

    def _is_newer(self, client_id: str, epoch: int, arrivals: list[InboundSession], session: Session | None) -> bool:
        """Whether this node, or a node that gets the session from here, owns it by a higher epoch."""
        if session is not None and session.epoch > epoch:
            return True
        deferred = self._moves.deferred.get(client_id)
        if deferred is not None and deferred[1].epoch > epoch:
            return True
        departing = self._moves.departing.get(client_id, [])
        return any(arrival.owned > epoch for arrival in arrivals) or any(each.epoch > epoch for each in departing)

    def _defer(self, node: int, said: Takeover) -> None:
        """The session has not arrived completely. If several nodes want it, the newest owner gets it."""
        moves = self._moves
        earlier = moves.deferred.get(said.client_id)
        if earlier is not None and earlier[1].epoch > said.epoch:
            moves.say(node, Head(said.client_id, said.epoch, OVERTAKEN))
            return
        if earlier is not None and earlier[1].epoch < said.epoch:
            moves.say(earlier[0], Head(said.client_id, earlier[1].epoch, OVERTAKEN))
            moves.take_early((said.client_id, earlier[1].epoch))
        moves.deferred[said.client_id] = (node, said)

    def _discard(self, client_id: str, epoch: int, arrivals: list[InboundSession]) -> None:
        """The new owner starts with a clean session: this node no longer waits for parts that have not arrived. It
        happens now, because a client that returns here in the meantime must not find the old session."""
        moves = self._moves
        for arrival in arrivals:
            arrival.discarded = True
            self._target.step(arrival, InboundEvent.CALLED_OFF)
        earlier = moves.deferred.get(client_id)
        if earlier is not None and earlier[1].epoch < epoch:
            del moves.deferred[client_id]
            moves.say(earlier[0], Head(client_id, earlier[1].epoch, OVERTAKEN))
            moves.take_early((client_id, earlier[1].epoch))

    def look_at(self, client_id: str) -> None:
        """After a change of an inbound session: hands it over to the node that waits for it, if that is possible
        now."""
        deferred = self._moves.deferred.get(client_id)
        if deferred is not None and not any(arrival.wanted() for arrival in self._moves.of(client_id)):
            del self._moves.deferred[client_id]
            self.asked(*deferred)

    def _give(self, node: int, client_id: str, epoch: int, clean: bool, why: str) -> None:
        moves, mover = self._moves, self._moves.broker.mover
        session = self._ctx.sessions.get(client_id)
        held = 0 if session is None else OWES if session.hollow else max(session.epoch, 1)
        expiry = 0 if session is None else session.expiry
        left = self._left(session)
        late = [arrival for arrival in moves.of(client_id) if arrival.epoch != epoch and not arrival.discarded]
        willed = session is not None and session.will is not None
        ghost = mover.leave(client_id, node, epoch, clean, why)
        will = moves.ports.wills.leave(client_id)
        willed = willed or will != 0
        if ghost is None and not clean and any(arrival.session is None for arrival in late):
            ghost = mover.nobody(client_id, node, epoch)  # the messages of late sources go there
            held = OWES
        if ghost is None:
            moves.take_early((client_id, epoch))
            nothing = Head(client_id, epoch, PASSED_ON if client_id in moves.departing else NOTHING)
            nothing.willed, nothing.will = willed, will or CANCELLED
            moves.say(node, nothing)
            return
        for arrival in late:
            if arrival.session is None or arrival.session.ended:
                arrival.session = ghost
                self._delivery.attach(arrival)
        granted = [
            SubscriptionFrame(g.whole, g.qos, g.no_local, g.retain_as_published, g.ids) for g in mover.granted(ghost)
        ]
        last_id = 0 if ghost.window is None else ghost.window.last_id
        anew = ghost is session and ghost.anew
        trail = None if ghost.trail is None else (ghost.trail.node, ghost.trail.epoch, ghost.trail.sure)
        departure = OutboundSession(ghost, node, epoch, client_id)
        moves.depart(departure)
        for marked in moves.take_early((client_id, epoch)):
            moves.mark(departure, marked, False)
        for arrival in moves.of(client_id):
            for marked, later in arrival.later.items():
                if departure.is_earlier(later):
                    moves.mark(departure, marked, later > departure.epoch)
        moves.note(departure)
        head = Head(client_id, epoch, held, expiry, left, last_id, granted, ghost.floor, trail, anew)
        head.willed, head.will = willed, will or CANCELLED
        head.owner = ghost.owner
        head.aware = anew and ghost.aware
        former, head.unknown = moves.former(client_id, ghost)
        head.former = list(former)
        moves.say(node, head)

    def _left(self, session: Session | None) -> float:
        """Seconds until the session expires; 0.0: it does not."""
        if session is None or session.expiry == NEVER:
            return 0.0
        return session.expires_at - self._ctx.now if session.expires_at != 0.0 else float(session.expiry)

    def giving(self) -> int:
        """The number of sessions that are moving from here, or to here, and do not wait for an absent node."""
        there = self._moves.there()
        count = sum(not arrival.all_late() for arrival in self._moves.all_arrivals())
        for departure in self._moves.departures.values():
            session = departure.session
            if session.ended or not self._moves.connected(departure.target):
                continue
            marked = departure.marks()
            if not departure.whole or session.queue is not None or any(node not in marked for node in there):
                count += 1
        return count

    # Handing over

    def give_on(self, now: float) -> bool:
        """Sends pending messages of sessions that have left. Returns whether more can be sent in the next turn."""
        moves = self._moves
        if self._ctx.cluster.leaving:
            for session in self._ctx.cluster.take_leaving():
                moving = session.moving
                departure = None if moving is None else moves.departures.get((moving.client_id, moving.epoch))
                if departure is not None and departure.session is session:
                    moves.giving[departure] = None
        giving, moves.giving = moves.giving, {}
        for departure in giving:
            if self._give_of(departure, now):
                moves.giving[departure] = None
        return len(moves.giving) != 0

    def _give_of(self, departure: OutboundSession, now: float) -> bool:
        moves, mover, session = self._moves, self._moves.broker.mover, departure.session
        client_id, epoch = departure.client_id, departure.epoch
        if session.ended:
            moves.departed(departure)
            return False
        if session.window is not None:
            parts = mover.take_window(session)
            if parts:
                self._say_parts(departure, parts, now)
            if session.window is not None:
                return len(parts) != 0
        if not departure.whole:
            departure.whole = True
            moves.say(departure.target, Whole(client_id, epoch))
        parts = mover.take_queue(session)
        if parts:
            self._say_parts(departure, parts, now)
        if session.queue is not None:
            return len(parts) != 0
        moving = session.moving
        assert moving is not None
        nodes = departure.unpassed(moves.of(client_id))
        marked = not session.subscriptions or all(member in moving.marked for member in moves.members)
        done = marked and not moving.sources
        if nodes or done:
            moves.say(departure.target, Passed(client_id, epoch, nodes, done))
        if done:
            mover.left(session)
            moves.departed(departure)
        return False

    def _say_parts(self, departure: OutboundSession, outgoings: list[Outgoing], now: float) -> None:
        parts: list[Part] = []
        for outgoing in outgoings:
            message = outgoing.message
            parts.append(
                Part(
                    message.topic,
                    message.payload,
                    message.properties,
                    message.publisher,
                    (message.qos, message.retain, message.published_at),
                    -1.0 if message.expires_at == 0.0 else message.expires_at - now,
                    outgoing.qos,
                    outgoing.retain,
                    outgoing.ids,
                    outgoing.packet_id if outgoing.stage else 0,
                    outgoing.stage,
                    message.id,
                )
            )
        self._moves.say(departure.target, Parts(departure.client_id, departure.epoch, parts))

    # Member changes

    def members_changed(self) -> None:
        """The set of nodes whose markers are wanted has changed. Drops deferred requests of nodes that are no longer
        members."""
        moves = self._moves
        for client_id, (node, said) in list(moves.deferred.items()):
            if node not in moves.members:
                del moves.deferred[client_id]
                moves.take_early((client_id, said.epoch))
                session = self._ctx.sessions.get(client_id)
                if session is not None and session.moving is not None:
                    session.moving.marked = {}
        self._moves.giving.update(dict.fromkeys(self._moves.departures.values()))

    def reborn(self, node: int) -> None:
        """Asks a restarted node whether it still waits for the sessions that this node was handing over."""
        for departure in self._moves.departures.values():
            if departure.target == node and node != self._moves.me:
                self._moves.say(node, Passed(departure.client_id, departure.epoch, [], False))

    def unknown(self, node: int, client_id: str, epoch: int) -> None:
        """The target does not wait for this session any more."""
        departure = self._moves.departures.get((client_id, epoch))
        if departure is not None and departure.target == node:
            self.target_gone(departure)

    def target_gone(self, departure: OutboundSession) -> None:
        """The new owner is no longer a member, or has lost the session."""
        moves = self._moves
        if not self.call_off(departure):
            return
        moves.ownership.claim(departure.client_id)  # the client may have started a new session at another node
        for arrival in moves.of(departure.client_id):
            if arrival.session is departure.session:
                self._delivery.attach(arrival)

    def call_off(self, departure: OutboundSession) -> bool:
        """Cancels the handover. Returns True if the session is here as before. Otherwise its messages are owed to the
        client's newer session, which is here or has left for a later owner."""
        ghost = departure.session
        self._moves.departed(departure)
        if ghost.ended:
            return False
        there = self._ctx.sessions.get(departure.client_id) or self._left_since(departure)
        if there is None:
            self._moves.broker.mover.stay(ghost, departure.later)
            return True
        self._owe(departure, ghost, there)
        return False

    def _left_since(self, departure: OutboundSession) -> Session | None:
        """The newest session of that client which has left here after this one."""
        sessions = [each.session for each in self._moves.departing.get(departure.client_id, ())]
        later = [session for session in sessions if not session.ended and session.epoch > departure.session.epoch]
        return max(later, key=_session_epoch, default=None)

    def drop(self, session: Session) -> None:
        """Ends an orphaned session that its client has continued without, and everything owed to the client here."""
        moves, client_id = self._moves, session.client_id
        session.epoch = 0  # the client's owner key is not for this session
        moves.broker.ending.end(session)
        for departure in moves.departing.get(client_id, ()):
            departure.session.epoch = 0
            moves.broker.ending.end(departure.session)
            moves.giving[departure] = None
        for arrival in moves.of(client_id):
            self._target.source_dropped(arrival)

    def _owe(self, departure: OutboundSession, ghost: Session, there: Session) -> None:
        """Hands the session over to this node itself, for the client's newer session."""
        moves = self._moves
        client_id, epoch = departure.client_id, departure.epoch
        moves.broker.mover.redirect(ghost, moves.me)
        again = OutboundSession(ghost, moves.me, epoch, client_id)
        again.later = departure.later
        moves.depart(again)
        moves.note(again)
        arrival = moves.arrivals.get(client_id, {}).get(epoch)
        if arrival is None:
            arrival = InboundSession(client_id, epoch, {}, InboundState.OPEN)
        arrival.owned = max(there.epoch, arrival.owned)
        source = arrival.sources[moves.me] = Source(ghost.epoch, SourceState.QUEUE, late=True)
        arrival.session = there
        for granted in moves.broker.mover.granted(ghost):
            if not granted.whole.startswith(b"$share/"):
                arrival.former[granted.whole] = None
        former, source.vague = moves.former(client_id, ghost)
        arrival.former.update(former)
        assert ghost.moving is not None
        arrival.marks = dict(ghost.moving.marked)  # no other node receives the messages after these markers
        moves.add(arrival)
        moves.changed(arrival)
        self._delivery.attach(arrival)
        self._target.tell_owner(arrival)


def _epoch(arrival: InboundSession) -> int:
    return arrival.epoch


def _session_epoch(session: Session) -> int:
    return session.epoch
