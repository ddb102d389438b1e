"""Messages for a session that moves here: messages that other nodes hand over, and messages that are held.

A session does not accept a message that a former owner delivers as well. ``MigrationState`` knows what is still on its
way to the session, and the cut markers of each node (docs/SESSIONS.md).
"""

from __future__ import annotations

from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.cluster.takeover.migrations import Migrations
from starlingmq.cluster.takeover.transfer_frames import Part, Parts
from starlingmq.core.message import Message
from starlingmq.core.ready import QUEUE_DELETE
from starlingmq.core.session.migration_state import MARKED, OPEN, UNMARKED, MigrationState
from starlingmq.core.session.outgoing import RELEASED, Outgoing
from starlingmq.core.session.session import Session
from starlingmq.core.session.session_reset import UNSETTLED


class InboundDelivery:
    def __init__(self, moves: Migrations) -> None:
        self._moves = moves
        self._ctx = moves.ctx

    # Which session

    def attach(self, arrival: InboundSession) -> None:
        """Registers the inbound session at its session, which then holds messages until their order is known."""
        session = arrival.session
        if session is None or session.ended or arrival.discarded:
            return
        self._moves.changed(arrival)
        if arrival.over(self._moves.members):
            return
        moving = session.moving
        if moving is None:
            moving = session.moving = MigrationState(arrival.client_id)
        moving.sources[arrival.epoch] = None
        self._heed(arrival)
        if session.client is not None:
            session.client.plain = False
        self.deliver(session)

    def detach(self, arrival: InboundSession, session: Session) -> None:
        """Removes the inbound session from a session that gets nothing more from it."""
        if session.ended or session.moving is None:
            return
        session.moving.sources.pop(arrival.epoch, None)
        if session.moving.sources:
            self.deliver(session)
        else:
            self._moves.broker.mover.settle(session)

    def overtaken(self, arrival: InboundSession, node: int, epoch: int) -> None:
        """From now on a later owner delivers the messages of that node, even if the session has not arrived here
        yet."""
        arrival.later[node] = epoch
        self._moves.changed(arrival)
        self._heed(arrival)

    def _heed(self, arrival: InboundSession) -> None:
        session = arrival.session
        moving = None if session is None else session.moving
        if session is None or moving is None or session.ended:
            return
        departure = self._moves.departures.get((moving.client_id, moving.epoch)) if moving.target != 0 else None
        for node, epoch in arrival.later.items():
            if epoch <= session.epoch:
                continue
            if departure is not None:
                self._moves.mark(departure, node, epoch > departure.epoch)
            else:
                moving.marked[node] = None

    # Messages that were held

    def deliver(self, session: Session | None) -> None:
        """Delivers the held messages that no longer wait for anything."""
        if session is None or session.ended or session.moving is None:
            return
        moving, delivery = session.moving, self._moves.broker.delivery
        arrivals = [arrival for arrival in self._moves.of(moving.client_id) if arrival.session is session]
        formers = {arrival.epoch: arrival.former for arrival in arrivals}
        unknown = {arrival.epoch: None for arrival in arrivals if arrival.unknown()}
        for held in moving.learn(formers, unknown):
            self._ctx.note(QUEUE_DELETE, session, held.outgoing)
        members = self._moves.members
        for node in members:
            stage = self._stage(moving, node, arrivals)
            if stage != UNMARKED and moving.stages.get(node, UNMARKED) == UNMARKED:
                moving.stages[node] = MARKED
            if stage == OPEN and moving.stages.get(node) != OPEN:
                delivery.let_in(session, moving.open(node))
        for node in {held.node: None for held in moving.held if not held.before and held.node not in members}:
            delivery.let_in(session, moving.open(node))
        delivery.let_in(session, moving.take_known())
        if moving.target != 0:  # the next owner may wait for confirmation that no earlier messages follow
            self._ctx.cluster.leave(session)

    def _stage(self, moving: MigrationState, node: int, arrivals: list[InboundSession]) -> int:
        """The delivery stage of messages that enter at that node, over all inbound sessions of this session."""
        before: list[int] = []
        stages = [arrival.stage(node) for arrival in arrivals]
        for arrival, stage in zip(arrivals, stages, strict=True):
            if stage == UNMARKED:
                before.append(arrival.epoch)
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

    def put(self, node: int, arrival: InboundSession, said: Parts) -> None:
        session = arrival.session
        if session is None or session.ended:
            self.drop(said)
            return
        for part in said.parts:
            self._part(session, part, node == arrival.best)

    def drop(self, said: Parts) -> None:
        """Drops messages whose session has ended."""
        self._ctx.drop("session_ended", said.client_id, len(said.parts))
        if self._ctx.audit is not None:
            for part in said.parts:
                if part.packet_id == 0:  # otherwise the message has been delivered once
                    self._ctx.audit.dropped_on_its_way(said.client_id, part.topic, part.id, part.qos, "session_ended")

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
            self._moves.broker.mover.put_window(session, part.packet_id, part.stage, outgoing)
        elif part.packet_id != 0 and part.qos == 2:
            if part.stage != RELEASED:  # otherwise the client already has the message
                self._give_up(session, part)
        else:
            self._moves.broker.mover.put(session, outgoing)

    def _give_up(self, session: Session, part: Part) -> None:
        """Drops a QoS 2 message that was sent in a session that the client has lost: the client may have acted on it
        (``core.session.session_reset``)."""
        client_id = session.client_id if session.moving is None else session.moving.client_id
        self._ctx.drop(UNSETTLED, client_id)
        session.dropped += 1
        if self._ctx.audit is not None:
            self._ctx.audit.dropped_on_its_way(client_id, part.topic, part.id, part.qos, UNSETTLED)
