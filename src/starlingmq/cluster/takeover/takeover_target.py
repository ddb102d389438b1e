"""The takeover target: sessions that move to this node, which owns their client ids.

``inbound_states`` defines the next state and the actions for each event. This module finds the events and carries out
the actions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.cluster.takeover.inbound_delivery import InboundDelivery
from starlingmq.cluster.takeover.inbound_states import (
    InboundAction,
    InboundEvent,
    InboundState,
    SourceAction,
    SourceEvent,
    SourceState,
)
from starlingmq.cluster.takeover.migrations import Migrations
from starlingmq.cluster.takeover.transfer_frames import (
    NOTHING,
    OVERTAKEN,
    OWES,
    PASSED_ON,
    UNREPORTED,
    Head,
    Parts,
    Passed,
    ReleaseKey,
    Unknown,
    Whole,
)
from starlingmq.cluster.takeover.waiting_connects import WaitingConnects
from starlingmq.core.peers import session_transfer
from starlingmq.core.session.session import NEVER, Session
from starlingmq.core.session.session_user import REFUSE, is_anothers
from starlingmq.core.session.trail import Trail

FromSource = Head | Parts | Whole | Passed


class TakeoverTarget:
    def __init__(self, migrations: Migrations, delivery: InboundDelivery, connects: WaitingConnects) -> None:
        self._migrations = migrations
        self._delivery = delivery
        self._connects = connects
        self._ctx = migrations.ctx
        self._by_source: Final[dict[SourceAction, Callable[[InboundSession, int, int, FromSource | None], None]]] = {
            SourceAction.LEARN: self._learn,
            SourceAction.ADOPT: self._adopt,
            SourceAction.PUT: self._put,
            SourceAction.KEEP: self._keep,
            SourceAction.PUT_KEPT: self._put_kept,
            SourceAction.NOTE_PASSED: self._note_passed,
            SourceAction.ASK: lambda inbound, node, epoch, frame: migrations.send(node, inbound.asking()),
            SourceAction.NOTE_LATE: self._note_late,
            SourceAction.NOTE_REACHABLE: self._note_reachable,
            SourceAction.RELEASE: self._release,
            SourceAction.YIELD: self._yield,
            SourceAction.DELIVER: lambda inbound, node, epoch, frame: delivery.deliver(inbound.session),
            SourceAction.STORE: lambda inbound, node, epoch, frame: migrations.changed(inbound),
            SourceAction.NOTE_WHOLE: self._note_whole,
        }
        self._by_session: Final[dict[InboundAction, Callable[[InboundSession], None]]] = {
            InboundAction.WATCH_WILLS: lambda inbound: migrations.settling.update({inbound: None}),
            InboundAction.UNWATCH_WILLS: lambda inbound: migrations.settling.pop(inbound, None),
            InboundAction.EXPECT_WILLS: lambda inbound: inbound.wills.expect(inbound.sources),
            InboundAction.STORE: migrations.changed,
            InboundAction.GO_ON: lambda inbound: connects.go_on(inbound.client_id, inbound.epoch, 0),
            InboundAction.FINISH: self._finish,
        }

    # Events of the session as a whole

    def step(self, inbound: InboundSession, event: InboundEvent) -> None:
        for action in inbound.step(event):
            self._by_session[action](inbound)

    def look_at(self, inbound: InboundSession, now: float) -> None:
        """Finds the next event after a change of the session or after its deadline, and carries it out."""
        if inbound.finished:
            return
        if not inbound.open:
            self.reconsider(inbound)
            self.step(inbound, self._progress(inbound))
        over = inbound.open and inbound.over(self._migrations.members)
        self._connects.look_at_reset(inbound, over, now)
        if over:
            self.step(inbound, InboundEvent.COMPLETE)
        else:
            self._ask_again(inbound, now)

    def _ask_again(self, inbound: InboundSession, now: float) -> None:
        """Asks connected sources again whose answer has been missing for a while. A request to any other source would
        only be queued for it, behind the first one."""
        before = inbound.ask_at
        for node in inbound.silent(now):
            if self._migrations.connected(node):
                self._step_source(inbound, node, SourceEvent.SILENT)
        if inbound.ask_at not in (0.0, before):
            self._migrations.wake(inbound, inbound.ask_at)

    def _progress(self, inbound: InboundSession) -> InboundEvent:
        """The event that says what the CONNECT waits for. With a clean start it waits only for permission to use the
        client id. Earlier wills are the last step before the client gets its session."""
        clean = inbound.discarded and self._ctx.session_owner != REFUSE
        if inbound.awaited() and not clean:
            return InboundEvent.AWAITED
        return InboundEvent.READY if self._wills_are_settled(inbound) else InboundEvent.UNSETTLED

    def _wills_are_settled(self, inbound: InboundSession) -> bool:
        """Whether all wills of earlier connections are settled: those of sources that cannot be asked, those that
        sources have reported, with a clean start those of all sources, and the will that this node itself still has to
        publish."""
        migrations, earlier, wills = self._migrations, inbound.wills, self._migrations.ports.wills
        late, since = inbound.late(), inbound.since or self._ctx.now
        nodes = [node for node in dict.fromkeys((*late, *earlier.reported)) if node != migrations.me]
        for node in nodes:
            will = earlier.reported.get(node, 0)
            if will == UNREPORTED and node in late:
                will = 0
            if node not in earlier.settled and wills.settle(
                inbound.client_id, node, inbound.owned, inbound.user, inbound.discarded, will, since
            ):
                earlier.settled[node] = None
                epoch = earlier.unreleased.pop(node, 0)
                if epoch:
                    migrations.ownership.release(inbound.client_id, node, epoch)
        return all(node in earlier.settled for node in nodes) and not wills.unpublished(inbound.client_id)

    def _finish(self, inbound: InboundSession) -> None:
        """Removes the inbound session: no other node has state of it."""
        migrations = self._migrations
        client_id = inbound.client_id
        for node, epoch in inbound.passed_on.items():
            if node in migrations.members:  # the target that was to delete its key may be lost
                migrations.send(node, ReleaseKey(client_id, epoch))
        migrations.remove(inbound)
        migrations.completed += 1
        if inbound.session is not None:
            self._delivery.detach(inbound, inbound.session)
        claims = self._ctx.cluster.claims
        waited_for = client_id in migrations.inbound_sessions or (claims is not None and client_id in claims.waiting)
        if not waited_for and client_id not in self._ctx.sessions:
            migrations.ownership.release(client_id, migrations.me, inbound.owned)

    # Events of a source

    def received(self, node: int, frame: FromSource) -> None:
        inbound = self._migrations.inbound_sessions.get(frame.client_id, {}).get(frame.epoch)
        if inbound is None:
            self._unexpected(node, frame)
            return
        if isinstance(frame, Head):
            inbound.learn_holders(node, frame)
        if isinstance(frame, Head) and not frame.had_will:
            inbound.wills.answered(node, frame.held == OVERTAKEN)
        claims = self._ctx.cluster.claims
        if isinstance(frame, Head) and frame.held in (NOTHING, PASSED_ON) and node in inbound.sources and claims:
            claims.found_nothing(inbound.client_id, node, inbound.epoch_of(node))
        known = len(inbound.former_filters), inbound.unknown()
        self._step_source(inbound, node, _event(frame), frame)
        if known != (len(inbound.former_filters), inbound.unknown()):
            self.send_former_filters(inbound)

    def late(self, inbound: InboundSession, node: int) -> None:
        """Stops waiting for a source that is not connected."""
        self._step_source(inbound, node, SourceEvent.UNREACHABLE)

    def reconsider(self, inbound: InboundSession) -> None:
        """Before a decision that depends on it: waits again for sources that are connected again. Once a client has had
        the session, they only owe messages."""
        if inbound.served or inbound.discarded:
            return
        for node in inbound.late():
            if not inbound.sources[node].whole and not self._migrations.is_unreachable(node):
                self._step_source(inbound, node, SourceEvent.REACHABLE)

    def source_gone(self, inbound: InboundSession, node: int) -> None:
        """The source is no longer a member: its state is lost, and does not become the client's again if the node
        returns."""
        source = inbound.sources.get(node)
        if source is not None and source.state is SourceState.ASKED and not (inbound.served or inbound.discarded):
            inbound.removed[node] = source.epoch
        self._step_source(inbound, node, SourceEvent.REMOVED)

    def source_dropped(self, inbound: InboundSession) -> None:
        """This node has ended the state that it had of an earlier session."""
        self._step_source(inbound, self._migrations.me, SourceEvent.DROPPED)

    def _step_source(
        self, inbound: InboundSession, node: int, event: SourceEvent, frame: FromSource | None = None
    ) -> None:
        epoch = inbound.epoch_of(node)
        for action in self._migrations.step_source(inbound, node, event):
            self._by_source[action](inbound, node, epoch, frame)

    def _unexpected(self, node: int, frame: FromSource) -> None:
        """A message about a session for which this node does not wait, or no longer."""
        self._migrations.refused += 1
        if isinstance(frame, Parts):
            self._delivery.drop(frame)
        elif (isinstance(frame, Passed) and not frame.done) or (isinstance(frame, Head) and frame.held > NOTHING):
            self._migrations.send(node, Unknown(frame.client_id, frame.epoch))

    # Actions on a source: ``epoch`` is that of the source's owner key

    def _learn(self, inbound: InboundSession, node: int, epoch: int, frame: FromSource | None) -> None:
        assert isinstance(frame, Head)
        inbound.learn(node, frame)

    def _put(self, inbound: InboundSession, node: int, epoch: int, frame: FromSource | None) -> None:
        assert isinstance(frame, Parts)
        self._delivery.put(node, inbound, frame)

    def _keep(self, inbound: InboundSession, node: int, epoch: int, frame: FromSource | None) -> None:
        assert isinstance(frame, Parts)
        inbound.kept.append((node, frame))
        self._migrations.store_kept(inbound)

    def _put_kept(self, inbound: InboundSession, node: int, epoch: int, frame: FromSource | None) -> None:
        kept = inbound.take_kept(node)
        if kept:
            self._migrations.store_kept(inbound)
        for parts in kept:
            self._delivery.put(node, inbound, parts)

    def _note_passed(self, inbound: InboundSession, node: int, epoch: int, frame: FromSource | None) -> None:
        assert isinstance(frame, Passed)
        inbound.sources[node].passed.update(dict.fromkeys(frame.nodes))

    def _note_late(self, inbound: InboundSession, node: int, epoch: int, frame: FromSource | None) -> None:
        source = inbound.sources[node]
        if not source.late:
            source.late = True
            self._migrations.touch(inbound)
            self._delivery.deliver(inbound.session)

    def _note_reachable(self, inbound: InboundSession, node: int, epoch: int, frame: FromSource | None) -> None:
        inbound.sources[node].late = False
        self.step(inbound, InboundEvent.REACHABLE)
        self._migrations.touch(inbound)

    def _note_whole(self, inbound: InboundSession, node: int, epoch: int, frame: FromSource | None) -> None:
        if inbound.sources[node].whole:
            return  # it has said so before it was restarted
        inbound.sources[node].whole = True
        if node == inbound.best:
            self._migrations.changed(inbound)
        else:
            self._migrations.touch(inbound)

    def _release(self, inbound: InboundSession, node: int, epoch: int, frame: FromSource | None) -> None:
        """Deletes the owner key of a source that has no state left. If the source has a will, the will must be settled
        first, and the next CONNECT must still find the key."""
        migrations = self._migrations
        if node in inbound.removed:
            return  # its key is deleted once the client's next session is here
        passed_on = isinstance(frame, Head) and frame.held == PASSED_ON
        if passed_on:
            inbound.passed_on[node] = epoch
        if isinstance(frame, Head) and frame.had_will and not inbound.open:
            inbound.wills.reported[node] = frame.will
            if not passed_on:
                inbound.wills.unreleased[node] = epoch
        elif passed_on:
            pass  # until it has handed over everything, later owners have to find the key; its target deletes it then
        elif inbound.state is InboundState.ABANDONED and node in migrations.members:
            migrations.send(node, ReleaseKey(inbound.client_id, epoch))
        elif _may_publish_will(inbound, node):
            inbound.wills.unreleased[node] = epoch
        else:
            migrations.ownership.release(inbound.client_id, node, epoch)

    def _yield(self, inbound: InboundSession, node: int, epoch: int, frame: FromSource | None) -> None:
        assert isinstance(frame, Head)
        if not self._migrations.ownership.claiming(inbound.client_id):
            self._connects.refuse(inbound, frame.owner)
        if inbound.open:
            self._connects.give_way(inbound, frame.owner)

    def _adopt(self, inbound: InboundSession, node: int, epoch: int, frame: FromSource | None) -> None:
        """The client gets this source's session if it has the highest epoch so far. Otherwise the source only owes
        messages."""
        assert isinstance(frame, Head)
        if is_anothers(self._ctx.session_owner, frame.owner, inbound.user):  # the source did not know which user asks
            inbound.discarded = True
            if inbound.session is not None:
                self._delivery.detach(inbound, inbound.session)
                inbound.session = None
        if frame.had_will:
            inbound.wills.reported[node] = frame.will
        there = inbound.session or self._ctx.sessions.get(inbound.client_id)
        none = there is None or there.ended
        if inbound.discarded or _goes_on(inbound.session):
            pass  # its messages are dropped as they arrive, or are owed to a later owner
        elif (not inbound.served or none) and frame.held > inbound.best_held:
            inbound.best, inbound.best_held = node, frame.held
            self._arrive(inbound, frame, frame.floor, self._trail(inbound, epoch, frame))
            if inbound.open:
                self._connects.lose_again(inbound)
        elif none:  # it only owes messages, and no session here can receive them
            owes = Head(frame.client_id, frame.epoch, frame.held, min(NEVER, self._ctx.mqtt.max_session_expiry))
            owes.needs_reset = True
            self._arrive(inbound, owes, 0, Trail(*inbound.newest, False))
            assert inbound.session is not None
            inbound.session.placeholder = True
        elif inbound.session is None or inbound.session.ended:
            inbound.session = there  # another source has provided the session: it receives the owed messages
        self._delivery.attach(inbound)

    def _arrive(self, inbound: InboundSession, head: Head, floor: int, trail: Trail | None) -> None:
        left = head.left if head.left > 0.0 else float(head.expiry)
        granted = [
            session_transfer.Granted(g.whole, g.qos, g.no_local, g.retain_as_published, g.ids, g.position)
            for g in head.granted
        ]
        earlier = inbound.session
        session = inbound.session = self._migrations.broker.mover.arrive(
            inbound.client_id,
            inbound.owned,
            head.expiry,
            left,
            granted,
            head.last_id,
            head.needs_reset,
            head.reset_confirmed,
            head.owner,
        )
        if earlier is not None and earlier is not session:
            self._delivery.detach(inbound, earlier)  # the earlier session goes to the next owner unchanged
        session.placeholder = False
        session.floor = floor
        session.trail = trail

    def _trail(self, inbound: InboundSession, epoch: int, head: Head) -> Trail | None:
        """The node that has the QoS 2 handshakes of a session that was handed over by the owner of ``epoch``. None if
        that owner has them itself, because no node has owned the session since."""
        if head.trail is None and epoch >= inbound.newest[1]:
            return None
        if head.trail is None or epoch < inbound.newest[1]:
            return Trail(*inbound.newest, False)
        return Trail(*head.trail)

    def send_former_filters(self, inbound: InboundSession) -> None:
        """Sends the filters of all former owners to the node that receives the session from here: messages for those
        filters that reach it before the cut markers are delivered by the former owners."""
        migrations, session = self._migrations, inbound.session
        moving = None if session is None else session.moving
        outbound = None if moving is None else migrations.outbound_sessions.get((moving.client_id, moving.epoch))
        if session is None or outbound is None or outbound.session is not session:
            return
        former, unknown = migrations.former_filters(inbound.client_id, session)
        head = Head(inbound.client_id, outbound.epoch, OWES, former_filters=list(former), unknown=unknown)
        holders = migrations.holders(inbound.client_id)
        head.holders = None if holders is None else list(holders)
        migrations.send(outbound.target, head)


def _may_publish_will(inbound: InboundSession, node: int) -> bool:
    """Whether a will of the source is not settled yet."""
    return not inbound.open and node in inbound.wills.reported and node not in inbound.wills.settled


def _event(frame: FromSource) -> SourceEvent:
    if isinstance(frame, Head):
        if frame.held == OVERTAKEN:
            return SourceEvent.OVERTAKEN
        return SourceEvent.NOTHING if frame.held in (NOTHING, PASSED_ON) else SourceEvent.HEAD
    if isinstance(frame, Passed):
        return SourceEvent.DONE if frame.done else SourceEvent.PASSED
    return SourceEvent.PARTS if isinstance(frame, Parts) else SourceEvent.WHOLE


def _goes_on(session: Session | None) -> bool:
    """Whether the session is moving on to a later owner, which already has its description."""
    return session is not None and not session.ended and session.moving is not None and session.moving.target != 0
