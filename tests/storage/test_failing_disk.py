"""A serving broker has a disk that is full or fails to sync.

The broker acknowledges only what it keeps, goes on delivering stored messages, and recovers without help.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.patience import within
from tests.peer import Peer
from tests.storage.memory_engine import MemoryKv
from tests.storage.simfs import SimFiles

from starlingmq import Broker
from starlingmq.config.settings import Config
from starlingmq.net import message_loading
from starlingmq.storage import checkpointer, journal_writer
from starlingmq.storage.durable_store import DurableStore
from starlingmq.storage.journal import Journal
from starlingmq.storage.kv import Batch
from starlingmq.storage.rocks import rocks_database
from starlingmq.storage.rocks.rocks_engines import RocksJournal
from starlingmq.storage.segment.segment_journal import SegmentJournal
from starlingmq.wire.mqtt import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsubscribe,
)
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, Properties

PATIENCE = 10.0
HOUR = {SESSION_EXPIRY_INTERVAL: 3600}


class SlowFiles(SimFiles):
    """Each sync takes ``seconds``, in the thread that asked for it."""

    seconds = 0.0

    def sync(self, fd: int) -> None:
        time.sleep(self.seconds)
        super().sync(fd)


class FailingKv(MemoryKv):
    """``error``: why nothing can be written."""

    error: OSError | None = None

    def write(self, batch: Batch) -> None:
        if self.error is not None:
            raise self.error
        super().write(batch)


class Disk:
    """A broker on a simulated file system."""

    def __init__(self, durability: Any, journal: Journal | None = None) -> None:
        self.files = SlowFiles()
        self.kv = FailingKv()
        self.segments = SegmentJournal("journal", self.files)
        self.journal = journal or self.segments
        self.durability = durability
        self.broker = Broker(
            msgspec.convert({"mqtt": {"sys_interval": 0.05}}, Config), listeners=["mqtt://127.0.0.1:0"]
        )

    def open_store(self, config: Config, state: Any, clock: Callable[[], float]) -> DurableStore:
        state.ctx.recording = True
        self.store = DurableStore(self.kv, self.journal, self.durability, clock)
        return self.store


async def serve(
    monkeypatch: pytest.MonkeyPatch,
    durability: str,
    scenario: Callable[[Disk, str], Awaitable[None]],
    journal: Journal | None = None,
) -> None:
    disk = Disk(durability, journal)
    monkeypatch.setattr("starlingmq.node.assembly.open_store", disk.open_store)
    monkeypatch.setattr(journal_writer, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(checkpointer, "CHECKPOINT_AGAIN", 0.02)
    monkeypatch.setattr(message_loading, "READ_AGAIN", 0.02)
    async with within(PATIENCE), disk.broker as broker:
        await scenario(disk, broker.address())


async def reader(address: str) -> Peer:
    """A persistent session with a subscription to all topics."""
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


def test_a_message_that_may_be_on_disk_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The PUBLISH of a QoS 2 handshake was written, the sync failed. After a refusal its packet id would be free, and
    after a power failure the broker might hold it all the same."""

    async def scenario(disk: Disk, address: str) -> None:
        watch = await watcher(address)
        pub = await Peer.connect(address, "pub", properties=dict(HOUR))
        disk.files.fail("sync", error=errno.EIO, times=1 << 30)
        pub.send(Publish(b"t/x", b"1", qos=2, packet_id=1))
        assert (await pub.expect(Disconnect)).reason == 0x97
        await pub.close()
        await state(watch, b"failing since ")
        disk.files.heal()
        await state(watch, b"ok")
        pub = await Peer.connect(address, "pub", clean_start=False, properties=dict(HOUR))
        pub.send(Publish(b"t/x", b"1", qos=2, packet_id=1, dup=True))
        assert await pub.expect(Ack) == Ack(PUBREC, 1)
        for peer in (watch, pub):
            await peer.close()

    asyncio.run(serve(monkeypatch, "power", scenario))


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
        assert disk.segments.synced < disk.segments.next
        disk.files.heal()
        await state(watch, b"ok")
        assert disk.segments.synced == disk.segments.next
        assert await message(sub) == b"1"
        for peer in (watch, sub, pub, refused):
            await peer.close()

    asyncio.run(serve(monkeypatch, "power", scenario))


class UnsyncedJournal(RocksJournal):
    """``fails``: a sync fails, and RocksDB accepts no writes until it is opened again."""

    fails = False

    def sync(self) -> None:
        if self.fails:
            raise self._database._failed_with(Exception("IO error: Input/output error"))
        super().sync()


def test_rocksdb_that_can_not_sync_comes_back_by_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All clients are refused, so no client's write tests the disk: the store itself has to."""
    monkeypatch.setattr(rocks_database, "RETRY_SECONDS", 0.02)
    journal = UnsyncedJournal(tmp_path / "journal")

    async def scenario(disk: Disk, address: str) -> None:
        watch = await watcher(address)
        sub = await reader(address)
        pub = await Peer.connect(address, "pub")
        journal.fails = True
        assert await pub.publish("t/x", b"refused") == 0x97
        await state(watch, b"failing since ")
        journal.fails = False
        await state(watch, b"ok")
        assert await pub.publish("t/x", b"kept") < 0x80
        assert [await message(sub), await message(sub)] == [b"refused", b"kept"]
        for peer in (watch, sub, pub):
            await peer.close()

    asyncio.run(serve(monkeypatch, "power", scenario, journal))


async def full(disk: Disk, address: str, watch: Peer) -> None:
    """From here on the disk is full, and the broker knows."""
    disk.files.capacity = disk.files.used()
    probe = await Peer.connect(address, "probe")
    assert await probe.publish("t/probe", b"probe") == 0x97
    await state(watch, b"full since ")
    await probe.close()


async def lasting(address: str, client_id: str, version: int = 5) -> Peer:
    properties = dict(HOUR) if version == 5 else {}
    return await Peer.connect(address, client_id, version, clean_start=False, properties=properties)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("what", ["subscribe", "unsubscribe", "connect"])
@pytest.mark.parametrize("durability", ["process", "power"])
def test_the_first_affected_client_is_told(
    monkeypatch: pytest.MonkeyPatch, version: int, what: str, durability: str
) -> None:
    async def scenario(disk: Disk, address: str) -> None:
        watch = await watcher(address)
        peer = await lasting(address, "first", version)
        assert await peer.subscribe("t/#", qos=1) == [1]
        if durability == "process":
            disk.files.capacity = disk.files.used()
        else:
            disk.files.fail("sync", error=errno.EIO, times=1 << 30)
        if what == "connect":
            newcomer = await Peer.open(address, version)
            properties: Properties = {SESSION_EXPIRY_INTERVAL: 3600} if version == 5 else {}
            newcomer.send(Connect(version, "newcomer", False, properties=properties))
            assert (await newcomer.expect(Connack)).reason == (0x97 if version == 5 else 3)
            assert await newcomer.ended()
            assert "newcomer" not in disk.broker.state.ctx.sessions
            await newcomer.close()
        else:
            peer.send(Subscribe(2, [SubscribeRequest(b"u/#", 1)]) if what == "subscribe" else Unsubscribe(2, [b"t/#"]))
            if version == 5:
                assert (await peer.expect(Disconnect)).reason == 0x97
            assert await peer.ended()
        await state(watch, b"full since " if durability == "process" else b"failing since ")
        disk.files.heal()
        await state(watch, b"ok")
        back = await lasting(address, "first", version)
        assert await back.subscribe("u/#", qos=1) == [1]
        for each in (watch, peer, back):
            await each.close()

    asyncio.run(serve(monkeypatch, durability, scenario))


@pytest.mark.parametrize("durability", ["process", "power"])
def test_a_refused_handshake_begins_again(monkeypatch: pytest.MonkeyPatch, durability: str) -> None:
    """A QoS 2 PUBLISH that meets the failing disk is refused and no longer held; one that was held before is not."""

    async def scenario(disk: Disk, address: str) -> None:
        watch = await watcher(address)
        sub = await Peer.connect(address, "reader", properties=dict(HOUR))
        await sub.subscribe("t/#", qos=2)
        pub = await Peer.connect(address, "pub", properties=dict(HOUR))
        pub.send(Publish(b"t/x", b"held", 2, packet_id=1))
        assert await pub.expect(Ack) == Ack(PUBREC, 1)
        disk.files.capacity = disk.files.used()
        pub.send(Publish(b"t/x", b"held", 2, dup=True, packet_id=1), Publish(b"t/x", b"refused", 2, packet_id=2))
        assert await pub.expect(Ack) == Ack(PUBREC, 1)
        refused = await pub.expect(Ack)
        assert (refused.type, refused.packet_id, refused.reason) == (PUBREC, 2, 0x97)
        pub.send(Ack(PUBREL, 1), Publish(b"t/x", b"refused too", 1, packet_id=3))
        assert (await pub.expect(Ack)).packet_id == 3  # the release by PUBREL is not stored, so PUBCOMP waits
        disk.files.heal()
        assert await pub.expect(Ack) == Ack(PUBCOMP, 1)
        await state(watch, b"ok")
        pub.send(Publish(b"t/x", b"once", 2, packet_id=2))
        assert await pub.expect(Ack) == Ack(PUBREC, 2)
        pub.send(Ack(PUBREL, 2))
        assert await pub.expect(Ack) == Ack(PUBCOMP, 2)
        got = [await sub.expect(Publish), await sub.expect(Publish)]
        assert [publish.payload for publish in got] == [b"held", b"once"]
        for peer in (watch, sub, pub):
            await peer.close()

    asyncio.run(serve(monkeypatch, durability, scenario))


def test_a_receiver_at_qos_2_waits_and_the_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(disk: Disk, address: str) -> None:
        watch = await watcher(address)
        sub = await lasting(address, "reader")
        await sub.subscribe("t/#", "now/#", qos=2)
        pub = await Peer.connect(address, "pub")
        pub.send(Publish(b"t/x", b"1", 2, packet_id=1))
        assert await pub.expect(Ack) == Ack(PUBREC, 1)
        pub.send(Ack(PUBREL, 1))
        assert await pub.expect(Ack) == Ack(PUBCOMP, 1)
        first = await sub.expect(Publish)
        await full(disk, address, watch)
        sub.send(Ack(PUBREC, first.packet_id))  # PUBREL says that this is stored
        assert await sub.subscribe("more/#") == [0x97]
        await pub.publish("now/x", b"2", qos=0)
        assert (await sub.expect(Publish)).payload == b"2"
        disk.files.heal()
        assert await sub.expect(Ack) == Ack(PUBREL, first.packet_id)
        for peer in (watch, sub, pub):
            await peer.close()

    asyncio.run(serve(monkeypatch, "process", scenario))


def test_a_slow_disk_slows_down_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(disk: Disk, address: str) -> None:
        sub = await reader(address)
        pub = await Peer.connect(address, "pub")
        publish(pub, 1)
        assert await pub.expect(Ack) == Ack(PUBACK, 1)
        assert await message(sub) == b"1"
        other = await Peer.connect(address, "other")
        await other.subscribe("now/#")
        disk.broker.state.ctx.counters.stall_max_ms = 0.0
        disk.files.seconds = seconds = 3.0
        publish(pub, 2)
        acknowledged = asyncio.create_task(pub.expect(Ack))
        began = time.perf_counter()
        rounds = 0
        while not acknowledged.done():
            await other.publish("now/x", b"QoS 0", qos=0)
            assert (await other.message()).payload == b"QoS 0"
            rounds += 1
        took = time.perf_counter() - began
        assert took >= seconds
        assert rounds > 50  # that is a long time for them
        assert disk.broker.state.ctx.counters.stall_max_ms < 700.0 * seconds  # of all of them, if it waited
        assert await message(sub) == b"2"
        for peer in (sub, pub, other):
            await peer.close()

    asyncio.run(serve(monkeypatch, "power", scenario))


def test_checkpoints_that_can_not_be_written(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Everybody is served: the journal has everything. But it is said, and tried again."""

    async def scenario(disk: Disk, address: str) -> None:
        watch = await watcher(address)
        pub = await Peer.connect(address, "pub", properties=dict(HOUR))
        disk.store.checkpointer.checkpoint_bytes = 0
        disk.kv.error = OSError(errno.EIO, "Input/output error")
        assert await pub.publish("t/x", b"kept", retain=True) < 0x80
        await state(watch, b"failing since ")
        assert await pub.publish("t/x", b"kept too", retain=True) < 0x80
        disk.kv.error = None
        await state(watch, b"ok")
        assert disk.store.checkpointer.count == 1
        for peer in (watch, pub):
            await peer.close()

    asyncio.run(serve(monkeypatch, "process", scenario))
    said = [record.getMessage() for record in caplog.records if "no checkpoint can be written" in record.getMessage()]
    assert len(said) == 1


def test_a_read_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(disk: Disk, address: str) -> None:
        sub = await reader(address)
        await sub.close()
        pub = await Peer.connect(address, "pub")
        for number in range(1, 6):
            publish(pub, number)
            assert await pub.expect(Ack) == Ack(PUBACK, number)
        disk.files.fail("read", times=2)
        sub = await lasting(address, "reader")
        assert [await message(sub) for _ in range(5)] == [b"1", b"2", b"3", b"4", b"5"]
        for peer in (sub, pub):
            await peer.close()

    asyncio.run(serve(monkeypatch, "process", scenario))


async def figure(peer: Peer, topic: bytes) -> bytes:
    """The next value that the broker publishes for a topic under ``$SYS/broker/``."""
    while True:
        packet = await peer.receive()
        assert packet is not None
        if isinstance(packet, Publish) and packet.topic == b"$SYS/broker/" + topic and packet.payload != b"0":
            return packet.payload


def test_records_that_the_disk_has_lost(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A sync fails, and its records cannot be read any more. They were acknowledged to no client; the broker writes
    down what it has in memory, and logs how much was lost.
    """

    async def scenario(disk: Disk, address: str) -> None:
        watch = await watcher(address)
        counting = await Peer.connect(address, "counting")
        await counting.subscribe("$SYS/broker/storage/records_lost")
        sub = await reader(address)
        pub = await Peer.connect(address, "pub")
        assert await pub.publish("t/x", b"kept") < 0x80
        assert await message(sub) == b"kept"
        disk.files.forgets = True
        disk.files.fail("sync", error=errno.EIO, times=1 << 30)
        assert await pub.publish("t/x", b"refused") == 0x97
        await state(watch, b"failing since ")
        disk.files.heal()
        assert int(await figure(counting, b"storage/records_lost")) >= 1
        await state(watch, b"ok")
        assert disk.store.checkpointer.count == 1
        assert await pub.publish("t/x", b"again") < 0x80
        got = [await message(sub)]
        while got[-1] != b"again":
            got.append(await message(sub))
        for peer in (watch, counting, sub, pub):
            await peer.close()

    asyncio.run(serve(monkeypatch, "power", scenario))
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert (
        sum(
            "records lost, because the disk failed to write them" in line and "they had not been acknowledged" in line
            for line in said
        )
        == 1
    )
