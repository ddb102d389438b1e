"""Messages for a session that moves here: messages that other nodes hand over, and messages that are held.

A session does not accept a message that a former owner delivers as well. ``MigrationState`` knows what is still on its
way to the session, and the cut markers of each node (docs/SESSIONS.md).
"""

from __future__ import annotations

from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.cluster.takeover.migrations import Migrations
from starlingmq.cluster.takeover.transfer_frames import Part, Parts
from starlingmq.core.connect.session_reset import UNSETTLED
from starlingmq.core.context.ready import QUEUE_DELETE
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import RELEASED, Outgoing
from starlingmq.core.session.migration_state import MARKED, OPEN, UNMARKED, MigrationState
from starlingmq.core.session.session import Session


class InboundDelivery:
    def __init__(self, migrations: Migrations) -> None:
        self._migrations = migrations
        self._ctx = migrations.ctx

    # Which session

    def attach(self, inbound: InboundSession) -> None:
        """Registers the inbound session at its session, which then holds messages until their order is known."""
        session = inbound.session
        if session is None or session.ended or inbound.discarded:
            return
        self._migrations.changed(inbound)
        if inbound.over(self._migrations.members):
            return
        moving = session.moving
        if moving is None:
            moving = session.moving = MigrationState(inbound.client_id)
        moving.sources[inbound.epoch] = None
        self._apply_later_owners(inbound)
        if session.client is not None:
            session.client.plain = False
        self.deliver(session)

    def detach(self, inbound: InboundSession, session: Session) -> None:
        """Removes the inbound session from a session that gets nothing more from it."""
        if session.ended or session.moving is None:
            return
        session.moving.sources.pop(inbound.epoch, None)
        if session.moving.sources:
            self.deliver(session)
        else:
            self._migrations.broker.mover.settle(session)

    def overtaken(self, inbound: InboundSession, node: int, epoch: int) -> None:
        """From now on a later owner delivers the messages of that node, even if the session has not arrived here
        yet."""
        inbound.later[node] = epoch
        self._migrations.changed(inbound)
        self._apply_later_owners(inbound)

    def _apply_later_owners(self, inbound: InboundSession) -> None:
        session = inbound.session
        moving = None if session is None else session.moving
        if session is None or moving is None or session.ended:
            return
        outbound = (
            self._migrations.outbound_sessions.get((moving.client_id, moving.epoch)) if moving.target != 0 else None
        )
        for node, epoch in inbound.later.items():
            if epoch <= session.epoch:
                continue
            if outbound is not None:
                self._migrations.mark(outbound, node, epoch > outbound.epoch)
            else:
                moving.marked[node] = None

    # Messages that were held

    def deliver(self, session: Session | None) -> None:
        """Delivers the held messages that no longer wait for anything."""
        if session is None or session.ended or session.moving is None:
            return
        moving, delivery = session.moving, self._migrations.broker.delivery
        inbound_sessions = [inbound for inbound in self._migrations.of(moving.client_id) if inbound.session is session]
        former_filters = {inbound.epoch: inbound.former_filters for inbound in inbound_sessions}
        unknown = {inbound.epoch: None for inbound in inbound_sessions if inbound.unknown()}
        for held in moving.learn(former_filters, unknown):
            self._ctx.note(QUEUE_DELETE, session, held.outgoing)
        members = self._migrations.members
        for node in members:
            self._look_at(session, moving, node, inbound_sessions)
        for node in {held.node: None for held in moving.held if not held.before and held.node not in members}:
            delivery.let_in(session, moving.open(node))
        delivery.let_in(session, moving.take_known())
        if moving.target != 0:  # the next owner may wait for confirmation that no earlier messages follow
            self._ctx.cluster.leave(session)

    def deliver_of(self, session: Session | None, node: int) -> None:
        """Likewise after the cut marker of a node: it concerns no other node's messages."""
        if session is None or session.ended or session.moving is None:
            return
        moving = session.moving
        inbound_sessions = [inbound for inbound in self._migrations.of(moving.client_id) if inbound.session is session]
        self._look_at(session, moving, node, inbound_sessions)
        if moving.held:
            self._migrations.broker.delivery.let_in(session, moving.take_known())
        if moving.target != 0:
            self._ctx.cluster.leave(session)

    def _look_at(
        self, session: Session, moving: MigrationState, node: int, inbound_sessions: list[InboundSession]
    ) -> None:
        stage = self._stage(moving, node, inbound_sessions)
        if stage != UNMARKED and moving.stages.get(node, UNMARKED) == UNMARKED:
            moving.stages[node] = MARKED
        if stage == OPEN and moving.stages.get(node) != OPEN:
            self._migrations.broker.delivery.let_in(session, moving.open(node))

    def _stage(self, moving: MigrationState, node: int, inbound_sessions: list[InboundSession]) -> int:
        """The delivery stage of messages that enter at that node, over all inbound sessions of this session."""
        if len(inbound_sessions) == 1:  # as nearly always; the same as below
            alone = inbound_sessions[0].stage(node)
            if alone == MARKED:
                moving.behind[node] = None
            elif moving.behind:
                moving.behind.pop(node, None)
            if moving.unmarked:
                moving.unmarked.pop(node, None)
            return alone
        before: list[int] = []
        stages = [inbound.stage(node) for inbound in inbound_sessions]
        for inbound, stage in zip(inbound_sessions, stages, strict=True):
            if stage == UNMARKED:
                before.append(inbound.epoch)
        if MARKED in stages:
            moving.behind[node] = None
        else:
            moving.behind.pop(node, None)
        if before and len(before) < len(stages):
            moving.unmarked[node] = tuple(before)
        else:
            moving.unmarked.pop(node, None)
        return min(stages, default=OPEN)

    # Messages that a source hands over

    def put(self, node: int, inbound: InboundSession, frame: Parts) -> None:
        session = inbound.session
        if session is None or session.ended:
            self.drop(frame)
            return
        for part in frame.parts:
            self._part(session, part, node == inbound.best)

    def drop(self, frame: Parts) -> None:
        """Drops messages whose session has ended."""
        self._ctx.drop("session_ended", frame.client_id, len(frame.parts))
        if self._ctx.audit is not None:
            for part in frame.parts:
                if part.packet_id == 0:  # otherwise the message has been delivered once
                    self._ctx.audit.dropped_on_its_way(frame.client_id, part.topic, part.id, part.qos, "session_ended")

    def _part(self, session: Session, part: Part, own: bool) -> None:
        """Takes over one message. ``own``: the source has the client's session, so that its packet ids are valid
        here."""
        now = self._ctx.now
        qos, retain, published_at = part.published
        expires_at = 0.0 if part.left < 0 else now + part.left
        message = Message(
            part.topic, part.payload, qos, retain, part.properties, expires_at, part.publisher, published_at
        )
        message.id = part.id
        outgoing = Outgoing(message, part.qos, part.retain, part.ids, None)
        taken = session.window is not None and part.packet_id in session.window.entries
        if part.packet_id != 0 and own and not taken:
            self._migrations.broker.mover.put_window(session, part.packet_id, part.stage, outgoing)
        elif part.packet_id != 0 and part.qos == 2:
            if part.stage != RELEASED:  # otherwise the client already has the message
                self._give_up(session, part)
        else:
            self._migrations.broker.mover.put(session, outgoing)

    def _give_up(self, session: Session, part: Part) -> None:
        """Drops a QoS 2 message that was sent in a session that the client has lost: the client may have acted on it
        (``core.connect.session_reset``)."""
        client_id = session.client_id if session.moving is None else session.moving.client_id
        self._ctx.drop(UNSETTLED, client_id)
        session.dropped += 1
        if self._ctx.audit is not None:
            self._ctx.audit.dropped_on_its_way(client_id, part.topic, part.id, part.qos, UNSETTLED)
