"""Nodes that are nothing but members, quorum and relay, on a bus that loses, delays, duplicates and cuts either way.

One random source and one clock; the same seed replays the same world. The invariants are checked at every step:

- no two nodes serve with majorities that have no node in common;
- no node serves for longer than a timeout after the ways to and from a majority have ceased to work;
- a membership never goes back, and one revision is one membership everywhere;
- a number belongs to one name for ever, a number and an incarnation to one process;
- a heartbeat that tells only changes is read as the whole one that it was made from.
"""

from __future__ import annotations

import heapq
from random import Random

from msgspec.structs import replace
from tests.sim.etcd_model import EtcdModel

from starlingmq.cluster.links.control_frames import Heartbeat, MemberInfo, Membership
from starlingmq.cluster.links.heartbeat_changes import HeartbeatReader, HeartbeatWriter
from starlingmq.cluster.links.peer_frames import Envelope
from starlingmq.cluster.membership.members import Members
from starlingmq.cluster.membership.quorum import Quorum
from starlingmq.cluster.membership.relay import Relay

STEP = 0.05
INTERVAL = 0.5
TIMEOUT = 2.5
LEASE_TTL = 6.0
DELAY_MAX = 1.5  # seconds that a frame is under way, at worst
HOPS = 2


class Node:
    """One life of a process."""

    def __init__(self, world: World, name: str, address: str = "", session: str = "") -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.started_at = world.now
        self.session = world.etcd.session(session or name)
        self.members = world.members_class("c", name, address or f"{name}:1", "1", settle=1.2 * TIMEOUT)
        self.quorum: Quorum | None = None
        self.incarnation = 0
        self.relay: Relay | None = None
        self.lease_at = 0.0
        self.writer = self.world.writer_class(0)
        self.written_by = (0, 0)
        self.reader = self.world.reader_class()
        self.changes = 0  # connections lost and regained
        self.seen = Membership(-1, ())
        self.seen_joining: tuple[MemberInfo, ...] = ()
        self.members.start(world.now)
        self.work()

    @property
    def number(self) -> int:
        return self.members.me.number if self.members.me is not None else 0

    @property
    def serves(self) -> bool:
        return self.alive and self.members.state == "registered" and self.quorum is not None and self.quorum.enough()

    def tick(self) -> None:
        now = self.world.now
        if now >= self.lease_at:
            self.session.keep_alive(now)
            self.lease_at = now + LEASE_TTL / 3
        wake_at = self.members.wake_at()
        if wake_at and now >= wake_at:
            self.members.tick(now)
        if self.quorum is not None and now >= self.quorum.wake_at():
            self.quorum.tick(now)
        self.work()
        assert not self.members.wake_at() or self.members.wake_at() > now, "it would wake up for nothing for ever"

    def work(self) -> None:
        now = self.world.now
        members = self.members
        if self.quorum is None and members.me is not None:
            self.quorum = self.world.quorum_class(members.me, INTERVAL, TIMEOUT)
            self.relay = self.world.relay_class(members.me.number, self.quorum)
        elif self.quorum is not None and members.me is not None and members.me.incarnation != self.incarnation:
            self.quorum.begin_again(members.me)
        if members.me is not None:
            self.incarnation = members.me.incarnation
        if self.quorum is not None:
            self.refresh(self.quorum, now)
        for request in members.take_requests():
            self.session.request(request, now)
        members.take_changes()

    def refresh(self, quorum: Quorum, now: float) -> None:
        members = self.members
        if members.membership.revision != self.seen.revision or members.joining != self.seen_joining:
            self.seen, self.seen_joining = members.membership, members.joining
            quorum.set_members(members.membership, members.joining, now)
        members.known_by(quorum.nodes_with_membership(members.membership.revision), now)
        if members.state not in ("joining", "registered"):
            return
        number = quorum.beat(now)
        if number:
            self.beat(quorum, number)
        self.changes += len(quorum.take_changes())

    def beat(self, quorum: Quorum, number: int) -> None:
        assert self.members.me is not None and self.relay is not None
        me = self.members.me
        body = Heartbeat(
            me.incarnation,
            0,
            {other: (1, number // (2 + other % 3)) for other in quorum.numbers()},
            quorum.heard_directly(),
            quorum.connected(),
            self.serves,
            self.members.membership,
            quorum.heard_relayed(),
            number,
            quorum.taken(),
            (f"mqtt://{self.name}:{number // 5}",),
        )
        self.world.written[me.number, me.incarnation, number] = body
        if self.written_by != (me.number, me.incarnation):
            self.written_by = me.number, me.incarnation
            self.writer = self.world.writer_class(me.number)
        self.writer.write(body)
        for target in quorum.numbers():
            beat = self.writer.to(target, quorum.taken_by(target))
            for hop in self.relay.heartbeat_ways(target):
                self.world.send(self, hop, Envelope(me.number, me.incarnation, target, 0, beat))

    def frame(self, envelope: Envelope) -> None:
        if self.quorum is None or self.relay is None:
            return
        if isinstance(envelope.body, Heartbeat) and envelope.target == self.number:
            self.world.changes_read += envelope.body.since != 0
            beat = self.reader.read(envelope.source, envelope.incarnation, envelope.body)
            envelope = envelope.with_body(beat)
            if beat.since == 0:
                self.world.check_read(self.number, envelope, beat)
                self.members.adopt(beat.membership, self.world.now)
                self.work()
        self.quorum.took(envelope, self.world.now)
        if envelope.target != self.number:
            hop = self.relay.pass_on(envelope)
            if hop is not None:
                self.world.relayed += 1
                self.world.send(self, hop, envelope.passed_on())
        self.work()


class World:
    members_class: type[Members] = Members
    quorum_class: type[Quorum] = Quorum
    relay_class: type[Relay] = Relay
    writer_class: type[HeartbeatWriter] = HeartbeatWriter
    reader_class: type[HeartbeatReader] = HeartbeatReader

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 100.0
        self.etcd = EtcdModel(self.random, lease_ttl=LEASE_TTL, request_timeout=1.0)
        self.nodes: dict[str, Node] = {}  # the last life of each name
        self.cuts: set[tuple[str, str]] = set()  # (from, to)
        self.loss = 0.0
        self.doubling = 0.0
        self.delay = 0.05
        self.delay_lately = 0.05  # frames that were sent under another weather are on their way yet
        self.relayed = 0
        self.written: dict[tuple[int, int, int], Heartbeat] = {}  # whole, by number, incarnation and its own number
        self.changes_read = 0  # heartbeats that told only changes
        self._bus: list[tuple[float, int, int, Envelope, str]] = []
        self._count = 0
        self._names: dict[int, str] = {}
        self._processes: dict[tuple[int, int], Node] = {}
        self._memberships: dict[int, Membership] = {}
        self._last: dict[Node, int] = {}
        self._worked_at: dict[tuple[str, str], float] = {}  # (from, to) -> when a frame could last get there directly

    def start(self, name: str) -> Node:
        self.nodes[name] = node = Node(self, name)
        return node

    def crash(self, name: str) -> None:
        self.nodes[name].alive = False
        self.nodes[name].session.close(self.now, revoke=False)

    def alive(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.alive]

    def cut(self, source: str, target: str) -> None:
        self.cuts.add((source, target))

    def send(self, source: Node, hop: int, envelope: Envelope) -> None:
        for _ in range(2 if self.random.random() < self.doubling else 1):
            if self.random.random() >= self.loss:
                self._count += 1
                late = self.now + self.random.uniform(0, self.delay)
                heapq.heappush(self._bus, (late, self._count, hop, envelope, source.name))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now = round(self.now + STEP, 6)
            self.step()
            self.check()

    def step(self) -> None:
        for name, answer in self.etcd.advance(self.now):
            node = self.nodes.get(name)
            if node is not None and node.alive:
                node.members.answered(answer, self.now)
                node.work()
        numbers = {node.number: node for node in self.alive()}
        while self._bus and self._bus[0][0] <= self.now:
            _, _, hop, envelope, source = heapq.heappop(self._bus)
            target = numbers.get(hop)
            if target is not None and target.alive and (source, target.name) not in self.cuts:
                target.frame(envelope)
        for node in self.alive():
            node.tick()

    def run_until_all_serve(self, seconds: float) -> None:
        until = self.now + seconds
        while not self.agreed():
            assert self.now < until, "; ".join(self.describe())
            self.run(INTERVAL)

    def agreed(self) -> bool:
        alive = self.alive()
        views = {node.members.membership for node in alive}
        numbers = frozenset([node.number for node in alive])
        online = {node.number: node.members.me.incarnation for node in alive if node.members.me is not None}
        return len(views) == 1 and all(
            node.serves
            and node.members.online == online
            and node.quorum is not None
            and node.quorum.connected() == numbers - {node.number}
            for node in alive
        )

    def describe(self) -> list[str]:
        return [
            f"{node.name}: {node.number} {node.members.state} {node.members.problem!r} serves {node.serves} of "
            f"{[member.number for member in node.members.membership.members]}@{node.members.membership.revision} "
            f"connected {sorted(node.quorum.connected()) if node.quorum else None} online {node.members.online}"
            for node in self.alive()
        ]

    # The invariants

    def check_read(self, target: int, envelope: Envelope, read: Heartbeat) -> None:
        whole = self.written[envelope.source, envelope.incarnation, read.number]
        own = {envelope.source: (whole.epoch, whole.version)}
        assert replace(read, taken={}, vector=read.vector | own) == replace(
            whole, taken={}, vector=whole.vector | own
        ), f"node {target} reads another heartbeat than {envelope.source} has written"
        assert read.taken.get(target) == whole.taken.get(target), f"node {target} reads another confirmation"

    def works(self, source: str, target: str, since: float) -> bool:
        """Whether a frame could get there since then, directly or through a third node."""
        worked = self._worked_at
        if worked.get((source, target), 0.0) >= since:
            return True
        return any(
            worked.get((source, third), 0.0) >= since and worked.get((third, target), 0.0) >= since
            for third in self.nodes
        )

    def check_ways(self, node: Node) -> None:
        """It reached enough of those it needs to serve, and they it, within the time that is allowed."""
        if not node.serves:
            return
        since = self.now - (TIMEOUT + HOPS * self.delay_lately + 2 * STEP)
        others = [member.name for member in node.members.membership.members if member.name != node.name]
        lately = [o for o in others if self.works(node.name, o, since) and self.works(o, node.name, since)]
        enough = len(lately) >= (len(others) + 1) // 2
        assert enough, f"{node.name} serves though it reaches {lately}\n" + "\n".join(self.describe())

    def check(self) -> None:
        sides: list[tuple[Node, frozenset[int]]] = []
        self.delay_lately = max(self.delay, self.delay_lately - STEP / 4)
        for source in self.alive():
            for target in self.alive():
                if (source.name, target.name) not in self.cuts:
                    self._worked_at[source.name, target.name] = self.now
        for node in self.alive():
            self.check_names(node)
            self.check_ways(node)
            if node.serves and node.quorum is not None:
                registered = frozenset([member.number for member in node.members.membership.members])
                sides.append((node, (node.quorum.connected() & registered) | {node.number}))
        for index, (node, side) in enumerate(sides):
            for other, other_side in sides[:index]:
                assert side & other_side, (
                    f"{node.name} serves with {sorted(side)} and {other.name} with {sorted(other_side)}\n"
                    + "\n".join(self.describe())
                )

    def check_names(self, node: Node) -> None:
        membership = node.members.membership
        assert membership.revision >= self._last.get(node, 0), f"the membership of {node.name} goes back"
        self._last[node] = membership.revision
        known = self._memberships.setdefault(membership.revision, membership)
        assert known == membership, f"revision {membership.revision} is two memberships: {known} and {membership}"
        if node.members.me is not None:
            me = node.members.me
            assert self._names.setdefault(me.number, me.name) == me.name, f"number {me.number} was given twice"
            assert self._processes.setdefault((me.number, me.incarnation), node) is node, f"{me} is two processes"
