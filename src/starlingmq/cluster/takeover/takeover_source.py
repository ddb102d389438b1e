"""The takeover source: sessions that leave this node, because another node owns their client ids. This node hands over
their state, and the messages that still arrive here for them.

``claim_decisions`` says what a request leads to. This module makes the decisions and carries out the actions;
``session_handover`` sends the messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlingmq.cluster.takeover.claim_decisions import REQUEST_TABLE, RequestAction, RequestDecision
from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.cluster.takeover.inbound_delivery import InboundDelivery
from starlingmq.cluster.takeover.inbound_states import InboundEvent
from starlingmq.cluster.takeover.migrations import Migrations
from starlingmq.cluster.takeover.outbound import OutboundSession
from starlingmq.cluster.takeover.outbound_states import OutboundEvent, OutboundState
from starlingmq.cluster.takeover.session_description import description
from starlingmq.cluster.takeover.session_handover import SessionHandover
from starlingmq.cluster.takeover.takeover_target import TakeoverTarget
from starlingmq.cluster.takeover.transfer_frames import (
    NOTHING,
    OVERTAKEN,
    OWES,
    PASSED_ON,
    Head,
    Takeover,
    Whole,
)
from starlingmq.core.session.session import NEVER, Session
from starlingmq.core.session.session_user import ANOTHER_USER, REFUSE, is_anothers


class TakeoverSource:
    def __init__(
        self, migrations: Migrations, target: TakeoverTarget, delivery: InboundDelivery, handover: SessionHandover
    ) -> None:
        self._migrations = migrations
        self._target = target
        self._delivery = delivery
        self._handover = handover
        self._ctx = migrations.ctx
        self._by_request: Final[dict[RequestAction, Callable[[int, Takeover], None]]] = {
            RequestAction.REPEAT: self._repeat,
            RequestAction.NOTE_EPOCH: self._note_epoch,
            RequestAction.REFUSE: self._refuse,
            RequestAction.REFUSE_CONNECT: self._refuse_connect,
            RequestAction.DISCARD: self._discard,
            RequestAction.DEFER: self._defer,
            RequestAction.LINE_UP: self._line_up,
            RequestAction.END: self._end,
            RequestAction.HAND_OVER: self._hand_over,
        }

    # Requests

    def asked(self, node: int, frame: Takeover) -> None:
        """Another node owns this client id, and requests the session."""
        for inbound in self._inbound(node, frame.client_id):
            self._target.reconsider(inbound)
        for action in REQUEST_TABLE[self.decide(node, frame)]:
            self._by_request[action](node, frame)

    def decide(self, node: int, frame: Takeover) -> RequestDecision:
        migrations = self._migrations
        if node not in migrations.members:
            return RequestDecision.NO_MEMBER
        if (frame.client_id, frame.epoch) in migrations.outbound_sessions:
            return RequestDecision.REPEATED
        session = self._ctx.sessions.get(frame.client_id)
        inbound_sessions = self._inbound(node, frame.client_id)
        if session is not None and self.stays(session, frame.user):
            return RequestDecision.RESERVED
        if frame.offered and session is not None and session.client is not None:
            return RequestDecision.RETURNED
        if self._is_newer(frame.client_id, frame.epoch, inbound_sessions, session):
            return RequestDecision.OLDER
        if frame.clean or self._is_anothers(node, frame):
            return RequestDecision.DISCARDED
        if any(inbound.wanted() for inbound in inbound_sessions):
            return RequestDecision.INCOMPLETE
        if session is not None and self._waits_for_link(node, session):
            return RequestDecision.LINK_FULL
        return RequestDecision.AVAILABLE

    def _waits_for_link(self, node: int, session: Session) -> bool:
        """Whether the session stays here until the link to that node takes its window. A session whose client is
        connected here, or that something is about to happen to, does not wait."""
        migrations, window = self._migrations, session.window
        if node == migrations.me or session.client is not None or session.will is not None:
            return False
        if window is None or not window.entries or migrations.queue_pace.room(node) > 0:
            return False
        return session.expires_at == 0.0 or session.expires_at > self._ctx.now + migrations.limit

    def _inbound(self, node: int, client_id: str) -> list[InboundSession]:
        """Inbound sessions that a request of that node concerns: none if it is this node's own."""
        return [] if node == self._migrations.me else self._migrations.of(client_id)

    def _repeat(self, node: int, frame: Takeover) -> None:
        """The target does not know that the session is on its way: it has lost the description, or was restarted."""
        outbound = self._migrations.outbound_sessions[frame.client_id, frame.epoch]
        if outbound.target == node:
            self.describe_again(outbound)

    def describe_again(self, outbound: OutboundSession) -> None:
        """A target that knows the description ignores all but the filters of former owners. One that does not know it
        could not accept any message of the session."""
        migrations, session = self._migrations, outbound.session
        if session.ended:
            return
        held = OWES if session.placeholder else max(session.epoch, 1)
        migrations.send(outbound.target, description(migrations, outbound, held, session.expiry, self._left(session)))
        if outbound.state is OutboundState.QUEUE:
            migrations.send(outbound.target, Whole(outbound.client_id, outbound.epoch))

    def _note_epoch(self, node: int, frame: Takeover) -> None:
        migrations, client_id = self._migrations, frame.client_id
        if migrations.ownership.claiming(client_id) or client_id in migrations.postponed:
            migrations.overtaken[client_id] = max(frame.epoch, migrations.overtaken.get(client_id, 0))

    def _refuse(self, node: int, frame: Takeover) -> None:
        migrations, client_id = self._migrations, frame.client_id
        migrations.refused += 1
        migrations.take_early((client_id, frame.epoch))
        migrations.send(node, Head(client_id, frame.epoch, OVERTAKEN, owner=self._kept_for(client_id)))

    def _refuse_connect(self, node: int, frame: Takeover) -> None:
        if not self._migrations.ownership.claiming(frame.client_id):
            self._migrations.broker.connecting.overtaken(frame.client_id, frame.epoch)

    def _end(self, node: int, frame: Takeover) -> None:
        why = ANOTHER_USER if self._is_anothers(node, frame) else "session_ended"
        self._give(node, frame.client_id, frame.epoch, True, why)

    def _hand_over(self, node: int, frame: Takeover) -> None:
        self._give(node, frame.client_id, frame.epoch, False, "session_ended")

    def stays(self, session: Session, user: str | None) -> bool:
        """Whether the session stays here, reserved for its user, while another user asks for it."""
        ctx = self._ctx
        over = session.client is None and session.expires_at != 0.0 and session.expires_at <= ctx.now
        return ctx.session_owner == REFUSE and not over and is_anothers(REFUSE, session.owner, user)

    def _kept_for(self, client_id: str) -> str | None:
        """The user that the session is reserved for, even if it is moving to a later owner: another user who asks gets
        a new session instead."""
        if self._ctx.session_owner != REFUSE:
            return None
        session = self._ctx.sessions.get(client_id)
        leaving = self._migrations.outbound_of.get(client_id)
        if session is None and leaving:
            session = max(leaving, key=lambda outbound: outbound.epoch).session
        return None if session is None else session.owner

    def _is_anothers(self, node: int, frame: Takeover) -> bool:
        """Whether the session here, or the one moving here, belongs to another user."""
        session = self._ctx.sessions.get(frame.client_id)
        inbound_sessions = self._inbound(node, frame.client_id)
        owner = None
        if session is not None:
            owner = session.owner
        elif inbound_sessions:
            owner = max(inbound_sessions, key=_epoch).user
        return is_anothers(self._ctx.session_owner, owner, frame.user)

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

    def _defer(self, node: int, frame: Takeover) -> None:
        """The session has not arrived completely. If several nodes want it, the newest owner gets it."""
        migrations = self._migrations
        earlier = migrations.deferred.get(frame.client_id)
        if earlier is not None and earlier[1].epoch > frame.epoch:
            migrations.send(node, Head(frame.client_id, frame.epoch, OVERTAKEN))
            return
        if earlier is not None and earlier[1].epoch < frame.epoch:
            migrations.send(earlier[0], Head(frame.client_id, earlier[1].epoch, OVERTAKEN))
            migrations.take_early((frame.client_id, earlier[1].epoch))
        migrations.deferred[frame.client_id] = (node, frame)

    def _line_up(self, node: int, frame: Takeover) -> None:
        self._migrations.queue_pace.line_up(node, frame.client_id)

    def look_at_links(self) -> None:
        """Answers requests that have waited for the link to a node, as far as it has room."""
        migrations, pace = self._migrations, self._migrations.queue_pace
        for target in pace.lined_up():
            while pace.room(target) > 0:
                client_id = pace.next_in_line(target)
                if client_id is None:
                    break
                deferred = migrations.deferred.get(client_id)
                if deferred is not None and deferred[0] == target:
                    del migrations.deferred[client_id]
                    self.asked(*deferred)

    def _discard(self, node: int, frame: Takeover) -> None:
        """The new owner starts with a clean session: this node no longer waits for parts that have not arrived. It
        happens now, because a client that returns here in the meantime must not find the old session."""
        migrations, client_id = self._migrations, frame.client_id
        for inbound in self._inbound(node, client_id):
            inbound.discarded = True
            self._target.step(inbound, InboundEvent.CALLED_OFF)
        earlier = migrations.deferred.get(client_id)
        if earlier is not None and earlier[1].epoch < frame.epoch:
            del migrations.deferred[client_id]
            migrations.send(earlier[0], Head(client_id, earlier[1].epoch, OVERTAKEN))
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
        held = 0 if session is None else OWES if session.placeholder else max(session.epoch, 1)
        expiry = 0 if session is None else session.expiry
        left = self._left(session)
        late = [inbound for inbound in migrations.of(client_id) if inbound.epoch != epoch and not inbound.discarded]
        had_session_will = session is not None and session.will is not None
        migrating = mover.leave(client_id, node, epoch, clean, why)
        had_will, will = migrations.ports.wills.leave(client_id, node, epoch)
        had_will = had_will or had_session_will
        if migrating is None and not clean and any(inbound.session is None for inbound in late):
            migrating = mover.nobody(client_id, node, epoch)  # the messages of late sources go there
            held = OWES
        if migrating is None:
            migrations.take_early((client_id, epoch))
            nothing = Head(client_id, epoch, PASSED_ON if client_id in migrations.outbound_of else NOTHING)
            nothing.had_will, nothing.will = had_will, will
            holders = migrations.holders(client_id)
            nothing.holders = None if holders is None else list(holders)
            migrations.send(node, nothing)
            return
        for inbound in late:
            if inbound.session is None or inbound.session.ended:
                inbound.session = migrating
                self._delivery.attach(inbound)
        outbound = OutboundSession(migrating, node, epoch, client_id)
        migrations.add_outbound(outbound)
        if migrating.window is not None:
            migrations.queue_pace.hand_over(node, migrating.window.bytes)
        for marked in migrations.take_early((client_id, epoch)):
            migrations.mark(outbound, marked, False)
        for inbound in migrations.of(client_id):
            for marked, later in inbound.later.items():
                if outbound.is_earlier(later):
                    migrations.mark(outbound, marked, later > outbound.epoch)
        migrations.note(outbound)
        head = description(migrations, outbound, held, expiry, left)
        head.needs_reset = head.needs_reset and migrating is session
        head.reset_confirmed = head.needs_reset and migrating.reset_confirmed
        head.had_will, head.will = had_will, will
        migrations.send(node, head)

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
            if (
                outbound.state is OutboundState.WINDOW
                or session.queue is not None
                or any(node not in marked for node in there)
            ):
                count += 1
        return count

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
        migrations.queue_pace.set_members(migrations.members)
        self._migrations.with_output.update(dict.fromkeys(self._migrations.outbound_sessions.values()))

    def node_restarted(self, node: int) -> None:
        """Asks a restarted node whether it still waits for the sessions that this node was handing over."""
        for outbound in self._migrations.outbound_sessions.values():
            if outbound.target == node and node != self._migrations.me:
                self._handover.step(outbound, OutboundEvent.TARGET_RESTARTED)

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
        if outbound.session.ended:
            self._handover.step(outbound, OutboundEvent.ENDED)
        elif self._handover.newer_session(outbound) is None:
            self._handover.step(outbound, OutboundEvent.TARGET_GONE)
        else:
            self._handover.step(outbound, OutboundEvent.TARGET_GONE_OWED)
        return outbound.state is OutboundState.HERE

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


def _epoch(inbound: InboundSession) -> int:
    return inbound.epoch
