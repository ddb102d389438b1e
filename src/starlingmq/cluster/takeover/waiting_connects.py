"""CONNECTs that wait for a session from another node: each gets the session, or is refused.

If a node that cannot be reached may have a later session, the CONNECT gets a session reset
(``core.session.session_reset``). Once the client has noticed the reset, its new subscriptions wait for cut markers.
"""

from __future__ import annotations

from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.cluster.takeover.inbound_delivery import InboundDelivery
from starlingmq.cluster.takeover.inbound_states import ResetAction, ResetEvent, ResetState
from starlingmq.cluster.takeover.lost_sessions import unheard_of
from starlingmq.cluster.takeover.migrations import Migrations
from starlingmq.core.connection import WORKING
from starlingmq.core.ready import SESSION_PUT, Write
from starlingmq.core.session.session import Session
from starlingmq.core.session.session_user import ANOTHER_USER, KEPT_FOR_ANOTHER, is_anothers
from starlingmq.core.session.trail import Trail
from starlingmq.wire.reasons import MqttError, Reason


class WaitingConnects:
    def __init__(self, moves: Migrations, delivery: InboundDelivery) -> None:
        self._moves = moves
        self._delivery = delivery
        self._ctx = moves.ctx

    def go_on(self, client_id: str, epoch: int, held: int) -> None:
        """Gives the client its session once no part of it is awaited. ``held``: the epoch by which this node has held
        the session all the time; 0: it did not."""
        moves, ctx = self._moves, self._ctx
        arrivals = moves.of(client_id)
        if not all(arrival.open for arrival in arrivals):
            return
        if moves.ownership.claiming(client_id) or client_id in moves.postponed:
            return  # the waiting CONNECT came after this claim, and belongs to the next claim
        session = ctx.sessions.get(client_id)
        unheard = unheard_of(arrivals, held)
        if session is not None and unheard:
            self._lose(session)
        unknown = session is None
        came = moves.broker.connecting.claimed(client_id, max(epoch, *[arrival.owned for arrival in arrivals], 0))
        session = ctx.sessions.get(client_id)
        if session is None:
            if not came and not arrivals:
                moves.ownership.release(client_id, moves.me, epoch)
            return
        if unknown and unheard:
            self._lose(session)
            session.told = session.client
        if came:
            moves.lost.note(session, unheard)
        for arrival in arrivals:
            if not arrival.discarded:
                self._attach(arrival, session, len(unheard) != 0)

    def _attach(self, arrival: InboundSession, session: Session, unheard: bool) -> None:
        begun = arrival.session is None or arrival.session.ended
        if begun:
            arrival.session = session
            self._delivery.attach(arrival)
        known = 0 if session.trail is None else session.trail.epoch
        if (begun or unheard) and arrival.sources and arrival.newest[1] > known:
            backlog = None if session.trail is None else session.trail.backlog  # of the connected client
            session.trail = Trail(*arrival.newest, False)  # that node could not be reached
            session.trail.backlog = backlog
            session.floor = 0

    def _lose(self, session: Session) -> None:
        """Starts a session reset: CONNACK says session present 0 until the client has noticed."""
        session.lose()
        if self._ctx.recording and session.expiry != 0:
            session.kept = True
            self._ctx.write(Write(SESSION_PUT, session))

    # Refused

    def refuse(self, arrival: InboundSession, user: str | None) -> None:
        """Refuses the CONNECT: a later owner is known, or the session is kept for another ``user``. A CONNECT of a
        newer claim asks that node itself, and is not refused here."""
        claims = self._ctx.cluster.claims
        claim = None if claims is None else claims.waiting.get(arrival.client_id)
        if claim is None or claim.epoch != arrival.epoch:
            return
        if is_anothers(self._ctx.session_owner, user, arrival.user):
            reason, why = Reason.CLIENT_IDENTIFIER_NOT_VALID, KEPT_FOR_ANOTHER
            self._moves.broker.connecting.not_claimed(arrival.client_id, reason, why)
        else:
            self._moves.broker.connecting.overtaken(arrival.client_id, arrival.epoch + 1)

    def give_way(self, arrival: InboundSession, user: str | None) -> None:
        """Ends the session here: a node that could not be asked when it began keeps the session of ``user``. If both
        sessions stayed, each would lock out the other user."""
        session = self._ctx.sessions.get(arrival.client_id)
        if session is not None and is_anothers(self._ctx.session_owner, user, session.owner):
            arrival.discarded = True
            self._moves.changed(arrival)
            self._moves.broker.connecting.taken_over(session, True, ANOTHER_USER)

    # Session resets

    def noticed(self, session: Session, now: float) -> None:
        """The client has noticed the session reset: its new subscriptions apply after the cut markers of all nodes."""
        moving = session.moving
        if moving is None or session.ended or not session.anew or moving.target != 0:
            return
        arrivals = [arrival for arrival in self._moves.of(moving.client_id) if arrival.session is session]
        for arrival in arrivals:
            self._moves.touch(arrival)
        if not arrivals:
            self._moves.broker.subscribing.begin_anew(session)
        else:
            self._step(max(arrivals, key=_epoch), ResetEvent.NOTICED, now)

    def look_at_reset(self, arrival: InboundSession, over: bool, now: float) -> None:
        if arrival.reset is not ResetState.PENDING:
            return
        if over or now >= arrival.reset_until or arrival.marked_by(self._moves.there()):
            self._step(arrival, ResetEvent.DUE, now)

    def _step(self, arrival: InboundSession, event: ResetEvent, now: float) -> None:
        for action in arrival.step_reset(event):
            if action is ResetAction.WATCH:
                self._moves.watch_reset(arrival, now + self._moves.limit)
            elif action is ResetAction.SUBSCRIBE:
                self._moves.unwatch_reset(arrival)
                self._subscribe(arrival)

    def _subscribe(self, arrival: InboundSession) -> None:
        session = arrival.session
        moving = None if session is None else session.moving
        if session is None or moving is None or session.ended or moving.target != 0:
            return
        subscribing, client = self._moves.broker.subscribing, session.client
        subscribing.begin_anew(session)
        subscribe, moving.subscribe = moving.subscribe, None
        if subscribe is None or client is None or moving.subscriber is not client:
            return
        self._ctx.unhalt(client, WORKING)
        try:
            subscribing.on_subscribe(client, session, subscribe)
        except MqttError as error:
            self._moves.broker.ending.fail(client, error.reason, error.detail)


def _epoch(arrival: InboundSession) -> int:
    return arrival.epoch
