"""A disk that is full or can not sync, under a broker that serves: nothing is acknowledged that is not kept, what is
there goes on being delivered, and it ends by itself."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.peer import Peer
from tests.storage.simfs import SimFiles

from starlingmq import Broker
from starlingmq.config import Config
from starlingmq.storage import durable
from starlingmq.storage.durable import DurableStore
from starlingmq.storage.memory import MemoryKv
from starlingmq.storage.segments import SegmentJournal
from starlingmq.wire.mqtt import Ack, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.packets import PUBACK
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL

PATIENCE = 10.0
HOUR = {SESSION_EXPIRY_INTERVAL: 3600}


class Disk:
    """A broker on a simulated file system."""

    def __init__(self, durability: Any) -> None:
        self.files = SimFiles()
        self.journal = SegmentJournal("journal", self.files)
        self.durability = durability
        self.broker = Broker(
            msgspec.convert({"mqtt": {"sys_interval": 0.05}}, Config), listeners=["mqtt://127.0.0.1:0"]
        )

    def open_store(self, config: Config, state: Any, clock: Callable[[], float]) -> DurableStore:
        state.ctx.recording = True
        self.store = DurableStore(MemoryKv(), self.journal, self.durability, clock)
        return self.store


async def serve(
    monkeypatch: pytest.MonkeyPatch, durability: str, scenario: Callable[[Disk, str], Awaitable[None]]
) -> None:
    disk = Disk(durability)
    monkeypatch.setattr("starlingmq.node.open_store", disk.open_store)
    monkeypatch.setattr(durable, "RETRY_SECONDS", 0.02)
    async with asyncio.timeout(PATIENCE), disk.broker as broker:
        await scenario(disk, broker.address())


async def reader(address: str) -> Peer:
    """A lasting session with a subscription to everything."""
    peer = await Peer.connect(address, "reader", properties=dict(HOUR))
    peer.send(Subscribe(1, [SubscribeRequest(b"t/#", 1)]))
    await peer.expect(Suback)
    return peer


async def watcher(address: str) -> Peer:
    """A connection that is told what the store says of itself."""
    peer = await Peer.connect(address, "watcher")
    peer.send(Subscribe(1, [SubscribeRequest(b"$SYS/broker/storage/state", 0)]))
    await peer.expect(Suback)
    return peer


async def state(peer: Peer, begins: bytes) -> None:
    """Until the broker says so."""
    while True:
        packet = await peer.receive()
        assert packet is not None
        if isinstance(packet, Publish) and packet.topic.startswith(b"$SYS") and packet.payload.startswith(begins):
            return


async def message(peer: Peer) -> bytes:
    while True:
        packet = await peer.receive()
        assert packet is not None
        if isinstance(packet, Publish) and not packet.topic.startswith(b"$SYS"):
            peer.send(Ack(PUBACK, packet.packet_id))
            return packet.payload


def publish(peer: Peer, number: int) -> None:
    peer.send(Publish(b"t/x", b"%d" % number, qos=1, packet_id=number))


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(disk: Disk, address: str) -> None:
        watch = await watcher(address)
        sub = await reader(address)
        pub = await Peer.connect(address, "pub")
        publish(pub, 1)
        assert await pub.expect(Ack) == Ack(PUBACK, 1)
        assert await message(sub) == b"1"
        disk.files.capacity = disk.files.used()
        publish(pub, 2)  # it meets the full disk
        refused = await pub.expect(Ack)
        assert (refused.packet_id, refused.reason) == (2, 0x97)
        await state(watch, b"full since ")
        other = await Peer.connect(address, "other")
        publish(other, 3)  # refused at once
        refused = await other.expect(Ack)
        assert (refused.packet_id, refused.reason) == (3, 0x97)
        old = await Peer.connect(address, "old", 4)
        publish(old, 4)
        assert await old.receive() is None  # 3.1.1 has no word for it: closed, and not acknowledged
        assert disk.broker.state.ctx.counters.dropped["storage_failing"] == 2
        disk.files.heal()
        await state(watch, b"ok")
        assert await message(sub) == b"2"  # it was on its way, and QoS 1 may come though it was refused
        publish(other, 5)
        assert await other.expect(Ack) == Ack(PUBACK, 5)
        for peer in (watch, sub, pub, other, old):
            await peer.close()

    asyncio.run(serve(monkeypatch, "process", scenario))


def test_failing_syncs_with_power(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(disk: Disk, address: str) -> None:
        watch = await watcher(address)
        sub = await reader(address)
        pub = await Peer.connect(address, "pub")
        disk.files.fail("sync", error=errno.EIO, times=1 << 30)
        publish(pub, 1)
        assert (await pub.expect(Ack)).reason == 0x97
        await state(watch, b"failing since ")
        refused = await Peer.connect(address, "other")
        publish(refused, 2)
        assert (await refused.expect(Ack)).reason == 0x97
        assert disk.journal.synced < disk.journal.next
        disk.files.heal()
        await state(watch, b"ok")
        assert disk.journal.synced == disk.journal.next
        assert await message(sub) == b"1"
        for peer in (watch, sub, pub, refused):
            await peer.close()

    asyncio.run(serve(monkeypatch, "power", scenario))
