"""Sessions that come to this node: it owns their client ids, and former owners hand over what they have.

The laws: of all that is handed over the session with the highest epoch is the one that the client has, the others only
owe messages; the client is told that its session is present only if nobody can have a later one; nothing waits for a
node that is not connected, and a node that is connected is waited for however slow it is.
"""

from __future__ import annotations

from starlingmq.cluster.takeover.drain_offers import DrainOffers
from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.cluster.takeover.lost_sessions import unheard_of
from starlingmq.cluster.takeover.migrations import Migrations
from starlingmq.cluster.takeover.ownership import Owned
from starlingmq.cluster.takeover.transfer_frames import (
    NOTHING,
    OVERTAKEN,
    OWES,
    PASSED_ON,
    Head,
    Part,
    Parts,
    Passed,
    ReleaseKey,
    Takeover,
    Unknown,
    Whole,
)
from starlingmq.core.connection import WORKING
from starlingmq.core.message import Message
from starlingmq.core.ready import QUEUE_DELETE, SESSION_PUT, Write
from starlingmq.core.session import session_transfer
from starlingmq.core.session.migration_state import MARKED, OPEN, UNMARKED, MigrationState
from starlingmq.core.session.outgoing import RELEASED, Outgoing
from starlingmq.core.session.session import NEVER, Session
from starlingmq.core.session.session_reset import UNSETTLED
from starlingmq.core.session.session_user import ANOTHER_USER, BY_CLIENT_ID, KEPT_FOR_ANOTHER, REFUSE, is_anothers
from starlingmq.core.session.trail import Trail
from starlingmq.wire.reasons import MqttError, Reason


class TakeoverTarget:
    def __init__(self, moves: Migrations, offers: DrainOffers) -> None:
        self._moves = moves
        self._offers = offers
        self._ctx = moves.ctx

    # A client id is ours

    def own(self, owned: Owned, now: float) -> None:
        """We own a client id. Whoever has a key of it may have something of its session."""
        moves = self._moves
        client_id, epoch = owned.client_id, owned.epoch
        claims = self._ctx.cluster.claims
        assert claims is not None
        if not moves.ownership.claiming(client_id):  # else who waits now came after this claim: the next one is his
            claims.own(client_id, epoch)
        moves.postponed.pop(client_id, None)
        given = [departure.epoch for departure in moves.departing.get(client_id, ())]
        overtaken = max(moves.overtaken.pop(client_id, 0), *given, 0)
        if overtaken > epoch:
            moves.ownership.release(client_id, moves.me, epoch)
            moves.broker.connecting.overtaken(client_id, overtaken)
            return
        claim = claims.still(client_id)
        if claim is None and not owned.firm and not self._has(client_id):
            moves.ownership.release(client_id, moves.me, epoch)  # its client is gone: nobody is to make way for it
            return
        clean = claim is not None and claim.clean_start
        user = None if claim is None or self._ctx.session_owner == BY_CLIENT_ID else claim.client.username
        if owned.clean and not clean:  # who wanted to begin with nothing has given up: nobody is to think that he did
            moves.ownership.claim(client_id)
            return
        earlier = moves.of(client_id)
        if not clean and self._is_too_early(owned, earlier):
            moves.postponed[client_id] = owned
            return
        self._turn_down(client_id, epoch)
        invited = self._offers.invited(client_id)
        offered = invited is not None and claim is None
        if invited is not None and offered:
            holds = self._offers.holds(owned, *invited)
            if not (holds or earlier or client_id in self._ctx.sessions):
                moves.ownership.release(client_id, moves.me, epoch)
                return
            if holds and invited[1] == 0:  # it has no key there, and never had
                owned.others.setdefault(*invited)
        if claim is not None:
            moves.broker.connecting.make_way(client_id)
        for arrival in earlier:
            if clean or arrival.owned < owned.floor or self._is_anothers(arrival, user):
                arrival.discarded = True
                for node in arrival.sources():
                    arrival.willed.setdefault(node, 0)
            elif user is not None:
                arrival.user = user
            if arrival.unsettled and claim is not None:
                arrival.unsettled = arrival.open = False
                for node in arrival.sources():
                    arrival.willed.setdefault(node, 0)
            arrival.owned = epoch
            arrival.changed = True
            moves.touch(arrival)
        others = self._others(owned, earlier)
        session = self._ctx.sessions.get(client_id)
        if session is not None and session.epoch < owned.floor:
            moves.broker.connecting.taken_over(session, True)  # its client has begun with nothing elsewhere since
            session = None
        held = 0
        if session is not None:
            old = not session.hollow and any(other > session.epoch for other in others.values())
            if old and not clean:
                others[moves.me] = session.epoch  # the client was elsewhere meanwhile: ours is an old one
            else:
                held = 0 if session.hollow else session.epoch
                session.epoch = epoch
                if session.moving is not None:
                    session.moving.marked = {}  # those were for owners before us
        strangers = [node for node in owned.others if node not in moves.members]
        if not (others or strangers or self._is_will_unpublished(client_id)):
            self._go_on(client_id, epoch, held)
            return
        arrival = InboundSession(client_id, epoch, others)
        arrival.user = user
        arrival.best_held = held
        arrival.newest = max(list(others.items()), key=_held, default=(0, 0))
        arrival.willed = dict.fromkeys((*others, *strangers) if clean else strangers, 0)
        for node in others:
            if moves.is_unreachable(node):
                arrival.late[node] = None
        arrival.discarded = clean
        moves.add(arrival)
        for node, had in others.items():
            moves.say(node, Takeover(client_id, epoch, clean or had < owned.floor, offered, user))

    def _is_will_unpublished(self, client_id: str) -> bool:
        """Of an earlier connection, at this node."""
        wills = self._moves.wills
        return wills is not None and wills.unpublished(client_id)

    def _is_anothers(self, arrival: InboundSession, user: str | None) -> bool:
        """Whether what is on its way here is not for that user."""
        session = arrival.session
        owner = arrival.user if session is None or session.ended or session.owner is None else session.owner
        return is_anothers(self._ctx.session_owner, owner, user)

    def _is_too_early(self, owned: Owned, earlier: list[InboundSession]) -> bool:
        """Whether the session here, which has to be handed over to ourselves as an old one, is not all here yet."""
        session = self._ctx.sessions.get(owned.client_id)
        if session is None or session.hollow or session.epoch < owned.floor:
            return False
        old = any(other > session.epoch for other in owned.others.values())
        return old and any(arrival.awaited() for arrival in earlier)

    def look_at_postponed(self, client_id: str, now: float) -> None:
        owned = self._moves.postponed.get(client_id)
        if owned is not None and not self._is_too_early(owned, self._moves.of(client_id)):
            del self._moves.postponed[client_id]
            self.own(owned, now)

    def _turn_down(self, client_id: str, epoch: int) -> None:
        """Who asked for what was still on its way here when we owned it by an earlier epoch gets it from us no more. It
        may be the one that we ask now: the two would wait for each other."""
        moves = self._moves
        deferred = moves.deferred.get(client_id)
        if deferred is not None and deferred[1].epoch < epoch:
            del moves.deferred[client_id]
            moves.refused += 1
            moves.take_early((client_id, deferred[1].epoch))
            moves.say(deferred[0], Head(client_id, deferred[1].epoch, OVERTAKEN))

    def _has(self, client_id: str) -> bool:
        moves = self._moves
        return client_id in self._ctx.sessions or client_id in moves.arrivals or client_id in moves.departing

    def _others(self, owned: Owned, earlier: list[InboundSession]) -> dict[int, int]:
        """Who may have something of it and was not asked yet."""
        moves = self._moves
        others: dict[int, int] = {}
        for node, held in owned.others.items():
            if node not in moves.members:
                moves.ownership.release(owned.client_id, node, held)
            elif not any(held == arrival.sources().get(node) for arrival in earlier):
                others[node] = held
        return others

    def look_at(self, arrival: InboundSession, now: float) -> None:
        """Something has happened to it, or its time is over."""
        moves = self._moves
        if arrival.finished:
            moves.unsettled.pop(arrival, None)
            return
        if not arrival.open and not self._is_awaited(arrival) and self._wills_are_settled(arrival):
            arrival.open = arrival.changed = True
            moves.touch(arrival)
            self._go_on(arrival.client_id, arrival.epoch, 0)
        over = arrival.open and arrival.over(moves.members)
        if arrival.beginning and (over or now >= arrival.beginning_until or arrival.marked_by(moves.there())):
            moves.began(arrival)
            self._begin_anew(arrival)
        if over:
            self._finish(arrival)

    def _is_awaited(self, arrival: InboundSession) -> bool:
        """A client that begins with nothing only waits to hear whether it may have the client id."""
        if arrival.discarded and self._ctx.session_owner != REFUSE:
            return False
        return arrival.awaited()

    def _wills_are_settled(self, arrival: InboundSession) -> bool:
        """Those of nodes that can not be asked, those that nodes have said they have, and for a client that begins with
        nothing those of all others; and ours are published. It is the last thing that a CONNECT waits for."""
        moves = self._moves
        wills = moves.wills
        if wills is None:
            return True
        nodes = [node for node in dict.fromkeys((*arrival.late, *arrival.willed)) if node != moves.me]
        for node in nodes:
            will = arrival.willed.get(node, 0)
            if node not in arrival.settled and wills.settling.settle(
                arrival.client_id, node, arrival.owned, arrival.user, arrival.discarded, will
            ):
                arrival.settled[node] = None
                epoch = arrival.unreleased.pop(node, 0)
                if epoch:
                    moves.ownership.release(arrival.client_id, node, epoch)
        if all(node in arrival.settled for node in nodes) and not wills.unpublished(arrival.client_id):
            moves.unsettled.pop(arrival, None)
            return True
        moves.unsettled[arrival] = None
        return False

    def late(self, arrival: InboundSession, node: int) -> None:
        """Nobody waits for that node any more."""
        if node not in arrival.late:
            arrival.late[node] = None
            self._moves.touch(arrival)
            self.open_session(arrival.session)

    def _go_on(self, client_id: str, epoch: int, held: int) -> None:
        """Let the client have its session, as soon as nothing of it is awaited. ``held``: in which epoch this node has
        had it all the time; 0: it did not."""
        moves, ctx = self._moves, self._ctx
        arrivals = moves.of(client_id)
        if not all(arrival.open for arrival in arrivals):
            return
        if moves.ownership.claiming(client_id) or client_id in moves.postponed:
            return  # who waits now came after this claim: the next one is his
        session = ctx.sessions.get(client_id)
        unheard = unheard_of(arrivals, held)
        if session is not None and unheard:
            self._anew(session)
        unknown = session is None
        came = moves.broker.connecting.claimed(client_id, max(epoch, *[arrival.owned for arrival in arrivals], 0))
        session = ctx.sessions.get(client_id)
        if session is None:
            if not came and not arrivals:
                moves.ownership.release(client_id, moves.me, epoch)
            return
        if unknown and unheard:
            self._anew(session)
            session.told = session.client
        if came:
            moves.lost.note(session, unheard)
        for arrival in arrivals:
            if arrival.discarded:
                continue
            begun = arrival.session is None or arrival.session.ended
            if begun:
                arrival.session = session
                self.attach(arrival)
            known = 0 if session.trail is None else session.trail.epoch
            if (begun or unheard) and arrival.has_sources() and arrival.newest[1] > known:
                backlog = None if session.trail is None else session.trail.backlog  # of the client that is here
                session.trail = Trail(*arrival.newest, False)  # it could not be reached
                session.trail.backlog = backlog
                session.floor = 0

    def _anew(self, session: Session) -> None:
        """Its client has to begin anew, and to be told so until it is sure to know."""
        session.lose()
        if self._ctx.recording and session.expiry != 0:
            session.kept = True
            self._ctx.write(Write(SESSION_PUT, session))

    def aware(self, session: Session, now: float) -> None:
        """Its client knows that it begins anew: from the marks of all nodes on it has what it asks for now."""
        moving = session.moving
        if moving is None or session.ended or not session.anew or moving.target != 0:
            return
        arrivals = [arrival for arrival in self._moves.of(moving.client_id) if arrival.session is session]
        for arrival in arrivals:
            self._moves.touch(arrival)
        if not arrivals:
            self._moves.broker.subscribing.begin_anew(session)
        else:
            self._moves.begin(max(arrivals, key=lambda arrival: arrival.epoch), now + self._moves.limit)

    def _begin_anew(self, arrival: InboundSession) -> None:
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

    def attach(self, arrival: InboundSession) -> None:
        """Have the session know what is still under way to it."""
        session = arrival.session
        if session is None or session.ended or arrival.discarded:
            return
        arrival.changed = True
        self._moves.touch(arrival)
        if arrival.over(self._moves.members):
            return
        moving = session.moving
        if moving is None:
            moving = session.moving = MigrationState(arrival.client_id)
        moving.sources[arrival.epoch] = None
        self._heed(arrival)
        if session.client is not None:
            session.client.plain = False
        self.open_session(session)

    def overtaken(self, arrival: InboundSession, node: int, epoch: int) -> None:
        """From here on what comes from that node is a later owner's, be the session here yet or not."""
        arrival.later[node] = epoch
        arrival.changed = True
        self._moves.touch(arrival)
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

    # What former owners say

    def heard(self, node: int, said: Head | Parts | Whole | Passed) -> None:
        arrival = self._moves.arrivals.get(said.client_id, {}).get(said.epoch)
        if arrival is None:
            self._unexpected(node, said)
        elif isinstance(said, Parts):
            self._parts(node, arrival, said)
        elif isinstance(said, Whole):
            if arrival.best == node and not arrival.whole:
                arrival.whole = arrival.changed = True
            self._moves.touch(arrival)
        else:
            known = len(arrival.former), arrival.unknown()
            if isinstance(said, Head):
                self._head(node, arrival, said)
            else:
                self._passed(node, arrival, said)
            if known != (len(arrival.former), arrival.unknown()):
                self.tell_owner(arrival)

    def _unexpected(self, node: int, said: Head | Parts | Whole | Passed) -> None:
        """We do not know of it (any more)."""
        self._moves.refused += 1
        if isinstance(said, Parts):
            self._drop(said)
        elif (isinstance(said, Passed) and not said.done) or (isinstance(said, Head) and said.held > NOTHING):
            self._moves.say(node, Unknown(said.client_id, said.epoch))

    def _head(self, node: int, arrival: InboundSession, head: Head) -> None:
        moves = self._moves
        epoch = arrival.sources().get(node)
        if epoch is None:
            return
        if head.held in (NOTHING, OVERTAKEN, PASSED_ON):
            moves.gone(arrival, node)
            if head.willed and not arrival.open:
                arrival.willed[node] = head.will
                arrival.unreleased[node] = epoch
            elif head.held != OVERTAKEN:
                self._release(arrival, node, epoch)
            elif not moves.ownership.claiming(arrival.client_id):
                self._refuse_owner_of(arrival, head.owner)
            if head.held == OVERTAKEN and arrival.open:
                self._give_way(arrival, head.owner)
            self.open_session(arrival.session)
            return
        again = node in arrival.streaming
        arrival.waiting.pop(node, None)
        arrival.streaming[node] = epoch
        arrival.learn(node, head)
        moves.touch(arrival)
        if again:
            self.open_session(arrival.session)
            return
        if is_anothers(self._ctx.session_owner, head.owner, arrival.user):  # its node did not know who asks
            arrival.discarded = arrival.changed = True
            if arrival.session is not None:
                self._detach(arrival, arrival.session)
                arrival.session = None
        if head.willed:
            arrival.willed[node] = head.will
        there = arrival.session or self._ctx.sessions.get(arrival.client_id)
        none = there is None or there.ended
        if arrival.discarded or _goes_on(arrival.session):
            pass  # what it had is dropped as it comes, or is owed to a later owner
        elif (not arrival.open or none) and head.held > arrival.best_held:
            self._come(node, arrival, head)
        elif none:  # it only owes, and nobody is here to get it
            head = Head(head.client_id, head.epoch, head.held, min(NEVER, self._ctx.mqtt.max_session_expiry))
            head.anew = True
            self._come(0, arrival, head)
        elif arrival.session is None or arrival.session.ended:
            arrival.session = there  # it came from somebody else: what is owed goes there
        self.attach(arrival)

    def _refuse_owner_of(self, arrival: InboundSession, user: str | None) -> None:
        """A later owner is known, or the session is kept for another ``user``. A CONNECT that came since asks that node
        too, and is not meant."""
        claims = self._ctx.cluster.claims
        claim = None if claims is None else claims.waiting.get(arrival.client_id)
        if claim is None or claim.epoch != arrival.epoch:
            return
        if is_anothers(self._ctx.session_owner, user, arrival.user):
            reason, why = Reason.CLIENT_IDENTIFIER_NOT_VALID, KEPT_FOR_ANOTHER
            self._moves.broker.connecting.not_claimed(arrival.client_id, reason, why)
        else:
            self._moves.broker.connecting.overtaken(arrival.client_id, arrival.epoch + 1)

    def _give_way(self, arrival: InboundSession, user: str | None) -> None:
        """The session is kept for ``user`` at a node that could not be asked when another one began here. If both
        went on, each would keep the other user out."""
        session = self._ctx.sessions.get(arrival.client_id)
        if session is not None and is_anothers(self._ctx.session_owner, user, session.owner):
            arrival.discarded = arrival.changed = True
            self._moves.broker.connecting.taken_over(session, True, ANOTHER_USER)

    def tell_owner(self, arrival: InboundSession) -> None:
        """Whoever gets the session from here has to know as much of what those who had it subscribed to: what comes to
        him too before the marks is theirs to give."""
        moves, session = self._moves, arrival.session
        moving = None if session is None else session.moving
        departure = None if moving is None else moves.departures.get((moving.client_id, moving.epoch))
        if session is None or departure is None or departure.session is not session:
            return
        former, unknown = moves.former(arrival.client_id, session)
        head = Head(arrival.client_id, departure.epoch, OWES, former=list(former), unknown=unknown)
        moves.say(departure.target, head)

    def _come(self, node: int, arrival: InboundSession, head: Head) -> None:
        """The session of that node is the client's, as far as is known."""
        if node != 0:
            arrival.best, arrival.best_held = node, head.held
            arrival.whole = False
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
            self._detach(arrival, earlier)  # it goes on to the next owner as it is
        session.hollow = node == 0
        session.floor = 0 if node == 0 else head.floor
        session.trail = (
            Trail(*arrival.newest, False) if node == 0 else self._trail(arrival, arrival.streaming[node], head)
        )

    def _parts(self, node: int, arrival: InboundSession, said: Parts) -> None:
        session = arrival.session
        if session is None or session.ended:
            self._drop(said)
            return
        for part in said.parts:
            self._part(session, part, node == arrival.best)

    def _drop(self, said: Parts) -> None:
        """There is no session for these any more."""
        self._ctx.drop("session_ended", said.client_id, len(said.parts))
        if self._ctx.audit is not None:
            for part in said.parts:
                if part.packet_id == 0:  # else it has been delivered once
                    self._ctx.audit.dropped_on_its_way(said.client_id, part.topic, part.id, part.qos, "session_ended")

    def _part(self, session: Session, part: Part, own: bool) -> None:
        """``own``: the session here is the one that it was sent from, packet ids included."""
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
            if part.stage != RELEASED:  # else the client has it
                self._give_up(session, part)
        else:
            self._moves.broker.mover.put(session, outgoing)

    def _give_up(self, session: Session, part: Part) -> None:
        """It was sent in a session that its client has lost, and may have acted on it (see
        ``core.session.session_reset``)."""
        client_id = session.client_id if session.moving is None else session.moving.client_id
        self._ctx.drop(UNSETTLED, client_id)
        session.dropped += 1
        if self._ctx.audit is not None:
            self._ctx.audit.dropped_on_its_way(client_id, part.topic, part.id, part.qos, UNSETTLED)

    def _passed(self, node: int, arrival: InboundSession, said: Passed) -> None:
        moves = self._moves
        arrival.passed.setdefault(node, {}).update(dict.fromkeys(said.nodes))
        if said.done:
            epoch = arrival.streaming.get(node, 0)
            moves.gone(arrival, node)
            self._release(arrival, node, epoch)
        self.open_session(arrival.session)

    def _release(self, arrival: InboundSession, node: int, epoch: int) -> None:
        """That node has no state left; but it may have a will, and the next CONNECT must find its key then."""
        if arrival.unsettled and node in self._moves.members:
            self._moves.say(node, ReleaseKey(arrival.client_id, epoch))
        else:
            self._moves.ownership.release(arrival.client_id, node, epoch)

    # What is here

    def open_session(self, session: Session | None) -> None:
        """Give a session what waited for nothing but what is here now."""
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
        if moving.target != 0:  # the next owner may wait to hear that nothing comes before what it has
            self._ctx.cluster.leave(session)

    def _stage(self, moving: MigrationState, node: int, arrivals: list[InboundSession]) -> int:
        """Of what enters at that node, for all the moves that the session is on."""
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

    def _finish(self, arrival: InboundSession) -> None:
        """Nobody has anything of it any more."""
        moves = self._moves
        client_id = arrival.client_id
        moves.remove(arrival)
        moves.completed += 1
        if arrival.session is not None:
            self._detach(arrival, arrival.session)
        claims = self._ctx.cluster.claims
        waited_for = client_id in moves.arrivals or (claims is not None and client_id in claims.waiting)
        if not waited_for and client_id not in self._ctx.sessions:
            moves.ownership.release(client_id, moves.me, arrival.owned)

    def _detach(self, arrival: InboundSession, session: Session) -> None:
        """Nothing of this comes to that session any more."""
        if session.ended or session.moving is None:
            return
        session.moving.sources.pop(arrival.epoch, None)
        if session.moving.sources:
            self.open_session(session)
        else:
            self._moves.broker.mover.settle(session)

    def _trail(self, arrival: InboundSession, epoch: int, head: Head) -> Trail | None:
        """Where handshakes of a session are that comes from the owner of ``epoch``, if nobody owned it since."""
        if head.trail is None and epoch >= arrival.newest[1]:
            return None
        if head.trail is None or epoch < arrival.newest[1]:
            return Trail(*arrival.newest, False)
        return Trail(*head.trail)

    def source_gone(self, arrival: InboundSession, node: int) -> None:
        """That node is no member any more: what it had is lost, and not its client's if it should be back."""
        epoch = arrival.sources().get(node, 0)
        self._moves.gone(arrival, node)
        self._moves.ownership.release(arrival.client_id, node, epoch)
        self.open_session(arrival.session)


def _goes_on(session: Session | None) -> bool:
    """Whether it is on its way to a later owner, who has been told already what it is."""
    return session is not None and not session.ended and session.moving is not None and session.moving.target != 0


def _held(item: tuple[int, int]) -> int:
    return item[1]
