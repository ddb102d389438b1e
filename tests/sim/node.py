"""A node of the simulated world: what ``net.driver`` and ``node`` do, in virtual time, dying between any two steps.

A ``Node`` is a machine with a disk, a ``Process`` one life of the broker on it. A step is what can be seen afterwards:
an append, a batch, a sync, frames handed to a connection or to the network. ``Machine.fuse`` counts them down.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import msgspec
from tests.sim.checkers import Books
from tests.sim.commits import Commits, DiskLoop
from tests.sim.disk import Disk
from tests.sim.etcd_shell import EtcdShell
from tests.sim.network import Network
from tests.sim.schedule import Schedule
from tests.sim.seen import Seen
from tests.sim.trace import Trace
from tests.storage.crash_engines import NEVER, Crash, Machine
from tests.storage.world import SteadyStore

from starlingmq.cluster.cluster_state import ClusterReady, ClusterState
from starlingmq.cluster.etcd.etcd_requests import Answer, LeaseLost, TxnAnswer, WatchLost
from starlingmq.cluster.links.peer_frames import Envelope
from starlingmq.config.settings import ClusterConfig, LimitsConfig, MqttConfig, QueueGroupsConfig
from starlingmq.core.broker import BrokerState
from starlingmq.core.context.ready import Event, Ready
from starlingmq.core.session.session import Client
from starlingmq.storage.journal_writer import Durability
from starlingmq.storage.recovery import restore

TURN_SECONDS = 0.0003  # from the first thing that happens to the end of its turn
LISTENER = "mqtt://node"


class Socket(Protocol):
    """The other end of a client's connection."""

    def hear(self, data: bytes) -> None: ...
    def closed_by_broker(self) -> None: ...


class Settings(msgspec.Struct):
    """The settings that all nodes of a world have in common."""

    mqtt: MqttConfig
    limits: LimitsConfig
    cluster: ClusterConfig
    keeps: bool  # storage.durability is process or power, not memory
    power: bool
    sync_seconds: float
    checkpoint_bytes: int
    piece: int
    span: int  # records a segment of the journal; 0: no segments
    page: int = 1000  # retained messages read at once
    groups: QueueGroupsConfig = QueueGroupsConfig()


class World(Protocol):
    schedule: Schedule
    random: Random
    trace: Trace
    seen: Seen
    network: Network
    etcd: EtcdShell
    settings: Settings
    books: Books

    def start_if_wanted(self, node: Node) -> None: ...
    def event(self, event: Event) -> None: ...
    def in_doubt(self) -> bool: ...
    def doubts(self) -> None: ...


class Node:
    def __init__(self, world: World, host: str) -> None:
        self.world = world
        self.host = host
        self.machine = Machine(world.random)
        self.disk = Disk(self.machine, world.settings.span)
        self.process: Process | None = None
        self.lives = 0
        self.crashes: list[float] = []  # when
        self.gone = False  # it left, or was forgotten: it is not started again
        self.leaving = False  # it was told to leave
        self.stalled_until = 0.0
        self.down = 0  # how many faults keep it down
        self.turn_seconds = 0.0  # that a turn takes beyond TURN_SECONDS, at most: how slow the machine is

    @property
    def running(self) -> bool:
        return self.process is not None

    def may_leave(self) -> bool:
        """Whether nothing would be lost with it."""
        return True

    def given_up(self) -> None:
        """The other nodes have heard nothing from its process for too long, and close the connections."""
        self.world.network.give_up_on(self.host)

    def forget_elsewhere(self) -> None:
        """The step of an operator after this node was taken for lost while it left: its log asks for that."""

    def end(self) -> None:
        """It has left the cluster."""
        process, self.process = self.process, None
        if process is not None:
            process.die()

    def start(self) -> None:
        self.machine.fuse = NEVER
        try:
            self.disk.open(self.world.settings.power)
        except OSError as error:
            self.world.trace.note(self.host, f"can not start: {error}")
            self.world.schedule.after(1.0, self.world.start_if_wanted, self)
            return
        self.lives += 1
        self.world.trace.note(self.host, f"starts, life {self.lives}")
        self.process = Process(self)
        self.process.begin()

    def crash(self, power: bool) -> None:
        """It is dead. ``power``: perhaps with everything that was not synced, or it was the process alone."""
        process = self.process
        if process is None:
            return
        power = power and self.world.random.random() < 0.7
        self.world.trace.note(self.host, "POWER FAILURE" if power else "CRASH")
        self.process = None
        self.machine.fuse = NEVER
        self.crashes.append(self.world.schedule.now)
        self.world.seen["crashes"] += 1
        self.world.seen["group messages sent at once"] += process.state.groups.at_once
        process.die()
        if power:
            self.world.seen["power failures"] += 1
            self.disk.power_failure(self.world.random)
        if not self.world.settings.keeps:
            self.disk.wipe()
            self.world.books.lossy = True


class Process:
    """``name``: of the member that it is; ``host``: where the others reach it; ``disk``: its data directory."""

    def __init__(self, node: Node, name: str = "", disk: Disk | None = None) -> None:
        world = node.world
        self.node = node
        self.world = world
        self.name = name or node.host
        self.host = node.host if self.name == node.host else f"{name}@{node.host}"
        self.alive = True
        self.schedule = world.schedule
        self.sockets: dict[Client, Socket] = {}
        self._scheduled = False
        self._timer_at = 0.0
        self._late: list[tuple[Callable[..., None], tuple[Any, ...]]] = []  # came while the node did not run
        settings = world.settings
        now = self.schedule.now
        self.state = BrokerState(
            settings.mqtt, settings.limits, now, b"%16d" % int(self.name[1:]), "sim", None, settings.groups
        )
        disk = node.disk if disk is None else disk
        durability: Durability = "power" if settings.power else "process"
        self.store = SteadyStore(
            disk.kv,
            disk.journal,
            durability,
            lambda: self.schedule.now,
            settings.checkpoint_bytes,
            piece=settings.piece,
        )
        self.loop = self._open_loop()
        self.commits = Commits(self.store, self._release, self.state.refusal)
        self.state.ctx.recording = settings.keeps
        self.state.ctx.want_events = True
        self.store.attach(self.state, self.poke)
        recovered = restore(self.state, disk.kv, disk.journal, None, self.is_careful())
        self.store.replayed(recovered.changes, recovered.changed)
        self.store.rewrite(recovered.ahead)
        assert recovered.lost == 0, f"{self.host}: {recovered.lost} references lead to nothing"
        self.cluster = ClusterState(
            self.state,
            settings.cluster,
            self.name,
            f"{self.host}:1",
            self.state.peers.facts,
            now,
            copied=settings.cluster.copies > 1,
        )
        self.cluster.retained.page = settings.page
        self._books_seen = 0  # changes of its books of shares
        self.etcd = world.etcd.node(self.host, self._answered)

    def _open_loop(self) -> DiskLoop:
        return DiskLoop(self.schedule, self.world.random, self.world.settings.sync_seconds, self._go_on)

    def is_careful(self) -> bool:
        return False

    def begin(self) -> None:
        self.world.network.listen(self)
        self._enter(self.cluster.start)

    def die(self) -> None:
        self.alive = False
        self.etcd.close()
        self.world.network.died(self)
        for socket in list(self.sockets.values()):
            socket.closed_by_broker()

    # Faults and restarts

    def _enter(self, call: Callable[..., None], *arguments: Any) -> None:
        """Let something happen now, or as soon as the node runs again; a turn follows."""
        if not self.alive:
            return
        now = self.schedule.now
        if now < self.node.stalled_until:
            if not self._late:
                self.schedule.at(self.node.stalled_until, self._run_again)
            self._late.append((call, arguments))
            return
        call(*arguments, now)
        self.poke()

    def _run_again(self) -> None:
        if self.schedule.now < self.node.stalled_until:
            self.schedule.at(self.node.stalled_until, self._run_again)
            return
        late, self._late = self._late, []
        for call, arguments in late:
            self._enter(call, *arguments)

    def frame(self, envelope: Envelope) -> None:
        self._enter(self.cluster.received, envelope)

    def stream_open(self, number: int) -> None:
        self._enter(self.cluster.connected, number)

    def stream_gone(self, number: int) -> None:
        self._enter(self.cluster.disconnected, number)

    def process_gone(self, number: int, incarnation: int) -> None:
        self.world.trace.note(self.host, f"sees that the process of node {number} has ended")
        self._enter(self.cluster.process_gone, number, incarnation)

    @property
    def incarnation(self) -> int:
        me = self.cluster.members.me
        return 0 if me is None else me.incarnation

    def _answered(self, answer: Answer) -> None:
        self.world.trace.note(self.host, f"etcd: {answer}") if self.world.trace.on else None
        self._see(answer)
        self._enter(self.cluster.answered, answer)

    def _see(self, answer: Answer) -> None:
        seen = self.world.seen
        if isinstance(answer, TxnAnswer):
            seen["requests without an answer"] += answer.error != ""
        elif isinstance(answer, WatchLost):
            seen["watches compacted"] += 1
        elif isinstance(answer, LeaseLost):
            seen["leases lost"] += 1

    def leave(self) -> None:
        self._enter(self.cluster.leave)

    def forget(self, name: str, force: bool) -> str:
        """ "" or why not."""
        if self.schedule.now < self.node.stalled_until:
            return "no answer"
        refusal = self.cluster.forget(name, force, self.schedule.now)
        self.world.trace.note(self.host, f"is to forget {name}: {refusal or 'it does'}")
        self.poke()
        return refusal

    def serves(self) -> bool:
        return self.cluster.serving

    def has_unknown(self) -> bool:
        """Whether a node that may know what a share has lost cannot be asked."""
        return any(book.unknown for book in self.cluster.shares.books.books.values())

    def has_left(self) -> bool:
        return self.cluster.left

    def accept(self, socket: Socket, peer: str) -> Client:
        client = self.state.open(LISTENER, peer, self.schedule.now)
        self.sockets[client] = socket
        self.poke()
        return client

    def receive(self, client: Client, data: bytes) -> None:
        if client in self.sockets:
            self._enter(self.state.receive, client, data)

    def lost(self, client: Client) -> None:
        if self.sockets.pop(client, None) is not None:
            self._enter(self.state.closed, client)

    # Turns

    def poke(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            slow = self.node.turn_seconds
            self.schedule.after(TURN_SECONDS + (slow * self.world.random.random() if slow else 0.0), self._turn)

    def _turn(self) -> None:
        if not self.alive:
            return
        if self.schedule.now < self.node.stalled_until:
            self.schedule.at(self.node.stalled_until, self._turn)
            return
        self._scheduled = False
        try:
            self._take_turn()
        except Crash:
            self.node.crash(self.world.settings.power)

    def _go_on(self, call: Callable[[], None]) -> None:
        """Something that the store waited for: a timer, the end of a sync."""
        if not self.alive:
            return
        if self.schedule.now < self.node.stalled_until:
            self.schedule.at(self.node.stalled_until, self._go_on, call)
            return
        try:
            self.loop.become_running()
            call()
            self.loop.run_ready()
            self._carry_out_cluster(self.cluster.take_ready())
        except Crash:
            self.node.crash(self.world.settings.power)
            return
        self.poke()

    def _take_turn(self) -> None:
        now = self.schedule.now
        state = self.state
        state.turn(now)
        self.cluster.turn(now)
        if self._books_seen != (changes := self.cluster.shares.books.changes):
            self._books_seen = changes
            if self.has_unknown():
                self.world.doubts()
        ready = state.take_ready()
        self._carry_out(ready)
        ready.renew()
        self._carry_out_cluster(self.cluster.take_ready())
        if self.store.maintain() or state.pending() or state.ctx.ready.urgent() or self.cluster.pending():
            self.poke()
        self._arm(state.wake_at())
        self._arm(self.cluster.wake_at())

    def _arm(self, when: float) -> None:
        if when == 0.0 or (self._timer_at != 0.0 and self._timer_at <= when):
            return
        self._timer_at = when
        self.schedule.at(when, self._timer_due, when)

    def _timer_due(self, when: float) -> None:
        if self._timer_at == when:
            self._timer_at = 0.0
            self.poke()

    def _carry_out_cluster(self, ready: ClusterReady) -> None:
        trace = self.world.trace
        for notice in ready.notices:
            trace.note(self.host, notice)
            self.world.seen["isolations"] += notice.startswith("isolated")
        for request in ready.requests:
            if trace.on:
                trace.note(self.host, f"asks etcd: {request}")
            self.etcd.request(request)
        if ready.peers is not None:
            self.world.network.want(self, ready.peers)
        for number, envelope in ready.now:
            self.node.machine.step()
            self.world.network.send(self, number, envelope)

    def _carry_out(self, ready: Ready) -> None:
        for event in ready.events:
            self.world.event(event)
        keeps = self.world.settings.keeps
        if ready.writes or self.state.ctx.refusing:
            self.loop.become_running()  # for the store; it takes its time, and few turns need it
        ticket = self.commits.commit(ready, self.state.ctx.refusing) if keeps else None
        for notice in ready.notices:
            if notice.reason == "pubrel_unknown" and not notice.closing:
                self.world.books.unknown[notice.client_id, int(notice.detail.split()[1])] = None
        for client in ready.dirty:
            client.dirty = False
            if client.stored_from >= 0:
                if ticket is not None:
                    held = b"".join(client.frames[client.stored_from :])
                    del client.frames[client.stored_from :]
                    client.waiting += 1
                    client.unstored += len(held)
                    ticket.frames.append((client, held))
                client.stored_from = -1
            data = b"".join(client.frames)
            client.frames.clear()
            if not client.output_stopped:
                self._write(client, data)
        if ticket is not None and ticket.refused:
            self.commits.settle()
        for client in ready.pause:  # the core keeps what these clients send meanwhile
            if client.link and client.paused != (client.halted != 0):
                client.paused = client.halted != 0
                if client.paused:
                    client.transport.pause_reading()
                else:
                    client.transport.resume_reading()
        if keeps and self.store.readable():
            self.state.stored(ready)
        else:
            self.state.keep(ready)
        for session in ready.reads:
            self.state.loaded(session, self.store.load(self.state.wanted(session)), self.schedule.now)

    def _release(self, client: Client, data: bytes, refused: bool) -> None:
        """Send what waited for a commit, or what is said instead when that was refused."""
        client.waiting -= 1
        client.unstored -= len(data)
        if client.output_stopped or (client not in self.sockets and not client.link):
            return
        if refused:
            data = self.state.refuse(client, data, self.schedule.now)
        elif client.link:
            data = self.state.refusal.released(client, data)
        self._write(client, data)

    def _write(self, client: Client, data: bytes) -> None:
        """Hand frames to a connection; it closes when it was to be and nothing waits any more."""
        if client.link:
            if data:
                client.transport.write(data)
            self.state.sent(client)
            return
        socket = self.sockets.get(client)
        if data and socket is not None:
            self.node.machine.step()
            client.bytes_out += len(data)
            socket.hear(data)
        if not client.closing:
            self.state.sent(client)
        elif (client.waiting == 0 or client.output_stopped) and socket is not None:
            socket.closed_by_broker()
            self.lost(client)
