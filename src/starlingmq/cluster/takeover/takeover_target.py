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
)
from starlingmq.cluster.takeover.migrations import Migrations
from starlingmq.cluster.takeover.transfer_frames import (
    NOTHING,
    OVERTAKEN,
    OWES,
    PASSED_ON,
    Head,
    Parts,
    Passed,
    ReleaseKey,
    Unknown,
    Whole,
)
from starlingmq.cluster.takeover.waiting_connects import WaitingConnects
from starlingmq.core.session import session_transfer
from starlingmq.core.session.session import NEVER, Session
from starlingmq.core.session.session_user import REFUSE, is_anothers
from starlingmq.core.session.trail import Trail

FromSource = Head | Parts | Whole | Passed


class TakeoverTarget:
    def __init__(self, moves: Migrations, delivery: InboundDelivery, connects: WaitingConnects) -> None:
        self._moves = moves
        self._delivery = delivery
        self._connects = connects
        self._ctx = moves.ctx
        self._by_source: Final[dict[SourceAction, Callable[[InboundSession, int, int, FromSource | None], None]]] = {
            SourceAction.LEARN: self._learn,
            SourceAction.ADOPT: self._adopt,
            SourceAction.PUT: self._put,
            SourceAction.NOTE_PASSED: self._note_passed,
            SourceAction.NOTE_LATE: self._note_late,
            SourceAction.RELEASE: self._release,
            SourceAction.YIELD: self._yield,
            SourceAction.DELIVER: lambda arrival, node, epoch, said: delivery.deliver(arrival.session),
            SourceAction.STORE: lambda arrival, node, epoch, said: moves.changed(arrival),
            SourceAction.STORE_IF_BEST: self._store_if_best,
        }
        self._by_session: Final[dict[InboundAction, Callable[[InboundSession], None]]] = {
            InboundAction.WATCH_WILLS: lambda arrival: moves.settling.update({arrival: None}),
            InboundAction.UNWATCH_WILLS: lambda arrival: moves.settling.pop(arrival, None),
            InboundAction.EXPECT_WILLS: lambda arrival: arrival.wills.expect(arrival.sources),
            InboundAction.STORE: moves.changed,
            InboundAction.GO_ON: lambda arrival: connects.go_on(arrival.client_id, arrival.epoch, 0),
            InboundAction.FINISH: self._finish,
        }

    # Events of the session as a whole

    def step(self, arrival: InboundSession, event: InboundEvent) -> None:
        for action in arrival.step(event):
            self._by_session[action](arrival)

    def look_at(self, arrival: InboundSession, now: float) -> None:
        """Finds the next event after a change of the session or after its deadline, and carries it out."""
        if arrival.finished:
            return
        if not arrival.open:
            self.step(arrival, self._progress(arrival))
        over = arrival.open and arrival.over(self._moves.members)
        self._connects.look_at_reset(arrival, over, now)
        if over:
            self.step(arrival, InboundEvent.COMPLETE)

    def _progress(self, arrival: InboundSession) -> InboundEvent:
        """The event that says what the CONNECT waits for. With a clean start it waits only for permission to use the
        client id. Earlier wills are the last step before the client gets its session."""
        clean = arrival.discarded and self._ctx.session_owner != REFUSE
        if arrival.awaited() and not clean:
            return InboundEvent.AWAITED
        return InboundEvent.READY if self._wills_are_settled(arrival) else InboundEvent.UNSETTLED

    def _wills_are_settled(self, arrival: InboundSession) -> bool:
        """Whether all wills of earlier connections are settled: those of sources that cannot be asked, those that
        sources have reported, with a clean start those of all sources, and the will that this node itself still has to
        publish."""
        moves, earlier, wills = self._moves, arrival.wills, self._moves.ports.wills
        nodes = [node for node in dict.fromkeys((*arrival.late(), *earlier.said)) if node != moves.me]
        for node in nodes:
            will = earlier.said.get(node, 0)
            if node not in earlier.settled and wills.settling.settle(
                arrival.client_id, node, arrival.owned, arrival.user, arrival.discarded, will
            ):
                earlier.settled[node] = None
                epoch = earlier.unreleased.pop(node, 0)
                if epoch:
                    moves.ownership.release(arrival.client_id, node, epoch)
        return all(node in earlier.settled for node in nodes) and not wills.unpublished(arrival.client_id)

    def _finish(self, arrival: InboundSession) -> None:
        """Removes the inbound session: no other node has state of it."""
        moves = self._moves
        client_id = arrival.client_id
        moves.remove(arrival)
        moves.completed += 1
        if arrival.session is not None:
            self._delivery.detach(arrival, arrival.session)
        claims = self._ctx.cluster.claims
        waited_for = client_id in moves.arrivals or (claims is not None and client_id in claims.waiting)
        if not waited_for and client_id not in self._ctx.sessions:
            moves.ownership.release(client_id, moves.me, arrival.owned)

    # Events of a source

    def heard(self, node: int, said: FromSource) -> None:
        arrival = self._moves.arrivals.get(said.client_id, {}).get(said.epoch)
        if arrival is None:
            self._unexpected(node, said)
            return
        known = len(arrival.former), arrival.unknown()
        self._step_source(arrival, node, _event(said), said)
        if known != (len(arrival.former), arrival.unknown()):
            self.tell_owner(arrival)

    def late(self, arrival: InboundSession, node: int) -> None:
        """Stops waiting for a source that is not connected."""
        self._step_source(arrival, node, SourceEvent.UNREACHABLE)

    def source_gone(self, arrival: InboundSession, node: int) -> None:
        """The source is no longer a member: its state is lost, and does not become the client's again if the node
        returns."""
        self._step_source(arrival, node, SourceEvent.REMOVED)

    def source_dropped(self, arrival: InboundSession) -> None:
        """This node has ended the state that it had of an earlier session."""
        self._step_source(arrival, self._moves.me, SourceEvent.DROPPED)

    def _step_source(
        self, arrival: InboundSession, node: int, event: SourceEvent, said: FromSource | None = None
    ) -> None:
        epoch = arrival.epoch_of(node)
        for action in self._moves.step_source(arrival, node, event):
            self._by_source[action](arrival, node, epoch, said)

    def _unexpected(self, node: int, said: FromSource) -> None:
        """A message about a session for which this node does not wait, or no longer."""
        self._moves.refused += 1
        if isinstance(said, Parts):
            self._delivery.drop(said)
        elif (isinstance(said, Passed) and not said.done) or (isinstance(said, Head) and said.held > NOTHING):
            self._moves.say(node, Unknown(said.client_id, said.epoch))

    # Actions on a source: ``epoch`` is that of the source's owner key

    def _learn(self, arrival: InboundSession, node: int, epoch: int, said: FromSource | None) -> None:
        assert isinstance(said, Head)
        arrival.learn(node, said)

    def _put(self, arrival: InboundSession, node: int, epoch: int, said: FromSource | None) -> None:
        assert isinstance(said, Parts)
        self._delivery.put(node, arrival, said)

    def _note_passed(self, arrival: InboundSession, node: int, epoch: int, said: FromSource | None) -> None:
        assert isinstance(said, Passed)
        arrival.sources[node].passed.update(dict.fromkeys(said.nodes))

    def _note_late(self, arrival: InboundSession, node: int, epoch: int, said: FromSource | None) -> None:
        source = arrival.sources[node]
        if not source.late:
            source.late = True
            self._moves.touch(arrival)
            self._delivery.deliver(arrival.session)

    def _store_if_best(self, arrival: InboundSession, node: int, epoch: int, said: FromSource | None) -> None:
        if node == arrival.best:
            self._moves.changed(arrival)
        else:
            self._moves.touch(arrival)

    def _release(self, arrival: InboundSession, node: int, epoch: int, said: FromSource | None) -> None:
        """Deletes the owner key of a source that has no state left. If the source has a will, the will must be settled
        first, and the next CONNECT must still find the key."""
        moves = self._moves
        if isinstance(said, Head) and said.willed and not arrival.open:
            arrival.wills.said[node] = said.will
            arrival.wills.unreleased[node] = epoch
        elif arrival.state is InboundState.ABANDONED and node in moves.members:
            moves.say(node, ReleaseKey(arrival.client_id, epoch))
        else:
            moves.ownership.release(arrival.client_id, node, epoch)

    def _yield(self, arrival: InboundSession, node: int, epoch: int, said: FromSource | None) -> None:
        assert isinstance(said, Head)
        if not self._moves.ownership.claiming(arrival.client_id):
            self._connects.refuse(arrival, said.owner)
        if arrival.open:
            self._connects.give_way(arrival, said.owner)

    def _adopt(self, arrival: InboundSession, node: int, epoch: int, said: FromSource | None) -> None:
        """The client gets this source's session if it has the highest epoch so far. Otherwise the source only owes
        messages."""
        assert isinstance(said, Head)
        if is_anothers(self._ctx.session_owner, said.owner, arrival.user):  # the source did not know which user asks
            arrival.discarded = True
            if arrival.session is not None:
                self._delivery.detach(arrival, arrival.session)
                arrival.session = None
        if said.willed:
            arrival.wills.said[node] = said.will
        there = arrival.session or self._ctx.sessions.get(arrival.client_id)
        none = there is None or there.ended
        if arrival.discarded or _goes_on(arrival.session):
            pass  # its messages are dropped as they arrive, or are owed to a later owner
        elif (not arrival.open or none) and said.held > arrival.best_held:
            arrival.best, arrival.best_held = node, said.held
            self._come(arrival, said, said.floor, self._trail(arrival, epoch, said))
        elif none:  # it only owes messages, and no session here can receive them
            owes = Head(said.client_id, said.epoch, said.held, min(NEVER, self._ctx.mqtt.max_session_expiry))
            owes.anew = True
            self._come(arrival, owes, 0, Trail(*arrival.newest, False))
            assert arrival.session is not None
            arrival.session.hollow = True
        elif arrival.session is None or arrival.session.ended:
            arrival.session = there  # another source has provided the session: it receives the owed messages
        self._delivery.attach(arrival)

    def _come(self, arrival: InboundSession, head: Head, floor: int, trail: Trail | None) -> None:
        left = head.left if head.left > 0.0 else float(head.expiry)
        granted = [
            session_transfer.Granted(g.whole, g.qos, g.no_local, g.retain_as_published, g.ids) for g in head.granted
        ]
        earlier = arrival.session
        session = arrival.session = self._moves.broker.mover.come(
            arrival.client_id,
            arrival.owned,
            head.expiry,
            left,
            granted,
            head.last_id,
            head.anew,
            head.aware,
            head.owner,
        )
        if earlier is not None and earlier is not session:
            self._delivery.detach(arrival, earlier)  # the earlier session goes to the next owner unchanged
        session.hollow = False
        session.floor = floor
        session.trail = trail

    def _trail(self, arrival: InboundSession, epoch: int, head: Head) -> Trail | None:
        """The node that has the QoS 2 handshakes of a session that was handed over by the owner of ``epoch``. None if
        that owner has them itself, because no node has owned the session since."""
        if head.trail is None and epoch >= arrival.newest[1]:
            return None
        if head.trail is None or epoch < arrival.newest[1]:
            return Trail(*arrival.newest, False)
        return Trail(*head.trail)

    def tell_owner(self, arrival: InboundSession) -> None:
        """Sends the filters of all former owners to the node that receives the session from here: messages for those
        filters that reach it before the cut markers are delivered by the former owners."""
        moves, session = self._moves, arrival.session
        moving = None if session is None else session.moving
        departure = None if moving is None else moves.departures.get((moving.client_id, moving.epoch))
        if session is None or departure is None or departure.session is not session:
            return
        former, unknown = moves.former(arrival.client_id, session)
        head = Head(arrival.client_id, departure.epoch, OWES, former=list(former), unknown=unknown)
        moves.say(departure.target, head)


def _event(said: FromSource) -> SourceEvent:
    if isinstance(said, Head):
        if said.held == OVERTAKEN:
            return SourceEvent.OVERTAKEN
        return SourceEvent.NOTHING if said.held in (NOTHING, PASSED_ON) else SourceEvent.HEAD
    if isinstance(said, Passed):
        return SourceEvent.DONE if said.done else SourceEvent.PASSED
    return SourceEvent.PARTS if isinstance(said, Parts) else SourceEvent.WHOLE


def _goes_on(session: Session | None) -> bool:
    """Whether the session is moving on to a later owner, which already has its description."""
    return session is not None and not session.ended and session.moving is not None and session.moving.target != 0
