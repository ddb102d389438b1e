"""The quotas of one client, user or address, and the answers when they are exceeded."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator

import pytest

from starlingmq import Broker
from starlingmq.core.session.connection import NEW
from starlingmq.net import memory_watch
from starlingmq.wire.encoder import encode
from starlingmq.wire.mqtt import Ack, Connack, Connect, Publish
from starlingmq.wire.packets import Will
from starlingmq.wire.reasons import Reason
from tests.embedding.conftest import Join, Serve
from tests.patience import slowness, within
from tests.peer import Peer

OPENED: list[Peer] = []


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    for peer in OPENED:
        await peer.close()
    OPENED.clear()


async def knock(broker: Broker, client_id: str, version: int = 5, username: str | None = None) -> Peer | int:
    """A connection, or the reason why there is none."""
    peer = await Peer.open(broker.address(), version)
    peer.send(Connect(version, client_id, True, username=username))
    connack = await peer.expect(Connack)
    if connack.reason == 0:
        OPENED.append(peer)
        return peer
    await peer.close()
    return connack.reason


async def until_free(broker: Broker, client_id: str, username: str | None = None) -> Peer:
    async with within(5):
        while True:
            peer = await knock(broker, client_id, username=username)
            if isinstance(peer, Peer):
                return peer
            await asyncio.sleep(0.01)


async def test_connections_from_one_address(serve: Serve, join: Join) -> None:
    broker = await serve(limits={"connections_per_address": 2})
    first, _ = await join(broker, "a"), await join(broker, "b")
    assert await knock(broker, "c") == Reason.QUOTA_EXCEEDED
    assert await knock(broker, "c", 4) == 3
    await first.close()
    await (await until_free(broker, "c")).close()


async def test_connections_of_one_user(serve: Serve, join: Join) -> None:
    broker = await serve(limits={"connections_per_user": 2})
    first, second = await join(broker, "a", username="ann"), await join(broker, "b", username="ann")
    assert await knock(broker, "c", username="ann") == Reason.QUOTA_EXCEEDED
    for other in ("bob", None, None, None):
        peer = await knock(broker, "", username=other)
        assert isinstance(peer, Peer)
    again = await join(broker, "b", username="ann")  # takes the place of its own connection
    assert await knock(broker, "c", username="ann") == Reason.QUOTA_EXCEEDED
    await first.close()
    await again.close()
    await second.close()
    peers = [await until_free(broker, name, username="ann") for name in ("c", "d")]
    assert await knock(broker, "e", username="ann") == Reason.QUOTA_EXCEEDED
    assert broker.state.ctx.quotas._users["ann"] == len(peers)


async def test_connects_a_second(serve: Serve) -> None:
    broker = await serve(limits={"connect_rate": 5})
    said = [await knock(broker, f"c{number}") for number in range(8)]
    assert [isinstance(each, Peer) for each in said[:5]] == [True] * 5
    assert Reason.CONNECTION_RATE_EXCEEDED in said[5:]
    await until_free(broker, "later")


async def test_sessions(serve: Serve, join: Join) -> None:
    broker = await serve(limits={"sessions": 2})
    await join(broker, "a", clean_start=False)
    lasting = await Peer.connect(broker.address(), "b", 4, clean_start=False)
    await lasting.close()
    assert await knock(broker, "c") == Reason.QUOTA_EXCEEDED
    peer = await knock(broker, "b", 4)  # has one already
    assert isinstance(peer, Peer)


@pytest.mark.parametrize(("limits", "least"), [({"message_rate": 100}, 0.9), ({"byte_rate": 2000}, 0.3)])
async def test_a_fast_publisher_is_slowed_down_and_loses_nothing(
    serve: Serve, join: Join, limits: dict[str, int], least: float
) -> None:
    broker = await serve(limits=limits)
    reader, fast, other = await join(broker, "r"), await join(broker, "f"), await join(broker, "o")
    await reader.subscribe("t/#")
    began = time.monotonic()
    messages = [Publish(b"t/%d" % number, b"x" * 10, 1, packet_id=number + 1) for number in range(200)]
    fast.send(*messages[:150])
    await fast.expect(Ack)
    fast.send(*messages[150:])
    other.send(Publish(b"t/other", b"", 1, packet_id=1))
    assert (await other.expect(Ack)).packet_id == 1
    assert time.monotonic() - began < 0.5 * slowness(), "nobody else waits"
    topics = [(await reader.message()).topic for _ in range(201)]
    assert [topic for topic in topics if topic != b"t/other"] == [b"t/%d" % number for number in range(200)]
    took = time.monotonic() - began
    assert least < took < 4.0 * slowness(), "what a second may bring came at once, and the rest as it may"
    fast.abort()
    assert await reader.publish("x") == Reason.NO_MATCHING_SUBSCRIBERS


async def test_a_held_publisher_that_disconnects_leaves_nothing(serve: Serve, join: Join) -> None:
    broker = await serve(limits={"message_rate": 25})
    fast = await join(broker, "f")
    fast.send(*(Publish(b"t", b"", 0) for _ in range(50)))
    async with within(5):
        while not broker.state.intake.pace_wheel.wake_at():
            await asyncio.sleep(0.01)
        fast.abort()
        while "f" in broker.state.ctx.sessions:
            await asyncio.sleep(0.01)
    assert broker._admission.addresses == {}


@pytest.mark.security
async def test_memory_that_is_freed_already_is_no_reason_to_refuse(
    serve: Serve, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large packets of strangers leave holes that the allocator keeps: the broker would refuse everybody for ever."""
    kept, freed = 200 << 20, asyncio.Event()

    def free() -> None:
        nonlocal kept
        kept = 20 << 20
        freed.set()

    monkeypatch.setattr(memory_watch, "memory", lambda: kept)
    monkeypatch.setattr(memory_watch, "free_memory", free)
    monkeypatch.setattr(memory_watch, "MEMORY_INTERVAL", 0.01)
    broker = await serve(limits={"memory": "100MiB"})
    async with within(5):
        await freed.wait()
    assert not broker.state.ctx.quotas.short_of_memory
    peer = await join(broker, "a")
    assert await peer.publish("t") == Reason.NO_MATCHING_SUBSCRIBERS


@pytest.mark.security
async def test_caches_are_emptied_before_anybody_is_refused(
    serve: Serve, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages to new topics, whose client has gone: they are no reason to refuse others."""
    monkeypatch.setattr(memory_watch, "MEMORY_INTERVAL", 0.01)
    monkeypatch.setattr(memory_watch, "memory", lambda: 20 << 20)
    # In a process of many tests that takes long, and caches are emptied again only after several times as long.
    monkeypatch.setattr(memory_watch, "free_memory", lambda: None)
    broker = await serve(limits={"memory": "100MiB"})
    router = broker.state.router
    monkeypatch.setattr(memory_watch, "memory", lambda: (200 if router.cached() else 20) << 20)
    peer = await join(broker, "a")
    for number in range(20):
        assert await peer.publish(f"t/{number}") == Reason.NO_MATCHING_SUBSCRIBERS
    async with within(5):
        while router.cached():
            await asyncio.sleep(0.01)
    assert not broker.state.ctx.quotas.short_of_memory


@pytest.mark.security
async def test_topics_that_nobody_uses_any_more_leave_the_cache(
    serve: Serve, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed = asyncio.Event()
    monkeypatch.setattr(memory_watch, "UNLIMITED_INTERVAL", 0.01)
    monkeypatch.setattr(memory_watch, "CACHE_PERIOD", 0.3)
    monkeypatch.setattr(memory_watch, "CACHED_MANY", 50)
    monkeypatch.setattr(memory_watch, "free_memory", freed.set)
    broker = await serve()
    router = broker.state.router
    for number in range(100):
        router.resolve(b"t/%d" % number)
    async with within(30):
        await freed.wait()
        while router.cached():
            await asyncio.sleep(0.01)
    peer = await join(broker, "a")
    assert await peer.publish("t/1") == Reason.NO_MATCHING_SUBSCRIBERS


@pytest.mark.security
async def test_large_incomplete_connects_are_dropped_while_memory_is_short(
    serve: Serve, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = 10 << 20
    monkeypatch.setattr(memory_watch, "memory", lambda: has)
    monkeypatch.setattr(memory_watch, "free_memory", lambda: None)
    monkeypatch.setattr(memory_watch, "MEMORY_INTERVAL", 0.01)
    broker = await serve(limits={"memory": "100MiB"})
    member = await join(broker, "a")
    assert broker._driver is not None
    clients = broker._driver.clients
    half = encode(Connect(5, "b", True, will=Will(b"t", bytes(60_000))), 5)[:50_000]
    large, small = await Peer.open(broker.address()), await Peer.open(broker.address())
    OPENED.extend((large, small))
    large.send(half)
    small.send(half[:1_000])
    async with within(5):
        while sum(client.bytes_in for client in clients if client.state == NEW) < 51_000:
            await asyncio.sleep(0.01)
    has = 200 << 20
    await large.ended()
    assert [client.bytes_in for client in clients if client.state == NEW] == [1_000]
    assert await member.publish("t") == Reason.QUOTA_EXCEEDED, "who is connected stays so"


HOLES = """
from starlingmq.net.process import free_memory, memory, tune_allocator
tune_allocator()
before = memory()
held, between = [], []
for _ in range(400):
    held.append(bytearray(b"x") * 250_000)
    between.append(bytes(1_000))
held.clear()
kept = memory() - before
free_memory()
print(kept, memory() - before)
"""


@pytest.mark.security
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system's allocator is not glibc's")
async def test_memory_between_what_is_in_use_is_given_back() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLES, stdout=asyncio.subprocess.PIPE)
    async with within(60):
        said, _ = await process.communicate()
    kept, left = map(int, said.split())
    assert left < 20 << 20, f"{kept >> 20} MiB were kept before"


async def test_too_little_memory(serve: Serve, join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    has = 10 << 20
    monkeypatch.setattr(memory_watch, "memory", lambda: has)
    monkeypatch.setattr(memory_watch, "MEMORY_INTERVAL", 0.01)
    monkeypatch.setattr(memory_watch, "free_memory", lambda: None)
    broker = await serve(limits={"memory": "100MiB"})
    peer, old = await join(broker, "a"), await join(broker, "b", version=4)
    assert await peer.publish("t") == Reason.NO_MATCHING_SUBSCRIBERS
    quotas = broker.state.ctx.quotas

    async def until(short: bool) -> None:
        async with within(5):
            while quotas.short_of_memory != short:
                await asyncio.sleep(0.01)

    has = 101 << 20
    await until(True)
    assert await peer.publish("t") == Reason.QUOTA_EXCEEDED
    assert await peer.publish("t", qos=2) == Reason.QUOTA_EXCEEDED
    await peer.publish("t", qos=0)
    assert await knock(broker, "c") == Reason.QUOTA_EXCEEDED
    old.send(Publish(b"t", b"", 1, packet_id=1))
    await old.ended()
    has = 96 << 20
    assert await peer.publish("t") == Reason.QUOTA_EXCEEDED, "not at once, or it would come and go"
    has = 90 << 20
    await until(False)
    assert await peer.publish("t") == Reason.NO_MATCHING_SUBSCRIBERS
    assert broker.state.ctx.counters.dropped["memory"] == 4, "whatever its QoS"


async def test_memory_is_returned_to_the_system_once_many_clients_have_gone(
    serve: Serve, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without limits.memory: the allocator keeps what they made the process take."""
    monkeypatch.setattr(memory_watch, "UNLIMITED_INTERVAL", 0.01)
    monkeypatch.setattr(memory_watch, "LEFT_SECONDS", 0.0)
    returned = asyncio.Event()
    monkeypatch.setattr(memory_watch, "free_memory", returned.set)
    broker = await serve()
    peers = [await join(broker, f"c{number}") for number in range(memory_watch.LEFT_MIN + 1)]
    watch = broker._memory
    assert watch is not None
    async with within(10):
        while watch._connected < len(peers):  # until it has looked
            await asyncio.sleep(0.001)
    for peer in peers[:-2]:
        await peer.close()
    async with within(10):
        while broker.state.ctx.counters.connections_open > 2:
            await asyncio.sleep(0.001)
    looked = watch._left_again
    async with within(10):
        while watch._left_again == looked:  # until it has looked once more
            await asyncio.sleep(0.001)
    assert not returned.is_set(), "few have gone"
    await peers[-2].close()
    async with within(10):
        await returned.wait()
