"""This node's part in the copies of all origins: reads the records, finds its role for each, and proposes changes.

The shell gives events (``answered``, ``opened``, ``attached``, ...), calls ``turn``, and carries out ``take_orders``
before the next one. A follower is proposed in a later turn than the one that requires it, so it is required before etcd
can list it.

The law: nothing is served and nothing is stored for an origin before its record has been read and has this
incarnation of the node. A node whose disk is not the one that the record means (another disk, or an earlier state of
it) removes itself from the nodes in step. If no other node is in step, it serves nothing and deletes nothing: it waits
for an operator (``give_up``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from starlingmq.cluster.copies.copy_record import CopyRecord, new_record, record_value
from starlingmq.cluster.copies.copy_registry import CopyRegistry, StoringNode, node_value
from starlingmq.cluster.copies.copy_server import CopyServer, CopySettings
from starlingmq.cluster.copies.follower_choice import copies_per_node
from starlingmq.cluster.copies.role_table import ROLE_TABLE, Role, RoleAction, RoleEvent
from starlingmq.cluster.copies.successors import Choose, other_server, successor
from starlingmq.cluster.etcd.etcd_cas import CasUpdate, EtcdCas
from starlingmq.cluster.etcd.etcd_requests import (
    Answer,
    EtcdState,
    Get,
    LeaseLost,
    Put,
    Request,
    Txn,
    TxnAnswer,
    Watch,
    WatchEvent,
    WatchLost,
)

TICK: Final = 0.25  # seconds between two looks at followers
RETRY_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class OpenCopy:
    """Stop storing for the origin, open its data, and call ``opened``."""

    origin: str
    generation: int


@dataclass(frozen=True, slots=True)
class CloseCopy:
    """Stop serving the origin at once: another node may serve it."""

    origin: str


@dataclass(frozen=True, slots=True)
class Require:
    """From now on, acknowledge a change of the origin once these nodes have stored it, and send it to ``followers``
    and to no others.
    ``refusal``: why new changes are refused; ``serving``: whether clients are served."""

    origin: str
    nodes: tuple[str, ...]
    followers: tuple[str, ...]
    refusal: str
    serving: bool


@dataclass(frozen=True, slots=True)
class SetAside:
    """This node was forgotten: move its data out of the way, and call ``began_blank``."""


Order = OpenCopy | CloseCopy | Require | SetAside


class Presence:
    """Which processes are there, as long as this node is a member of the cluster. ``is_gone``: its lease has expired
    and it is not heard, or all agree that it is not heard; ``is_heard``: it is connected; ``is_leading``: this node is
    the leader of the cluster. ``now``: the time of the present turn."""

    def __init__(self) -> None:
        self.now = 0.0
        self.is_gone: Callable[[str], bool] = lambda name: False
        self.is_heard: Callable[[str], bool] = lambda name: False
        self.is_leading: Callable[[], bool] = lambda: False

    def begin_turn(self, now: float) -> None:
        self.now = now


class CopyRoles:
    """``me``: this process; ``incarnations``: those that its disk has had since the last one that all records knew;
    ``written``: the number of the last change of an origin that is open here; ``whole``: the origins whose copy on this
    disk is whole (None: all); ``blank``: the data directory of this node itself was never served with copies;
    ``known``: by origin, the newest generation that this disk knows."""

    stirred: bool  # something has happened since the last turn

    def __init__(
        self,
        cluster: str,
        me: StoringNode,
        incarnations: Collection[int],
        settings: CopySettings,
        written: Callable[[str], int],
        whole: Collection[str] | None = None,
        blank: bool = False,
        known: Mapping[str, int] | None = None,
    ) -> None:
        self.stirred = True
        self.presence = Presence()
        self.me = me
        self.registry = CopyRegistry(cluster)
        self.roles: dict[str, Role] = {}
        self.servers: dict[str, CopyServer] = {}  # open origins
        self.waiting: set[str] = set()  # origins of which only this node is in step, and its disk is another one
        self.settled = False  # all records have this incarnation: ``incarnations`` may be forgotten
        self._incarnations = frozenset((*incarnations, me.incarnation))
        self._settings = settings
        self._written = written
        self._whole = None if whole is None else frozenset(whole)
        self._blank = blank
        self._known = dict(known or {})
        self._sets_aside = self._is_aside = False
        self._floor: dict[str, int] = {}  # origin -> nothing of an earlier generation is stored
        self._opening: dict[str, int] = {}  # origin -> generation that is opened
        self._unable: dict[str, int] = {}  # origin -> generation that cannot be opened here
        self._restarted: set[str] = set()  # origins that this node takes over from an earlier incarnation of itself
        self._cas = EtcdCas("copies change")
        self._told: dict[str, Require] = {}
        self._orders: list[Order] = []
        self._notices: list[str] = []
        self._requests: list[Request] = []
        self._read = False
        self._watching = False
        self._listed = False  # the key of this node is written
        self._listing = False  # the outstanding transaction writes it, as it is now and with the present lease
        self._tag = ""
        self._tags = 0
        self._retry_at = 0.0
        self._available = True
        self._next_tick = 0.0

    # Events

    def answered(self, answer: Answer, now: float) -> None:
        """Takes the answers to requests of this module; ignores others."""
        if isinstance(answer, TxnAnswer):
            self._take(answer, now)
        elif isinstance(answer, WatchEvent):
            if answer.prefix == self.registry.prefix:
                self.registry.apply(answer.changes)
        elif isinstance(answer, WatchLost):
            if answer.prefix == self.registry.prefix:
                self._read = self._watching = False
        elif isinstance(answer, LeaseLost):
            self._listed = self._listing = False
        else:
            assert isinstance(answer, EtcdState)
            self._available = answer.available

    def _take(self, answer: TxnAnswer, now: float) -> None:
        if self._tag and answer.tag == self._tag:
            self._tag = ""
            if answer.error:
                self._retry_at = now + RETRY_SECONDS
                return
            self._listed = self._listing
            self._read = True
            self.registry.load(answer.found[-1], answer.revision)
            if not self._watching:
                self._watching = True
                self._requests.append(Watch(self.registry.prefix, answer.revision + 1))
        result = self._cas.answered(answer, now)
        if result is None:
            return
        for each in result.done:
            self.registry.set(each.key, each.value, result.revision)
        for each, revision, value in result.void:
            self.registry.set(each.key, value if revision else None, revision or result.revision)

    def opened(self, origin: str, generation: int, now: float) -> None:
        """The data of the origin is open."""
        self.stirred = True
        if self._opening.get(origin) != generation:
            return
        del self._opening[origin]
        record = self.registry.records.get(origin)
        if record is None or record.generation != generation:
            return  # the next turn closes it
        self.servers[origin] = CopyServer(record, origin in self._restarted, self._settings, self.presence.is_gone, now)
        self._next_tick = now

    def attached(self, origin: str, name: str, incarnation: int, more: bool, now: float, less: bool = False) -> bool:
        """See ``CopyServer.attached``. After False, the follower must not be changed; try again later."""
        server = self.servers.get(origin)
        self._next_tick, self.stirred = now, True
        return server is not None and server.attached(name, incarnation, more, now, less)

    def failed(self, origin: str, generation: int) -> None:
        """The data of the origin cannot be opened here: another node in step is to serve it, if there is one."""
        if self._has(origin, generation):
            self._unable[origin] = generation
            self.stirred = True

    def detached(self, origin: str, name: str, now: float) -> None:
        if (server := self.servers.get(origin)) is not None:
            server.detached(name, now)

    def caught_up(self, origin: str, name: str, now: float) -> None:
        if (server := self.servers.get(origin)) is not None:
            server.caught_up(name)
            self._next_tick, self.stirred = now, True

    def stored(self, origin: str, name: str, number: int) -> None:
        if (server := self.servers.get(origin)) is not None:
            server.stored(name, number)

    def stop(self) -> None:
        """This process is being shut down: no successor is named before its lease has expired."""
        self.me = replace(self.me, stopping=True)
        self._listed = self._listing = False

    def leave(self) -> None:
        """This node has left the cluster: its copies, and the data that it serves, move to other nodes. It may end once
        ``has_left``: then no record names it, and no server adds it."""
        self.me = replace(self.me, leaving=True)
        self._listed, self._listing, self.stirred = False, False, True

    def has_left(self) -> bool:
        """Servers know that this node is leaving, and are done with it."""
        me = self.me.name
        others = [each for each in self.registry.records.values() if each.origin != me]
        return self._listed and not any(me in (each.server, *each.followers) for each in others)

    def forget(self, origin: str) -> None:
        """That node has left the cluster, with everything handed over, or was removed: no node is to serve its data,
        and what its disk has is obsolete."""
        registry = self.registry
        if not registry.is_forgotten(origin) and registry.key(origin) not in self._cas:
            mark = Put(registry.forgotten_key(origin), b"")
            self._cas.add(CasUpdate(registry.key(origin), registry.revision(origin), None, (mark,)))

    def began_blank(self) -> None:
        """The data of this node, which was forgotten, is set aside."""
        self._is_aside = self.stirred = True

    def give_up(self, origin: str, name: str) -> str:
        """An operator gives up what the nodes in step had: that node is to serve what it has. Returns "" or the reason
        for a refusal."""
        record, node = self.registry.records.get(origin), self.registry.nodes.get(name)
        if record is None:
            return f"there are no copies of the data of {origin}"
        if node is None:
            return f"{name} has no lease in etcd: it is down, or starting"
        if whole := self.registry.whole(record):
            return f"{', '.join(whole)} has everything that {origin} has acknowledged, so there is nothing to give up"
        if self.registry.key(origin) in self._cas:
            return f"the copies of the data of {origin} are changing; try again"
        self._change(record.given_up_to(name, node.incarnation))
        return ""

    def is_obsolete(self, origin: str) -> bool:
        """Whether a copy of that origin on this disk is of no use any more: the node was forgotten, or as many others
        as ``cluster.copies`` are there and in step."""
        record = self.registry.records.get(origin)
        if not self._read or origin == self.me.name:
            return False
        if record is None:
            return self.registry.is_forgotten(origin)
        is_apart = self.roles.get(origin) is Role.APART and self.me.name not in record.in_step
        return is_apart and len(self.registry.whole(record)) >= self._settings.copies

    # Questions of a follower

    def accepts(self, origin: str, server: str, generation: int) -> bool:
        """Whether this node stores what that server sends in that generation. To be asked for each group, at the moment
        at which it is stored."""
        if self.roles.get(origin) is not Role.FOLLOWING or generation < self._floor.get(origin, 0):
            return False
        record = self.registry.records[origin]
        return generation > record.generation or server == record.server

    def follows(self, origin: str, generation: int) -> None:
        """A server with that generation has connected; the record may not have arrived here yet."""
        self._floor[origin] = max(generation, self._floor.get(origin, 0))

    # Turns

    def turn(self, now: float) -> None:
        self.stirred = False
        self.presence.begin_turn(now)
        for origin in self.registry.take_changed():
            self._look(origin, now)
        if not self._read:
            return
        self._begin_own()
        if now >= self._next_tick:
            self._next_tick = now + TICK
            for origin, server in self.servers.items():
                server.tick(self._written(origin), now)
        self._propose(now)
        for origin, server in self.servers.items():
            self._tell(origin, server)
        self._publish_waiting()
        self.settled = self._is_settled()

    def _look(self, origin: str, now: float) -> None:
        """Compares the role of this node with a newer record."""
        record = self.registry.records.get(origin)
        role = self.roles.get(origin, Role.UNKNOWN)
        row = ROLE_TABLE.step(role, self._event(origin, record))
        self.roles[origin] = row.next
        if row.next in (Role.FOLLOWING, Role.APART):
            self._restarted.discard(origin)
        if row.next is not Role.RETURNING:
            self.waiting.discard(origin)
        for action in row.actions:
            if action is RoleAction.CLOSE:
                self._close(origin)
            elif action is RoleAction.FENCE:
                self._fence(origin, record)
            elif record is None:
                continue
            elif action is RoleAction.OPEN:
                self._opening[origin] = record.generation
                self._orders.append(OpenCopy(origin, record.generation))
            elif action is RoleAction.UPDATE and origin in self.servers:
                self.servers[origin].renewed(record, now)

    def _event(self, origin: str, record: CopyRecord | None) -> RoleEvent:
        name, incarnation = self.me.name, self.me.incarnation
        if record is None or name not in (record.server, *record.followers):
            return RoleEvent.ABSENT
        if record.is_served_by(name, incarnation):
            return RoleEvent.SERVES if self._has(origin, record.generation) else RoleEvent.SERVES_NEWER
        noted = record.in_step.get(name, incarnation)
        if noted != incarnation or (record.server == name and name in record.in_step):
            return RoleEvent.RETURNS
        return RoleEvent.FOLLOWS

    def _has(self, origin: str, generation: int) -> bool:
        """Whether this generation is open here, or is being opened."""
        server = self.servers.get(origin)
        return self._opening.get(origin) == generation or (
            server is not None and server.record.generation == generation
        )

    def _fence(self, origin: str, record: CopyRecord | None) -> None:
        if record is not None:
            self._floor[origin] = max(record.generation, self._floor.get(origin, 0))

    def _close(self, origin: str) -> None:
        self._opening.pop(origin, None)
        self._unable.pop(origin, None)
        self.servers.pop(origin, None)
        self._told.pop(origin, None)
        self._orders.append(CloseCopy(origin))

    # Proposals

    def _begin_own(self) -> None:
        """The first record of this node's own data."""
        name, registry = self.me.name, self.registry
        if name in registry.records:
            if name in registry.forgotten and registry.forgotten_key(name) not in self._cas:
                key = registry.forgotten_key(name)
                self._cas.add(CasUpdate(key, registry.forgotten_revision(name), None))
        elif self.roles.get(name, Role.UNKNOWN) is Role.UNKNOWN and registry.key(name) not in self._cas:
            if self._is_aside or not registry.is_forgotten(name):
                self._change(new_record(name, self.me.incarnation, self._known.get(name, 0)))
            elif not self._sets_aside:
                self._sets_aside = True
                self._orders.append(SetAside())

    def _propose(self, now: float) -> None:
        records = self.registry.records
        stored: Counter[str] | None = None
        for origin, record in records.items():
            if self.registry.key(origin) in self._cas:
                continue
            wanted: CopyRecord | None = None
            if self._drops_out(record):
                wanted = record.unfollowed_by(self.me.name)
            elif self._unable.get(origin) == record.generation:
                wanted = self._named(other_server, record)
            elif origin in self.servers:
                if self.me.leaving and (others := self.others_there(record)):
                    self.servers[origin].hand_over(origin if origin in others else others[0])
                stored = stored or copies_per_node(records.values())
                wanted = self.servers[origin].proposal(
                    self.registry.nodes, stored, now, self.registry.forgotten, self.registry.stopped
                )
            elif self.roles.get(origin) is Role.RETURNING:
                wanted = self._return(record)
                self._wait(record, wanted is None)
            elif self.presence.is_leading():
                wanted = self._named(successor, record)
            if wanted is not None:
                self._change(wanted)

    def _drops_out(self, record: CopyRecord) -> bool:
        """Whether this node is leaving, which servers know, and is a follower that does not have everything."""
        name, leaving = self.me.name, self.me.leaving and self._listed
        return leaving and name in record.followers and name not in record.in_step

    def _named(self, choose: Choose, record: CopyRecord) -> CopyRecord | None:
        served = Counter([each.server for each in self.registry.records.values()])
        return choose(record, self.presence.is_gone, self.presence.is_heard, self.registry.nodes, served)

    def _return(self, record: CopyRecord) -> CopyRecord | None:
        """The proposal of this node after a restart; None: it has to wait for an operator."""
        name, incarnation = self.me.name, self.me.incarnation
        if record.in_step[name] in self._incarnations and self._is_whole(record):
            if record.server == name:
                self._restarted.add(record.origin)
            return record.returned(name, incarnation, self._known.get(record.origin, 0))
        if len(record.in_step) > 1:
            return record.without(name)
        return None

    def others_there(self, record: CopyRecord) -> list[str]:
        """The other nodes in step that are there."""
        return [name for name in self.registry.whole(record) if name != self.me.name and self.presence.is_heard(name)]

    def _is_whole(self, record: CopyRecord) -> bool:
        never_served = self._blank and record.origin == self.me.name and len(record.in_step) == 1
        return self._whole is None or record.origin in self._whole or never_served

    def _wait(self, record: CopyRecord, waits: bool) -> None:
        origin = record.origin
        if not waits:
            self.waiting.discard(origin)
        elif origin not in self.waiting:
            self.waiting.add(origin)
            self._notices.append(
                f"no node serves the data of {origin}: only this node had everything that was acknowledged, and its "
                "disk has been replaced or put back. Stop this node and restore the data directory if you have it; "
                f"otherwise run `starlingmq ctl cluster give-up {origin}`, which shows what is left"
            )

    def _publish_waiting(self) -> None:
        """Other nodes do not wait for this one meanwhile."""
        waiting = tuple(sorted(self.waiting))
        if waiting != self.me.waiting:
            self.me = replace(self.me, waiting=waiting)
            self._listed = self._listing = False

    def _change(self, record: CopyRecord) -> None:
        origin = record.origin
        self._cas.add(CasUpdate(self.registry.key(origin), self.registry.revision(origin), record_value(record)))

    def _tell(self, origin: str, server: CopyServer) -> None:
        followers = tuple([name for name in server.followers if name in server.record.followers])
        told = Require(origin, server.required(), followers, server.refusal, server.checked)
        if self._told.get(origin) != told:
            self._told[origin] = told
            self._orders.append(told)

    def _is_settled(self) -> bool:
        return self._read and not any(role is Role.RETURNING for role in self.roles.values())

    # Outputs

    def take_orders(self) -> list[Order]:
        orders, self._orders = self._orders, []
        return orders

    def take_notices(self) -> list[str]:
        notices, self._notices = self._notices, []
        return notices + self.registry.take_problems()

    def take_requests(self, now: float) -> list[Request]:
        requests: list[Request] = []
        if not self._tag and self._available and now >= self._retry_at and not (self._read and self._listed):
            self._tags += 1
            self._tag = f"copies read {self._tags}"
            self._listing = True
            put = Put(self.registry.node_key(self.me.name), node_value(self.me), leased=True)
            requests.append(Txn(self._tag, (), (put, Get(self.registry.prefix, prefix=True))))
        requests += self._requests
        self._requests = []
        return [*requests, *self._cas.take_requests(now)]

    def wake_at(self, now: float) -> float:
        waits = [when for when in (self._retry_at, self._cas.wake_at()) if when > now]
        if self._read:
            waits.append(max(self._next_tick, now))
        return min(waits, default=inf)
