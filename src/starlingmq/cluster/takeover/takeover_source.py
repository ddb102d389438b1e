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
    def __init__(self, migrations: Migrations, target: TakeoverTarget, delivery: InboundDelivery) -> None:
        self._migrations = migrations
        self._target = target
        self._delivery = delivery
        self._ctx = migrations.ctx

    # Requests

    def asked(self, node: int, said: Takeover) -> None:
        """Another node claims to own this client id now."""
        migrations = self._migrations
        client_id, epoch = said.client_id, said.epoch
        if (client_id, epoch) in migrations.outbound_sessions or node not in migrations.members:
            return
        claiming = migrations.ownership.claiming(client_id)
        if claiming or client_id in migrations.postponed:  # etcd's answer decides which of the two claims is newer
            migrations.overtaken[client_id] = max(epoch, migrations.overtaken.get(client_id, 0))
        session = self._ctx.sessions.get(client_id)
        inbound_sessions = [] if node == migrations.me else migrations.of(client_id)
        if session is not None and self.stays(session, said.user):
            migrations.refused += 1
            migrations.take_early((client_id, epoch))
            migrations.say(node, Head(client_id, epoch, OVERTAKEN, owner=session.owner))
            return
        back = said.offered and session is not None and session.client is not None
        if back or self._is_newer(client_id, epoch, inbound_sessions, session):
            migrations.refused += 1
            migrations.take_early((client_id, epoch))
            migrations.say(node, Head(client_id, epoch, OVERTAKEN, owner=self._kept_for(client_id, session)))
            return
        if not claiming:
            migrations.broker.connecting.overtaken(client_id, epoch)
        anothers = self._is_anothers(session, inbound_sessions, said.user)
        if said.clean or anothers:
            self._discard(client_id, epoch, inbound_sessions)
        if any(inbound.wanted() for inbound in inbound_sessions):
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
        leaving = self._migrations.outbound_of.get(client_id)
        if session is None and leaving:
            session = max(leaving, key=lambda outbound: outbound.epoch).session
        return None if session is None else session.owner

    def _is_anothers(self, session: Session | None, inbound_sessions: list[InboundSession], user: str | None) -> bool:
        """Whether the session here, or the one moving here, belongs to another user."""
        owner = None
        if session is not None:
            owner = session.owner
        elif inbound_sessions:
            owner = max(inbound_sessions, key=_epoch).user
        return is_anothers(self._ctx.session_owner, owner, user)

    def _is_newer(
        self, client_id: str, epoch: int, inbound_sessions: list[InboundSession], session: Session | None
    ) -> bool:
        """Whether this node, or a node that gets the session from here, owns it by a higher epoch."""
        if session is not None and session.epoch > epoch:
            return True
        deferred = self._migrations.deferred.get(client_id)
        if deferred is not None and deferred[1].epoch > epoch:
            return True
        leaving = self._migrations.outbound_of.get(client_id, [])
        return any(inbound.owned > epoch for inbound in inbound_sessions) or any(each.epoch > epoch for each in leaving)

    def _defer(self, node: int, said: Takeover) -> None:
        """The session has not arrived completely. If several nodes want it, the newest owner gets it."""
        migrations = self._migrations
        earlier = migrations.deferred.get(said.client_id)
        if earlier is not None and earlier[1].epoch > said.epoch:
            migrations.say(node, Head(said.client_id, said.epoch, OVERTAKEN))
            return
        if earlier is not None and earlier[1].epoch < said.epoch:
            migrations.say(earlier[0], Head(said.client_id, earlier[1].epoch, OVERTAKEN))
            migrations.take_early((said.client_id, earlier[1].epoch))
        migrations.deferred[said.client_id] = (node, said)

    def _discard(self, client_id: str, epoch: int, inbound_sessions: list[InboundSession]) -> None:
        """The new owner starts with a clean session: this node no longer waits for parts that have not arrived. It
        happens now, because a client that returns here in the meantime must not find the old session."""
        migrations = self._migrations
        for inbound in inbound_sessions:
            inbound.discarded = True
            self._target.step(inbound, InboundEvent.CALLED_OFF)
        earlier = migrations.deferred.get(client_id)
        if earlier is not None and earlier[1].epoch < epoch:
            del migrations.deferred[client_id]
            migrations.say(earlier[0], Head(client_id, earlier[1].epoch, OVERTAKEN))
            migrations.take_early((client_id, earlier[1].epoch))

    def look_at(self, client_id: str) -> None:
        """After a change of an inbound session: hands it over to the node that waits for it, if that is possible
        now."""
        deferred = self._migrations.deferred.get(client_id)
        if deferred is not None and not any(inbound.wanted() for inbound in self._migrations.of(client_id)):
            del self._migrations.deferred[client_id]
            self.asked(*deferred)

    def _give(self, node: int, client_id: str, epoch: int, clean: bool, why: str) -> None:
        migrations, mover = self._migrations, self._migrations.broker.mover
        session = self._ctx.sessions.get(client_id)
        held = 0 if session is None else OWES if session.hollow else max(session.epoch, 1)
        expiry = 0 if session is None else session.expiry
        left = self._left(session)
        late = [inbound for inbound in migrations.of(client_id) if inbound.epoch != epoch and not inbound.discarded]
        willed = session is not None and session.will is not None
        ghost = mover.leave(client_id, node, epoch, clean, why)
        will = migrations.ports.wills.leave(client_id, node)
        willed = willed or will != 0
        if ghost is None and not clean and any(inbound.session is None for inbound in late):
            ghost = mover.nobody(client_id, node, epoch)  # the messages of late sources go there
            held = OWES
        if ghost is None:
            migrations.take_early((client_id, epoch))
            nothing = Head(client_id, epoch, PASSED_ON if client_id in migrations.outbound_of else NOTHING)
            nothing.willed, nothing.will = willed, will or CANCELLED
            migrations.say(node, nothing)
            return
        for inbound in late:
            if inbound.session is None or inbound.session.ended:
                inbound.session = ghost
                self._delivery.attach(inbound)
        granted = [
            SubscriptionFrame(g.whole, g.qos, g.no_local, g.retain_as_published, g.ids) for g in mover.granted(ghost)
        ]
        last_id = 0 if ghost.window is None else ghost.window.last_id
        anew = ghost is session and ghost.anew
        trail = None if ghost.trail is None else (ghost.trail.node, ghost.trail.epoch, ghost.trail.sure)
        outbound = OutboundSession(ghost, node, epoch, client_id)
        migrations.add_outbound(outbound)
        for marked in migrations.take_early((client_id, epoch)):
            migrations.mark(outbound, marked, False)
        for inbound in migrations.of(client_id):
            for marked, later in inbound.later.items():
                if outbound.is_earlier(later):
                    migrations.mark(outbound, marked, later > outbound.epoch)
        migrations.note(outbound)
        head = Head(client_id, epoch, held, expiry, left, last_id, granted, ghost.floor, trail, anew)
        head.willed, head.will = willed, will or CANCELLED
        head.owner = ghost.owner
        head.aware = anew and ghost.aware
        former, head.unknown = migrations.former(client_id, ghost)
        head.former = list(former)
        migrations.say(node, head)

    def _left(self, session: Session | None) -> float:
        """Seconds until the session expires; 0.0: it does not."""
        if session is None or session.expiry == NEVER:
            return 0.0
        return session.expires_at - self._ctx.now if session.expires_at != 0.0 else float(session.expiry)

    def handing_over(self) -> int:
        """The number of sessions that are moving from here, or to here, and do not wait for an absent node."""
        there = self._migrations.connected_members()
        count = sum(not inbound.all_late() for inbound in self._migrations.all_inbound())
        for outbound in self._migrations.outbound_sessions.values():
            session = outbound.session
            if session.ended or not self._migrations.connected(outbound.target):
                continue
            marked = outbound.marks()
            if not outbound.whole or session.queue is not None or any(node not in marked for node in there):
                count += 1
        return count

    # Handing over

    def give_on(self, now: float) -> bool:
        """Sends pending messages of sessions that have left. Returns whether more can be sent in the next turn."""
        migrations = self._migrations
        if self._ctx.cluster.leaving:
            for session in self._ctx.cluster.take_leaving():
                moving = session.moving
                outbound = (
                    None if moving is None else migrations.outbound_sessions.get((moving.client_id, moving.epoch))
                )
                if outbound is not None and outbound.session is session:
                    migrations.with_output[outbound] = None
        with_output, migrations.with_output = migrations.with_output, {}
        for outbound in with_output:
            if self._give_of(outbound, now):
                migrations.with_output[outbound] = None
        return len(migrations.with_output) != 0

    def _give_of(self, outbound: OutboundSession, now: float) -> bool:
        migrations, mover, session = self._migrations, self._migrations.broker.mover, outbound.session
        client_id, epoch = outbound.client_id, outbound.epoch
        if session.ended:
            migrations.remove_outbound(outbound)
            return False
        if session.window is not None:
            parts = mover.take_window(session)
            if parts:
                self._say_parts(outbound, parts, now)
            if session.window is not None:
                return len(parts) != 0
        if not outbound.whole:
            outbound.whole = True
            migrations.say(outbound.target, Whole(client_id, epoch))
        parts = mover.take_queue(session)
        if parts:
            self._say_parts(outbound, parts, now)
        if session.queue is not None:
            return len(parts) != 0
        moving = session.moving
        assert moving is not None
        nodes = outbound.unpassed(migrations.of(client_id))
        marked = not session.subscriptions or all(member in moving.marked for member in migrations.members)
        done = marked and not moving.sources
        if nodes or done:
            migrations.say(outbound.target, Passed(client_id, epoch, nodes, done))
        if done:
            mover.left(session)
            migrations.remove_outbound(outbound)
        return False

    def _say_parts(self, outbound: OutboundSession, outgoings: list[Outgoing], now: float) -> None:
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
        self._migrations.say(outbound.target, Parts(outbound.client_id, outbound.epoch, parts))

    # Member changes

    def members_changed(self) -> None:
        """The set of nodes whose markers are wanted has changed. Drops deferred requests of nodes that are no longer
        members."""
        migrations = self._migrations
        for client_id, (node, said) in list(migrations.deferred.items()):
            if node not in migrations.members:
                del migrations.deferred[client_id]
                migrations.take_early((client_id, said.epoch))
                session = self._ctx.sessions.get(client_id)
                if session is not None and session.moving is not None:
                    session.moving.marked = {}
        self._migrations.with_output.update(dict.fromkeys(self._migrations.outbound_sessions.values()))

    def reborn(self, node: int) -> None:
        """Asks a restarted node whether it still waits for the sessions that this node was handing over."""
        for outbound in self._migrations.outbound_sessions.values():
            if outbound.target == node and node != self._migrations.me:
                self._migrations.say(node, Passed(outbound.client_id, outbound.epoch, [], False))

    def unknown(self, node: int, client_id: str, epoch: int) -> None:
        """The target does not wait for this session any more."""
        outbound = self._migrations.outbound_sessions.get((client_id, epoch))
        if outbound is not None and outbound.target == node:
            self.target_gone(outbound)

    def target_gone(self, outbound: OutboundSession) -> None:
        """The new owner is no longer a member, or has lost the session."""
        migrations = self._migrations
        if not self.call_off(outbound):
            return
        migrations.ownership.claim(outbound.client_id)  # the client may have started a new session at another node
        for inbound in migrations.of(outbound.client_id):
            if inbound.session is outbound.session:
                self._delivery.attach(inbound)

    def call_off(self, outbound: OutboundSession) -> bool:
        """Cancels the handover. Returns True if the session is here as before. Otherwise its messages are owed to the
        client's newer session, which is here or has left for a later owner."""
        ghost = outbound.session
        self._migrations.remove_outbound(outbound)
        if ghost.ended:
            return False
        there = self._ctx.sessions.get(outbound.client_id) or self._left_since(outbound)
        if there is None:
            self._migrations.broker.mover.stay(ghost, outbound.later)
            return True
        self._owe(outbound, ghost, there)
        return False

    def _left_since(self, outbound: OutboundSession) -> Session | None:
        """The newest session of that client which has left here after this one."""
        sessions = [each.session for each in self._migrations.outbound_of.get(outbound.client_id, ())]
        later = [session for session in sessions if not session.ended and session.epoch > outbound.session.epoch]
        return max(later, key=_session_epoch, default=None)

    def drop(self, session: Session) -> None:
        """Ends an orphaned session that its client has continued without, and everything owed to the client here."""
        migrations, client_id = self._migrations, session.client_id
        session.epoch = 0  # the client's owner key is not for this session
        migrations.broker.ending.end(session)
        for outbound in migrations.outbound_of.get(client_id, ()):
            outbound.session.epoch = 0
            migrations.broker.ending.end(outbound.session)
            migrations.with_output[outbound] = None
        for inbound in migrations.of(client_id):
            self._target.source_dropped(inbound)

    def _owe(self, outbound: OutboundSession, ghost: Session, there: Session) -> None:
        """Hands the session over to this node itself, for the client's newer session."""
        migrations = self._migrations
        client_id, epoch = outbound.client_id, outbound.epoch
        migrations.broker.mover.redirect(ghost, migrations.me)
        again = OutboundSession(ghost, migrations.me, epoch, client_id)
        again.later = outbound.later
        migrations.add_outbound(again)
        migrations.note(again)
        inbound = migrations.inbound_sessions.get(client_id, {}).get(epoch)
        if inbound is None:
            inbound = InboundSession(client_id, epoch, {}, InboundState.OPEN)
        inbound.owned = max(there.epoch, inbound.owned)
        source = inbound.sources[migrations.me] = Source(ghost.epoch, SourceState.QUEUE, late=True)
        inbound.session = there
        for granted in migrations.broker.mover.granted(ghost):
            if not granted.whole.startswith(b"$share/"):
                inbound.former[granted.whole] = None
        former, source.vague = migrations.former(client_id, ghost)
        inbound.former.update(former)
        assert ghost.moving is not None
        inbound.marks = dict(ghost.moving.marked)  # no other node receives the messages after these markers
        migrations.add(inbound)
        migrations.changed(inbound)
        self._delivery.attach(inbound)
        self._target.tell_owner(inbound)


def _epoch(inbound: InboundSession) -> int:
    return inbound.epoch


def _session_epoch(session: Session) -> int:
    return session.epoch
