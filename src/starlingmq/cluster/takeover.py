"""Sessions follow their clients from node to node: both sides of it (docs/SESSIONS.md says why each step is as it is).

::

    new owner                          former owner                        every node
       |-- Takeover (epoch) ------------->| ends its connection
       |<------------- Head, Parts, Whole-| what the session is and has
       |  (the client goes on)            |
       |-- Barrier, once its routes are applied ---------------------------->|
       |<---------------------------------|<--------------------------- Mark-|
       |<------------------ Parts, Passed-| what came before the marks
       |  (what came after them)          | done

The laws: of a client id the highest epoch owns it; what is acknowledged is at one node at least, and is given to the
client by one at most; nothing waits for a node that is not connected. What is said here is said once and in order, for
it goes with the messages between two nodes; so after a crash everybody goes on from what it has stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Final

import msgspec

from starlingmq.cluster.arrivals import Arrival, ArrivalValue
from starlingmq.cluster.departures import Departure, departed
from starlingmq.cluster.offers import Offers
from starlingmq.cluster.ownership import Owned, Ownership
from starlingmq.cluster.transfer import (
    NOTHING,
    OWES,
    REFUSED,
    Barrier,
    Declined,
    Granted,
    Head,
    Mark,
    Offer,
    Part,
    Parts,
    Passed,
    Rebalance,
    Said,
    Takeover,
    TransferError,
    Whole,
    decode,
    encode,
)
from starlingmq.core import mover
from starlingmq.core.broker import BrokerState
from starlingmq.core.claims import Claims
from starlingmq.core.client import WORKING
from starlingmq.core.message import Message
from starlingmq.core.moving import OPEN, UNMARKED, Moving
from starlingmq.core.outgoing import RELEASED, Outgoing
from starlingmq.core.ready import FACT_DELETE, FACT_PUT, Write
from starlingmq.core.session import NEVER, Session, Trail
from starlingmq.wire.reasons import Reason

ASK_AGAIN: Final = 1.0  # seconds until a node is asked once more for its mark: it may have come anew meanwhile
ELSEWHERE: Final = "another node has this client id now"
FACTS: Final = b"m"  # what the keys of our facts begin with
ARRIVAL: Final = FACTS + b"a"
DEPARTURE: Final = FACTS + b"d"

_arrival = msgspec.msgpack.Decoder(ArrivalValue)
_marks = msgspec.msgpack.Decoder(list[int])

Turned = tuple[str, int]  # client id, epoch of its new owner


class Takeovers:
    """``connected`` tells whether a node is, ``applied`` up to which own version of ours it has our routes, and
    ``known`` up to which (epoch, version) we have those of a node."""

    completed: int  # takeovers to this node that are over
    refused: int  # by their epoch

    def __init__(
        self,
        broker: BrokerState,
        ownership: Ownership,
        seconds: float,
        connected: Callable[[int], bool],
        applied: Callable[[int], int],
        known: Callable[[int], tuple[int, int]],
    ) -> None:
        self.completed = self.refused = 0
        self._broker = broker
        self._ctx = broker.ctx
        self._ownership = ownership
        self._seconds = seconds
        self._connected = connected
        self._applied = applied
        self._known = known
        self._me = 0
        self._members: dict[int, None] = {}
        self._arrivals: dict[str, dict[int, Arrival]] = {}  # client id -> epoch ->
        self._departures: dict[Turned, Departure] = {}
        self._departing: dict[str, list[Departure]] = {}  # the same by client id
        self._deferred: dict[str, tuple[int, Takeover]] = {}  # asked for while they arrive: by whom, for what
        self._overtaken: dict[str, int] = {}  # epochs of others that own what we have asked for meanwhile
        self._notices: list[str] = []
        self.offers = Offers(self._ctx, ownership)
        self.on_drain: Callable[[int, Declined | Rebalance], None] = lambda node, said: None
        claims = self._ctx.claims = Claims(2 * seconds)
        self._claims = claims
        broker.peers.control = self.take

    # A life begins

    def enter(self, me: int, incarnation: int, facts: dict[bytes, bytes]) -> None:
        """Our number is known. ``facts`` are ours of an earlier life."""
        self._me = me
        self._ownership.enter(me, incarnation)
        sessions = self._ctx.sessions
        for session in list(sessions.values()):
            found = departed(session.client_id)
            if found is not None:
                departure = Departure(session, *found)
                departure.restore(_marks.decode(facts.get(_key(DEPARTURE, found[2], found[1]), b"\x90")))
                self._departures[found[2], found[1]] = departure
                self._departing.setdefault(found[2], []).append(departure)
        by_number = {session.number: session for session in sessions.values()}
        for key, fact in facts.items():
            if key.startswith(ARRIVAL):
                value = _arrival.decode(fact)
                arrival = Arrival.restored(value, by_number)
                self._arrivals.setdefault(value.client_id, {})[value.epoch] = arrival
                self._attach(arrival)

    def set_members(self, members: Iterable[int]) -> None:
        """The numbers of all nodes, ours included."""
        before, self._members = self._members, dict.fromkeys(members)
        for node in before:
            if node not in self._members:
                self._member_gone(node)

    def _member_gone(self, node: int) -> None:
        for arrival in self._all_arrivals():
            if node in arrival.sources():
                arrival.gone(node)
                self._open(arrival.session)
        for (client_id, epoch), departure in list(self._departures.items()):
            if departure.target == node:
                self._broker.mover.stay(departure.session)
                self._forget_departure(client_id, epoch)

    def reborn(self, node: int) -> None:
        """That node has begun a new life, perhaps without what it was giving us."""
        for arrival in self._all_arrivals():
            if node in arrival.sources():
                self.say(node, Takeover(arrival.client_id, arrival.epoch, arrival.version == -2))

    def changed(self) -> None:
        """Some node is connected, or is not any more: who owns what has to be looked up again."""
        self._claims.generation += 1

    def _all_arrivals(self) -> list[Arrival]:
        return [arrival for epochs in self._arrivals.values() for arrival in epochs.values()]

    # Saying and hearing

    def say(self, node: int, said: Said) -> None:
        if node == self._me:
            self._heard(node, said)
        else:
            self._broker.peers.tell(node, encode(said))

    def take(self, node: int, payload: bytes) -> None:
        try:
            said = decode(payload)
        except TransferError as error:
            self._notices.append(f"node {node}: {error}")
            return
        self._heard(node, said)

    def _heard(self, node: int, said: Said) -> None:
        if isinstance(said, Takeover):
            self._asked(node, said)
        elif isinstance(said, Barrier):
            self._put_marks(node, said)
        elif isinstance(said, Mark):
            self._marked(node, said)
        elif isinstance(said, Offer):
            declined = self.offers.offered(node, said)
            if declined:
                self.say(node, Declined(declined))
        elif isinstance(said, Declined | Rebalance):
            self.on_drain(node, said)
        else:
            arrival = self._arrivals.get(said.client_id, {}).get(said.epoch)
            if arrival is None:
                self.refused += 1
                if isinstance(said, Parts):
                    self._ctx.drop("session_ended", said.client_id, len(said.parts))
            elif isinstance(said, Head):
                self._head(node, arrival, said)
            elif isinstance(said, Parts):
                self._parts(node, arrival, said)
            elif isinstance(said, Whole):
                arrival.whole = arrival.whole or arrival.best == node
            else:
                self._passed(node, arrival, said)

    # The new owner

    def own(self, owned: Owned, now: float) -> None:
        """We own a client id. Whoever has a key of it may have something of its session."""
        client_id, epoch = owned.client_id, owned.epoch
        if self._overtaken.pop(client_id, 0) > epoch:
            self._ownership.release(client_id, self._me, epoch)
            self._broker.connecting.not_claimed(client_id, Reason.SERVER_BUSY, ELSEWHERE)
            return
        invited = self.offers.invited(client_id)
        offered = invited is not None and client_id not in self._claims.waiting
        if invited is not None and offered:
            if client_id not in self._arrivals and not self.offers.holds(owned, *invited):
                self._ownership.release(client_id, self._me, epoch)
                return
            if invited[1] == 0:  # it has no key there, and never had
                owned.others.setdefault(*invited)
        arrivals = self._arrivals.get(client_id, {})
        for earlier in arrivals.values():
            earlier.owned, earlier.changed = epoch, True
        claim = self._claims.waiting.get(client_id)
        clean = claim is not None and claim.clean_start
        others: dict[int, int] = {}
        for node, held in owned.others.items():
            if node not in self._members:
                self._ownership.release(client_id, node, held)
                continue
            if not any(held == earlier.sources().get(node) for earlier in arrivals.values()):  # else it was asked
                others[node] = held
        arrival = Arrival(client_id, epoch, others, now + self._seconds)
        session = self._ctx.sessions.get(client_id)
        if session is not None:
            if any(held > session.epoch for held in others.values()):
                others[self._me] = session.epoch  # the client was elsewhere meanwhile: ours is an old one
                arrival.waiting[self._me] = session.epoch
            else:
                arrival.best_held = session.epoch
                session.epoch = epoch
                session.confirmed = self._claims.generation
        arrival.newest = max(list(others.items()), key=_held, default=(0, 0))
        if clean:
            arrival.open = True  # there is nothing to wait for: what they had is no matter any more
            arrival.version = -2
        if others:
            self._arrivals.setdefault(client_id, {})[epoch] = arrival
        for node in others:
            self.say(node, Takeover(client_id, epoch, clean, offered))
        if clean or not others:
            self._go_on(client_id, epoch)

    def _go_on(self, client_id: str, epoch: int) -> None:
        """Let the client have its session, as soon as nothing of it is awaited."""
        arrivals = self._arrivals.get(client_id, {})
        if not all(arrival.open for arrival in arrivals.values()):
            return
        came = self._broker.connecting.claimed(client_id, max(epoch, *arrivals, 0))
        session = self._ctx.sessions.get(client_id)
        if session is None:
            if not came and not arrivals:
                self._ownership.release(client_id, self._me, epoch)
            return
        for arrival in arrivals.values():
            if arrival.session is None and arrival.version != -2:
                arrival.session = session
                self._attach(arrival)
                if arrival.sources() and arrival.newest[1] > (0 if session.trail is None else session.trail.epoch):
                    backlog = None if session.trail is None else session.trail.backlog  # of the client that is here
                    session.trail = Trail(*arrival.newest, False)  # it could not be reached
                    session.trail.backlog = backlog
                    session.floor = 0
                if came and session.client is not None and session.moving is not None:
                    session.moving.anew = not session.subscriptions
                    arrival.held, arrival.held_until = session.client, self._ctx.now + self._seconds
                    self._ctx.halt(session.client, WORKING)  # what it subscribes to comes after the marks

    def _attach(self, arrival: Arrival) -> None:
        """Have the session know what is still under way to it."""
        session = arrival.session
        if session is None or session.ended or arrival.version == -2:
            return
        arrival.changed = True
        if not arrival.sources():
            return
        moving = session.moving
        if moving is None:
            moving = session.moving = Moving(arrival.client_id)
        moving.sources[arrival.epoch] = None
        if session.client is not None:
            session.client.plain = False
        self._open(session)

    def _head(self, node: int, arrival: Arrival, head: Head) -> None:
        epoch = arrival.sources().get(node)
        if epoch is None:
            return
        if head.held in (NOTHING, REFUSED):
            arrival.gone(node)
            if head.held == NOTHING:
                self._ownership.release(arrival.client_id, node, epoch)
            self._open(arrival.session)
            return
        if node in arrival.streaming:
            return
        del arrival.waiting[node]
        arrival.streaming[node] = epoch
        arrival.changed = True
        there = arrival.session or self._ctx.sessions.get(arrival.client_id)
        if (not arrival.open or there is None or there.ended) and head.held > arrival.best_held:
            arrival.best, arrival.best_held = node, head.held
            granted = [mover.Granted(g.whole, g.qos, g.no_local, g.retain_as_published, g.ids) for g in head.granted]
            arrival.session = self._broker.mover.come(
                arrival.client_id, arrival.owned, head.expiry, head.left, granted, head.last_id
            )
            arrival.session.floor = head.floor
            arrival.session.trail = self._trail(arrival, epoch, head)
        self._attach(arrival)

    def _trail(self, arrival: Arrival, epoch: int, head: Head) -> Trail | None:
        """Where handshakes of a session are that comes from the owner of ``epoch``, if nobody owned it since."""
        if head.trail is None and epoch >= arrival.newest[1]:
            return None
        if head.trail is None or epoch < arrival.newest[1]:
            return Trail(*arrival.newest, False)
        return Trail(*head.trail)

    def _parts(self, node: int, arrival: Arrival, said: Parts) -> None:
        session = arrival.session
        if session is None or session.ended:
            self._ctx.drop("session_ended", said.client_id, len(said.parts))
            return
        for part in said.parts:
            self._part(session, part, node == arrival.best)

    def _part(self, session: Session, part: Part, own: bool) -> None:
        """``own``: the session here is the one that it was sent from, packet ids included."""
        now = self._ctx.now
        qos, retain, published_at = part.published
        expires_at = 0.0 if part.left < 0 else now + part.left
        message = Message(
            part.topic, part.payload, qos, retain, part.properties, expires_at, part.publisher, published_at
        )
        outgoing = Outgoing(message, part.qos, part.retain, part.ids, None)
        taken = part.packet_id and session.window is not None and part.packet_id in session.window.entries
        if part.packet_id and own and not taken:
            self._broker.mover.put_window(session, part.packet_id, part.stage, outgoing)
        elif part.stage != RELEASED:  # else the client has it
            self._broker.mover.put(session, outgoing)

    def _passed(self, node: int, arrival: Arrival, said: Passed) -> None:
        arrival.passed.setdefault(node, {}).update(dict.fromkeys(said.nodes))
        if said.done:
            epoch = arrival.streaming.get(node, 0)
            arrival.gone(node)
            self._ownership.release(arrival.client_id, node, epoch)
        self._open(arrival.session)

    def _open(self, session: Session | None) -> None:
        """Give a session what waited for nothing but what is here now."""
        if session is None or session.ended or session.moving is None:
            return
        moving = session.moving
        arrivals = [
            arrival
            for arrival in self._arrivals.get(moving.client_id, {}).values()
            if arrival.session is session and arrival.sources()
        ]
        for node in self._members:
            stage = min([arrival.stage(node) for arrival in arrivals], default=OPEN)
            if stage != UNMARKED:
                moving.mark(node)
            if stage == OPEN and moving.stages.get(node) != OPEN:
                self._broker.delivery.let_in(session, moving.open(node))

    def _finish(self, arrival: Arrival) -> None:
        """Nobody has anything of it any more."""
        if arrival.held is not None:
            self._ctx.unhalt(arrival.held, WORKING)
        client_id = arrival.client_id
        epochs = self._arrivals[client_id]
        del epochs[arrival.epoch]
        if not epochs:
            del self._arrivals[client_id]
        self._fact(_key(ARRIVAL, client_id, arrival.epoch), None)
        self.completed += 1
        session = arrival.session
        if session is not None and not session.ended and session.moving is not None:
            session.moving.sources.pop(arrival.epoch, None)
            if not session.moving.sources:
                self._broker.mover.settle(session)
        waited_for = client_id in self._arrivals or client_id in self._claims.waiting
        if not waited_for and client_id not in self._ctx.sessions:
            self._ownership.release(client_id, self._me, arrival.epoch)

    # Marks

    def _ask_for_marks(self, version: int, route_epoch: int, now: float) -> None:
        asks: dict[int, list[Turned]] = {}
        for arrival in self._all_arrivals():
            if arrival.version == -2 or not arrival.needs_marks():
                continue
            if arrival.session is None:
                continue  # nobody here would take what comes after them
            if arrival.version == -1:
                arrival.version = version
            for node in self._members:
                if arrival.passed_by_all(node) or now < arrival.asked.get(node, 0.0) + ASK_AGAIN:
                    continue
                if node == self._me or (self._connected(node) and self._applied(node) >= arrival.version):
                    arrival.asked[node] = now
                    asks.setdefault(node, []).append((arrival.client_id, arrival.epoch))
        for node, entries in asks.items():
            self.say(node, Barrier(route_epoch, version, entries))

    def _put_marks(self, node: int, barrier: Barrier) -> None:
        """Say from where on ``node`` gives our messages to these clients; not before we have its routes."""
        if node != self._me and self._known(node) < (barrier.route_epoch, barrier.version):
            return  # of our last life: it asks again
        for target in self._members:  # whoever has something of an earlier owner's has to know as well
            self.say(target, Mark(node, barrier.entries))

    def _marked(self, node: int, said: Mark) -> None:
        for client_id, epoch in said.entries:
            if said.owner != self._me:
                self._marked_for(node, said.owner, client_id, epoch)
            for departure in self._departing.get(client_id, ()):
                if departure.epoch <= epoch:
                    departure.mark(node)
            arrival = self._arrivals.get(client_id, {}).get(epoch)
            if said.owner == self._me and arrival is not None and node not in arrival.marks:
                arrival.marks[node] = None
                arrival.changed = True
                self._open(arrival.session)

    def _marked_for(self, node: int, owner: int, client_id: str, epoch: int) -> None:
        session = self._ctx.sessions.get(client_id)
        if session is None or session.epoch >= epoch:
            return
        self._asked(owner, Takeover(client_id, epoch, False))  # which may be still on its way
        session = self._ctx.sessions.get(client_id)
        if session is not None and session.epoch < epoch:  # it has to wait here until it is whole
            if session.moving is None:
                session.moving = Moving(client_id)
            session.moving.marked[node] = None

    # The former owner

    def _asked(self, node: int, said: Takeover) -> None:
        """Another node owns this client id now."""
        client_id, epoch = said.client_id, said.epoch
        if (client_id, epoch) in self._departures:
            return
        if self._ownership.claiming(client_id):  # which of the two is newer, the answer will tell
            self._overtaken[client_id] = max(epoch, self._overtaken.get(client_id, 0))
        session = self._ctx.sessions.get(client_id)
        if said.offered and session is not None and session.client is not None:
            self.say(node, Head(client_id, epoch, REFUSED))
            return
        arrivals = {} if node == self._me else self._arrivals.get(client_id, {})
        newer = any(arrival.owned > epoch for arrival in arrivals.values()) or any(
            departure.epoch > epoch for departure in self._departing.get(client_id, ())
        )
        if newer or (session is not None and session.epoch > epoch):
            self.refused += 1
            self.say(node, Head(client_id, epoch, REFUSED))
            return
        if arrivals:
            self._broker.connecting.not_claimed(client_id, Reason.SERVER_BUSY, ELSEWHERE)
        if not all(arrival.all_late() for arrival in arrivals.values()):
            self._defer(node, said)
            return
        self._give(node, said, session)

    def _defer(self, node: int, said: Takeover) -> None:
        """It is not all here yet. Of several that want it the newest gets it."""
        earlier = self._deferred.get(said.client_id)
        if earlier is not None and earlier[1].epoch > said.epoch:
            self.say(node, Head(said.client_id, said.epoch, REFUSED))
            return
        if earlier is not None and earlier[1].epoch < said.epoch:
            self.say(earlier[0], Head(said.client_id, earlier[1].epoch, REFUSED))
        self._deferred[said.client_id] = (node, said)

    def _give(self, node: int, said: Takeover, session: Session | None) -> None:
        client_id, epoch = said.client_id, said.epoch
        held = 0 if session is None else max(session.epoch, 1)
        expiry = 0 if session is None else session.expiry
        left = self._left(session)
        late = [arrival for arrival in self._arrivals.get(client_id, {}).values() if arrival.epoch != epoch]
        ghost = self._broker.mover.leave(client_id, node, epoch, said.clean)
        if ghost is None and not said.clean and any(arrival.session is None for arrival in late):
            ghost = self._broker.mover.nobody(client_id, node, epoch)  # what is late goes there
            held = OWES
        if ghost is None:
            self.say(node, Head(client_id, epoch, REFUSED if client_id in self._departing else NOTHING))
            return
        for arrival in late:
            if arrival.session is None or arrival.session.ended:
                arrival.session = ghost
                self._attach(arrival)
        granted = [
            Granted(g.whole, g.qos, g.no_local, g.retain_as_published, g.ids) for g in self._broker.mover.granted(ghost)
        ]
        last_id = 0 if ghost.window is None else ghost.window.last_id
        trail = None if ghost.trail is None else (ghost.trail.node, ghost.trail.epoch, ghost.trail.sure)
        departure = self._departures[client_id, epoch] = Departure(ghost, node, epoch, client_id)
        self._departing.setdefault(client_id, []).append(departure)
        self.say(node, Head(client_id, epoch, held, expiry, left, last_id, granted, ghost.floor, trail))

    def _left(self, session: Session | None) -> float:
        """Seconds until it expires."""
        if session is None or session.expiry == NEVER:
            return 0.0
        return session.expires_at - self._ctx.now if session.expires_at != 0.0 else float(session.expiry)

    def departing(self) -> int:
        """Sessions on their way from here, those too that have to wait for a node that is away."""
        return len(self._departures)

    def giving(self) -> int:
        """Sessions on their way from here that can get on now: nobody whom they wait for is away."""
        there = self._there()
        count = 0
        for departure in self._departures.values():
            session = departure.session
            if session.ended or not self._connected(departure.target):
                continue
            marked = departure.marks()
            if not departure.whole or session.queue is not None or any(node not in marked for node in there):
                count += 1
        return count

    def _give_on(self, departure: Departure, now: float) -> bool:
        """Send what there is of a session that left; whether there may be more at once."""
        session, moves = departure.session, self._broker.mover
        client_id, epoch = departure.client_id, departure.epoch
        if session.ended:
            self._forget_departure(client_id, epoch)
            return False
        if not departure.whole:
            parts = moves.take_window(session)
            if parts:
                self._say_parts(departure, parts, now)
            if session.window is not None:
                return bool(parts)
            departure.whole = True
            self.say(departure.target, Whole(client_id, epoch))
        parts = moves.take_queue(session)
        if parts:
            self._say_parts(departure, parts, now)
        if session.queue is not None:
            return bool(parts)
        assert session.moving is not None
        nodes = departure.unpassed()
        marked = not session.subscriptions or all(member in session.moving.marked for member in self._members)
        done = marked and not session.moving.sources
        if nodes or done:
            self.say(departure.target, Passed(client_id, epoch, nodes, done))
        if done:
            moves.left(session)
            self._forget_departure(client_id, epoch)
        return False

    def _say_parts(self, departure: Departure, outgoings: list[Outgoing], now: float) -> None:
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
                )
            )
        self.say(departure.target, Parts(departure.client_id, departure.epoch, parts))

    def _forget_departure(self, client_id: str, epoch: int) -> None:
        departure = self._departures.pop((client_id, epoch), None)
        if departure is not None:
            left = self._departing[client_id]
            left.remove(departure)
            if not left:
                del self._departing[client_id]
        self._fact(_key(DEPARTURE, client_id, epoch), None)

    # Turns

    def look(self, now: float) -> None:
        """After what came was taken: who may go on, who waits in vain."""
        for client_id in self._claims.take():
            self._ownership.claim(client_id)
        for owned in self._ownership.take_owned():
            self.own(owned, now)
        self._look_at_sources(now)
        for arrival in self._all_arrivals():
            if not arrival.open and not arrival.awaited():
                arrival.open = True
                self._go_on(arrival.client_id, arrival.epoch)
            if arrival.held is not None and (arrival.marked_by(self._there()) or now >= arrival.held_until):
                self._ctx.unhalt(arrival.held, WORKING)
                arrival.held = None
            if arrival.open and not arrival.sources():
                self._finish(arrival)
        for client_id, (node, said) in list(self._deferred.items()):
            if all(arrival.all_late() for arrival in self._arrivals.get(client_id, {}).values()):
                del self._deferred[client_id]
                self._asked(node, said)
        self._look_at_claims(now)

    def turn(self, version: int, route_epoch: int, now: float) -> bool:
        """Once our own routes have their version: send what there is. Whether there is more for the next turn."""
        self._ask_for_marks(version, route_epoch, now)
        busy = False
        for departure in list(self._departures.values()):
            busy = self._give_on(departure, now) or busy
        self._store()
        return busy

    def _there(self) -> list[int]:
        return [node for node in self._members if node == self._me or self._connected(node)]

    def _look_at_sources(self, now: float) -> None:
        """Nobody waits for a node that is not connected, or for long."""
        for arrival in self._all_arrivals():
            for node in arrival.sources():
                if node not in arrival.late and (not self._connected(node) or now >= arrival.deadline):
                    arrival.late[node] = None
                    self._open(arrival.session)

    def _look_at_claims(self, now: float) -> None:
        for client_id, claim in list(self._claims.waiting.items()):
            if now < claim.deadline:
                break
            self._broker.connecting.not_claimed(
                client_id, Reason.SERVER_UNAVAILABLE, "who owns this client id could not be found out in time"
            )
        for client_id, epoch in self._claims.take_released():
            session = self._ctx.sessions.get(client_id)
            if session is None and client_id not in self._claims.waiting:
                self._ownership.release(client_id, self._me, epoch)

    def _store(self) -> None:
        for arrival in self._all_arrivals():
            if arrival.changed:
                arrival.changed = False
                if arrival.version != -2:
                    key = _key(ARRIVAL, arrival.client_id, arrival.epoch)
                    self._fact(key, msgspec.msgpack.encode(arrival.value()))
        for (client_id, epoch), departure in self._departures.items():
            if departure.changed:
                departure.changed = False
                self._fact(_key(DEPARTURE, client_id, epoch), msgspec.msgpack.encode(departure.marks()))

    def _fact(self, key: bytes, value: bytes | None) -> None:
        if self._ctx.recording:
            self._ctx.write(Write(FACT_DELETE if value is None else FACT_PUT, topic=key, value=value or b""))

    def wake_at(self) -> float:
        """When ``turn`` is to be called though nothing happens; ``inf``: never."""
        soonest = inf
        for claim in self._claims.waiting.values():
            soonest = claim.deadline
            break
        for arrival in self._all_arrivals():
            if not arrival.open or not arrival.all_late():
                soonest = min(soonest, arrival.deadline)
            if arrival.held is not None:
                soonest = min(soonest, arrival.held_until)
            if arrival.version >= 0:
                for node in self._members:
                    if not arrival.passed_by_all(node) and self._connected(node):
                        soonest = min(soonest, arrival.asked.get(node, 0.0) + ASK_AGAIN)
        return soonest

    def take_notices(self) -> list[str]:
        notices = self._notices
        self._notices = []
        return notices


def _held(item: tuple[int, int]) -> int:
    return item[1]


def _key(kind: bytes, client_id: str, epoch: int) -> bytes:
    return kind + epoch.to_bytes(8, "big") + client_id.encode()
