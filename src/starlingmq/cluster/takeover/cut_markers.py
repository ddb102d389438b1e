"""Cut markers: the point in the messages of each node after which the new owner delivers them (docs/SESSIONS.md).

1. The new owner asks each node for its cut marker (``Barrier``), once that node has applied the routes of the inbound
   session.
2. The node puts the marker (``Mark``) into its message stream to every node, so that the former owners and the new
   owner divide its messages at the same place.
"""

from __future__ import annotations

from starlingmq.cluster.takeover.inbound import UNVERSIONED, InboundSession
from starlingmq.cluster.takeover.inbound_delivery import InboundDelivery
from starlingmq.cluster.takeover.migrations import Migrations
from starlingmq.cluster.takeover.orphaned_sessions import OrphanedSessions
from starlingmq.cluster.takeover.takeover_source import TakeoverSource
from starlingmq.cluster.takeover.transfer_frames import Barrier, Mark, Takeover
from starlingmq.core.session.migration_state import MigrationState


class CutMarkers:
    # node -> inbound sessions that want its marker, by ascending version
    _unasked: dict[int, dict[InboundSession, None]]
    _asked: dict[int, dict[InboundSession, None]]  # node -> inbound sessions that have asked for its marker
    _fresh: dict[InboundSession, None]  # inbound sessions without a version yet
    _later: dict[int, list[Barrier]]  # node -> its requests that wait until this node has its routes

    def __init__(
        self, moves: Migrations, delivery: InboundDelivery, leaving: TakeoverSource, strays: OrphanedSessions
    ) -> None:
        self._moves = moves
        self._strays = strays
        self._delivery = delivery
        self._leaving = leaving
        self._unasked = {}
        self._asked = {}
        self._fresh = {}
        self._later = {}

    # Asking

    def want(self, arrival: InboundSession) -> None:
        """Requests the cut markers of all nodes, if they matter to this inbound session."""
        if arrival.version == UNVERSIONED and arrival.needs_marks():
            self._fresh[arrival] = None

    def ask(self, version: int, route_epoch: int) -> None:
        """This node's routes have this version now, and include those of the inbound sessions: asks for the markers."""
        if self._fresh:
            fresh, self._fresh = self._fresh, {}
            for arrival in fresh:
                if not arrival.finished:
                    arrival.version = version
                    for node in self._moves.members:
                        self._want_of(node, arrival)
        for node, wanted in self._unasked.items():
            if wanted and self._moves.connected(node):
                self._ask_node(node, wanted, version, route_epoch)
        for node in list(self._later):
            self._put_late(node)

    def _want_of(self, node: int, arrival: InboundSession) -> None:
        if node not in arrival.marks:
            self._unasked.setdefault(node, {})[arrival] = None

    def _ask_node(self, node: int, wanted: dict[InboundSession, None], version: int, route_epoch: int) -> None:
        own = node == self._moves.me
        applied = version if own else self._moves.ports.applied(node)
        ready: list[InboundSession] = []
        for arrival in wanted:
            if arrival.version > applied:
                break
            ready.append(arrival)
        if not ready:
            return
        asked = self._asked.setdefault(node, {})
        highest = 0
        entries: list[tuple[str, int]] = []
        clean: list[str] = []
        users: dict[str, str] = {}
        for arrival in ready:
            del wanted[arrival]
            asked[arrival] = None
            highest = max(highest, arrival.version)
            entries.append((arrival.client_id, arrival.epoch))
            if arrival.discarded:
                clean.append(arrival.client_id)
            if arrival.user is not None:
                users[arrival.client_id] = arrival.user
        barrier = Barrier(route_epoch, highest, entries, clean, users)
        if own:
            self.put(node, barrier)
        else:
            self._moves.say(node, barrier)

    # Putting

    def put(self, node: int, barrier: Barrier) -> None:
        """Puts this node's marker for the clients of ``node`` into its messages, once it has the routes of ``node``."""
        moves = self._moves
        if node != moves.me and moves.ports.known(node) < (barrier.route_epoch, barrier.version):
            self._later.setdefault(node, []).append(barrier)
            return
        mark = Mark(node, barrier.entries, barrier.clean, barrier.users)
        for target in moves.members:  # nodes with state of an earlier owner need the marker too
            if target != moves.me:
                moves.say_at_once(target, mark)
        self.came(moves.me, mark)

    def _put_late(self, node: int) -> None:
        known = self._moves.ports.known(node)
        waiting = self._later.pop(node)
        for barrier in waiting:
            if known >= (barrier.route_epoch, barrier.version):
                self.put(node, barrier)
            else:
                self._later.setdefault(node, []).append(barrier)

    # A mark is here

    def came(self, node: int, said: Mark) -> None:
        moves = self._moves
        for client_id, epoch in said.entries:
            if said.owner != moves.me:
                asked = Takeover(client_id, epoch, client_id in said.clean, False, said.users.get(client_id))
                self._came_for(node, said.owner, asked)
            deferred = moves.deferred.get(client_id)
            if deferred is not None and deferred[1].epoch <= epoch:
                moves.mark_early((client_id, deferred[1].epoch), node)
            for departure in moves.departing.get(client_id, ()):
                if departure.is_earlier(epoch):
                    moves.mark(departure, node, epoch > departure.epoch and said.owner != departure.target)
            for arrival in moves.of(client_id):
                if arrival.later.get(node, arrival.epoch) < epoch:
                    self._delivery.overtaken(arrival, node, epoch)
                if arrival.epoch <= epoch:
                    self._marked(arrival, node)

    def _marked(self, arrival: InboundSession, node: int) -> None:
        for wanting in (self._unasked, self._asked):
            found = wanting.get(node)
            if found is not None:
                found.pop(arrival, None)
        if node in arrival.marks:
            return  # it was requested again for other inbound sessions
        arrival.marks[node] = None
        self._moves.changed(arrival)
        self._delivery.deliver(arrival.session)

    def _came_for(self, node: int, owner: int, asked: Takeover) -> None:
        """Another node owns the client id; its own request for the session may still be on its way."""
        moves = self._moves
        client_id, epoch = asked.client_id, asked.epoch
        sessions = moves.ctx.sessions
        session = sessions.get(client_id)
        if moves.ownership.claiming(client_id):  # if this node's claim turns out to be older, it is void
            moves.overtaken[client_id] = max(epoch, moves.overtaken.get(client_id, 0))
        if session is None or session.epoch >= epoch or owner not in moves.members:
            return
        if client_id in self._strays:
            return  # that owner has no owner key of this node, and will not ask
        # otherwise this node has claimed it back: that owner was told, and has finished
        if not moves.ownership.claiming_anyway(client_id):
            self._leaving.asked(owner, asked)
        session = sessions.get(client_id)
        if session is not None and self._leaving.stays(session, asked.user):
            return
        if session is not None and session.epoch < epoch:  # the session has to stay here until it is complete
            if session.moving is None:
                session.moving = MigrationState(client_id)
            session.moving.marked[node] = None

    # Nodes come and go

    def finished(self, arrival: InboundSession) -> None:
        self._fresh.pop(arrival, None)
        for wanting in (self._unasked, self._asked):
            for found in wanting.values():
                found.pop(arrival, None)

    def reborn(self, node: int) -> None:
        """A restarted node may not know this node's requests, so they are repeated; it repeats its own. Markers that it
        had already sent are requested again too: a node without storage loses markers that had not reached the former
        owners."""
        self._later.pop(node, None)
        self._asked.pop(node, None)
        wanting = [arrival for arrival in self._moves.all_arrivals() if arrival.version >= 0]
        self._unasked[node] = dict.fromkeys(sorted(wanting, key=_version))

    def member_came(self, node: int) -> None:
        for arrival in self._moves.all_arrivals():
            if arrival.version >= 0:
                self._want_of(node, arrival)

    def member_gone(self, node: int) -> None:
        self._unasked.pop(node, None)
        self._asked.pop(node, None)
        self._later.pop(node, None)


def _version(arrival: InboundSession) -> int:
    return arrival.version
