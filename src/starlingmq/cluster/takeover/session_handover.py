"""Handing over sessions that leave this node: their inflight windows, their queues, and the messages that still arrive
here for them, as fast as ``queue_pace`` lets them go.

``outbound_states`` says what each event of a session does. This module finds the events and carries out the actions.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlingmq.cluster.takeover.inbound import NOT_ROUTED, InboundSession, Source
from starlingmq.cluster.takeover.inbound_delivery import InboundDelivery
from starlingmq.cluster.takeover.inbound_states import InboundState, SourceState
from starlingmq.cluster.takeover.migrations import Migrations
from starlingmq.cluster.takeover.outbound import OutboundSession
from starlingmq.cluster.takeover.outbound_states import OutboundAction, OutboundEvent, OutboundState
from starlingmq.cluster.takeover.takeover_target import TakeoverTarget
from starlingmq.cluster.takeover.transfer_frames import Part, Parts, Passed, Whole
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.session.session import Session


class SessionHandover:
    def __init__(self, migrations: Migrations, target: TakeoverTarget, delivery: InboundDelivery) -> None:
        self._migrations = migrations
        self._target = target
        self._delivery = delivery
        self._ctx = migrations.ctx

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
        pace = migrations.queue_pace
        for target in pace.targets():
            self._give_queues(target, now)
        for target in pace.take_given():
            migrations.flush(target)
            pace.told(target)
        return len(migrations.with_output) != 0 or pace.is_any_open()

    def _give_of(self, outbound: OutboundSession, now: float) -> bool:
        """Finds the next events of one session, up to its queue. Returns whether more can be sent in the next turn."""
        migrations, mover, session = self._migrations, self._migrations.broker.mover, outbound.session
        if session.ended:
            self.step(outbound, OutboundEvent.ENDED)
            return False
        if _has_window(session):
            sent = self._send(outbound, mover.take_window(session), now)
            if sent:
                migrations.queue_pace.hand_over(outbound.target, 0)
            if _has_window(session):
                return sent
        if outbound.state is OutboundState.WINDOW:
            self.step(outbound, OutboundEvent.WINDOW_EMPTY)
        if session.queue is None:
            self._after_queue(outbound)
        else:
            migrations.queue_pace.wait(outbound)
        return False

    def _give_queues(self, target: int, now: float) -> None:
        """Sends messages from the queues of sessions that go to this node, as far as its link takes them."""
        migrations, mover, pace = self._migrations, self._migrations.broker.mover, self._migrations.queue_pace
        outbound = pace.next(target) if pace.room(target) > 0 else None
        while outbound is not None:
            session = outbound.session
            if session.ended or _has_window(session):
                migrations.with_output[outbound] = None
            else:
                taken = mover.take_queue(session, pace.room(target))
                self._send(outbound, taken, now)
                pace.hand_over(target, sum([outgoing.message.size() for outgoing in taken]))
                if session.queue is None:
                    self._after_queue(outbound)
                elif taken:  # otherwise its messages are being read from the store
                    pace.wait(outbound)
            outbound = pace.next(target) if pace.room(target) > 0 else None

    def _after_queue(self, outbound: OutboundSession) -> None:
        """Nothing of the session waits here: says which nodes' messages are complete."""
        nodes = outbound.newly_passed(self._migrations.of(outbound.client_id))
        if self._is_complete(outbound):
            self.step(outbound, OutboundEvent.COMPLETE, nodes=nodes)
        elif nodes:
            self.step(outbound, OutboundEvent.PASSED, nodes=nodes)

    def _is_complete(self, outbound: OutboundSession) -> bool:
        """Whether no message can reach the session any more."""
        session, moving = outbound.session, outbound.session.moving
        assert moving is not None
        marked = all(member in moving.marked for member in self._migrations.members)
        return (marked or session.subscription_count() == 0) and not moving.sources

    def _send(self, outbound: OutboundSession, outgoings: list[Outgoing], now: float) -> bool:
        if outgoings:
            self.step(outbound, OutboundEvent.MESSAGES, parts=[_part(outgoing, now) for outgoing in outgoings])
        return len(outgoings) != 0

    def step(
        self, outbound: OutboundSession, event: OutboundEvent, parts: Sequence[Part] = (), nodes: Sequence[int] = ()
    ) -> None:
        """Carries out what an event of the session leads to."""
        for action in outbound.step(event):
            self._carry_out(action, outbound, list(parts), list(nodes))

    def _carry_out(
        self, action: OutboundAction, outbound: OutboundSession, parts: list[Part], nodes: list[int]
    ) -> None:
        migrations, mover = self._migrations, self._migrations.broker.mover
        client_id, epoch = outbound.client_id, outbound.epoch
        if action is OutboundAction.SEND_PARTS:
            migrations.send(outbound.target, Parts(client_id, epoch, parts))
        elif action is OutboundAction.SEND_WHOLE:
            migrations.send(outbound.target, Whole(client_id, epoch))
        elif action in (OutboundAction.SEND_PASSED, OutboundAction.ASK):
            migrations.send(outbound.target, Passed(client_id, epoch, nodes, False))
        elif action is OutboundAction.SEND_DONE:
            migrations.send(outbound.target, Passed(client_id, epoch, [], True))  # that says it of all nodes
        elif action is OutboundAction.REMOVE:
            migrations.remove_outbound(outbound)
        elif action is OutboundAction.END:
            mover.left(outbound.session)
        elif action is OutboundAction.KEEP:
            mover.keep_here(outbound.session, outbound.later)
        elif action is OutboundAction.OWE:
            self._owe(outbound)

    def newer_session(self, outbound: OutboundSession) -> Session | None:
        """The session that the client has here, or its newest one that has left here after this one."""
        session = self._ctx.sessions.get(outbound.client_id)
        if session is not None:
            return session
        sessions = [each.session for each in self._migrations.outbound_of.get(outbound.client_id, ())]
        later = [session for session in sessions if not session.ended and session.epoch > outbound.session.epoch]
        return max(later, key=_session_epoch, default=None)

    def _owe(self, outbound: OutboundSession) -> None:
        """Hands the session over to this node itself, for the client's newer session."""
        migrations, migrating, there = self._migrations, outbound.session, self.newer_session(outbound)
        assert there is not None
        client_id, epoch = outbound.client_id, outbound.epoch
        migrations.broker.mover.redirect(migrating, migrations.me)
        again = OutboundSession(migrating, migrations.me, epoch, client_id)
        again.later = outbound.later
        migrations.add_outbound(again)
        migrations.note(again)
        inbound = migrations.inbound_sessions.get(client_id, {}).get(epoch)
        if inbound is None:
            inbound = InboundSession(client_id, epoch, {}, InboundState.OPEN)
        inbound.owned = max(there.epoch, inbound.owned)
        inbound.unheard[0] = None  # the target may have given its part to nodes that cannot be asked
        source = inbound.sources[migrations.me] = Source(migrating.epoch, SourceState.HANDING, True, True)
        inbound.session = there
        for granted in migrations.broker.mover.granted(migrating):
            if not granted.whole.startswith(NOT_ROUTED):
                inbound.former_filters[granted.whole] = None
        former, source.filters_unknown = migrations.former_filters(client_id, migrating)
        inbound.former_filters.update(former)
        assert migrating.moving is not None
        inbound.marks = dict(migrating.moving.marked)  # no other node receives the messages after these markers
        migrations.add(inbound)
        migrations.changed(inbound)
        self._delivery.attach(inbound)
        self._target.send_former_filters(inbound)


def _has_window(session: Session) -> bool:
    """A function, because compiled code takes what was not None for not None after any call."""
    return session.window is not None


def _part(outgoing: Outgoing, now: float) -> Part:
    message = outgoing.message
    return Part(
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


def _session_epoch(session: Session) -> int:
    return session.epoch
