"""The global route table, replicated without a leader: this node's routes are sent to all nodes, and the routes of all
other nodes are kept here.

``own_routes`` publishes and answers, ``peer_routes`` receives, ``route_facts`` stores. This module decides which node
to ask, and when. The caller

- passes only frames of the source's current incarnation, and of nodes that are members (or joining);
- in each turn takes the changes and passes them to the router, then takes the frames to send, then the facts, which go
  into the turn's commit in their order. No frame has to wait for the commit. While ``pending``, the next turn has more
  work: each call takes a few milliseconds at most;
- reports members as they come, and those that left or were forgotten; after a start also those in ``nodes()`` that are
  no longer members.

A peer's routes are applied once the router has them, so ``vector`` and RouteApplied report only changes that were
taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from starlingmq.cluster.links.control_frames import Heartbeat, RouteSnapshot, SyncRequest
from starlingmq.cluster.links.peer_frames import Body, RouteApplied, RouteRecords
from starlingmq.cluster.routes.own_routes import OwnRoutes
from starlingmq.cluster.routes.peer_routes import NEVER, PeerRoutes
from starlingmq.cluster.routes.proxied_routes import ProxiedRoutes
from starlingmq.cluster.routes.route_facts import (
    UNKNOWN,
    Change,
    Fact,
    FactError,
    RecoveredRoutes,
    State,
    in_history,
    read_facts,
)

TURN_RECORDS: Final = 1024  # taken or applied in one call
PEER_RECORDS: Final = 1024  # of one peer before the next peer's turn
ASK_AGAIN: Final = 1.0  # seconds without an answer, or without its next part
BORROW_AFTER: Final = 1.5  # seconds without news of a node of which others know more, until those are asked
PATIENCE: Final = 0.25  # seconds without a question while this node is behind and making progress


class RouteTable:
    def __init__(self, me: int, incarnation: int, facts: dict[bytes, bytes], log_length: int) -> None:
        self.me = me
        self._facts: list[Fact] = []
        try:
            found = read_facts(facts, me, incarnation)
        except FactError:
            found = RecoveredRoutes()
            self._facts += [(key, None) for key in sorted(facts)]
        self._facts += found.repaired
        self._own = OwnRoutes(me, incarnation, found, log_length, self._facts)
        self._peers: dict[int, PeerRoutes] = {}
        self._busy: dict[int, PeerRoutes] = {}  # nodes with work for take_changes, in turn
        for number in sorted(found.vector):
            peer = self._peers[number] = PeerRoutes(number, found.tables[number], found.vector[number])
            self._busy[number] = peer
        self._members: set[int] = set()  # all other nodes, including joining ones
        self._gone: set[int] = set()  # no longer members
        self._asks: dict[int, PeerRoutes] = {}
        self._owed: dict[int, PeerRoutes] = {}  # RouteApplied
        self._borrows: dict[PeerRoutes, int] = {}  # owner of the routes -> the node to ask for them
        self._proxied = ProxiedRoutes()
        self._now = 0.0

    @property
    def epoch(self) -> int:
        return self._own.epoch

    @property
    def version(self) -> int:
        return self._own.version

    def restart(self, current: dict[bytes, int]) -> None:
        """Once, after recovery: the current own routes. Takes time in proportion to all own routes."""
        self._own.restart(current)

    def originate(self, records: list[tuple[bytes, int]]) -> int:
        """Own routes that have changed. Returns the own version; ``applied_by`` tells when it is in effect."""
        return self._own.originate(records)

    def confirm(self, version: int) -> None:
        """Something here waits for ``applied_by`` to reach this version."""
        if self.applied_by(self._members) < version:
            self._own.confirm(version)

    def nodes(self) -> list[int]:
        """The nodes whose routes are kept."""
        return list(self._peers)

    def table(self, number: int) -> Mapping[bytes, int]:
        """The routes of a node (or of this one), as far as they are here. Read only."""
        if number == self.me:
            return self._own.table
        peer = self._peers.get(number)
        return {} if peer is None else peer.table

    def vector(self) -> dict[int, State]:
        """node -> state of its routes that is applied here, including this node."""
        vector = {self.me: self._own.state()}
        for number, peer in self._peers.items():
            if peer.state != UNKNOWN and peer.loaded():
                vector[number] = peer.state
        return vector

    def state_of(self, number: int) -> State:
        """The same for one node; UNKNOWN: nothing of it is applied here."""
        if number == self.me:
            return self._own.state()
        peer = self._peers.get(number)
        return peer.state if peer is not None and peer.loaded() else UNKNOWN

    def applied_by(self, nodes: Iterable[int]) -> int:
        """The own version that all of these nodes have applied; the current own version for no nodes."""
        lowest = self._own.version
        for number in nodes:
            peer = self._peers.get(number)
            if number == self.me:
                continue
            if peer is None or not self._counts(peer.applied):
                return 0
            lowest = min(lowest, peer.applied[1])
        return lowest

    def _counts(self, state: State) -> bool:
        own = self._own
        return state[0] == own.epoch or in_history(own.history, state)

    def caught_up(self, source: int) -> bool:
        """Whether everything that its last heartbeat named is in effect here; False before the first heartbeat. That
        includes its own routes and the routes of other members that it has: while this node was away, a third node may
        have sent a SUBACK once all nodes that it reached had the route. Now this node may reach those nodes and not the
        third one."""
        peer = self._peers.get(source)
        if peer is None or peer.named == UNKNOWN or not peer.loaded() or peer.state < peer.named:
            return False
        vector = peer.vector
        return all(self._has(third, vector[third]) for third in self._members if third != source and third in vector)

    def _has(self, number: int, state: State) -> bool:
        peer = self._peers.get(number)
        return peer is not None and peer.loaded() and peer.state >= state

    def received(self, source: int, body: Body, now: float) -> None:
        """Handles a frame about routes; ignores others."""
        if source in self._gone or source == self.me:
            return
        self._now = now
        number = source
        if isinstance(body, (RouteRecords, RouteApplied)):
            pass  # first: they come with each client
        elif isinstance(body, SyncRequest):
            self._asked(source, body)
            return
        elif isinstance(body, RouteSnapshot):
            number = body.of or source
        if number == self.me or number in self._gone:
            return
        peer = self._peer(number)
        if isinstance(body, RouteRecords):
            peer.received_records(body)
            if peer.to_confirm != UNKNOWN and not peer.busy():
                self._owed[number] = peer  # it is here already
        elif isinstance(body, RouteApplied):
            peer.applied = max(peer.applied, (body.epoch, body.version))
        elif isinstance(body, RouteSnapshot) and peer.received_piece(body, body.of and source):
            peer.moved_at = now
            peer.lacking_since = NEVER
        if peer.busy():
            self._busy[number] = peer

    def _asked(self, source: int, body: SyncRequest) -> None:
        held = (body.epoch, body.version)
        if body.of in (0, self.me):
            self._own.asked(source, held)
        elif body.of in self._peers:
            self._proxied.asked(source, self._peers[body.of], held)

    def heartbeat(self, source: int, heartbeat: Heartbeat, now: float) -> None:
        if source in self._gone or source == self.me:
            return
        self._now = now
        peer = self._peer(source)
        if heartbeat.epoch < peer.incarnation:
            return
        applied = heartbeat.vector.get(self.me, UNKNOWN)
        # the node may have lost what it had applied: its current statement counts
        if heartbeat.epoch > peer.incarnation:
            peer.incarnation = heartbeat.epoch
            peer.applied = applied
            peer.asked = False
            peer.moved_at = NEVER  # nothing that it sent before is still on its way
        peer.applied = max(peer.applied, applied)
        peer.named = max(peer.named, (heartbeat.epoch, heartbeat.version))
        peer.newest_known = max(peer.newest_known, peer.named)
        peer.vector = heartbeat.vector
        if now - peer.moved_at >= (ASK_AGAIN if peer.asked else PATIENCE):
            self._ask(peer)
        self._borrow(source, heartbeat.vector)

    def connected(self, number: int, now: float) -> None:
        """The ways to that node and back work. Before, a question or its answer may have been lost."""
        peer = self._peers.get(number)
        if peer is not None and peer.asked:
            self._now = now
            self._ask(peer)

    def _borrow(self, lender: int, vector: Mapping[int, State]) -> None:
        """Asks for newer routes of third nodes if those have not sent them themselves for a while."""
        now = self._now
        for number, state in vector.items():
            if number not in self._members or number == lender or self._has(number, state):
                continue
            peer = self._peer(number)
            if peer.busy():
                continue
            if peer.lacking_since == NEVER:
                peer.lacking_since = now
            elif now - max(peer.lacking_since, peer.borrowed_at) >= BORROW_AFTER:
                peer.borrowed_at = now
                self._borrows[peer] = lender

    def _peer(self, source: int) -> PeerRoutes:
        peer = self._peers.get(source)
        if peer is None:
            peer = self._peers[source] = PeerRoutes(source, {}, UNKNOWN)
        return peer

    def _ask(self, peer: PeerRoutes) -> None:
        if peer.state < peer.newest_known and not peer.busy():
            peer.asked = True
            peer.moved_at = self._now
            self._asks[peer.number] = peer

    def member(self, number: int) -> None:
        """Another node is a member, or is joining. A joining node may return after its lease had expired."""
        self._gone.discard(number)
        self._members.add(number)

    def unknown_at(self, number: int) -> None:
        """That node may have forgotten which of these routes it had applied: its next statement counts."""
        peer = self._peers.get(number)
        if peer is not None:
            peer.applied = UNKNOWN

    def member_gone(self, number: int) -> None:
        """The node has left or was forgotten: its routes are removed, and its further frames are ignored."""
        self._gone.add(number)
        self._members.discard(number)
        self._own.member_gone(number)
        self._proxied.member_gone(number)
        self._asks.pop(number, None)
        self._owed.pop(number, None)
        peer = self._peers.pop(number, None)
        if peer is not None:
            peer.dismiss(self._facts)
            self._busy[number] = peer

    def pending(self) -> bool:
        """Whether the next turn has work that does not wait for anything."""
        return (
            bool(self._busy or self._asks or self._owed or self._borrows)
            or self._own.pending()
            or self._proxied.pending()
        )

    def take_changes(self) -> list[Change]:
        """Applies some of the received routes. Returns the changes, including the stored routes after a start."""
        changes: list[Change] = []
        left = TURN_RECORDS
        while self._busy and left > 0:
            number = next(iter(self._busy))
            peer = self._busy.pop(number)
            left -= peer.step(PEER_RECORDS, changes, self._facts)
            if peer.busy():
                self._busy[number] = peer  # behind the others
            if number not in self._gone:
                self._look_at(peer)
        return changes

    def _look_at(self, peer: PeerRoutes) -> None:
        if peer.changed:
            peer.changed = False
            peer.moved_at = self._now
            peer.lacking_since = NEVER
            if peer.to_confirm != UNKNOWN:
                self._owed[peer.number] = peer
            if peer.state >= peer.newest_known:
                peer.asked = False
        if peer.gap and not peer.busy():
            peer.gap = False
            if not peer.asked:
                self._ask(peer)

    def take_out(self) -> list[tuple[int | None, Body]]:
        """Frames to send, and their targets (None: all members); more in the next turn while ``pending``."""
        out: list[tuple[int | None, Body]] = []
        for number, peer in self._owed.items():
            out.append((number, RouteApplied(peer.state[0], peer.state[1])))
            if peer.state >= peer.to_confirm:
                peer.to_confirm = UNKNOWN
        for number, peer in self._asks.items():
            out.append((number, SyncRequest(peer.state[0], peer.state[1])))
        for peer, lender in self._borrows.items():
            if lender not in self._gone and peer.number not in self._gone:
                out.append((lender, SyncRequest(peer.state[0], peer.state[1], peer.number)))
        self._owed.clear()
        self._asks.clear()
        self._borrows.clear()
        self._own.take_out(TURN_RECORDS, out)
        self._proxied.take_out(TURN_RECORDS, out)
        return out

    def take_facts(self) -> list[Fact]:
        """Facts to store, in order: a value, or None to delete the key."""
        facts = self._facts[:]
        self._facts.clear()  # the parts share this list
        return facts
