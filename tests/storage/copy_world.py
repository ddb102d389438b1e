"""A broker with followers that keep copies of its store, in memory, by seed: any of them dies between any two steps,
connections are cut, and a follower in step serves in place of the broker.

The core, the driver, the store, and both ends of a copy are the real ones; disks are ``copy_disk``, the network is a
list of messages, and etcd is the set ``in_step``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, TypeVar, cast

import msgspec
from tests.storage.copy_disk import Disk, DiskFiles, mark
from tests.storage.crash_engines import NEVER, Crash, CrashJournal, CrashKv, Machine
from tests.storage.crash_world import POWER_FAILS, CrashWorld

from starlingmq.storage.copies import catch_up, copy_feed, outbox
from starlingmq.storage.copies.copy_directory import CopyDirectory
from starlingmq.storage.copies.copy_facts import Fenced, Life, with_life
from starlingmq.storage.copies.copy_feed import CopyFeed, FeedEnded
from starlingmq.storage.copies.copy_frames import Hello, encode_group, groups
from starlingmq.storage.copies.copy_receiver import CopyReceiver
from starlingmq.storage.copies.copy_records import CopyFrameError
from starlingmq.storage.copies.copy_source import CopySource
from starlingmq.storage.keys import META_COPY

T = TypeVar("T")

IN_FLIGHT = 8  # messages

NO_THREADS = cast(ThreadPoolExecutor, None)


class SteadyReceiver(CopyReceiver):
    """Calls in a thread are done at once."""

    async def _run(self, call: Any) -> None:
        call()


def drive(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    raise AssertionError("it waits")


class Connection:
    def __init__(self, feed: CopyFeed, receiver: SteadyReceiver) -> None:
        self.feed = feed
        self.receiver = receiver
        self.messages: deque[bytes] = deque()
        self.acknowledgements: deque[int] = deque()
        self.task: Any = None
        self.room: Any = None
        self.ended = False


class FollowerNode:
    """``proving``: it is in step once it has acknowledged this number."""

    def __init__(self, name: str, disk: Disk) -> None:
        self.name = name
        self.disk = disk
        self.copy = CopyDirectory(DiskFiles(disk))
        self.connection: Connection | None = None
        self.proving: int | None = None
        self.crashes = 0


class CopyWorld(CrashWorld):
    def __init__(self, random: Random, *, copies: int, required: int, power: bool, span: int, **settings: Any) -> None:
        catch_up.PIECE_RECORDS = random.choice([1, 2, 7])  # type: ignore[misc]
        catch_up.PIECE_KEYS = random.choice([1, 3, 100])  # type: ignore[misc]
        catch_up.LAST_BYTES = random.choice([0, 100, 2000])  # type: ignore[misc]
        copy_feed.MESSAGE_BYTES = random.choice([1, 300, 5000])
        outbox.OUTBOX_BYTES = random.choice([1000, 10_000, 1 << 20])  # type: ignore[misc]
        self.required = required
        self.generation = 0
        self.in_step: dict[str, None] = {}
        self.takeovers = 0
        self.broken: BaseException | None = None  # a crash of the owner, or a mistake, inside a feed
        self.whole_stores = 0
        self.random = random
        self.power = power
        self.owner = "n0"
        self.followers = [FollowerNode(f"n{number}", Disk(self._machine(), span)) for number in range(1, copies)]
        for follower in self.followers:
            self._reopen(follower)
        self.disk: Disk | None = None
        self._span = span
        super().__init__(random, power=power, span=span, **settings)

    def _machine(self) -> Machine:
        machine = Machine(self.random)
        machine.fuse = self._fuse()
        return machine

    def _fuse(self) -> int:
        return int(self.random.expovariate(1 / self.random.choice([10, 100, 2000]))) + 1

    # The owner

    def careful(self) -> bool:
        return self.power or self.own_disk().facts.copied

    def own_disk(self) -> Disk:
        """The disk of the node that serves."""
        if self.disk is None:
            disk = self.disk = Disk(self.machine, self._span)
            assert isinstance(self.kv, CrashKv) and isinstance(self.journal, CrashJournal)
            disk.kv, disk.journal = self.kv, self.journal
            if self.topics:
                disk.streams[7] = self.stream_journal
        return self.disk

    def begin_to_serve(self) -> None:
        """As ``begin_copies`` does it."""
        disk, store = self.own_disk(), self.durable
        ends = {number: log.stream.next for number, log in store.streams.by_number.items()}
        known = disk.facts.generation > 0
        self.generation += 1
        self.machine.step()
        disk.facts = with_life(disk.facts if known else None, "n0", Life(self.generation, store.journal.next, ends))
        value = disk.kv.get(META_COPY) if known else None
        if value is None:
            value = msgspec.msgpack.encode((self.generation, 0))
            mark(disk.kv, META_COPY, value)
        state = msgspec.msgpack.decode(value, type=tuple[int, int])
        source = CopySource(
            store.journal, store.streams, disk.facts, "crash", 0, state, lambda: disk.ends, lambda: self.now
        )
        self.source = source
        source.required = tuple(self.in_step)
        store.copy_to(source)
        for log in store.streams.by_number.values():
            disk.definitions[log.stream.number] = log.definition
        source.show(store.streams.mark())
        with self.loop.running():
            self._renew()

    def _open_streams(self) -> Any:
        if self.topics and self.disk is not None:
            self.stream_journal = self.disk.streams[7]
        return super()._open_streams()

    def choose_disk(self) -> None:
        for follower in self.followers:
            self.cut(follower)
        heirs = self._heirs()
        if heirs and self.random.random() < 0.6:
            self._hand_over(self.random.choice(heirs))
        while (longer := self._longer()) is not None:
            self._hand_over(longer, lost=False)

    def _heirs(self) -> list[FollowerNode]:
        return [follower for follower in self.followers if follower.name in self.in_step and follower.disk.intact]

    def _longer(self) -> FollowerNode | None:
        """A node in step that has more than the one that is about to serve."""
        disk = self.own_disk()
        if not disk.facts.generation:
            return None
        ends = {number: journal.next for number, journal in disk.streams.items()}
        life = Life(self.generation + 1, disk.journal.next, ends)
        hello = Hello("n0", life.generation, "crash", 0, (*disk.facts.lives, life))
        return next((heir for heir in self._heirs() if heir.copy.excess(hello)), None)

    def _hand_over(self, heir: FollowerNode, lost: bool = True) -> None:
        """A follower in step takes over, since the node is ``lost`` or has less."""
        while True:
            try:
                heir.copy.prepare()
                break
            except (Crash, OSError):
                self._crash_follower(heir)
        self.takeovers += 1
        del self.in_step[heir.name]
        own = self.own_disk()
        heir.copy.close()
        heir.disk.use(self.machine)
        if self.topics and 7 not in heir.disk.streams:  # it was not created there yet
            heir.disk.streams[7] = CrashJournal(self.machine, self._span)
        self.disk, self.kv, self.journal = heir.disk, heir.disk.kv, heir.disk.journal
        machine = self._machine()
        old = Disk(machine, self._span) if lost and self.random.random() < 0.5 else own
        old.use(machine)
        heir.name, self.owner = self.owner, heir.name
        heir.disk, heir.proving = old, None
        self._reopen(heir)

    # Followers

    def _reopen(self, follower: FollowerNode) -> None:
        follower.copy = CopyDirectory(DiskFiles(follower.disk), self.power)

    def _crash_follower(self, follower: FollowerNode) -> None:
        self.cut(follower)
        follower.crashes += 1
        if self.power and self.random.random() < POWER_FAILS:
            follower.disk.power_failure(self.random)
        follower.disk.machine.fuse = self._fuse()
        self._reopen(follower)

    def lose_disk(self, follower: FollowerNode) -> None:
        """For good; it comes back with an empty one."""
        self.cut(follower)
        follower.disk = Disk(self._machine(), self._span)
        follower.disk.intact = False
        self._reopen(follower)

    def dial(self, follower: FollowerNode) -> None:
        if follower.connection is not None:
            return
        if not follower.disk.intact:
            self.leave(follower)
            follower.disk.intact = True
        hello = msgspec.msgpack.decode(self.source.hello(), type=Hello)
        receiver = SteadyReceiver(follower.copy, hello, "power" if self.power else "process", NO_THREADS)
        try:
            position = drive(receiver.begin())
        except Crash:
            self._crash_follower(follower)
            return
        except OSError:
            return
        self.whole_stores += position.kv != self.source.kv_state
        feed = CopyFeed(self.durable, self.source, follower.name)
        connection = follower.connection = Connection(feed, receiver)

        async def send(data: bytes) -> None:
            connection.messages.append(data)
            while len(connection.messages) > IN_FLIGHT and not connection.ended:
                connection.room = self.loop.create_future()
                await connection.room

        async def run() -> None:
            try:
                await feed.run(position, send)
            except FeedEnded:
                if follower.connection is connection:
                    self.cut(follower)
            except (Crash, Exception) as error:
                self.broken = error

        with self.loop.running():
            connection.task = self.loop.create_task(run())

    def cut(self, follower: FollowerNode) -> None:
        connection, follower.connection = follower.connection, None
        if connection is None:
            return
        connection.ended = True
        with self.loop.running():
            connection.task.cancel()
        if follower.proving is not None:
            follower.proving = None
            self._renew()

    def leave(self, follower: FollowerNode) -> None:
        """etcd confirms that it is not in step."""
        if self.in_step.pop(follower.name, 0) is None:
            self._renew()

    def deliver(self, follower: FollowerNode) -> None:
        """One message reaches the follower, and does what it does."""
        connection = follower.connection
        assert connection is not None
        data = self.disturb(connection.messages.popleft(), connection)
        if connection.room is not None and not connection.room.done():
            with self.loop.running():
                connection.room.set_result(None)
        try:
            stored = drive(connection.receiver.receive(data))
        except Crash:
            self._crash_follower(follower)
        except (CopyFrameError, Fenced, OSError):
            self.cut(follower)
        else:
            if stored:
                connection.acknowledgements.append(stored)

    def disturb(self, data: bytes, connection: Connection) -> bytes:
        """A network that doubles, drops and reorders: all of it has to be found out."""
        chance = self.random.random()
        if chance > 0.01 or self.machine.fuse > NEVER // 2 or not connection.messages:
            return data
        found = [encode_group(lsn, [bytes(group)]) for lsn, group in groups(data)]
        if chance < 0.004:
            found.insert(0, found[0])
        elif chance < 0.007 and connection.receiver.stored:
            found = found[1:] + found[:1]
        elif connection.receiver.stored:
            found = found[1:]
        return b"".join(found)

    def acknowledge(self, follower: FollowerNode) -> None:
        connection = follower.connection
        assert connection is not None
        with self.loop.running():
            connection.feed.acknowledge(connection.acknowledgements.popleft())
        self._join(follower)

    def _join(self, follower: FollowerNode) -> None:
        """First the owner waits for it; once it has everything that the owner acknowledged before, it is in step."""
        if follower.name in self.in_step or follower.connection is None or follower.connection.feed.phase != "live":
            return
        if follower.proving is None:
            follower.proving = self.source.lsn
            self._renew()
        if self.source.acknowledged(follower.name) >= follower.proving:
            follower.proving = None
            self.in_step[follower.name] = None
            self._renew()

    def _renew(self) -> None:
        proving = [follower.name for follower in self.followers if follower.proving is not None]
        few = 1 + len(self.in_step) < self.required
        if few and not self.source.refusal:
            self.machine.trouble += 1
        with self.loop.running():
            self.source.require((*self.in_step, *proving), "some are missing" if few else "")

    # Time

    def pump(self, share: float) -> bool:
        """Something happens between the nodes. Whether anything did."""
        self._surface()
        moved = False
        for follower in self.followers:
            for act in (self.deliver, self.acknowledge):
                while (connection := follower.connection) is not None and self.random.random() < share:
                    waiting = connection.messages if act == self.deliver else connection.acknowledgements
                    if not waiting:
                        break
                    act(follower)
                    moved = True
        return moved

    def _surface(self) -> None:
        broken, self.broken = self.broken, None
        if broken is not None:
            raise broken

    def run(self) -> None:
        super().run()
        self._surface()
        if self.random.random() < 0.5:
            self.pump(0.7)
            super().run()

    def settle(self) -> None:
        """All followers come back, and get everything."""
        while True:
            super().settle()
            for follower in self.followers:
                self.dial(follower)
            if not self.pump(1.0) and not self.loop.jobs:
                super().settle()
                if all(follower.connection is not None for follower in self.followers) and not self.pump(1.0):
                    break
