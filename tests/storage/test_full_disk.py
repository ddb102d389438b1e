"""A whole broker on a real file system that runs full under it, and is emptied again.

Every journal and durability; the first client that meets the full disk publishes at QoS 1, at QoS 2, or with MQTT
3.1.1.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.few import few
from tests.patience import slowness, within
from tests.peer import Peer
from tests.storage.killing import Server
from tests.storage.small_disk import SmallDisk, small_disk

from starlingmq.client import Client, ConnectionLost, ConnectRefused, PublishFailed, SubscribeFailed, Subscription
from starlingmq.client.options import QOS
from starlingmq.wire.mqtt import Ack, Pingreq, Pingresp, Publish
from starlingmq.wire.packets import PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL

MEGABYTES = {"segment": 24, "rocksdb": 112}  # RocksDB comes back only where 32 MiB are free
PROMPT = 5.0  # seconds within which a waiting client has to be answered
PATIENCE = 60.0
FLOOD = 20_000  # QoS 0 messages of 1 KiB
STATE = "$SYS/broker/storage/state"
FLOODED = "$SYS/broker/publish/messages/dropped/storage_failing"


class Receiver:
    """A client, and everything it has got."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.got: Counter[bytes] = Counter()
        self.last: dict[str, bytes] = {}
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._take())

    async def _take(self) -> None:
        with suppress(ConnectionLost):
            async for message in self.client.messages():
                self.got[message.payload] += 1
                self.last[message.topic] = message.payload
                self._news.set()

    async def until(self, true: Callable[[Receiver], bool], seconds: float = 20.0) -> None:
        async with within(seconds):
            while not true(self):
                self._news.clear()
                await self._news.wait()

    async def close(self) -> None:
        await self.client.disconnect()
        await self._task


class Trial:
    """One broker on one small disk, and what its publishers were told."""

    def __init__(self, disk: SmallDisk, server: Server) -> None:
        self.disk = disk
        self.server = server
        self.url = f"mqtt://127.0.0.1:{server.port}"
        self.taken: dict[bytes, int] = {}  # payload -> QoS, of what was acknowledged
        self.refused: dict[bytes, int] = {}
        self.count = 0
        self.half = b""  # the payload of a handshake that is half done when the disk is full

    async def client(self, client_id: str, lasting: bool = False, version: int = 5) -> Client:
        wishes: Any = {"session_expiry": 3600} if lasting and version == 5 else {}
        client = Client(self.url, client_id=client_id, version=version, clean_start=not lasting, **wishes)
        await client.connect()
        return client

    def payload(self, size: int = 0) -> bytes:
        self.count += 1
        return b"%d" % self.count + b"." * size

    async def publish(self, client: Client, qos: int, payload: bytes) -> int:
        """Publish, record and return the reason code. The answer comes soon, whatever it is."""
        async with within(PROMPT):
            try:
                reason = await client.publish("t/x", payload, QOS[qos])
            except PublishFailed as error:
                self.refused[payload] = qos
                return error.reason
        self.taken[payload] = qos
        return reason

    def memory(self) -> int:
        """Bytes the broker has in memory."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) << 10


CASES = [
    ("segment", "process", "1"),
    pytest.param("segment", "process", "3.1.1", marks=pytest.mark.long),
    pytest.param("segment", "power", "2", marks=pytest.mark.long),
    pytest.param("rocksdb", "process", "2", marks=pytest.mark.long),
    pytest.param("rocksdb", "power", "1", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("journal", "durability", "first"), CASES)
def test_a_disk_that_runs_full(tmp_path: Path, journal: str, durability: str, first: str) -> None:
    with small_disk(tmp_path / "disk", MEGABYTES[journal]) as disk:
        server = Server(str(disk.path / "data"), journal, durability, ("mqtt.sys_interval=0.2",))
        try:
            trial = Trial(disk, server)
            asyncio.run(asyncio.wait_for(scenario(trial, first), PATIENCE * slowness()))
        finally:
            server.kill()
        logged = server.logged()
        server.log.close()
    assert "Traceback" not in logged, logged
    assert logged.count("the disk is full (") == logged.count("the storage works again after") == 1, logged
    assert "free some space in the file system of the data directory" in logged


async def scenario(trial: Trial, first: str) -> None:
    watch = Receiver(await trial.client("watch"))
    await watch.client.subscribe([STATE, FLOODED, "now/#"])
    online = Receiver(await trial.client("online", lasting=True))
    await online.client.subscribe([Subscription(filter="t/#", qos=1), Subscription(filter="now/#", qos=0)])
    exact = Receiver(await trial.client("exact", lasting=True))
    await exact.client.subscribe([Subscription(filter="t/#", qos=2), Subscription(filter="now/#", qos=0)])
    away = await trial.client("away", lasting=True)
    await away.subscribe([Subscription(filter="t/#", qos=2), Subscription(filter="flood/#", qos=0)])
    await away.disconnect()
    lasting_old = await trial.client("lasting_old", lasting=True, version=4)
    publishers = {1: await trial.client("one"), 2: await trial.client("two", lasting=True)}
    for qos in (1, 2):
        for _ in range(20):
            assert await trial.publish(publishers[qos], qos, trial.payload(100)) < 0x80
    half = await half_done(trial)

    trial.disk.fill()
    await meet_it(trial, publishers, first)
    await watch.until(lambda it: it.last.get(STATE, b"").startswith(b"full since 20"))
    await while_it_is_full(trial, publishers, (watch, online, exact), lasting_old, half)

    trial.disk.free()
    began = time.monotonic()
    await watch.until(lambda it: it.last[STATE] == b"ok")
    assert time.monotonic() - began < 10.0 * slowness()
    assert await half.expect(Ack) == Ack(PUBCOMP, 9)
    for payload, qos in list(trial.refused.items()):  # refused publishers try again
        assert await trial.publish(publishers[qos], qos, payload) < 0x80
    await online.until(lambda it: it.got.keys() >= trial.taken.keys())
    await exact.until(lambda it: it.got.keys() >= trial.taken.keys())
    assert not [payload[:20] for payload, qos in trial.taken.items() if qos == 2 and exact.got[payload] != 1]
    for client in (watch, online, exact):
        await client.close()
    for one in (*publishers.values(), lasting_old):
        await one.disconnect()
    await half.close()

    trial.server.kill()
    trial.server.start()
    back = Receiver(await trial.client("away", lasting=True))
    assert back.client.session_present
    await back.until(lambda it: it.got.keys() >= trial.taken.keys())
    ended = await trial.client("end")
    await ended.publish("t/end", b"the end", 2)  # whatever came twice would be in front of it
    await back.until(lambda it: it.got[b"the end"] == 1)
    twice = [payload[:20] for payload, qos in trial.taken.items() if qos == 2 and back.got[payload] != 1]
    assert not twice
    await back.close()
    await ended.disconnect()


async def half_done(trial: Trial) -> Peer:
    """A QoS 2 publisher whose message is held: PUBREC came, PUBREL is still to be sent."""
    peer = await Peer.connect(trial.url, "half", properties={SESSION_EXPIRY_INTERVAL: 3600})
    payload = trial.payload()
    peer.send(Publish(b"t/x", payload, 2, packet_id=9))
    assert await peer.expect(Ack) == Ack(PUBREC, 9)
    trial.taken[payload] = 2
    trial.half = payload
    return peer


async def meet_it(trial: Trial, publishers: dict[int, Client], first: str) -> None:
    """The first one that meets the full disk is told so. (Some messages may still have room in a page that was
    begun.)"""
    for _ in range(50):
        payload = trial.payload(8000)
        if first == "3.1.1":
            old = await trial.client("old", version=4)
            try:
                async with within(PROMPT):
                    await old.publish("t/x", payload, 1)
            except ConnectionLost:
                trial.refused[payload] = 1
                return
            finally:
                await old.disconnect()
            trial.taken[payload] = 1
        elif (reason := await trial.publish(publishers[int(first)], int(first), payload)) >= 0x80:
            assert reason == 0x97
            return
    raise AssertionError("the disk never was full")


async def while_it_is_full(
    trial: Trial,
    publishers: dict[int, Client],
    receivers: tuple[Receiver, Receiver, Receiver],
    lasting_old: Client,
    half: Peer,
) -> None:
    watch, online, exact = receivers
    assert await trial.publish(publishers[1], 1, trial.payload()) == 0x97
    assert await trial.publish(publishers[2], 2, trial.payload()) == 0x97
    old = await trial.client("old", version=4)
    with pytest.raises(ConnectionLost):
        await asyncio.wait_for(old.publish("t/x", b"never acknowledged", 1), PROMPT * slowness())

    # a message that was accepted before goes its way; that this is done can only be said when it is stored
    half.send(Ack(PUBREL, 9))
    half.send(Pingreq())
    await half.expect(Pingresp)
    await online.until(lambda it: it.got.keys() >= trial.taken.keys())
    await exact.until(lambda it: it.got.keys() >= trial.taken.keys() - {trial.half})

    await publishers[1].publish("now/x", b"QoS 0 goes on")
    for receiver in receivers:
        await receiver.until(lambda it: it.got[b"QoS 0 goes on"] == 1)

    assert exact.got[trial.half] == 0  # it has to come once, also if the broker dies now

    newcomer = await trial.client("newcomer")
    assert await asyncio.wait_for(newcomer.subscribe("now/#", 1), PROMPT * slowness()) == [1]
    with pytest.raises(SubscribeFailed) as refusal:
        await asyncio.wait_for(online.client.subscribe("more/#", 1), PROMPT * slowness())
    assert refusal.value.reasons == [0x97]
    with pytest.raises(SubscribeFailed) as refusal:
        await asyncio.wait_for(lasting_old.subscribe("more/#", 1), PROMPT * slowness())
    assert refusal.value.reasons == [0x80]
    assert await asyncio.wait_for(online.client.unsubscribe("t/#"), PROMPT * slowness()) == [0x83]
    for client_id, version, reason in (("fresh", 5, 0x97), ("away", 5, 0x97), ("fresh_old", 4, 0x88)):
        with pytest.raises(ConnectRefused) as refused:
            await trial.client(client_id, lasting=True, version=version)
        assert refused.value.reason == reason  # 0x88 is the test client's name for return code 3, server unavailable

    before = trial.memory()
    body = bytes(1024)
    for number in range(FLOOD):
        await newcomer.publish(f"flood/{number % 10}", body)
    await watch.until(lambda it: int(it.last.get(FLOODED, b"0")) >= FLOOD)
    assert trial.memory() - before < 12 << 20
    words = [sys.executable, "-m", "starlingmq", "ctl", "storage", "stats", "--data-dir", trial.server.directory]
    told = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=30 * slowness())
    assert "full since 20" in told.stdout and told.returncode == 0, told
    await newcomer.disconnect()


@pytest.mark.parametrize("journal", few(["segment", "rocksdb"], "segment"))
def test_a_broker_that_dies_on_a_full_disk(tmp_path: Path, journal: str) -> None:
    """Messages acknowledged before are there after a restart with free space; a refused message is no loss."""
    with small_disk(tmp_path / "disk", MEGABYTES[journal]) as disk:
        server = Server(str(disk.path / "data"), journal, "process")
        try:
            asyncio.run(asyncio.wait_for(death(Trial(disk, server)), PATIENCE * slowness()))
        finally:
            server.kill()
        logged = server.logged()
        server.log.close()
    assert "Traceback" not in logged and "lost" not in logged, logged


async def death(trial: Trial) -> None:
    away = await trial.client("away", lasting=True)
    await away.subscribe("t/#", 2)
    await away.disconnect()
    publishers = {1: await trial.client("one"), 2: await trial.client("two", lasting=True)}
    for qos in (1, 2):
        for _ in range(20):
            assert await trial.publish(publishers[qos], qos, trial.payload(100)) < 0x80
    half = await half_done(trial)
    trial.disk.fill()
    await meet_it(trial, publishers, "1")
    half.send(Ack(PUBREL, 9), Pingreq())
    await half.expect(Pingresp)  # and no PUBCOMP
    trial.server.kill()
    await half.close()
    trial.disk.free()
    trial.server.start()
    half = await Peer.connect(trial.url, "half", clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 3600})
    half.send(Ack(PUBREL, 9))
    assert await half.expect(Ack) == Ack(PUBCOMP, 9)
    back = Receiver(await trial.client("away", lasting=True))
    await back.until(lambda it: it.got.keys() >= trial.taken.keys())
    ended = await trial.client("end")
    await ended.publish("t/end", b"the end", 2)
    await back.until(lambda it: it.got[b"the end"] == 1)
    assert all(back.got[payload] == 1 for payload, qos in trial.taken.items() if qos == 2)
    await back.close()
    await ended.disconnect()
    await half.close()
