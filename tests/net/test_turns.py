"""No turn takes long: writes to very many receivers are spread over several, and heavy senders are not read
meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from starlingmq.config.settings import LimitsConfig, MqttConfig
from starlingmq.core.broker import BrokerState
from starlingmq.core.context.context import TURN_WORK
from starlingmq.core.session.session import Client
from starlingmq.net.driver import CLIENTS_PER_TURN, Driver
from starlingmq.storage.store import NoStore
from starlingmq.wire.mqtt import Connect, Publish, Subscribe, SubscribeRequest, encode

RECEIVERS = CLIENTS_PER_TURN * 2 + 500


class Wire:
    """A transport that counts what is written in one turn of the loop."""

    written: ClassVar[list[Wire]] = []

    def __init__(self) -> None:
        self.output = b""
        self.paused = False

    def write(self, data: bytes) -> None:
        self.output += data
        Wire.written.append(self)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def abort(self) -> None: ...
    def close(self) -> None: ...
    def write_eof(self) -> None: ...

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


def connect(driver: Driver, client_id: str) -> tuple[Client, Wire]:
    wire = Wire()
    client = driver.opened(wire, "mqtt://test", client_id)
    driver.received(client, encode(Connect(4, client_id), 4))
    driver.received(client, encode(Subscribe(1, [SubscribeRequest(b"t")]), 4))
    return client, wire


async def test_no_turn_writes_to_more_than_its_share_of_the_receivers() -> None:
    state = BrokerState(MqttConfig(sys_interval=0.0), LimitsConfig(), 1000.0, b"s" * 32)
    driver = Driver(state, NoStore(), clock=lambda: 1000.0)
    wires = [connect(driver, f"c{number}")[1] for number in range(RECEIVERS)]
    publisher, _ = connect(driver, "pub")
    while state.pending() or state.ctx.ready.urgent():
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    before = [len(wire.output) for wire in wires]
    driver.received(publisher, encode(Publish(b"t", b"x"), 4) + encode(Publish(b"t", b"y"), 4))
    turns: list[int] = []
    while sum(turns) < RECEIVERS:
        Wire.written.clear()
        await asyncio.sleep(0)
        turns.append(len(Wire.written))
        assert len(turns) < 100
    assert max(turns) <= CLIENTS_PER_TURN
    both = encode(Publish(b"t", b"x"), 4) + encode(Publish(b"t", b"y"), 4)
    assert [wire.output[start:] for wire, start in zip(wires, before, strict=True)] == [both] * RECEIVERS


async def test_input_beyond_a_turn_is_handled_in_later_turns() -> None:
    """Otherwise the event loop would continue to read in the same turn, and all input would accumulate."""
    state = BrokerState(MqttConfig(sys_interval=0.0), LimitsConfig(), 1000.0, b"s" * 32)
    driver = Driver(state, NoStore(), clock=lambda: 1000.0)
    publisher, wire = connect(driver, "pub")
    driver.received(publisher, encode(Publish(b"other", b"x"), 4) * (TURN_WORK + 10))
    assert wire.paused
    while state.pending() or state.ctx.ready.urgent():
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not wire.paused
    assert state.ctx.counters.publish_received == TURN_WORK + 10
