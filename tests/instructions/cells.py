"""The counted cells: traffic through the compiled driver and core. Only the last ones have sockets and a real clock.

A cell is one broker with its clients. In each round every client sends its packets as one read, then the driver takes
its turn; the broker's output goes back to the clients, uncounted. The instructions per message are those of a delivery.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from tests.instructions.peers import NatsPublisher, NatsSubscriber, Peer, Publisher, SocketTransport, Subscriber
from tests.storage.memory_engine import MemoryKv

from starlingmq.config.settings import LimitsConfig, MqttConfig
from starlingmq.core.broker import BrokerState
from starlingmq.net.broker_clock import broker_clock
from starlingmq.net.broker_loop import BrokerLoop
from starlingmq.net.client_socket import ClientSocket
from starlingmq.net.driver import Driver
from starlingmq.net.listeners.listener_gate import ListenerGate
from starlingmq.storage.durable_store import DurableStore
from starlingmq.storage.segment.segment_journal import SegmentJournal
from starlingmq.storage.store import NoStore, Store
from starlingmq.storage.streams.stream_logs import Definition, StreamLog, StreamLogs

WARM_UP: Final = 5  # rounds: routes, frames and memory blocks are there afterwards
START: Final = 1_000_000.0
TICK: Final = 0.001  # seconds between two looks at the clock


class Timer:
    def cancel(self) -> None:
        pass


class Loop:
    """The event loop's interface as a driver uses it. Its timers never fire."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.call_soon: Callable[[Callable[[], None]], None] = self.soon.append
        self.timer = Timer()

    def call_later(self, seconds: float, callback: Callable[[], None], *arguments: object) -> Timer:
        return self.timer

    def turn(self) -> None:
        """Until nothing is left to do now."""
        while self.soon:
            self.soon.pop()()


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        self.now += TICK
        return self.now


class WastefulClock(Clock):
    """A loop more in each turn."""

    def __call__(self) -> float:
        for _ in range(20):
            pass
        return super().__call__()


class Cell:
    """``rounds`` are counted; in each of them the subscribers get ``messages`` together."""

    def __init__(self, peers: list[Peer], rounds: int, messages: int) -> None:
        self.peers = peers
        self.rounds = rounds
        self.messages = messages
        self.counted = 0  # how often counting was begun
        mqtt = MqttConfig(sys_interval=0.0)
        self.state = BrokerState(mqtt, LimitsConfig(), START, b"s" * 32, "test")
        self.loop = self._make_loop()
        asyncio.events._set_running_loop(cast(Any, self.loop))
        try:
            self.driver = Driver(self.state, self._make_store(), clock=self._make_clock())
        finally:
            asyncio.events._set_running_loop(None)
        self._serve()
        for peer in peers:
            self._connect(peer)

    def _make_loop(self) -> Any:
        return Loop()

    def _make_clock(self) -> Callable[[], float]:
        return Clock()

    def _make_store(self) -> Store:
        return NoStore()

    def _serve(self) -> None:
        self.loop.turn()

    def _connect(self, peer: Peer) -> None:
        listener = "nats://test" if isinstance(peer, NatsPublisher) else "mqtt://test"
        peer.client = self.driver.opened(cast(Any, peer.transport), listener, f"peer:{peer.number}")
        for data in peer.greetings():
            self.driver.received(peer.client, data)
            self._serve()
        peer.transport.take()

    def run(self, toggle: Callable[[], None]) -> None:
        """The counted rounds; ``toggle`` begins and ends the counting in each one."""
        for _ in range(WARM_UP):
            self._round(_nothing)
        self.counted = 0
        before = sum(peer.delivered for peer in self.peers)
        for _ in range(self.rounds):
            self._round(toggle)
        delivered = sum(peer.delivered for peer in self.peers) - before
        assert delivered == self.rounds * self.messages, (
            f"{delivered} messages are not {self.rounds} times {self.messages}"
        )

    def _round(self, toggle: Callable[[], None]) -> None:
        reads = [(peer.client, data) for peer in self.peers if (data := peer.read())]
        received = self.driver.received
        self.counted += 1
        toggle()
        for client, data in reads:
            received(client, data)
        self.loop.turn()
        toggle()
        for peer in self.peers:
            data = peer.transport.take()
            if data:
                peer.heard(data)


class Paced(Cell):
    """Each read has a turn of its own, as when messages come one by one."""

    def _round(self, toggle: Callable[[], None]) -> None:
        for peer in self.peers:
            data = peer.read()
            if not data:
                continue
            self.counted += 1
            toggle()
            self.driver.received(peer.client, data)
            self.loop.turn()
            toggle()
            for other in self.peers:
                heard = other.transport.take()
                if heard:
                    other.heard(heard)


class Stored(Cell):
    """With a journal in files, as ``process``."""

    def _make_store(self) -> Store:
        self.directory = tempfile.TemporaryDirectory(prefix="cell-")
        place = Path(self.directory.name)
        journal = SegmentJournal(str(place / "journal"))
        streams = self._make_streams(place)
        self.store = DurableStore(MemoryKv(), journal, "process", lambda: self.state.ctx.now, streams=streams)
        return self.store

    def _make_streams(self, place: Path) -> StreamLogs:
        return StreamLogs()

    def _serve(self) -> None:
        asyncio.events._set_running_loop(cast(Any, self.loop))
        try:
            super()._serve()
        finally:
            asyncio.events._set_running_loop(None)

    def run(self, toggle: Callable[[], None]) -> None:
        before = self._stored()
        asyncio.events._set_running_loop(cast(Any, self.loop))
        try:
            super().run(toggle)
            assert self._stored() >= before + self.counted, "a turn has stored nothing"
        finally:
            asyncio.events._set_running_loop(None)
            self.store.streams.close()
            self.store.journal.close()
            self.store.thread.close()
            self.directory.cleanup()

    def _stored(self) -> int:
        return self.store.journal.next


class StoredPaced(Paced, Stored):
    """As ``Stored``, but each read has a turn of its own."""


class Audited(Stored):
    """The events of all messages are kept in a stream, whose log is in files, too."""

    def _make_streams(self, place: Path) -> StreamLogs:
        definition = Definition(name="events", number=1, topics=("$events/#",))
        log = StreamLog(definition, SegmentJournal(str(place / "stream")))
        streams = super()._make_streams(place)
        streams.add(log)
        self.state.router.add_stream(log.stream)
        self.state.audit.node = "n1"
        return streams

    def _stored(self) -> int:
        return self.store.streams.by_number[1].journal.next


class AuditedPaced(Paced, Audited):
    """As ``Audited``, but each read has a turn of its own."""


class OverSockets(Cell):
    """As ``Paced``, but the bytes come and go through the broker's event loop and sockets, and the clock is its own.
    Subscribers' acknowledgements arrive after the turn, and wait for the next message.

    System calls are made, but the instructions of the kernel are not counted.
    """

    def _make_loop(self) -> Any:
        return BrokerLoop()

    def _make_clock(self) -> Callable[[], float]:
        return broker_clock()

    def _serve(self) -> None:
        self.loop.sockets.select(0.0)

    def run(self, toggle: Callable[[], None]) -> None:
        try:
            super().run(toggle)
        finally:
            self.loop.run_until_complete(self._end())
            self.loop.close()

    async def _end(self) -> None:
        for client in list(self.driver.clients):
            client.transport.abort()
        for peer in self.peers:
            cast(SocketTransport, peer.transport).end.close()
        await asyncio.sleep(0)

    def _connect(self, peer: Peer) -> None:
        ours, theirs = socket.socketpair()
        gate = ListenerGate("mqtt://test")
        gate.enter("peer")
        connection = ClientSocket(self.loop.sockets, self.driver, gate, ours, "peer")
        connection.open(self.driver, 0)
        ours.detach()
        transport = peer.transport = SocketTransport(theirs)
        for data in peer.greetings():
            transport.send(data)
            self._serve()
        transport.take()

    def _round(self, toggle: Callable[[], None]) -> None:
        for peer in self.peers:
            data = peer.read()
            if not data:
                continue
            cast(SocketTransport, peer.transport).send(data)
            if isinstance(peer, Subscriber):
                continue  # read with the next message
            self.counted += 1
            toggle()
            self._serve()
            toggle()
            for other in self.peers:
                heard = other.transport.take()
                if heard:
                    other.heard(heard)


class Empty:
    """The cost of counting itself: rounds in which nothing is done."""

    counted = rounds = 100
    messages = 1

    def run(self, toggle: Callable[[], None]) -> None:
        for _ in range(self.rounds):
            toggle()
            toggle()


def _nothing() -> None:
    pass


def pairs(count: int, qos: int, burst: int) -> list[Peer]:
    return [peer for n in range(count) for peer in (Publisher(n, qos, burst), Subscriber(n, qos, n))]


def lasting_pairs(count: int, qos: int, burst: int) -> list[Peer]:
    """The sessions of the subscribers outlive their connections."""
    return [peer for n in range(count) for peer in (Publisher(n, qos, burst), Subscriber(n, qos, n, lasting=True))]


def fan_out(count: int, qos: int, burst: int) -> list[Peer]:
    return [Publisher(0, qos, burst), *(Subscriber(n, qos, 0) for n in range(count))]


def nats_pairs(count: int, burst: int) -> list[Peer]:
    return [peer for n in range(count) for peer in (NatsPublisher(n, burst), NatsSubscriber(n))]


def nats_group(publishers: int, members: int, burst: int) -> list[Peer]:
    receivers = [NatsSubscriber(n, 0, b"members") for n in range(members)]
    return [*(NatsPublisher(n, burst, 0) for n in range(publishers)), *receivers]


CELLS: Final[dict[str, Callable[[], Cell]]] = {
    "QoS 0, 1:1": lambda: Cell(pairs(1, 0, 100), 20, 100),
    "QoS 0, 50:50": lambda: Cell(pairs(50, 0, 20), 2, 1000),
    "QoS 0, 1:50": lambda: Cell(fan_out(50, 0, 20), 2, 1000),
    "QoS 1, 1:1": lambda: Cell(pairs(1, 1, 100), 20, 100),
    "QoS 1, 50:50": lambda: Cell(pairs(50, 1, 20), 2, 1000),
    "QoS 1, 1:50": lambda: Cell(fan_out(50, 1, 20), 2, 1000),
    "QoS 2, 1:1": lambda: Cell(pairs(1, 2, 100), 20, 100),
    "QoS 2, 50:50": lambda: Cell(pairs(50, 2, 20), 2, 1000),
    "QoS 2, 1:50": lambda: Cell(fan_out(50, 2, 20), 2, 1000),
    "NATS, 1:1": lambda: Cell(nats_pairs(1, 100), 20, 100),
    "NATS, 10:10": lambda: Cell(nats_pairs(10, 100), 2, 1000),
    "NATS, queue group 10:10": lambda: Cell(nats_group(10, 10, 100), 2, 1000),
    "QoS 1, 1:1, stored": lambda: Stored(lasting_pairs(1, 1, 100), 20, 100),
    "QoS 1, one message a turn, stored": lambda: StoredPaced(lasting_pairs(20, 1, 1), 10, 20),
    "QoS 0, 1:1, events kept": lambda: Audited(pairs(1, 0, 100), 20, 100),
    "QoS 0, one message a turn, events kept": lambda: AuditedPaced(pairs(20, 0, 1), 10, 20),
    "QoS 0, one message a turn": lambda: Paced(pairs(20, 0, 1), 10, 20),
    "QoS 1, one message a turn": lambda: Paced(pairs(20, 1, 1), 10, 20),
    "QoS 0, one message a turn, over sockets": lambda: OverSockets(pairs(20, 0, 1), 10, 20),
    "QoS 1, one message a turn, over sockets": lambda: OverSockets(pairs(20, 1, 1), 10, 20),
}

PLANTED: Final = "QoS 0, one message a turn"
"""The cell of which there is one with a flaw, so that the test is seen to fail."""


class Wasteful(Paced):
    """The planted flaw."""

    def _make_clock(self) -> Callable[[], float]:
        return WastefulClock()


def planted() -> Cell:
    return Wasteful(pairs(20, 0, 1), 10, 20)
