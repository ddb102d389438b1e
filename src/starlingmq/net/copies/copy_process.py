"""Copies of one process: its etcd, its role for each origin, the copies that it stores, and the brokers that it opens.

The record in etcd decides whether this node's own data may be opened at all, so all this starts before the node's
broker, and ends after it. The process has an incarnation, a port for copies, and a lease of its own.

The law: orders of ``CopyRoles`` are carried out in the turn that gives them, before its requests are sent to etcd. So a
follower is required before etcd can list it, and no commit happens between the two.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Callable, Coroutine
from math import inf
from pathlib import Path
from typing import Any, Final

import msgspec

from starlingmq.cluster.copies.copy_registry import StoringNode
from starlingmq.cluster.copies.copy_roles import CloseCopy, CopyRoles, OpenCopy, Order, SetAside
from starlingmq.cluster.copies.copy_server import CopySettings
from starlingmq.cluster.etcd.etcd_requests import Answer, EtcdState, Get, Put, Request, Txn, TxnAnswer
from starlingmq.cluster.peers.process_presence import ProcessPresence
from starlingmq.config.settings import Config
from starlingmq.net.copies.copy_part import CopyPart, number_of
from starlingmq.net.copies.copy_place import CopyPlaces
from starlingmq.net.copies.hosted_broker import HostedOrigin, OpenBroker, advertised, hosted_config
from starlingmq.net.etcd.etcd_access import EtcdAccess
from starlingmq.net.etcd.etcd_client import EtcdClient
from starlingmq.net.etcd.etcd_process import EtcdServerError
from starlingmq.net.peers.peer_handshake import Proved
from starlingmq.net.peers.peer_server import PeerServer
from starlingmq.net.peers.pipe import Pipe
from starlingmq.storage.copies.copy_facts import CopyFacts, newest, refuse_data_of_another
from starlingmq.storage.copies.incarnations import read_incarnations, write_incarnations
from starlingmq.storage.data_dir import DataDir, set_aside
from starlingmq.storage.directory_store import durability_of, journal_engine

log = logging.getLogger("starlingmq.copies")

STILL_WAITING: Final = 5.0  # seconds after which a starting node logs what it waits for
ASK_AGAIN: Final = 0.3  # seconds
START_TAG: Final = "copies start"


class CopyProcess:
    """``on_lost`` is called once, when the own data of this node, which is open, is served by another node, or has to
    be opened again in a newer generation."""

    def __init__(self, config: Config, open_broker: OpenBroker, etcd: EtcdAccess | None = None) -> None:
        assert config.node.data_dir is not None
        self.config = config
        self.etcd = etcd or EtcdAccess(config)
        self.directory = Path(config.node.data_dir)
        self.own: CopyPart | None = None
        self.is_leaving = False  # the own broker leaves the cluster: etcd may know it before the broker does
        self.gives_up = False  # this node leaves by force: what only it has may be lost
        self.on_lost: Callable[[], None] = lambda: None
        self.places = CopyPlaces(self.directory, config.node.name, durability_of(config))
        self.hosted: dict[str, HostedOrigin] = {}
        self.roles: CopyRoles
        self.presence: ProcessPresence
        self.peers: PeerServer
        self._open_broker = open_broker
        self._client: EtcdClient | None = None
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[TxnAnswer] | None = None  # the answer to the first transaction
        self._incarnations: set[int] = set()
        self._is_running = False
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._own_generation = 0
        self._changed = asyncio.Event()
        self._settled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._deleting: set[str] = set()  # origins of which the copy is being deleted, or cannot be
        self._reported: dict[str, int] = {}  # origin -> the generation that the log has

    # The start

    async def start(self) -> None:
        """Until the records are known here. Raises EtcdServerError, ListenError, OSError, DataDirError."""
        refuse_data_of_another(self.directory, self.config.node.name)
        DataDir(self.directory, {"journal": journal_engine(self.config)}).close()  # before etcd has files in it
        self._incarnations = set(read_incarnations(self.directory))
        await self.etcd.start()
        self._client = self.etcd.client(self._answered)
        await self._client.start()
        incarnation = await self._take_incarnation()
        self._incarnations.add(incarnation)
        await asyncio.to_thread(write_incarnations, self.directory, self._incarnations)
        await self._listen(incarnation)
        origins = [self.config.node.name, *self.places.find()]
        self._begin(incarnation, await asyncio.to_thread(self.places.facts, origins))

    def _begin(self, incarnation: int, facts: dict[str, CopyFacts]) -> None:
        """The port for copies is open. ``facts``: of the copies on this disk, by origin."""
        node, cluster = self.config.node, self.config.cluster
        me = StoringNode(node.name, incarnation, socket.gethostname(), node.zone, self.peers.address)
        settings = CopySettings(
            cluster.copies, cluster.copies_required, cluster.copy_timeout, silence=cluster.member_timeout
        )
        whole = [origin for origin, known in facts.items() if known.whole]
        known = {origin: newest(known) for origin, known in facts.items()}
        blank = node.name not in facts  # never served with copies
        self.roles = CopyRoles(cluster.name, me, self._incarnations, settings, self._written, whole, blank, known)
        self.roles.presence = self.presence = ProcessPresence(node.name, self.roles.registry, cluster.lease_ttl)
        self._is_running = True
        self.request_turn()

    async def _take_incarnation(self) -> int:
        """A number that no process of this cluster had before: the revision of a change in etcd."""
        assert self._client is not None
        prefix = f"/starlingmq/{self.config.cluster.name}/"
        key = f"{prefix}copy-starts/{self.config.node.name}".encode()
        put = Put(key, b"")
        warned = self._loop.time() + STILL_WAITING
        while True:
            self._started = self._loop.create_future()
            self._client.submit(Txn(START_TAG, (), (put, Get(key))))
            answer = await self._started
            if not answer.error:
                return max(answer.revision, *self._incarnations, 0) + 1
            if self.etcd.server is not None and self.etcd.server.removed:
                raise EtcdServerError(
                    f"this node was removed from its cluster: delete {self.etcd.directory()}, which is obsolete, and "
                    "set cluster.etcd.join to running members, so that it joins as a new node"
                )
            if self._loop.time() >= warned:
                warned = self._loop.time() + STILL_WAITING
                log.warning("not serving yet: etcd has not answered yet (a majority of its members must run)")
            await asyncio.sleep(ASK_AGAIN)

    async def _listen(self, incarnation: int) -> None:
        """Open the port for copies, beside the one for members, which only a member has."""
        config = self.config
        host = config.cluster.listen.rpartition(":")[0]
        settings = msgspec.structs.replace(
            config.cluster, listen=f"{host}:{config.cluster.copy_port}", advertise=advertised(config)
        )
        self.peers = PeerServer(
            settings,
            config.node.name,
            lambda envelope: None,
            lambda number: None,
            lambda number: None,
            lambda number, incarnation: None,
            random.random,
            os.urandom,
        )
        self.peers.on_copy = self._serve_copy
        await self.peers.start()
        self.peers.introduce(number_of(config.node.name), incarnation)

    async def own_part(self) -> CopyPart:
        """Waits until this node may serve its own data."""
        since = self._loop.time()
        while not self._own_generation:
            self._changed.clear()
            try:
                async with asyncio.timeout_at(since + STILL_WAITING):
                    await self._changed.wait()  # of any origin
            except TimeoutError:
                since = self._loop.time()
                log.warning("not serving yet: %s", self._waits_for())
        part = self.own = self._part(self.config.node.name, self._own_generation)
        return part

    def _waits_for(self) -> str:
        record = self.roles.registry.records.get(self.config.node.name)
        if record is None:
            return "etcd has not answered yet (a majority of its members must run)"
        if record.origin in self.roles.waiting:
            return (
                "only this node had everything that was acknowledged, and its disk has been replaced or put back; "
                f"restore the data directory, or run `starlingmq ctl cluster give-up {record.origin}`"
            )
        if record.server == self.config.node.name:
            return "etcd has not confirmed yet that this node may serve its data"
        return (
            f"{record.server} serves the data of this node; it gives it back once this node has a copy "
            f"(nodes that have one: {', '.join(record.in_step)})"
        )

    def _part(self, origin: str, generation: int) -> CopyPart:
        rate = self.config.cluster.copy_rate
        return CopyPart(self, self.places.place(origin), origin, generation, rate)

    # Events

    async def _serve_copy(self, proved: Proved, pipe: Pipe) -> str:
        if not self._is_running:
            return "this node is starting or stopping"
        return await self.places.serve(self.roles, proved, pipe)

    def _answered(self, answer: Answer) -> None:
        if isinstance(answer, TxnAnswer) and answer.tag == START_TAG:
            if self._started is not None and not self._started.done():
                self._started.set_result(answer)
        elif self._is_running:
            self.roles.answered(answer, self._loop.time())
            self.request_turn()
        elif not isinstance(answer, EtcdState):
            log.debug("an answer of etcd came too early or too late: %s", answer)

    def _written(self, origin: str) -> int:
        part = self.part_of(origin)
        return 0 if part is None or part.source is None else part.source.lsn

    def part_of(self, origin: str) -> CopyPart | None:
        """None: its data is not open here."""
        if origin == self.config.node.name:
            return self.own
        hosted = self.hosted.get(origin)
        return None if hosted is None else hosted.part

    # Turns

    def request_turn(self) -> None:
        if self._is_running and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if not self._is_running:
            return
        now = self._loop.time()
        roles = self.roles
        roles.turn(now)
        for order in roles.take_orders():
            self._carry_out(order)
        for notice in roles.take_notices():
            log.warning("%s", notice)
        self._report_servers()
        self._delete_obsolete()
        requests = roles.take_requests(now)
        self._submit(requests)
        if roles.settled and not self._settled:
            self._settled = True
            self._keep_incarnations([roles.me.incarnation])
        self._changed.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        when = now if roles.stirred else roles.wake_at(now)
        if when != inf:
            self._timer = self._loop.call_later(max(0.0, when - now), self.request_turn)

    def _report_servers(self) -> None:
        for origin, record in self.roles.registry.records.items():
            if self._reported.get(origin, 0) < record.generation:
                if origin in self._reported:
                    in_step = ", ".join(sorted(record.in_step))
                    log.info(
                        "the data of %s is served by %s in generation %d; in step: %s",
                        origin,
                        record.server,
                        record.generation,
                        in_step,
                    )
                self._reported[origin] = record.generation

    def _submit(self, requests: list[Request]) -> None:
        assert self._client is not None
        for request in requests:
            self._client.submit(request)

    def _carry_out(self, order: Order) -> None:
        me = self.config.node.name
        if isinstance(order, SetAside):
            self._background(self._set_aside())
        elif isinstance(order, OpenCopy):
            if order.origin != me:
                self._host(order.origin, order.generation)
            elif self.own is None:
                self.places.place(me).taken = True
                self._own_generation = order.generation
            else:
                self._lose()
        elif isinstance(order, CloseCopy):
            if order.origin != me:
                self._host(order.origin, 0)
            elif self.own is None:
                self.places.place(me).taken = False
                self._own_generation = 0
            else:
                self._lose()
        elif (part := self.part_of(order.origin)) is not None:
            part.require(order)

    def _keep_incarnations(self, known: list[int]) -> None:
        write_incarnations(self.directory, known)

    def _host(self, origin: str, generation: int) -> None:
        if origin not in self.hosted:
            place = self.places.place(origin)
            config = hosted_config(self.config, origin, place.path, self.etcd.endpoints)
            self.hosted[origin] = HostedOrigin(
                place,
                config,
                self._open_broker,
                lambda generation: self._part(origin, generation),
                lambda generation: self._failed(origin, generation),
            )
        self.hosted[origin].want(generation)

    def _failed(self, origin: str, generation: int) -> None:
        self.roles.failed(origin, generation)
        self.request_turn()

    async def _set_aside(self) -> None:
        """Raises OSError; the node does not serve then."""
        moved = await asyncio.to_thread(set_aside, self.directory)
        if moved is not None:
            log.warning(
                "this node was removed from the cluster, and its data was handed over or given up: it begins without "
                "data. What its disk had is in %s; delete it once it is not needed",
                moved,
            )
        self.roles.began_blank()
        self.request_turn()

    def _delete_obsolete(self) -> None:
        for origin in self.places.stored - self._deleting:
            if self.roles.is_obsolete(origin):
                self._deleting.add(origin)
                self._background(self._delete(origin))

    async def _delete(self, origin: str) -> None:
        try:
            deleted = await self.places.place(origin).delete()
        except OSError as error:
            log.warning("the copy of the data of %s is not needed any more, and cannot be deleted: %s", origin, error)
            return
        self._deleting.discard(origin)
        if deleted:
            self.places.stored.discard(origin)
            log.info("the copy of the data of %s is deleted here: it is not needed any more", origin)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended_work)

    def _ended_work(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the data of this node cannot be set aside: %s", error)

    def _lose(self) -> None:
        """Nothing more of the own data is acknowledged: followers store nothing of an old generation."""
        if self.is_leaving and self.roles.registry.is_forgotten(self.config.node.name):
            return
        on_lost, self.on_lost = self.on_lost, lambda: None
        on_lost()

    # The end

    def only_here(self) -> list[str]:
        """The other nodes whose data would be lost with this one."""
        me, roles = self.config.node.name, self.roles
        held = [each for each in roles.registry.records.values() if each.origin != me and me in each.in_step]
        return sorted([record.origin for record in held if not roles.others_there(record)])

    async def give_up(self, origin: str, name: str, seconds: float) -> str:
        """That node is to serve what it has. Returns "" or why this is not possible."""
        until = self._loop.time() + seconds
        if problem := self.roles.give_up(origin, name):
            return problem
        before = self.roles.registry.records[origin].generation
        self.request_turn()
        while (record := self.roles.registry.records.get(origin)) is None or record.generation == before:
            if self._loop.time() >= until:
                return "etcd has not confirmed it yet"
            await asyncio.sleep(ASK_AGAIN)
        if record.given_up != record.generation:
            return f"{record.server} serves the data of {origin} now, since it has everything"
        return ""

    async def leave(self, seconds: float) -> None:
        """The own broker has left the cluster, with nothing to serve any more. The process is still needed until other
        nodes have its copies, unless ``gives_up`` is set."""
        me = self.config.node.name
        self.on_lost = lambda: None
        until = self._loop.time() + seconds
        while not self.roles.registry.is_forgotten(me) and self._loop.time() < until:
            record = self.roles.registry.records.get(me)
            if record is not None and record.server != me:
                log.warning(
                    "this node was taken for lost while it left the cluster, and %s serves its data; run `starlingmq "
                    "ctl cluster forget %s` at another node",
                    record.server,
                    me,
                )
                break
            await self._forget_once(me)
        if self.gives_up:
            return
        self.roles.leave()
        told: list[str] = []
        while not self.roles.has_left():
            self.request_turn()
            if (only := self.only_here()) != told:
                told = only
                if only:
                    log.warning("not ending yet: no other node has a whole copy of the data of %s", ", ".join(only))
            await asyncio.sleep(ASK_AGAIN)

    async def forget(self, origin: str, seconds: float) -> bool:
        """Make the copies of that node's data obsolete. Returns whether etcd has confirmed it in time."""
        until = self._loop.time() + seconds
        while not self.roles.registry.is_forgotten(origin):
            if self._loop.time() >= until:
                return False
            await self._forget_once(origin)
        return True

    async def _forget_once(self, origin: str) -> None:
        self.roles.forget(origin)
        self.request_turn()
        await asyncio.sleep(ASK_AGAIN)

    def stopping(self) -> None:
        """This process is being shut down, and is expected to return."""
        if self._is_running:
            self.roles.stop()
            self.request_turn()

    async def close(self) -> None:
        """Ends everything but the own broker, which has ended before."""
        for hosted in self.hosted.values():
            await hosted.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._is_running = False
        if self._timer is not None:
            self._timer.cancel()
        if hasattr(self, "peers"):
            await self.peers.close()
        await self.places.close()
        if self._client is not None:
            await self._client.close(revoke=False)  # until it has expired, no successor is named
        await self.etcd.stop()
