"""Cells in which a client connects to a cluster of three nodes, on one event loop.

The instructions are those of all nodes together from CONNECT until nothing is left to do: they are divided by the
number of CONNECTs. The connection is open before, and the client has disconnected before the count begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from tests.instructions.crossing import STEP_SECONDS, STEPS_MAX, Crossing
from tests.instructions.peers import Transport

from starlingmq.core.session.session import Client
from starlingmq.net.broker_loop import BrokerLoop
from starlingmq.wire.mqtt import Connect, Subscribe, SubscribeRequest, encode

NODES: Final = ("one", "two", "three")
VERSION: Final = 4
QUIET_STEPS: Final = 40  # rounds of the event loop after which nothing is under way
DISCONNECT: Final = b"\xe0\x00"


class Connecting(Crossing):
    """``step``: how many nodes further each client connects than the last time; 0: where its session is."""

    def __init__(self, clients: int, rounds: int, step: int) -> None:
        self.names = [f"client-{number}" for number in range(clients)]
        self.step = step
        self.places = [number % len(NODES) for number in range(clients)]
        super().__init__([], rounds, clients, NODES)

    def _begin(self) -> None:
        super()._begin()
        for number in range(len(self.names)):
            client, transport = self._open(number)
            self._ask(number, client, transport, encode(Connect(VERSION, self.names[number], False, 0), VERSION))
            subscribe = Subscribe(1, [SubscribeRequest(b"to/" + self.names[number].encode(), 1)])
            self._ask(number, client, transport, encode(subscribe, VERSION))
            self._close(number, client, transport)

    def _open(self, number: int) -> tuple[Client, Transport]:
        transport = _Closable()
        driver = self.workers[self.places[number]].driver
        return driver.opened(cast(Any, transport), "mqtt://test", f"peer:{number}"), transport

    def _say(self, number: int, client: Client, data: bytes) -> None:
        self.workers[self.places[number]].driver.received(client, data)
        self._settle()

    def _ask(self, number: int, client: Client, transport: Transport, data: bytes) -> None:
        """Until it is answered."""
        transport.take()
        self.workers[self.places[number]].driver.received(client, data)
        for _ in range(STEPS_MAX):
            self._settle()
            if transport.written:
                return
            self._pass(STEP_SECONDS)
        raise AssertionError(f"{self.names[number]} is not answered")

    def _close(self, number: int, client: Client, transport: Transport) -> None:
        assert transport.written, f"{self.names[number]} was not answered"
        self._say(number, client, DISCONNECT)
        self.workers[self.places[number]].driver.lost(client)
        self._settle()

    def _settle(self) -> None:
        sockets = cast(BrokerLoop, self.loop).sockets
        for _ in range(QUIET_STEPS):
            sockets.select(0.0)

    def _round(self, toggle: Callable[[], None]) -> None:
        for number, name in enumerate(self.names):
            self.time.now += 0.01
            self.places[number] = (self.places[number] + self.step) % len(NODES)
            client, transport = self._open(number)
            self._settle()
            self.counted += 1
            toggle()
            self._say(number, client, encode(Connect(VERSION, name, False, 0), VERSION))
            toggle()
            self._close(number, client, transport)

    def run(self, toggle: Callable[[], None]) -> None:
        for _ in range(2):
            self._round(lambda: None)
        self.counted = 0
        for _ in range(self.rounds):
            self._round(toggle)
        self.loop.run_until_complete(self._end())
        self.loop.close()


class _Closable(Transport):
    """A CONNECT that waits for its claim holds back what follows."""

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False
