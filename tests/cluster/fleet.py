"""Some nodes of one cluster without a network or a disk: frames arrive at once, or not where a test cuts the way.

``tests.sim`` draws what can go wrong; this is for saying what happens, one thing at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf
from random import Random
from typing import Any, Final

import msgspec
from tests.cluster.owner_store import at_rest, owner_keys, table_led_by, will_keys
from tests.harness import TURNS_MAX, FakeClient, World
from tests.sim.etcd_model import DELAY_MAX, EtcdModel

from starlingmq.cluster.cluster_state import ClusterReady, ClusterState
from starlingmq.cluster.etcd.etcd_requests import Answer
from starlingmq.cluster.links.peer_frames import Data, Envelope, ShareFrame
from starlingmq.cluster.shares.share_messages import WillChange, WillKey, WillWrite
from starlingmq.cluster.shares.share_table import share_of
from starlingmq.cluster.wills.will_records import RegisteredWill, client_of_key, decode_will, encode_will
from starlingmq.config.settings import ClusterConfig
from starlingmq.core.context.ready import Ready
from starlingmq.core.session.session import Client

NO_TICKET: Final = 1 << 40  # no request has it
ROUNDED: Final = 1e-3  # of a step: what sums of seconds are rounded by


class NodeWorld(World):
    """A node: a broker with fake clients, and its part of the cluster."""

    def __init__(self, fleet: Fleet, name: str, **settings: Any) -> None:
        super().__init__(start=fleet.now, **settings)
        self.fleet = fleet
        self.name = name
        config = msgspec.convert({"name": "test"} | fleet.config, ClusterConfig)
        self.cluster = ClusterState(self.state, config, name, f"{name}:1", self.recover(), self.now, "test")
        migrations = self.cluster.takeovers.migrations
        elsewhere = migrations.ports.heard_elsewhere
        migrations.ports.heard_elsewhere = lambda number: elsewhere(number) and not fleet.is_parted(self, number)
        self.etcd = fleet.etcd.session(name)
        self.said: list[str] = []
        self.news: list[str] = []
        self.on_cluster_ready: Callable[[NodeWorld, ClusterReady], None] = lambda node, ready: None
        self.waits = False  # for another node's turn, which is under way

    def recover(self) -> dict[bytes, bytes]:
        """The facts that a store has for the parts of the cluster."""
        return {}

    def carry_out(self, ready: Ready) -> None:
        for client in ready.dirty:
            if client.link:
                self._write_link(client)
            else:
                self._write(client)
        ready.dirty.clear()
        for client in [client for client in ready.pause if client.link]:
            (client.transport.pause_reading if client.halted else client.transport.resume_reading)()
        super().carry_out(ready)

    def _write_link(self, client: Client) -> None:
        client.dirty = False
        client.stored_from = -1
        data = b"".join(client.frames)
        client.frames.clear()
        if data:
            client.transport.write(data)
        self.state.sent(client)

    def run(self) -> None:
        self.fleet.run()

    def wait_for_answer(self, fake: FakeClient) -> None:
        for _ in range(1000):
            if fake.output or fake.closed:
                return
            self.fleet.advance(0.01)

    def received(self, envelope: Envelope) -> None:
        self.cluster.received(envelope, self.fleet.now)

    def wake_at(self) -> float:
        return min(self.state.wake_at() or inf, self.cluster.wake_at() or inf)

    def turn(self) -> bool:
        """One turn; whether anything came of it."""
        self.now = self.fleet.now
        state, cluster = self.state, self.cluster
        state.turn(self.now)
        cluster.turn(self.now)
        ready = state.take_ready()
        self.questions += ready.questions
        self.events += ready.events
        self.notices += ready.notices
        self.writes += ready.writes
        busy = bool(ready.dirty or ready.pause)
        self.carry_out(ready)
        ready.renew()
        told = cluster.take_ready()
        self.on_cluster_ready(self, told)
        self.said += told.notices
        self.news += told.news
        for request in told.requests:
            self.etcd.request(request, self.now)
        for hop, envelope in told.now:
            self.fleet.carry(self, hop, envelope)
        more = state.ctx.ready
        return busy or bool(told.now) or state.pending() or cluster.pending() or more.urgent()


class Fleet:
    """``fleet[0]`` is the first node. All of them serve when the constructor returns. The last two of them keep the
    owners of client ids, so that tests may break something at the others, unless the shares are ``spread`` over all
    nodes, as usual."""

    spread = False
    kind: type[NodeWorld] = NodeWorld

    def __init__(
        self, count: int = 2, etcd: EtcdModel | None = None, config: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        """``config``: settings of the section ``cluster``; ``settings``: those of ``World``."""
        self.now = 1_000_000.0
        self.config = config or {}
        self.etcd = etcd or EtcdModel(Random(1))
        self.nodes: list[NodeWorld] = []
        self.cuts: set[tuple[int, int]] = set()  # (from, to): frames of this way are lost
        self.mute: set[tuple[int, int]] = set()  # (from, to): data frames are lost, heartbeats arrive
        self.held: set[int] = set()  # frames about owners and wills from and to these nodes are lost
        self.slow_owners = False  # such frames arrive with the next step of time
        self._late: list[tuple[NodeWorld, int, Envelope]] = []
        self.parted: set[tuple[int, int]] = set()  # (from, to): nothing gets there, not through a relay either
        self.carried: list[Envelope] = []
        self._running = False
        self._kept_at = 0.0  # when leases were last kept alive
        if self.spread:
            for _ in range(count):
                self.add(**settings)
        elif count:
            self._form(count, **settings)

    def _form(self, count: int, **settings: Any) -> None:
        """All nodes begin with one table of shares. If each of them came into a cluster that serves, there would be a
        table for each: that takes most of a test's time."""
        for _ in range(count):
            node = self.begin(**settings)
            node.cluster.shares.keeper._retry.at = inf  # the table is neither read nor written
            self._advance_until(lambda: self.nodes[-1].cluster.number > 0)
        self._advance_until(lambda: any(len(node.cluster.shares.keeper._wanted) == count for node in self.nodes))
        if count > 2:
            self._lead(count - 2, count - 1)
            self.advance(2 * DELAY_MAX)
        for node in self.nodes:
            node.cluster.shares.keeper._retry.at = 0.0
        self._advance_until(self._all_whole)
        self.settle()

    def keep_owners_at(self, leader: int, deputy: int) -> None:
        """All shares of client ids are led by that node from now on, until nodes come, go or restart. While one of the
        two cannot be reached, no client can connect."""
        self.settle(self._lead(leader, deputy))

    def _lead(self, leader: int, deputy: int) -> int:
        """Returns the version of the table in which they do."""
        numbers = [self.nodes[place].cluster.number for place in (leader, deputy)]
        version, write = table_led_by([node.cluster for node in self.nodes], *numbers)
        self.etcd.session("test").request(write, self.now)
        return version

    def settle(self, version: int = 0) -> None:
        """Until all shares are served by a table of all nodes, of that version or a later one."""
        for _ in range(1000):
            if all(at_rest(node.cluster, len(self.nodes), version) for node in self.nodes):
                return
            self.advance(0.02)
        raise AssertionError("the shares do not come to rest")

    def __getitem__(self, place: int) -> NodeWorld:
        return self.nodes[place]

    def begin(self, **settings: Any) -> NodeWorld:
        """Another node starts."""
        node = self.kind(self, f"n{len(self.nodes) + 1}", **settings)
        self.nodes.append(node)
        node.cluster.start(self.now)
        return node

    def add(self, **settings: Any) -> NodeWorld:
        node = self.begin(**settings)
        self._advance_until(self._all_whole)
        return node

    def _advance_until(self, done: Callable[[], bool]) -> None:
        for _ in range(2000):
            if done():
                return
            self.advance(0.02)
        raise AssertionError(f"not all serve: {[(other.name, other.said) for other in self.nodes]}")

    def _all_whole(self) -> bool:
        return all(self._whole(node) for node in self.nodes)

    def _whole(self, node: NodeWorld) -> bool:
        status = node.cluster.status()
        return node.cluster.serving and len(status) == len(self.nodes) - 1 and all(peer.connected for peer in status)

    def owners(self, client_id: str) -> list[int]:
        """The numbers of the nodes with an owner key of the client id."""
        keys = owner_keys([node.cluster for node in self.nodes])
        return sorted(node for name, node in keys if name == client_id)

    def hold_owners(self, *places: int) -> None:
        """Claims, and changes of wills, of these nodes are not answered; without ``places``: of no node."""
        self.held = {self.nodes[place].cluster.number for place in places or range(len(self.nodes))}

    def give_owners(self) -> None:
        """They are answered again."""
        self.held = set()
        self._connect_all()

    def will_keys(self) -> list[bytes]:
        """Number of the node and client id of each record of a will: ``b"1/c"``."""
        return sorted(will_keys([node.cluster for node in self.nodes]))

    def will(self, key: bytes) -> RegisteredWill | None:
        return next((decode_will(value) for found, _, value in self._wills(key) if found == key), None)

    def _wills(self, key: bytes) -> tuple[WillKey, ...]:
        client_id = client_of_key(key)
        for node in self.nodes:
            shares = node.cluster.shares
            if shares.table.of(client_id).leader == node.cluster.number:
                return shares.books.books[share_of(client_id)].wills.of_client(client_id)
        raise AssertionError("the share has no leader")

    def write_wills(self, place: int, *writes: tuple[bytes, RegisteredWill | None]) -> None:
        """That node writes records of wills, in place of its own part for wills; all are of one client id, and the
        first one is there already."""
        key = writes[0][0]
        revision = next(revision for found, revision, _ in self._wills(key) if found == key)
        changes: list[WillWrite] = [(each, None if value is None else encode_will(value)) for each, value in writes]
        change = WillChange(NO_TICKET, client_of_key(key), key, revision, tuple(changes))
        shares = self.nodes[place].cluster.shares
        shares.send(shares.table.of(change.client_id).leader, change)
        self.nodes[place].cluster._has_events = True
        self.run()

    def carry(self, source: NodeWorld, hop: int, envelope: Envelope) -> None:
        if self.slow_owners and isinstance(envelope.body, ShareFrame):
            self._late.append((source, hop, envelope))
        else:
            self._carry(source, hop, envelope)

    def _carry(self, source: NodeWorld, hop: int, envelope: Envelope) -> None:
        way = (source.cluster.number, hop)
        if (
            way in self.cuts
            or (envelope.source, envelope.target) in self.parted
            or (way in self.mute and isinstance(envelope.body, Data))
            or (self.held.intersection(way) and isinstance(envelope.body, ShareFrame))
        ):
            return
        for node in self.nodes:
            if node.cluster.number == hop:
                self.carried.append(envelope)
                node.received(envelope)

    def cut(self, one: int, other: int, both: bool = True) -> None:
        """Lose frames from node number ``one`` to ``other``, and back."""
        self.cuts.add((one, other))
        if both:
            self.cuts.add((other, one))

    def heal(self) -> None:
        self.cuts.clear()

    def speak(self) -> None:
        """All muted and parted nodes are heard again, and send again what was lost."""
        muted, self.mute = self.mute | self.parted, set()
        self.parted = set()
        for one, other in muted:
            for node in self.nodes:
                if node.cluster.number == one:
                    node.cluster.connected(other, self.now)
        self.run()

    def _connect_all(self) -> None:
        for node in self.nodes:
            for other in self.nodes:
                if other is not node:
                    node.cluster.connected(other.cluster.number, self.now)
        self.run()

    def is_parted(self, node: NodeWorld, number: int) -> bool:
        """Whether others do not say that they hear ``number``, as if its way to them were cut as well."""
        here = node.cluster.number
        return (here, number) in self.parted or (number, here) in self.parted

    def restart(self, place: int, **settings: Any) -> NodeWorld:
        """The node crashes, and starts again with an empty store."""
        node = self.nodes[place] = self.kind(self, self.nodes[place].name, **settings)
        node.cluster.start(self.now)
        return node

    def end(self, place: int) -> None:
        """That node is gone, with all it had."""
        del self.nodes[place]

    def run(self) -> None:
        """Take turns until no node has anything to do now."""
        if self._running:
            return
        self._running = True
        try:
            for _ in range(TURNS_MAX):
                turned = [node.turn() for node in self.nodes]  # each of them, whatever the others say
                if not any(turned):
                    return
            raise AssertionError("the nodes do not come to rest")
        finally:
            self._running = False

    def advance(self, seconds: float, step: float = 0.01) -> None:
        """Let time pass, in small steps; those in which nothing is due are left out."""
        end = self.now + seconds
        while self.now < end:
            steps = max(1, ceil((min(self._due_at(), end) - self.now) / step - ROUNDED))
            self.now = min(end, self.now + steps * step)
            late, self._late = self._late, []
            for each in late:
                self._carry(*each)
            for name, answer in self.etcd.advance(self.now):
                self.answered(name, answer)
            if self.now >= self._kept_at + 1.0:
                self._kept_at = self.now
                for node in self.nodes:
                    node.etcd.keep_alive(self.now)
            self.run()

    def _due_at(self) -> float:
        """When a node is to be woken, or etcd answers or is to be told that the nodes are alive."""
        if self._late:
            return self.now
        etcd = self.etcd.next_due()
        return min([self._kept_at + 1.0, inf if etcd is None else etcd, *[node.wake_at() for node in self.nodes]])

    def answered(self, name: str, answer: Answer) -> None:
        """etcd answers that session."""
        for node in self.nodes:
            if node.name == name:
                node.cluster.answered(answer, self.now)

    def connect(self, place: int, client_id: str, **arguments: Any) -> FakeClient:
        return self.nodes[place].connect(client_id, **arguments)
