"""A broker whose store and whose machine die between any two steps, and come back with what the store held by then.

The core, the driver and the durable store are the real ones; the disk is ``crash_engines``, the event loop ``simloop``.
Another step that can be seen afterwards are the bytes for one connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.harness import FakeClient
from tests.storage.crash_engines import CrashJournal, CrashKv, Machine
from tests.storage.simloop import SimLoop
from tests.storage.world import StoredWorld

from starlingmq.core.session.session import Client
from starlingmq.net.driver import Driver
from starlingmq.storage.directory_store import make_safe
from starlingmq.storage.durable_store import DurableStore
from starlingmq.storage.journal_writer import Durability
from starlingmq.storage.keys import META_AS_OF
from starlingmq.storage.recovery import Recovered, restore
from starlingmq.storage.streams.stream_definition import Definition
from starlingmq.storage.streams.stream_logs import StreamLog, StreamLogs
from starlingmq.wire.mqtt import Connack, Connect, Packet, encode

POWER_FAILS = 0.7  # of the crashes, with ``power``; in the others the process dies


class PatientStore(DurableStore):
    """Does a piece of a checkpoint in turns that something else is the cause of, so that much happens meanwhile."""

    def maintain(self) -> bool:
        super().maintain()
        return False


class Line(FakeClient):
    """A client, and the transport between it and the driver."""

    world: CrashWorld

    def __init__(self, world: CrashWorld, version: int, client_id: str) -> None:
        super().__init__(world, Client("", "", 0.0), version, client_id)
        self.lost = False
        self.closed_at = 0.0  # by the broker
        self.client = world.driver.opened(self, "mqtt://test", f"peer:{len(world.clients)}")

    # The driver's end

    def get_extra_info(self, name: str, default: object = None) -> Any:
        return default

    def write(self, data: bytes) -> None:
        self.world.machine.step()
        if not self.closed:
            self.output += data

    def can_write_eof(self) -> bool:
        return False

    def write_eof(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        if not self.closed and not self.lost:
            self.closed = self.lost = True
            self.closed_at = self.world.now
            self.world.loop.call_soon(self.world.driver.lost, self.client)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        self.world.loop.call_soon(self.read_again)

    # The client's end

    def send_all(self, packets: Sequence[Packet | bytes]) -> None:
        self._unread.append(b"".join(p if isinstance(p, bytes) else encode(p, self.version) for p in packets))
        self.read_again()
        self.world.run()

    def read_again(self) -> None:
        while self._unread and self.reading and not self.lost:
            self.world.driver.received(self.client, self._unread.pop(0))

    def drop(self) -> None:
        if not self.lost:
            self.lost = True
            self.world.driver.lost(self.client)
        self.world.run()

    def block(self) -> None:
        self.world.driver.blocked(self.client)

    def unblock(self) -> None:
        self.world.driver.drained(self.client)
        self.world.run()


class CrashWorld(StoredWorld):
    """A crash takes the process alone, or, with ``power`` and as ``fate`` has it, everything that was not synced."""

    driver: Driver
    loop: SimLoop

    def __init__(
        self,
        random: Random,
        *,
        fate: Random,
        power: bool,
        span: int,
        piece: int,
        topics: tuple[str, ...] = (),
        **settings: Any,
    ) -> None:
        """``topics``: of a stream that there is, if any are given."""
        self.random = random
        self.fate = fate
        self.machine = Machine(random)
        self.power = power
        self.piece = piece
        self.crashes = 0
        self.gone: dict[str, int] = {}  # dropped, by reason, before the crashes
        self.lost = 0  # references that recovery found to point nowhere
        self.topics = topics
        self.stream_journal = CrashJournal(self.machine, span)
        self.shown = 0  # offset before which the stream may be read
        super().__init__(CrashKv(self.machine), CrashJournal(self.machine, span), **settings)

    def _open_store(self) -> None:
        journal, kv = self.journal, self.kv
        assert isinstance(journal, CrashJournal) and isinstance(kv, CrashKv)
        journal.go_on_from(int.from_bytes(kv.get(META_AS_OF) or b"\0", "big"))
        if self.power:
            make_safe(journal, Path("journal"))
        streams = self._open_streams()
        durability: Durability = "power" if self.power else "process"
        store = PatientStore(
            kv, journal, durability, lambda: self.now, self.checkpoint_bytes, streams=streams, piece=self.piece
        )
        self.state.ctx.recording = True
        self.recovered = Recovered()
        self.recovered = restore(self.state, kv, journal, streams, self.careful())
        store.replayed(self.recovered.changes, self.recovered.changed)
        store.rewrite(self.recovered.ahead)
        self.lost += self.recovered.lost
        self.durable = store
        self.loop = SimLoop(lambda: self.now)
        self.begin_to_serve()
        with self.loop.running():
            self.driver = Driver(self.state, store, clock=lambda: self.now)

    def careful(self) -> bool:
        """Whether a stream may have more than the journal."""
        return self.power

    def begin_to_serve(self) -> None:
        """The store is open."""
        self.durable.streams.show_all()

    def _open_streams(self) -> StreamLogs:
        streams = StreamLogs()
        if self.topics:
            definition = Definition(name="kept", number=7, topics=self.topics)
            streams.add(StreamLog(definition, self.stream_journal, self))
        return streams

    def show(self, next: int) -> None:
        """Check that the readable part of the stream has grown. It never shrinks, whatever fails."""
        assert next >= self.shown, f"{self.shown} could be read, and now {next}"
        self.shown = next

    def close(self) -> None:
        pass

    def crash(self, fuse: int) -> None:
        """The end, and a new beginning, in which after ``fuse`` steps the next crash comes. Raises OSError if that
        is refused."""
        journal, kv = self.journal, self.kv
        assert isinstance(journal, CrashJournal) and isinstance(kv, CrashKv)
        self.crashes += 1
        for reason, count in self.state.ctx.counters.dropped.items():
            self.gone[reason] = self.gone.get(reason, 0) + count
        if self.power and self.fate.random() < POWER_FAILS:
            kv.power_failure(self.random)
            journal.power_failure(self.random)
            if self.topics:
                self.stream_journal.power_failure(self.random)
        self.choose_disk()
        self.machine.fuse = fuse
        self.restart()

    def choose_disk(self) -> None:
        """The next process goes on with the same disk."""

    def all_dropped(self) -> dict[str, int]:
        whole = dict(self.gone)
        for reason, count in self.state.ctx.counters.dropped.items():
            whole[reason] = whole.get(reason, 0) + count
        return whole

    # Connections, turns, time

    def open(self, version: int = 5, client_id: str = "") -> Line:
        line = Line(self, version, client_id)
        self.clients.append(line)
        self.run()
        return line

    def run(self) -> None:
        """Until nothing more happens of itself now; the storage thread gets on as far as the seed has it."""
        self.loop.run()
        while self.loop.jobs and self.random.random() < 0.9:
            self._work()

    def settle(self) -> None:
        """Until nothing waits any more, but for a disk that fails."""
        self.loop.run()
        while self.loop.jobs:
            self._work()

    def work(self) -> None:
        """The storage thread gets on by one moment, and the broker by one turn."""
        if self.loop.jobs:
            self._work()
        self.open()

    def _work(self) -> None:
        before = self.loop.failures
        self.loop.work()
        self.machine.trouble += self.loop.failures - before  # the broker hears of it now
        self.loop.run()

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while (when := self.loop.next_timer()) is not None and when <= end:
            self.now = max(self.now, when)
            self.loop.fire()
            self.run()
        self.now = end
        self.run()

    def connect_and_settle(self, client_id: str) -> FakeClient:
        """A connection that has read its CONNACK."""
        fake = self.open(5, client_id)
        fake.send(Connect(5, client_id))
        self.settle()
        fake.expect(Connack)
        return fake
