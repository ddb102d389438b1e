"""Decides which nodes are connected, and whether they are enough to serve: half of the other members.

Invariant: a connection to a node lasts while both of these hold:

- This node hears the other one.
- Less than ``timeout`` has passed since this node *sent* the newest heartbeat that the other one has confirmed.

So a connection covers both directions, and ends at both ends within one ``timeout`` of the last real round trip,
however long frames wait in buffers.

A process that has ended is not waited for. A node *misses* another node when the operating system of that node closes
the connections of its process and refuses new ones (net/peers/process_watch.py). A proxy in between may mislead one
node, so a node that misses another one only stops counting it. A node is *dead* once all registered nodes that are
connected here miss it as well, and they are enough to serve. A frame of a node proves that it is alive, with one
exception: a relayed frame that arrives while all nodes miss its sender was sent before its process ended.

On one machine there is no proxy: a node that is missed has ended. With ``one_machine`` it is *absent*, and does not
count for the majority, until it has been started again and is connected. So of two nodes one serves alone while the
other has ended; the one that starts again serves only once it is connected to the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Final

from starlingmq.cluster.links.control_frames import Heartbeat, MemberInfo, Membership
from starlingmq.cluster.links.peer_frames import Envelope

NEVER: Final = -1e18  # seconds: earlier than any real time
HASTE: Final = 10  # a change is announced after this fraction of the interval


@dataclass(frozen=True, slots=True)
class ConnectionChange:
    number: int
    incarnation: int
    connected: bool


class QuorumPeer:
    """Another member, or a joining node, as its frames describe it."""

    number: int
    incarnation: int
    direct_at: float  # when its last frame arrived directly ...
    relayed_at: float  # ... and through a relay
    direct: bool  # heard within the timeout, as of the last check
    relayed: bool
    connected: bool
    rests_on: float  # when this node sent the newest heartbeat that the peer has confirmed
    heartbeat: int  # number of its newest one; 0: none of this incarnation
    hears: dict[int, int]  # node -> incarnation, from that heartbeat
    hears_relayed: dict[int, int]
    is_connected_to: frozenset[int]
    misses: dict[int, int]
    heartbeat_at: float  # when that heartbeat arrived
    revision: int  # of the membership that it knows
    taken: int  # number of this node's newest heartbeat that it has confirmed; 0: none
    missed: bool  # this node misses it (see above)
    dead: bool  # so do all others
    absent: bool  # on one machine: its process has ended, and no later one is connected

    def __init__(self, number: int, incarnation: int) -> None:
        self.number = number
        self.absent = False
        self.begin(incarnation)

    def begin(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.direct_at = self.relayed_at = self.rests_on = NEVER
        self.direct = self.relayed = self.connected = False
        self.heartbeat = self.revision = self.taken = 0
        self.hears = {}
        self.hears_relayed = {}
        self.is_connected_to = frozenset()
        self.misses = {}
        self.heartbeat_at = NEVER
        self.missed = self.dead = False


class Quorum:
    _number: int  # of this node
    _incarnation: int
    _interval: float
    _timeout: float
    _peers: dict[int, QuorumPeer]  # by ascending number
    _registered: dict[int, int]  # number -> incarnation
    _changes: list[ConnectionChange]
    changes: int  # grows with everything that a turn has to follow
    _beats: int
    _sent: dict[int, float]  # heartbeat number -> send time; only those that a connection may still depend on
    _sent_at: float
    _beat_at: float
    _ends_at: float
    _one_machine: bool

    def __init__(self, me: MemberInfo, interval: float, timeout: float, one_machine: bool = False) -> None:
        self._number = me.number
        self._incarnation = me.incarnation
        self._one_machine = one_machine
        self._interval = interval
        self._timeout = timeout
        self._peers = {}
        self._registered = {}
        self._changes = []
        self.changes = 0
        self._beats = 0
        self._sent = {}
        self._sent_at = NEVER
        self._beat_at = NEVER
        self._ends_at = inf  # the earliest time at which a result of the last check may expire

    # Inputs

    def begin_again(self, me: MemberInfo) -> None:
        """This node is a new incarnation: other nodes are connected to it only after they have confirmed that they hear
        it."""
        self._number = me.number
        self._incarnation = me.incarnation
        for peer in self._peers.values():
            self._lose(peer)
            peer.rests_on = NEVER
        self.hasten()

    def set_members(self, membership: Membership, joining: Iterable[MemberInfo], now: float) -> None:
        """The current members. A node in both sets counts as registered; a node in neither is not heard any more."""
        self._registered = {member.number: member.incarnation for member in membership.members}
        known = {member.number: member.incarnation for member in joining}
        known.update(self._registered)
        known.pop(self._number, None)
        for number in [number for number in self._peers if number not in known]:
            self._lose(self._peers.pop(number))
        for number, incarnation in known.items():
            peer = self._peers.get(number)
            if peer is None:
                self._peers[number] = QuorumPeer(number, incarnation)
            elif incarnation > peer.incarnation:
                self._begin(peer, incarnation)
        self._peers = {number: self._peers[number] for number in sorted(self._peers)}
        self.hasten()
        self.tick(now)

    def took(self, envelope: Envelope, now: float) -> bool:
        """A frame has arrived, for this node or to be relayed. Returns False for an unknown node and for an old
        incarnation."""
        peer = self._peers.get(envelope.source)
        if peer is None or envelope.incarnation < peer.incarnation:
            return False
        if peer.missed or peer.dead:
            self.changes += 1
        if envelope.incarnation > peer.incarnation:
            self._begin(peer, envelope.incarnation)
        elif peer.missed:
            peer.absent = False  # this node was misled
        if envelope.relayed and peer.dead and self._is_missed_by_all(peer):
            return True
        if envelope.relayed:
            peer.relayed_at = now
        else:
            peer.direct_at = now
        peer.missed = peer.dead = False
        body = envelope.body
        # Not isinstance, which asks the metaclass of structs: this is done for each frame.
        if type(body) is Heartbeat and envelope.target == self._number:
            self._note(peer, body, now)
        self._look(peer, now)
        return True

    def process_gone(self, number: int, incarnation: int, now: float) -> None:
        """The process of that incarnation has ended, as far as this node can tell."""
        peer = self._peers.get(number)
        if peer is not None and peer.incarnation == incarnation and not peer.missed:
            peer.missed = True
            peer.absent = self._one_machine
            self.hasten()
            self._look_at_missed(now)

    def _look_at_missed(self, now: float) -> None:
        for peer in self._peers.values():
            if peer.missed and not peer.dead and self._is_missed_by_all(peer):
                peer.dead = True
                peer.direct_at = peer.relayed_at = NEVER
                self._look(peer, now)

    def _is_missed_by_all(self, peer: QuorumPeer) -> bool:
        others = [each for each in self._others_connected(peer) if not each.missed]
        enough = self.counts() and len(others) >= self._needed()
        return enough and all(each.misses.get(peer.number) == peer.incarnation for each in others)

    def _others_connected(self, peer: QuorumPeer) -> list[QuorumPeer]:
        """The other registered nodes that are connected."""
        return [
            each
            for each in self._peers.values()
            if each is not peer and each.connected and each.number in self._registered
        ]

    def _note(self, peer: QuorumPeer, heartbeat: Heartbeat, now: float) -> None:
        if heartbeat.since != 0 or heartbeat.number <= peer.heartbeat:
            return
        if peer.heartbeat == 0:
            self.hasten()
        peer.heartbeat = heartbeat.number
        peer.hears = heartbeat.heard
        peer.hears_relayed = heartbeat.relayed
        peer.is_connected_to = heartbeat.connected
        peer.revision = heartbeat.membership.revision
        peer.heartbeat_at = now
        if heartbeat.gone != peer.misses:
            peer.misses = heartbeat.gone
            self._look_at_missed(now)
        peer.taken = heartbeat.taken.get(self._number, 0) if self._is_heard_by(peer) else 0
        sent_at = self._sent.get(heartbeat.taken.get(self._number, 0))
        if sent_at is not None and sent_at > peer.rests_on and self._is_heard_by(peer):
            peer.rests_on = sent_at

    def tick(self, now: float) -> None:
        """Checks which nodes were not heard in time."""
        if now < self._ends_at:
            return
        self._ends_at = inf
        for peer in self._peers.values():
            self._look(peer, now)
        self._look_at_missed(now)

    def beat(self, now: float) -> int:
        """The number of the heartbeat that has to be sent to all nodes now; 0: none is due."""
        if now < self._beat_at:
            return 0
        self._beats += 1
        self._sent = {number: sent for number, sent in self._sent.items() if now < sent + self._timeout}
        self._sent[self._beats] = now
        self._sent_at = now
        self._beat_at = now + self._interval
        return self._beats

    def wake_at(self) -> float:
        """The time of the next heartbeat or timeout."""
        when = self._beat_at
        for peer in self._peers.values():
            if peer.direct:
                when = min(when, peer.direct_at + self._timeout)
            if peer.relayed:
                when = min(when, peer.relayed_at + self._timeout)
            if peer.connected:
                when = min(when, peer.rests_on + self._timeout)
        return when

    def _look(self, peer: QuorumPeer, now: float) -> None:
        direct = now < peer.direct_at + self._timeout
        relayed = now < peer.relayed_at + self._timeout
        if direct != peer.direct or (relayed or direct) != (peer.relayed or peer.direct):
            self.hasten()
        peer.direct = direct
        peer.relayed = relayed
        if direct:
            self._ends_at = min(self._ends_at, peer.direct_at + self._timeout)
        if relayed:
            self._ends_at = min(self._ends_at, peer.relayed_at + self._timeout)
        lasts = now < peer.rests_on + self._timeout
        connected = (direct or relayed) and lasts and self._is_heard_by(peer)
        if connected:
            self._ends_at = min(self._ends_at, peer.rests_on + self._timeout)
        if connected != peer.connected:
            peer.connected = connected
            if connected and not peer.missed:
                peer.absent = False
            self._changes.append(ConnectionChange(peer.number, peer.incarnation, connected))
            self.hasten()

    def _is_heard_by(self, peer: QuorumPeer) -> bool:
        """Whether its last heartbeat said that it hears this incarnation of this node."""
        me = self._number
        return self._incarnation in (peer.hears.get(me, 0), peer.hears_relayed.get(me, 0))

    def _begin(self, peer: QuorumPeer, incarnation: int) -> None:
        self._lose(peer)
        peer.begin(incarnation)
        self.hasten()

    def _lose(self, peer: QuorumPeer) -> None:
        if peer.connected:
            peer.connected = False
            self._changes.append(ConnectionChange(peer.number, peer.incarnation, False))

    def hasten(self) -> None:
        """Sends the next heartbeat soon, because there is news for the other nodes."""
        self.changes += 1
        self._beat_at = min(self._beat_at, self._sent_at + self._interval / HASTE)

    def beat_now(self) -> None:
        """Sends the next heartbeat in this turn: a stream has opened, and those before it may not have got through."""
        self._beat_at = NEVER

    # Results

    def take_changes(self) -> list[ConnectionChange]:
        changes, self._changes = self._changes, []
        return changes

    def enough(self) -> bool:
        """Whether this node is registered and connected to N // 2 of the other N - 1 registered members; those that are
        absent are not among the N."""
        return self.counts() and self.supporters() >= self._needed()

    def _needed(self) -> int:
        """The number of other nodes that a node needs to serve."""
        absent = sum(1 for peer in self._peers.values() if peer.absent and peer.number in self._registered)
        return (len(self._registered) - absent) // 2

    def supporters(self) -> int:
        """The number of other registered nodes that count for the majority."""
        return sum(1 for peer in self._peers.values() if self._supports(peer))

    def _supports(self, peer: QuorumPeer) -> bool:
        """Whether the node counts for the majority."""
        return peer.connected and not peer.missed and peer.number in self._registered

    def counts(self) -> bool:
        """Whether this node is registered."""
        return self._registered.get(self._number) == self._incarnation

    def knows(self, number: int, revision: int) -> bool:
        """Whether ``number`` has confirmed that it knows the membership of that revision, or a newer one."""
        peer = self._peers.get(number)
        return peer is not None and peer.revision >= revision

    def lasts_until(self) -> float:
        """When ``enough`` becomes false if no further frame arrives."""
        needed = self._needed()
        if needed == 0:
            return inf
        ends = sorted([self._ends(peer) for peer in self._peers.values() if self._supports(peer)])
        return ends[-needed] if len(ends) >= needed else NEVER

    def _ends(self, peer: QuorumPeer) -> float:
        return min(max(peer.direct_at, peer.relayed_at), peer.rests_on) + self._timeout

    def connected(self) -> frozenset[int]:
        return frozenset([peer.number for peer in self._peers.values() if peer.connected])

    def nodes_with_membership(self, revision: int) -> frozenset[int]:
        """Connected nodes, registered or not, that know the membership of that revision or a newer one. While this node
        is joining, only those that report a connection to it: they have to reach it from the moment at which it is
        registered."""
        me = self._number
        joining = me not in self._registered
        return frozenset(
            [
                peer.number
                for peer in self._peers.values()
                if peer.connected and peer.revision >= revision and (not joining or me in peer.is_connected_to)
            ]
        )

    def is_connected(self, number: int) -> bool:
        peer = self._peers.get(number)
        return peer is not None and peer.connected

    def took_after(self, number: int, when: float) -> bool:
        """Whether ``number`` has confirmed a heartbeat that this node sent after ``when``."""
        peer = self._peers.get(number)
        return peer is not None and peer.rests_on > when

    def is_connected_to_others(self, number: int) -> bool:
        """Whether a connected node has reported that it is connected to ``number``, which may therefore be serving."""
        return not self.is_dead(number) and any(
            peer.connected and number in peer.is_connected_to for peer in self._peers.values()
        )

    def is_dead(self, number: int) -> bool:
        """Whether its process has ended: it will acknowledge nothing any more."""
        peer = self._peers.get(number)
        return peer is not None and peer.dead

    def is_heard_by_nobody(self, number: int, since: float) -> bool:
        """Whether neither this node nor any other connected node hears ``number``, each by a heartbeat that arrived
        after ``since``, and these nodes are enough to serve. Then ``number`` does not serve: it cannot have a quorum
        any more."""
        peer = self._peers.get(number)
        if peer is None or peer.dead:
            return peer is not None
        others = self._others_connected(peer)
        if peer.direct or peer.relayed or not self.counts() or len(others) < self._needed():
            return False
        return all(
            each.heartbeat_at > since and number not in each.hears and number not in each.hears_relayed
            for each in others
        )

    def hears(self, number: int) -> bool:
        peer = self._peers.get(number)
        return peer is not None and (peer.direct or peer.relayed)

    def heard_at(self, number: int) -> float | None:
        """When the last frame of that node arrived, direct or relayed; None: none of its current incarnation."""
        peer = self._peers.get(number)
        if peer is None:
            return None
        at = max(peer.direct_at, peer.relayed_at)
        return None if at == NEVER else at

    def heard_directly(self) -> dict[int, int]:
        """Number -> incarnation. This and the next two are content of this node's heartbeats."""
        return {peer.number: peer.incarnation for peer in self._peers.values() if peer.direct}

    def heard_relayed(self) -> dict[int, int]:
        return {peer.number: peer.incarnation for peer in self._peers.values() if peer.relayed and not peer.direct}

    def missed(self) -> dict[int, int]:
        return {peer.number: peer.incarnation for peer in self._peers.values() if peer.missed}

    def taken(self) -> dict[int, int]:
        return {peer.number: peer.heartbeat for peer in self._peers.values() if peer.heartbeat}

    def taken_by(self, number: int) -> int:
        """The number of the newest heartbeat of this incarnation that ``number`` has confirmed; 0: none."""
        peer = self._peers.get(number)
        return 0 if peer is None else peer.taken

    # For the relay

    def numbers(self) -> list[int]:
        """All other nodes, including joining ones, by ascending number."""
        return list(self._peers)

    def has_heard_us(self, number: int) -> bool:
        """Whether ``number``, in its current incarnation, has ever confirmed a heartbeat of this node."""
        peer = self._peers.get(number)
        return peer is not None and peer.rests_on != NEVER

    def reports_deaf(self, number: int) -> bool:
        """Whether ``number`` is heard, and its last heartbeat said that it does not hear this node directly."""
        peer = self._peers.get(number)
        return (
            peer is not None and peer.heartbeat > 0 and self.hears(number) and not self.reports_hearing_directly(number)
        )

    def reports_hearing_directly(self, number: int) -> bool:
        """Whether ``number`` is heard, and its last heartbeat said that it hears this node directly."""
        peer = self._peers.get(number)
        return peer is not None and self.hears(number) and peer.hears.get(self._number, 0) == self._incarnation

    def reports_hearing(self, number: int, other: int) -> bool:
        """Whether ``number`` is heard, and its last heartbeat said that it hears the current incarnation of ``other``
        directly."""
        peer = self._peers.get(number)
        third = self._peers.get(other)
        if peer is None or third is None or not self.hears(number):
            return False
        return peer.hears.get(other, 0) == third.incarnation

    def reports_connected(self, number: int, other: int) -> bool:
        peer = self._peers.get(number)
        return peer is not None and self.hears(number) and other in peer.is_connected_to
