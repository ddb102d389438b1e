"""CONNECTs that wait for a session from another node: each gets the session, or is refused.

If a node that cannot be reached may have a later session, the CONNECT gets a session reset
(``core.connect.session_reset``). Once the client has noticed the reset, its new subscriptions wait for cut markers.
Markers of an earlier claim do not count for a reset: the node hands the session over to itself in the epoch of the
CONNECT, and that part keeps the earlier subscriptions until all nodes have sent markers of that epoch.
"""

from __future__ import annotations

from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.cluster.takeover.inbound_delivery import InboundDelivery
from starlingmq.cluster.takeover.inbound_states import ResetAction, ResetEvent, ResetState
from starlingmq.cluster.takeover.lost_sessions import removed_of, unheard_of
from starlingmq.cluster.takeover.migrations import Migrations
from starlingmq.core.context.ready import SESSION_PUT, Write
from starlingmq.core.session.connection import WORKING
from starlingmq.core.session.session import Session
from starlingmq.core.session.session_user import ANOTHER_USER, KEPT_FOR_ANOTHER, is_anothers
from starlingmq.core.session.trail import Trail
from starlingmq.wire.reasons import MqttError, Reason


class WaitingConnects:
    def __init__(self, migrations: Migrations, delivery: InboundDelivery) -> None:
        self._migrations = migrations
        self._delivery = delivery
        self._ctx = migrations.ctx

    def go_on(self, client_id: str, epoch: int, held: int) -> None:
        """Gives the client its session once no part of it is awaited. ``held``: the epoch by which this node has held
        the session all the time; 0: it did not."""
        migrations, ctx = self._migrations, self._ctx
        inbound_sessions = migrations.of(client_id)
        if not all(inbound.open for inbound in inbound_sessions):
            return
        if migrations.ownership.claiming(client_id) or client_id in migrations.postponed:
            return  # the waiting CONNECT came after this claim, and belongs to the next claim
        session = ctx.sessions.get(client_id)
        claims = ctx.cluster.claims
        if session is None and claims is not None and claims.wants_keys_again(client_id):
            migrations.ownership.claim_again(client_id, unconditional=False)
            return
        unheard = unheard_of(inbound_sessions, held)
        removed = removed_of(inbound_sessions, held)
        if session is not None and (unheard or removed):
            self._lose(session)
        unknown = session is None
        came = migrations.broker.connecting.claimed(
            client_id, max(epoch, *[inbound.owned for inbound in inbound_sessions], 0)
        )
        session = ctx.sessions.get(client_id)
        if session is None:
            if not came and not inbound_sessions:
                migrations.ownership.release(client_id, migrations.me, epoch)
            return
        if unknown and (unheard or removed):
            self._lose(session)
            session.connack_sent_to = session.client
        if came:
            migrations.lost.note(session, unheard, removed)
        elif unheard and session.client is None:
            migrations.lost.note_absent(client_id, unheard)
        for inbound in inbound_sessions:
            for node, had in inbound.removed.items():
                migrations.ownership.release(client_id, node, had)
            inbound.removed = {}
            inbound.served = inbound.served or session.client is not None
            if not inbound.discarded:
                self._attach(inbound, session, len(unheard) != 0)

    def _attach(self, inbound: InboundSession, session: Session, unheard: bool) -> None:
        begun = inbound.session is None or inbound.session.ended
        if begun:
            inbound.session = session
            self._delivery.attach(inbound)
        known = 0 if session.trail is None else session.trail.epoch
        if (begun or unheard) and inbound.sources and inbound.newest[1] > known:
            backlog = None if session.trail is None else session.trail.backlog  # of the connected client
            session.trail = Trail(*inbound.newest, False)  # that node could not be reached
            session.trail.backlog = backlog
            session.floor = 0

    def lose_again(self, inbound: InboundSession) -> None:
        """A late source has provided the session that no client had yet: another one may still have a later session."""
        if inbound.session is not None and unheard_of(self._migrations.of(inbound.client_id), 0):
            self._lose(inbound.session)

    def _lose(self, session: Session) -> None:
        """Starts a session reset: CONNACK says session present 0 until the client has noticed."""
        session.require_reset()
        if self._ctx.recording and session.expiry != 0:
            session.kept = True
            self._ctx.write(Write(SESSION_PUT, session))

    # Refused

    def refuse(self, inbound: InboundSession, user: str | None) -> None:
        """Refuses the CONNECT: a later owner is known, or the session is kept for another ``user``. A CONNECT of a
        newer claim asks that node itself, and is not refused here."""
        claims = self._ctx.cluster.claims
        claim = None if claims is None else claims.waiting.get(inbound.client_id)
        if claim is None or claim.epoch != inbound.epoch:
            return
        if is_anothers(self._ctx.session_owner, user, inbound.user):
            reason, why = Reason.CLIENT_IDENTIFIER_NOT_VALID, KEPT_FOR_ANOTHER
            self._migrations.broker.connecting.not_claimed(inbound.client_id, reason, why, "session_owner")
        else:
            self._migrations.broker.connecting.overtaken(inbound.client_id, inbound.epoch + 1)

    def give_way(self, inbound: InboundSession, user: str | None) -> None:
        """Ends the session here: a node that could not be asked when it began keeps the session of ``user``. If both
        sessions stayed, each would lock out the other user."""
        session = self._ctx.sessions.get(inbound.client_id)
        if session is not None and is_anothers(self._ctx.session_owner, user, session.owner):
            inbound.discarded = True
            self._migrations.changed(inbound)
            self._migrations.broker.connecting.taken_over(session, True, ANOTHER_USER)

    # Session resets

    def noticed(self, session: Session, now: float) -> None:
        """The client has noticed the session reset: its new subscriptions apply after the cut markers of all nodes."""
        moving = session.moving
        if moving is None or session.ended or not session.needs_reset or moving.target != 0:
            return
        inbound_sessions = [inbound for inbound in self._migrations.of(moving.client_id) if inbound.session is session]
        for inbound in inbound_sessions:
            self._migrations.touch(inbound)
        if not inbound_sessions:
            self._migrations.broker.subscribing.finish_reset(session)
        else:
            self._step(max(inbound_sessions, key=_epoch), ResetEvent.NOTICED, now)

    def look_at_reset(self, inbound: InboundSession, over: bool, now: float) -> None:
        if inbound.reset is not ResetState.PENDING:
            return
        if over or inbound.marked_by(self._migrations.connected_members()):
            self._step(inbound, ResetEvent.DUE, now)
        elif now >= inbound.reset_until:
            self._step(inbound, ResetEvent.LATE, now)

    def _step(self, inbound: InboundSession, event: ResetEvent, now: float) -> None:
        for action in inbound.step_reset(event):
            if action is ResetAction.WATCH:
                self._migrations.watch_reset(inbound, now + self._migrations.limit)
            elif action is ResetAction.SEND_AWAY:
                self._send_away(inbound)
            elif action is ResetAction.SUBSCRIBE:
                self._migrations.unwatch_reset(inbound)
                self._subscribe(inbound)

    def _send_away(self, inbound: InboundSession) -> None:
        """The client gets no SUBACK: without the markers, messages of its earlier subscriptions could come as those of
        its new ones. It finds its session when it comes again."""
        session = inbound.session
        moving = None if session is None else session.moving
        if session is None or moving is None or moving.subscribe is None:
            return
        moving.subscribe, client = None, session.client
        if client is not None and moving.subscriber is client:
            self._migrations.broker.ending.fail(
                client, Reason.SERVER_BUSY, "a slow node delays its SUBACK", "suback_delayed"
            )

    def _subscribe(self, inbound: InboundSession) -> None:
        session = inbound.session
        moving = None if session is None else session.moving
        if session is None or moving is None or session.ended or moving.target != 0:
            return
        subscribing, client = self._migrations.broker.subscribing, session.client
        subscribing.finish_reset(session)
        subscribe, moving.subscribe = moving.subscribe, None
        if subscribe is None or client is None or moving.subscriber is not client:
            return
        self._ctx.unhalt(client, WORKING)
        try:
            subscribing.on_subscribe(client, session, subscribe)
        except MqttError as error:
            self._migrations.broker.ending.fail(client, error.reason, error.detail)


def _epoch(inbound: InboundSession) -> int:
    return inbound.epoch
