"""One origin that a broker of this process serves: its followers are connected and fed.

A broker with copies starts in this order: ``prepare``, ``open``, ``until_serving`` (no node in step has more than this
one), ``joined``, join the cluster, open listeners. It ends with ``left`` and ``end``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from zlib import crc32

from starlingmq.cluster.cluster_state import ClusterState
from starlingmq.cluster.copies.copy_roles import CopyRoles, Require
from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.cluster.peers.process_presence import MemberPresence, ProcessPresence
from starlingmq.net.copies.copy_place import CopyPlace
from starlingmq.net.etcd.etcd_access import EtcdAccess
from starlingmq.net.peers.copy_link import CopyRefused, feed_follower
from starlingmq.net.peers.peer_handshake import RefusedError
from starlingmq.net.peers.peer_server import PeerServer
from starlingmq.storage.copies.copy_facts import NotWhole, read_facts
from starlingmq.storage.copies.copy_feed import CopyFeed, FeedEnded
from starlingmq.storage.copies.copy_frames import CopyPosition
from starlingmq.storage.copies.copy_life import begin_copies
from starlingmq.storage.copies.copy_receiver import begin_empty, prepare
from starlingmq.storage.copies.copy_records import CopyFrameError
from starlingmq.storage.copies.copy_source import CopySource
from starlingmq.storage.directory_store import DirectoryStore, journal_engine
from starlingmq.storage.store import Store

if TYPE_CHECKING:
    from starlingmq.config.settings import Config

T = TypeVar("T")

log = logging.getLogger("starlingmq.copies")

CONNECT_AGAIN: Final = 0.3  # seconds
STILL_WAITING: Final = 5.0  # seconds after which a starting broker logs what it waits for


class CopiedBroker(Protocol):
    """The process of a broker: the parts that ``CopyPart`` uses."""

    etcd: EtcdAccess
    peers: PeerServer
    roles: CopyRoles
    presence: ProcessPresence

    def request_turn(self) -> None: ...
    async def forget(self, origin: str, seconds: float) -> bool: ...


class CopyPart:
    """Of one broker, in one generation of its origin."""

    def __init__(self, process: CopiedBroker, place: CopyPlace, origin: str, generation: int, rate: int) -> None:
        self.origin = origin
        self.generation = generation
        self.etcd = process.etcd
        self.store: DirectoryStore | None = None
        self.source: CopySource | None = None
        self.feeds: dict[str, CopyFeed] = {}  # by follower; those that are connected
        self.serving = False
        self._process = process
        self._place = place
        self._rate = float(rate)
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by follower
        self._changed = asyncio.Event()
        self._told: dict[str, str] = {}  # by follower: why there is no connection
        self._presence: MemberPresence | None = None

    def server_of(self, origin: str) -> str:
        """See ``CopyRegistry.server_of``."""
        return self._process.roles.registry.server_of(origin)

    # The start of the broker

    async def prepare(self, config: Config) -> None:
        """Make the copy a data directory. If an operator has given up the data and this is no whole copy, it
        begins with nothing. Raises OSError, NotWhole, DataDirError."""
        await self._place.release()
        path = self._place.path
        if read_facts(path) is None:
            return
        engine, size = journal_engine(config), config.storage.segment_size
        try:
            await _completed(asyncio.to_thread(prepare, path, self.origin, engine, size))
        except NotWhole:
            record = self._process.roles.registry.records.get(self.origin)
            if record is None or not record.given_up == record.generation == self.generation:
                raise
            log.warning("the data of %s was given up, and the copy here is not whole: it is deleted", self.origin)
            await _completed(asyncio.to_thread(begin_empty, path, self.origin, engine, size))

    async def open(self, open_store: Callable[[], Store]) -> Store:
        """Open the data directory beside the event loop, which serves other data, and begin a life of it. Raises
        Fenced, NotWhole, OSError, and what ``open_store`` raises."""
        opening = asyncio.ensure_future(asyncio.to_thread(open_store))
        try:
            await _completed(opening)
            self._begin(opening.result())
        except BaseException:
            if not opening.cancelled() and opening.exception() is None:
                await opening.result().close()
            raise
        return opening.result()

    def _begin(self, store: Store) -> None:
        roles = self._process.roles
        record = roles.registry.records[self.origin]
        in_step = [name for name in record.in_step if name != roles.me.name]
        assert isinstance(store, DirectoryStore)
        self.store = store
        source = self.source = begin_copies(store, self.origin, self.generation, in_step, time.monotonic)
        source.on_acknowledged = self._acknowledged
        roles.opened(self.origin, self.generation, self._now())
        self._process.request_turn()

    async def until_serving(self) -> None:
        """Wait until no node in step has more than this one."""
        loop = asyncio.get_running_loop()
        logging_at = loop.time() + STILL_WAITING
        while not self.serving:
            self._changed.clear()
            try:
                async with asyncio.timeout_at(logging_at):
                    await self._changed.wait()
            except TimeoutError:
                log.warning("not serving yet: %s", self._waits_for())
                logging_at = loop.time() + STILL_WAITING

    def _waits_for(self) -> str:
        if self.source is None:
            return "the data is not open yet"
        missing = ", ".join(f"{name} ({self._told.get(name, 'connecting')})" for name in self.source.required)
        return f"nodes that store copies have not said yet whether they have more: {missing}"

    def joined(self, state: ClusterState) -> None:
        """The broker is a member of the cluster: it knows which other members are there."""
        view, presence = state.view, self._process.presence
        self._presence = state.presence()
        presence.brokers.append(self._presence)
        view.is_copied = lambda number: presence.is_copied(view, number)

    # While it serves

    def require(self, order: Require) -> None:
        if self.source is None:
            return
        self.source.require(order.nodes, order.refusal)
        for name in [name for name in self._tasks if name not in order.followers]:
            self._tasks.pop(name).cancel()
        for name in order.followers:
            if name not in self._tasks:
                self._tasks[name] = asyncio.ensure_future(self._feed(name))
        if order.serving and not self.serving:
            self.serving = True
            self._changed.set()

    def _acknowledged(self, name: str, lsn: int) -> None:
        self._process.roles.stored(self.origin, name, lsn)

    async def _feed(self, name: str) -> None:
        """Connect to a follower and feed it, again and again."""
        roles = self._process.roles
        while True:
            why = "it has no lease in etcd: it is down, or starting"
            if (node := roles.registry.nodes.get(name)) is not None and node.address:
                member = MemberInfo(name, number_of(name), node.incarnation, node.address)
                try:
                    await self._connect(name, member)
                except (CopyRefused, RefusedError, FeedEnded, CopyFrameError, TimeoutError, OSError) as error:
                    why = str(error) or "timed out"
                except Exception:
                    log.exception("internal error while data is copied to %s; please report it", name)
                    why = "internal error"
                else:
                    why = "it closed the connection"
                finally:
                    self.feeds.pop(name, None)
                    roles.detached(self.origin, name, self._now())
            if self._told.get(name) != why:
                self._told[name] = why
                log.info("the data of %s is not copied to %s at the moment: %s", self.origin, name, why)
            await asyncio.sleep(CONNECT_AGAIN)

    async def _connect(self, name: str, member: MemberInfo) -> None:
        store, source, process = self.store, self.source, self._process
        assert store is not None and source is not None
        feed = CopyFeed(store, source, name, self._rate)
        feed.on_live = lambda: self._live(name)

        def accept(incarnation: int, position: CopyPosition) -> bool:
            more, less = position.excess > 0, source.lost_by(position)
            accepted = process.roles.attached(self.origin, name, incarnation, more, self._now(), less)
            process.request_turn()
            if accepted:
                self.feeds[name] = feed
            return accepted

        async with process.peers.open_copy(member) as pipe:
            await feed_follower(pipe, source.hello(), feed, accept)

    def why_away(self, name: str) -> str:
        """Why the data is not copied to that follower now; "": it connects for the first time."""
        return self._told.get(name, "")

    def _live(self, name: str) -> None:
        self._told.pop(name, None)
        log.info("%s has a copy of the data of %s", name, self.origin)
        self._process.roles.caught_up(self.origin, name, self._now())
        self._process.request_turn()

    # The end

    async def forget(self, seconds: float) -> None:
        """The broker has left the cluster in the name of a lost node, with everything handed over."""
        await self._process.forget(self.origin, seconds)

    def left(self) -> None:
        """The broker is leaving the cluster, or its node is stopping."""
        if self._presence in self._process.presence.brokers:
            self._process.presence.brokers.remove(self._presence)

    async def end(self) -> None:
        """The store is closed."""
        self.left()
        tasks: Collection[asyncio.Task[None]] = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.source = self.store = None

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


async def _completed(call: Awaitable[T]) -> T:
    """Its result. A thread cannot be cancelled: if the caller is, it waits for the end first."""
    task = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


def number_of(name: str) -> int:
    """The number of a process in handshakes for copies, derived from its name: members have numbers of their own."""
    return crc32(name.encode()) or 1
