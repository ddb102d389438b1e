"""Cut markers: the point in the messages of each node after which the new owner delivers them.

Every node is asked: only the node itself knows which message was its last before it knew the new routes. A node that
has sent nothing since has to say so, too. A marker for a later owner counts for all earlier ones.

1. The new owner asks each node for its cut marker (``Barrier``): at once if it knows the holders (see below), otherwise
   when that node has applied the routes of the inbound session. Until then the last answers may come.
2. The node, once it has applied those routes, puts the marker (``Mark``) into its message streams to the new owner and
   to the *holders*: the nodes that may have state of an earlier owner. So they and the new owner divide its messages at
   the same place.

Law: a node that takes messages for a session of an epoch below the new owner's is one of the holders that the
``Barrier`` names, or the ``Barrier`` names none, and the marker goes to all nodes. Why the new owner A knows them all:

- A node with state of the client's sessions has an owner key, or hands over what it has to a node with such state,
  which knows it (``Migrations.holders``). A claim after A's has a higher epoch, and is none of A's business.
- A's claim has returned the owner keys of all nodes. A has asked each of them, and each has named in its ``Head`` all
  that it knows to have state as well; ``Head.holders`` of a node that waits for such an answer itself is unknown.
- So A names the holders once all answers are here, of all its claims that are not complete. Otherwise it names none: if
  a source is late or has refused, if A was restarted (the answers are not stored), if a node has answered an earlier
  claim, if a key belongs to a former member, whose data directory may have joined again, or if this node hands over to
  itself because a target has left.
- A node that answers "passed on" keeps its owner key until its target has everything (``TakeoverTarget._release``): if
  the target leaves before, the session is at that node again, and later owners have to find it.

What could go wrong, and why it does not. A chain H -> B -> A, and node P publishes:

1. H still hands over to B, whose marker of P has not come, and tells A "passed on". H is no source of A any more, and
   still takes messages of P. It is a holder: A's claim found its key, or B has named it.
2. H gets P's marker for A before A's request. The marker is such a request (``_came_for``), as it always was.
3. A learns of a holder after it has asked P. This cannot be: holders are named only when no answer is missing, and a
   node that gets state later has claimed later, with a higher epoch than A's.
4. P is restarted, and A asks again. The holders are named again as they are known then.

The markers of one turn go in one message to each node. P waits with its own half of them until it has put them into all
streams, and nothing enters at P in between: so each marker is at the same place for all nodes, P included.

Where each holder hands the session over to A, the marker has its short name in place of the client id
(``short_names``): both know it, and a holder that has handed over everything needs no marker.
"""

from __future__ import annotations

from typing import Final

from starlingmq.cluster.takeover.inbound import UNVERSIONED, InboundSession
from starlingmq.cluster.takeover.inbound_delivery import InboundDelivery
from starlingmq.cluster.takeover.migrations import Migrations
from starlingmq.cluster.takeover.orphaned_sessions import OrphanedSessions
from starlingmq.cluster.takeover.short_names import pack_names, short, unpack_names
from starlingmq.cluster.takeover.takeover_source import TakeoverSource
from starlingmq.cluster.takeover.transfer_frames import Barrier, Mark, ShortBarrier, ShortMark, Takeover
from starlingmq.core.session.migration_state import MigrationState

UNPACKED_MAX: Final = 16  # messages whose names are kept: as many nodes move sessions to or from this one at a time


class CutMarkers:
    # node -> inbound sessions that want its marker, by ascending version
    _unasked: dict[int, dict[InboundSession, None]]
    _asked: dict[int, dict[InboundSession, None]]  # node -> inbound sessions that have asked for its marker
    _fresh: dict[InboundSession, None]  # inbound sessions without a version yet
    _recipients: dict[InboundSession, tuple[tuple[int, ...] | None, bool]]  # in this turn
    _later: dict[int, list[Barrier | ShortBarrier]]  # node -> its requests that wait until this node has its routes
    _due: list[tuple[list[int], Mark | ShortMark]]  # this turn's markers, and the nodes that they go to
    _unpacked: dict[bytes, list[tuple[int, int]]]  # the names that came last: all nodes send the same ones

    def __init__(
        self, migrations: Migrations, delivery: InboundDelivery, source: TakeoverSource, orphaned: OrphanedSessions
    ) -> None:
        self._migrations = migrations
        self._orphaned = orphaned
        self._delivery = delivery
        self._source = source
        self._unasked = {}
        self._asked = {}
        self._fresh = {}
        self._later = {}
        self._due = []
        self._unpacked = {}
        self._recipients = {}

    # Asking

    def want(self, inbound: InboundSession) -> None:
        """Requests the cut markers of all nodes, if they matter to this inbound session."""
        if inbound.version == UNVERSIONED and inbound.needs_marks():
            self._fresh[inbound] = None

    def ask(self, version: int, route_epoch: int, gathering: bool) -> None:
        """This node's routes have this version now: asks for the markers of the inbound sessions whose routes are among
        them. ``gathering``: filters that have moved here wait for more of them, so sessions without a version wait."""
        if self._fresh and not gathering:
            self._ask_fresh(version, route_epoch)
        for node, wanted in self._unasked.items():
            if wanted and self._migrations.connected(node):
                self._ask_node(node, wanted, version, route_epoch)
        self._recipients.clear()
        for node in list(self._later):
            self._put_late(node)
        self._send()

    def _ask_fresh(self, version: int, route_epoch: int) -> None:
        """Asks at once for the markers of inbound sessions whose holders are known."""
        migrations = self._migrations
        fresh, self._fresh = self._fresh, {}
        ready: dict[int, list[InboundSession]] = {}
        for inbound in fresh:
            if inbound.finished or not inbound.needs_marks():  # it was reset since, and wants them later again
                continue
            inbound.version = version
            is_ready = self._recipients_of(inbound)[0] is not None
            for node in migrations.members:
                if is_ready and node not in inbound.marks and migrations.connected(node):
                    ready.setdefault(node, []).append(inbound)
                else:
                    self._want_of(node, inbound)
        together: dict[tuple[InboundSession, ...], list[int]] = {}  # the nodes whose markers the same sessions want
        for node, inbound_sessions in ready.items():
            together.setdefault(tuple(inbound_sessions), []).append(node)
        for wanting, nodes in together.items():
            self._request(nodes, list(wanting), route_epoch)

    def _want_of(self, node: int, inbound: InboundSession) -> None:
        if node not in inbound.marks:
            self._unasked.setdefault(node, {})[inbound] = None

    def _ask_node(self, node: int, wanted: dict[InboundSession, None], version: int, route_epoch: int) -> None:
        own = node == self._migrations.me
        applied = version if own else self._migrations.ports.applied(node)
        ready: list[InboundSession] = []
        for inbound in wanted:
            if inbound.version > applied:
                break
            ready.append(inbound)
        for inbound in ready:
            del wanted[inbound]
        if ready:
            self._request([node], ready, route_epoch)
        if wanted:
            self._migrations.ports.confirm(next(reversed(wanted)).version)

    def _request(self, nodes: list[int], ready: list[InboundSession], route_epoch: int) -> None:
        migrations = self._migrations
        for node in nodes:
            self._asked.setdefault(node, {}).update(dict.fromkeys(ready))
        others = [node for node in nodes if node != migrations.me]
        for barrier in self._barriers(ready, route_epoch):
            migrations.send_to_all(others, barrier)
            if len(others) != len(nodes):
                self.put(migrations.me, barrier)

    def _barriers(self, ready: list[InboundSession], route_epoch: int) -> list[Barrier | ShortBarrier]:
        """The requests for the markers of these sessions: one for all that the same nodes hold."""
        barriers: dict[tuple[int, ...] | None, Barrier] = {}
        by_name: dict[tuple[int, ...], tuple[list[tuple[int, int]], list[int]]] = {}  # names and versions
        for inbound in ready:
            holders, is_known = self._recipients_of(inbound)
            if holders is not None and is_known:
                names, versions = by_name.setdefault(holders, ([], []))
                names.append((inbound.epoch, short(inbound.client_id)))
                versions.append(inbound.version)
                continue
            barrier = barriers.get(holders)
            if barrier is None:
                named = None if holders is None else list(holders)
                barrier = barriers[holders] = Barrier(route_epoch, 0, [], [], {}, named)
            barrier.version = max(barrier.version, inbound.version)
            barrier.entries.append((inbound.client_id, inbound.epoch))
            if inbound.discarded:
                barrier.clean.append(inbound.client_id)
            if inbound.user is not None:
                barrier.users[inbound.client_id] = inbound.user
        found: list[Barrier | ShortBarrier] = list(barriers.values())
        for holders, (names, versions) in by_name.items():
            found.append(ShortBarrier(route_epoch, max(versions), list(holders), pack_names(names)))
        return found

    def _recipients_of(self, inbound: InboundSession) -> tuple[tuple[int, ...] | None, bool]:
        """The other nodes that need its markers (None: all), and whether all of them know its short name."""
        found = self._recipients.get(inbound)
        if found is None:
            holders = self._holders(inbound)
            found = holders, holders is not None and self._is_known_to(inbound, holders)
            self._recipients[inbound] = found
        return found

    def _is_known_to(self, inbound: InboundSession, holders: tuple[int, ...]) -> bool:
        """Whether all these nodes hand the session over to this one, so that they know its short name."""
        migrations = self._migrations
        if inbound.discarded or len(migrations.inbound_sessions[inbound.client_id]) != 1:
            return False
        streaming = inbound.streaming()
        return all(node in streaming for node in holders) and migrations.inbound_names.is_one(
            inbound.client_id, inbound.epoch
        )

    def _holders(self, inbound: InboundSession) -> tuple[int, ...] | None:
        """The other nodes that need the markers; None: all."""
        migrations = self._migrations
        holders = migrations.holders(inbound.client_id)
        if holders is None:
            return None
        return tuple(sorted([node for node in holders if node in migrations.members]))

    # Putting

    def put(self, node: int, barrier: Barrier | ShortBarrier) -> None:
        """Puts this node's marker for the clients of ``node`` into its messages, once it has the routes of ``node``."""
        migrations = self._migrations
        if node != migrations.me and migrations.ports.known(node) < (barrier.route_epoch, barrier.version):
            self._later.setdefault(node, []).append(barrier)
            return
        mark: Mark | ShortMark
        if isinstance(barrier, ShortBarrier):
            mark = ShortMark(node, barrier.names)
        else:
            mark = Mark(node, barrier.entries, barrier.clean, barrier.users)
        targets = migrations.members if barrier.holders is None else dict.fromkeys([node, *barrier.holders])
        self._due.append(([target for target in targets if target != migrations.me], mark))

    def _send(self) -> None:
        """Puts the markers of this turn into this node's messages, in one message to each node: at the same place for
        all nodes, this one included."""
        migrations = self._migrations
        while self._due:
            due, self._due = self._due, []
            for targets, mark in due:
                migrations.send_to_all(targets, mark)
            for target in {target: None for targets, _ in due for target in targets}:
                migrations.flush(target)
            for _, mark in due:
                self.came(migrations.me, mark)

    def _put_late(self, node: int) -> None:
        known = self._migrations.ports.known(node)
        first = self._later[node][0]
        if known < (first.route_epoch, first.version):
            return
        waiting = self._later.pop(node)
        for barrier in waiting:
            if known >= (barrier.route_epoch, barrier.version):
                self.put(node, barrier)
            else:
                self._later.setdefault(node, []).append(barrier)

    # A mark is here

    def came(self, node: int, frame: Mark | ShortMark) -> None:
        migrations = self._migrations
        if isinstance(frame, ShortMark):
            frame = Mark(frame.owner, self._entries(frame))
        for client_id, epoch in frame.entries:
            if frame.owner != migrations.me:
                self._came_for(node, client_id, epoch, frame)
            deferred = migrations.deferred.get(client_id)
            if deferred is not None and deferred[1].epoch <= epoch:
                migrations.mark_early((client_id, deferred[1].epoch), node)
            for outbound in migrations.outbound_of.get(client_id, ()):
                if outbound.is_earlier(epoch):
                    migrations.mark(outbound, node, epoch > outbound.epoch and frame.owner != outbound.target)
            for inbound in migrations.of(client_id):
                if inbound.later.get(node, inbound.epoch) < epoch:
                    self._delivery.overtaken(inbound, node, epoch)
                if inbound.epoch <= epoch:
                    self._marked(inbound, node)

    def _entries(self, frame: ShortMark) -> list[tuple[str, int]]:
        """Those of the named sessions that are on their way to or from this node."""
        migrations, found = self._migrations, []
        names = self._unpacked.get(frame.names)
        if names is None:
            if len(self._unpacked) >= UNPACKED_MAX:
                self._unpacked.clear()
            names = self._unpacked[frame.names] = unpack_names(frame.names)
        for epoch, name in names:
            if frame.owner == migrations.me:
                client_id = migrations.inbound_names.find(epoch, name)
            else:
                client_id = migrations.outbound_names.find(frame.owner, epoch, name)
            if client_id is not None:
                found.append((client_id, epoch))
        return found

    def _marked(self, inbound: InboundSession, node: int) -> None:
        for wanting in (self._unasked, self._asked):
            found = wanting.get(node)
            if found is not None:
                found.pop(inbound, None)
        if node in inbound.marks:
            return  # it was requested again for other inbound sessions
        inbound.marks[node] = None
        self._migrations.changed(inbound)
        self._delivery.deliver_of(inbound.session, node)

    def _came_for(self, node: int, client_id: str, epoch: int, mark: Mark) -> None:
        """Another node owns the client id; its own request for the session may still be on its way."""
        migrations, owner = self._migrations, mark.owner
        sessions = migrations.ctx.sessions
        session = sessions.get(client_id)
        if migrations.ownership.claiming(client_id):  # if this node's claim turns out to be older, it is void
            migrations.overtaken[client_id] = max(epoch, migrations.overtaken.get(client_id, 0))
        if session is None or session.epoch >= epoch or owner not in migrations.members:
            return
        if client_id in self._orphaned:
            return  # that owner has no owner key of this node, and will not ask
        # otherwise this node has claimed it back: that owner was told, and has finished
        user = mark.users.get(client_id)
        if not migrations.ownership.claiming_anyway(client_id):
            self._source.asked(owner, Takeover(client_id, epoch, client_id in mark.clean, False, user))
        session = sessions.get(client_id)
        if session is not None and self._source.stays(session, user):
            return
        if session is not None and session.epoch < epoch:  # the session has to stay here until it is complete
            if session.moving is None:
                session.moving = MigrationState(client_id)
            session.moving.marked[node] = None

    # Nodes come and go

    def finished(self, inbound: InboundSession) -> None:
        self._fresh.pop(inbound, None)
        for wanting in (self._unasked, self._asked):
            for found in wanting.values():
                found.pop(inbound, None)

    def node_restarted(self, node: int) -> None:
        """A restarted node may not know this node's requests, so they are repeated; it repeats its own. Markers that it
        had already sent are requested again too: a node without storage loses markers that had not reached the former
        owners."""
        self._later.pop(node, None)
        self._asked.pop(node, None)
        wanting = [inbound for inbound in self._migrations.all_inbound() if inbound.version >= 0]
        self._unasked[node] = dict.fromkeys(sorted(wanting, key=_version))

    def member_came(self, node: int) -> None:
        for inbound in self._migrations.all_inbound():
            if inbound.version >= 0:
                self._want_of(node, inbound)

    def member_gone(self, node: int) -> None:
        self._unasked.pop(node, None)
        self._asked.pop(node, None)
        self._later.pop(node, None)


def _version(inbound: InboundSession) -> int:
    return inbound.version
