"""A counted cell: traffic through the compiled driver and core.

A cell is one broker with its clients. In each round every client sends its packets as one read, then the driver takes
its turn; the broker's output goes back to the clients, uncounted. The instructions per message are those of a delivery.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final, cast

from tests.instructions.peers import NatsPublisher, Peer, SocketTransport, Subscriber

from starlingmq.config.settings import LimitsConfig, MqttConfig
from starlingmq.core.broker import BrokerState
from starlingmq.net.broker_clock import broker_clock
from starlingmq.net.broker_loop import BrokerLoop
from starlingmq.net.client_socket import ClientSocket
from starlingmq.net.driver import Driver
from starlingmq.net.listeners.listener_gate import ListenerGate
from starlingmq.storage.store import NoStore, Store

WARM_UP: Final = 8  # rounds: routes, frames, memory blocks and windows are as they stay afterwards
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
        self.loop = self._make_loop()
        self._begin()
        for peer in peers:
            self._connect(peer)

    def _begin(self) -> None:
        mqtt = MqttConfig(sys_interval=0.0)
        self.state = BrokerState(mqtt, LimitsConfig(), START, b"s" * 32, "test")
        asyncio.events._set_running_loop(cast(Any, self.loop))
        try:
            self.driver = Driver(self.state, self._make_store(), clock=self._make_clock())
        finally:
            asyncio.events._set_running_loop(None)
        self._serve()

    def _driver_of(self, peer: Peer) -> Driver:
        return self.driver

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
        for peer in self.peers:
            if not peer.client.gone:
                peer.client.transport.abort()
            cast(SocketTransport, peer.transport).end.close()
        await asyncio.sleep(0)

    def _connect(self, peer: Peer) -> None:
        ours, theirs = socket.socketpair()
        gate = ListenerGate("mqtt://test")
        gate.enter("peer")
        driver = self._driver_of(peer)
        connection = ClientSocket(self.loop.sockets, driver, gate, ours, "peer")
        connection.open(driver, 0)
        peer.client = connection.client
        ours.detach()
        peer.transport = SocketTransport(theirs)
        for data in peer.greetings():
            self._greet(peer, data)
        peer.transport.take()

    def _greet(self, peer: Peer, data: bytes) -> None:
        cast(SocketTransport, peer.transport).send(data)
        self._serve()

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
