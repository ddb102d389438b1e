"""A life of a simulated machine with copies: one event loop, the copies, its own broker, and those of lost nodes.

The roles, the followers, their connections and the takeover are those of ``net.copies``; the law is that of
``net.copies.copy_process``. A machine whose data another one serves ends this life and begins another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from tests.sim.commits import DiskLoop
from tests.sim.copies.copied_disk import CopiedDisk, MachineDisk
from tests.sim.copies.ports import Ports
from tests.sim.copies.sim_copies import SimCopyProcess, SimPart, config_of
from tests.sim.copies.sim_pipe import SimPipe, proved
from tests.sim.node import Node, Process
from tests.storage.crash_engines import Crash

from starlingmq.cluster.copies.copy_roles import CopyRoles
from starlingmq.cluster.etcd.etcd_requests import Answer
from starlingmq.config.settings import Config
from starlingmq.core.session.session import Client
from starlingmq.net.copies.copy_part import CopyPart
from starlingmq.storage.copies.copy_facts import Fenced, NotWhole
from starlingmq.storage.copies.copy_records import CopyFrameError
from starlingmq.storage.store import Store

RESTART_SECONDS = 0.1
EXPECTED = (OSError, NotWhole, Fenced, asyncio.CancelledError)


class MachineLoop(DiskLoop):
    tasks: set[asyncio.Task[Any]]
    busy: dict[object, float]  # executor -> when its thread is free

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **options)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def seconds_of(self, func: Callable[..., Any]) -> float:
        """A call that only writes into the page cache is faster than a sync."""
        return self.sync_seconds * (1.0 if getattr(func, "__name__", "") == "sync" else 0.2)

    def begins(self, executor: object, seconds: float) -> float:
        """Executors have one thread, but for the default one."""
        now = self.schedule.now
        if executor is None:
            return now
        begins = max(now, self.busy.get(executor, now))
        self.busy[executor] = begins + seconds
        return begins

    def _done(self, func: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            return
        try:
            result = func()
        except (OSError, NotWhole, Fenced, CopyFrameError) as error:
            future.set_exception(error)
        else:
            future.set_result(result)


class CopiedProcess(Process):
    """A broker of such a machine; it takes turns once it has joined."""

    def __init__(self, life: MachineLife, origin: str, disk: CopiedDisk) -> None:
        self.life = life
        self.joined = False
        self._forgotten: asyncio.Task[None] | None = None
        self._copied = disk.facts is not None and disk.facts.copied
        super().__init__(life.node, origin, disk)

    def _open_loop(self) -> DiskLoop:
        return self.life.loop

    def is_careful(self) -> bool:
        return self.world.settings.power or self._copied

    def begin(self) -> None:
        self.joined = True
        super().begin()

    def die(self) -> None:
        if self.alive:
            super().die()

    def _release(self, client: Client, data: bytes, refused: bool) -> None:
        if self.alive:
            super()._release(client, data, refused)

    def poke(self) -> None:
        if self.joined:
            super().poke()

    def _turn(self) -> None:
        if self.life.alive:
            super()._turn()

    def _take_turn(self) -> None:
        self.loop.become_running()
        super()._take_turn()
        self.loop.run_ready()
        if self.node.machine.fuse < 0:
            raise Crash

    def leave(self) -> None:
        self.life.copies.is_leaving = self.life.copies.is_leaving or self.name == self.life.host
        super().leave()

    def has_left(self) -> bool:
        """Once other nodes have its copies. A node that another one has replaced has not left, unless it was to."""
        if self.cluster.members.state != "left" and not (self.cluster.left and self.node.leaving):
            return False
        if self._forgotten is None:
            self.life.enter(self._forget)
        if self._forgotten is None or not self._forgotten.done():
            return False
        self._forgotten.result()
        return True

    def _forget(self) -> None:
        self._forgotten = asyncio.ensure_future(self.life.copies.leave(30.0))


class SimBroker:
    """See ``starlingmq.node.assembly.Broker``."""

    def __init__(self, life: MachineLife, config: Config, part: CopyPart) -> None:
        assert isinstance(part, SimPart)
        self.life = life
        self.config = config
        self.part = part
        self.process: CopiedProcess | None = None

    async def start(self) -> None:
        try:
            await self._start()
        except EXPECTED:
            raise
        except Exception as error:
            self.life.failed(error)
            raise

    async def _start(self) -> None:
        part, life = self.part, self.life
        await part.prepare(self.config)
        await part.open(self._open)
        await part.until_serving()
        process = self.process
        assert process is not None
        part.joined(process.cluster)
        if part.origin == life.host:
            life.node.process = process
        else:
            life.world.seen["lost nodes served elsewhere"] += 1
        process.begin()

    def _open(self) -> Store:
        disk = self.part._place.disk
        disk.open(self.life.world.settings.power)
        process = self.process = CopiedProcess(self.life, self.part.origin, disk)
        self.life.brokers.append(process)
        return process.store

    async def stop_at_once(self) -> None:
        self.part.left()
        if self.process is not None:
            self.life.brokers.remove(self.process)
            self.process.die()
        await self.part.end()


class MachineLife:
    def __init__(self, node: Node, disk: MachineDisk, ports: Ports) -> None:
        world = node.world
        self.node = node
        self.host = node.host
        self.world = world
        self.schedule = world.schedule
        self.disk = disk
        self.ports = ports
        self.random = Random(f"{node.host} {node.lives} {world.random.random()}")
        self.alive = True
        self.brokers: list[CopiedProcess] = []
        self.failure: Exception | None = None
        self.loop = MachineLoop(world.schedule, self.random, world.settings.sync_seconds, self.enter)
        self.loop.tasks, self.loop.busy = set(), {}
        self.loop.become_running()
        self.config = config_of(node.host, world.settings.cluster)
        self._ending = False
        self._told: dict[str, str] = {}
        self.copies = SimCopyProcess(self, ports, self.config, self._open_broker)
        self.copies.on_lost = self.restart
        ports.lives[self.host] = self

    @property
    def roles(self) -> CopyRoles:
        return self.copies.roles

    def begin(self) -> None:
        self.enter(lambda: asyncio.ensure_future(self._serve()))

    async def _serve(self) -> None:
        try:
            await self._open_broker(self.config, await self.copies.own_part()).start()
        except EXPECTED as error:
            self.world.trace.note(self.host, f"cannot serve: {error!r}")
            self.restart(1.0)

    def _open_broker(self, config: Config, part: CopyPart) -> SimBroker:
        return SimBroker(self, config, part)

    def serve_copy(self, pipe: SimPipe, name: str) -> None:
        self.copies.sim_peers.accepted(pipe)
        self.loop.create_task(self._serve_copy(pipe, name))

    async def _serve_copy(self, pipe: SimPipe, name: str) -> None:
        node = self.copies.roles.registry.nodes.get(name)
        try:
            await self.copies._serve_copy(proved(name, 0 if node is None else node.incarnation), pipe)
        except Exception as error:
            self.failed(error)
        finally:
            pipe.close()
            self.copies.sim_peers.removed(pipe)

    def answered(self, answer: Answer) -> None:
        self.enter(lambda: self.copies._answered(answer))

    def enter(self, call: Callable[[], object]) -> None:
        """Let something happen on the event loop, now or as soon as the machine runs again."""
        if not self.alive:
            return
        if self.schedule.now < self.node.stalled_until:
            self.schedule.at(self.node.stalled_until, self.enter, call)
            return
        try:
            self.loop.become_running()
            call()
            self.loop.run_ready()
            for broker in self.brokers:
                if broker.joined:
                    broker._carry_out_cluster(broker.cluster.take_ready())
            if self.node.machine.fuse < 0:
                raise Crash
        except Crash:
            self.node.crash(self.world.settings.power)
            return
        if self.failure is not None:
            raise self.failure
        for broker in self.brokers:
            broker.poke()

    def failed(self, error: Exception) -> None:
        """Nothing in the code that is tested may raise this."""
        self.failure = self.failure or error

    def trace_records(self) -> None:
        for origin, record in self.copies.roles.registry.records.items():
            if self._told.get(origin) != repr(record):
                self._told[origin] = repr(record)
                self.world.trace.note(self.host, f"knows {record}")

    # The end

    def restart(self, seconds: float = RESTART_SECONDS) -> None:
        """This process ends, and the next one starts."""
        if self.alive and not self._ending:
            self._ending = True
            self.schedule.after(0.0, self._end_and_start, seconds)

    def _end_and_start(self, seconds: float) -> None:
        if self.alive:
            self.world.trace.note(self.host, "ends, and starts again")
            self.node.crashes.append(self.schedule.now)
            self.node.end()
            self.schedule.after(seconds, self.world.start_if_wanted, self.node)

    def die(self) -> None:
        """Nothing of it goes on. Its tasks are ended, without effects."""
        self.alive = False
        self.copies._is_running = False
        if self.ports.lives.get(self.host) is self:
            del self.ports.lives[self.host]
        self.copies.sim_peers.died()
        self.copies.client.close_now()
        for broker in self.brokers:
            broker.die()
        for task in list(self.loop.tasks):
            task.cancel()
        self.loop.become_running()
        self.loop.run_ready()
