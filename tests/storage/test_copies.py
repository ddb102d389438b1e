"""A serving broker whose store is copied to followers, on real files: what waits for them, and what a copy opens as."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from tests.few import few
from tests.patience import within
from tests.peer import Peer
from tests.storage import copy_lives

from starlingmq import Broker
from starlingmq.admin.action_log import ActionLog
from starlingmq.admin.declared_actions import bound
from starlingmq.admin.stream_actions import StreamActions
from starlingmq.auth.readers import StreamReaders
from starlingmq.config.settings import Config, load_config
from starlingmq.net.control_socket import Action
from starlingmq.storage.copies.copy_directory import CopyDirectory
from starlingmq.storage.copies.copy_facts import read_facts
from starlingmq.storage.copies.copy_feed import CopyFeed, FeedEnded
from starlingmq.storage.copies.copy_files import CopyFiles
from starlingmq.storage.copies.copy_frames import CopyPosition, Hello
from starlingmq.storage.copies.copy_life import begin_copies
from starlingmq.storage.copies.copy_receiver import CopyReceiver, prepare
from starlingmq.storage.copies.copy_source import CopySource
from starlingmq.storage.directory_store import DirectoryStore
from starlingmq.storage.opening import open_store
from starlingmq.storage.records import decode_message
from starlingmq.storage.streams.stream_admin import StreamAdmin
from starlingmq.wire.mqtt import Ack, Connack, Connect, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL

PATIENCE = 30.0
HOUR = {SESSION_EXPIRY_INTERVAL: 3600}
SEGMENT = 64 << 10


class Served:
    store: DirectoryStore
    source: CopySource
    broker: Broker


@asynccontextmanager
async def serving(
    monkeypatch: pytest.MonkeyPatch, path: Path, *settings: str, generation: int = 1
) -> AsyncIterator[Served]:
    """A broker that stores in ``path``. ``generation`` of its life; 0: it has no copies."""
    served = Served()

    def open_with_copies(config: Config, state: Any, clock: Callable[[], float]) -> DirectoryStore:
        if generation:  # for the store only: no cluster is started
            config = msgspec.structs.replace(
                config, cluster=msgspec.structs.replace(config.cluster, enabled=True, copies=2)
            )
        store = open_store(config, state, clock)
        assert isinstance(store, DirectoryStore)
        served.store = store
        if generation:
            served.source = begin_copies(store, "n1", generation, (), clock)
        return store

    peers: list[Peer] = []
    open_peer = Peer.open

    async def open_and_note(address: str, version: int = 5) -> Peer:
        peers.append(await open_peer(address, version))
        return peers[-1]

    monkeypatch.setattr("starlingmq.node.assembly.open_store", open_with_copies)
    config = load_config(
        None,
        [f"node.data_dir={path}", f"storage.segment_size={SEGMENT}", "mqtt.sys_interval=0.05", *settings],
    )
    with monkeypatch.context() as patch:
        patch.setattr(Peer, "open", open_and_note)
        try:
            async with within(PATIENCE), Broker(config, listeners=["mqtt://127.0.0.1:0"]) as served.broker:
                yield served
        finally:
            for peer in peers:
                await peer.close()


class FollowerProcess:
    """A follower in this process. While ``holds``, it sends no acknowledgement."""

    def __init__(self, path: Path, served: Served, durability: Any = "process") -> None:
        hello = msgspec.msgpack.decode(served.source.hello(), type=Hello)
        self.copy = CopyDirectory(CopyFiles(path, "n1", hello.engine, hello.segment_size), durability == "power")
        self.threads = ThreadPoolExecutor(1)
        self.receiver = CopyReceiver(self.copy, hello, durability, self.threads)
        self.feed = CopyFeed(served.store, served.source, "n2")
        self.source = served.source
        self.may_acknowledge = asyncio.Event()
        self.may_acknowledge.set()
        self.may_receive = asyncio.Event()
        self.may_receive.set()
        self.stored = asyncio.Event()  # set at each group
        self._messages: asyncio.Queue[bytes] = asyncio.Queue(4)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> FollowerProcess:
        position = await self.receiver.begin()
        self._tasks = [
            asyncio.create_task(self.feed.run(position, self._messages.put)),
            asyncio.create_task(self._receive()),
        ]
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, FeedEnded):
                await task
        self.threads.shutdown()
        self.copy.close()

    async def _receive(self) -> None:
        while True:
            message = await self._messages.get()
            await self.may_receive.wait()
            stored = await self.receiver.receive(message)
            self.stored.set()
            await self.may_acknowledge.wait()
            if stored:
                self.feed.acknowledge(stored)

    async def caught_up(self) -> None:
        """Until it has everything."""
        while not self.source.acknowledged("n2") >= self.source.lsn:
            self.stored.clear()
            for task in self._tasks:
                assert not task.done(), task.exception()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stored.wait(), 0.05)


async def subscribed(address: str, client_id: str) -> Peer:
    peer = await Peer.connect(address, client_id, properties=dict(HOUR))
    peer.send(Subscribe(1, [SubscribeRequest(b"t/#", 2)]))
    await peer.expect(Suback)
    return peer


async def returned(address: str, client_id: str) -> Peer:
    """A client whose session is present."""
    peer = await Peer.open(address)
    peer.send(Connect(5, client_id, False, properties=dict(HOUR)))
    assert (await peer.expect(Connack)).session_present
    return peer


async def publish(peer: Peer, number: int, qos: int, retain: bool = False) -> None:
    """Publish, and wait until the broker has acknowledged it."""
    peer.send(Publish(b"t/%d" % (number % 3), b"%d" % number, qos, retain=retain, packet_id=number))
    acknowledged = await peer.expect(Ack)
    assert acknowledged.type == (PUBREC if qos == 2 else PUBACK)
    if qos == 2:
        peer.send(Ack(PUBREL, number))
        assert (await peer.expect(Ack)).type == PUBCOMP


async def received(peer: Peer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        packet = await peer.receive()
        assert packet is not None
        if isinstance(packet, Publish):
            found.append(packet.payload)
            if packet.qos:
                peer.send(Ack(PUBREC if packet.qos == 2 else PUBACK, packet.packet_id))
        elif isinstance(packet, Ack) and packet.type == PUBREL:
            peer.send(Ack(PUBCOMP, packet.packet_id))
    return found


async def test_an_acknowledgement_waits_for_the_followers_that_are_required(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with serving(monkeypatch, tmp_path / "own") as served:
        address = served.broker.address()
        reader = await subscribed(address, "reader")
        writer = await Peer.connect(address, "writer")
        async with FollowerProcess(tmp_path / "copy", served) as follower:
            await follower.caught_up()
            served.source.require(("n2",), "")
            await publish(writer, 1, 1)
            follower.may_acknowledge.clear()
            writer.send(Publish(b"t/a", b"2", 1, packet_id=2))
            assert await received(reader, 1) == [b"1"]
            while not served.source.waiting:
                await asyncio.sleep(0.001)
            assert served.source.acknowledged("n2") < served.source.lsn
            await (await Peer.connect(address, "third")).close()  # several turns go by
            assert not writer.reader._buffer, "acknowledged before it was copied"  # type: ignore[attr-defined]
            follower.may_acknowledge.set()
            assert (await writer.expect(Ack)).type == PUBACK
            await follower.caught_up()
            bytes_behind, seconds_behind = served.source.behind("n2") or (-1, -1.0)
            assert (bytes_behind, seconds_behind) == (0, 0.0)
            end = served.source.journal.next
            positions = [CopyPosition(1, end, (1, 0), {}), CopyPosition(1, end - 1, (1, 0), {})]
            assert list(map(served.source.lost_by, positions)) == [False, True]


@pytest.mark.parametrize("engine", ["segment", "rocksdb"])
@pytest.mark.parametrize("durability", ["process", "power"])
async def test_a_copy_opens_as_the_data_directory_of_its_owner(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, durability: str, engine: str
) -> None:
    settings = [f"storage.durability={durability}", f"storage.journal={engine}"]
    stream = ['streams.define=[{name: "all", topics: ["t/#"]}]']
    async with serving(monkeypatch, tmp_path / "own", *settings, *stream) as served:
        address = served.broker.address()
        reader = await subscribed(address, "reader")
        await reader.close()
        writer = await Peer.connect(address, "writer")
        for number in range(1, 40):
            await publish(writer, number, 1 + number % 2, retain=number % 10 == 0)
        await served.store.checkpoint()
        async with FollowerProcess(tmp_path / "copy", served, durability) as follower:
            await follower.caught_up()
            served.source.require(("n2",), "")
            for number in range(40, 80):
                await publish(writer, number, 1 + number % 2, retain=number % 10 == 0)
                if number == 60:
                    await served.store.checkpoint()
        rows = rows_of(served.store)
    prepare(tmp_path / "copy", "n1", engine, SEGMENT)
    async with serving(monkeypatch, tmp_path / "copy", *settings, generation=2) as served:
        assert rows_of(served.store) == rows
        reader = await returned(served.broker.address(), "reader")
        assert await received(reader, 79) == [b"%d" % number for number in range(1, 80)]
        witness = await subscribed(served.broker.address(), "witness")
        assert sorted(await received(witness, 3)) == [b"50", b"60", b"70"]
    facts = read_facts(tmp_path / "copy")
    assert facts is not None
    assert [life.generation for life in facts.lives] == [1, 2]


def rows_of(store: DirectoryStore) -> list[tuple[int, bytes]]:
    log = store.streams.find("all")
    assert log is not None
    return [(offset, decode_message(record).payload) for offset, record in log.journal.read(0, 1000, 1 << 20)]


async def do(actions: dict[str, Action], action: str, **request: str) -> None:
    await actions[action](lambda what, done, total, unit: None, request)


async def test_what_is_done_to_streams_is_copied_before_it_is_answered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with serving(monkeypatch, tmp_path / "own") as served:
        writer = await Peer.connect(served.broker.address(), "writer")
        async with FollowerProcess(tmp_path / "copy", served) as follower:
            await follower.caught_up()
            served.source.require(("n2",), "")
            assert served.store.state is not None
            admin = StreamAdmin(served.store, served.store.state, "n1", list, False)
            actions = bound(StreamActions(admin, cast(StreamReaders, None)), note=ActionLog(None).note)
            await do(actions, "stream.create", name="a", topics="t/#")
            await do(actions, "stream.create", name="gone", topics="x/#")
            streams = {log.definition.name: log for log in follower.copy.files.streams.values()}
            assert sorted(streams) == ["a", "gone"]
            for number in range(1, 4):
                await publish(writer, number, 1)
            await do(actions, "stream.commit", name="a", consumer="spark", next="2")
            assert b'"spark"' in (tmp_path / "copy" / "streams" / "a" / "CONSUMERS").read_bytes()
            await do(actions, "stream.delete", name="gone")
            assert [log.definition.name for log in follower.copy.files.streams.values()] == ["a"]
            assert streams["a"].journal.next == 3
            await do(actions, "stream.trim", name="a")
            await publish(writer, 4, 1)
            assert streams["a"].journal.read(3, 10, 1000)
            follower.may_acknowledge.clear()
            waits = asyncio.ensure_future(do(actions, "stream.create", name="b", topics="y/#"))
            while len(follower.copy.files.streams) < 2:
                await asyncio.sleep(0.001)
            assert not waits.done(), "answered before it was acknowledged"
            follower.may_acknowledge.set()
            await waits


async def test_too_few_copies_refuse_what_must_be_stored_until_enough_are_in_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with serving(monkeypatch, tmp_path / "own") as served:
        address = served.broker.address()
        await (await subscribed(address, "reader")).close()
        writer = await Peer.connect(address, "writer")
        await publish(writer, 1, 1)
        served.source.require((), "1 of the required 2 nodes are in step")
        assert served.store.failure == "too few copies: 1 of the required 2 nodes are in step"
        for number, qos in ((2, 1), (3, 2)):
            writer.send(Publish(b"t/a", b"%d" % number, qos, packet_id=number))
            assert (await writer.expect(Ack)).reason == 0x97
        assert str(served.store.health).startswith("uncopied since ")
        served.source.require((), "")
        assert str(served.store.health) == "ok"
        await publish(writer, 4, 1)
        reader = await returned(address, "reader")
        assert await received(reader, 2) == [b"1", b"4"]


async def test_who_waits_for_a_copy_is_refused_when_too_few_are_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with serving(monkeypatch, tmp_path / "own") as served:
        await subscribed(served.broker.address(), "reader")
        writer = await Peer.connect(served.broker.address(), "writer")
        served.source.require(("n2",), "")  # it never comes
        writer.send(Publish(b"t/a", b"1", 1, packet_id=1))
        while not served.source.waiting:
            await asyncio.sleep(0.001)
        served.source.require((), "1 of the required 2 nodes are in step")
        assert (await writer.expect(Ack)).reason == 0x97


async def test_what_was_postponed_is_sent_once_it_is_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with serving(monkeypatch, tmp_path / "own") as served:
        address = served.broker.address()
        writer = await Peer.connect(address, "writer", properties=dict(HOUR))
        async with FollowerProcess(tmp_path / "copy", served) as follower:
            await follower.caught_up()
            writer.send(Publish(b"t/a", b"1", 2, packet_id=1))
            assert (await writer.expect(Ack)).type == PUBREC
            await follower.caught_up()
            served.source.require((), "1 of the required 2 nodes are in step")
            follower.may_acknowledge.clear()
            before = served.source.lsn
            writer.send(Ack(PUBREL, 1))  # PUBCOMP waits until storing works
            while served.source.lsn == before:
                await asyncio.sleep(0.001)
            served.source.require(("n2",), "")
            await (await Peer.connect(address, "third")).close()  # several turns go by
            assert not writer.reader._buffer, "acknowledged before it was copied"  # type: ignore[attr-defined]
            follower.may_acknowledge.set()
            assert (await writer.expect(Ack)).type == PUBCOMP


async def test_a_broker_that_stops_leaves_its_last_checkpoint_to_its_followers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        async with serving(monkeypatch, tmp_path / "own") as served:
            await (await subscribed(served.broker.address(), "reader")).close()
            follower = await stack.enter_async_context(FollowerProcess(tmp_path / "copy", served))
            await follower.caught_up()
            served.source.require(("n2",), "")
            await publish(await Peer.connect(served.broker.address(), "writer"), 1, 1)
            before = follower.copy.position.kv
            flush = served.source.flush

            async def flush_then(seconds: float) -> None:
                follower.may_receive.set()
                await flush(PATIENCE)

            follower.may_receive.clear()
            monkeypatch.setattr(served.source, "flush", flush_then)
        assert follower.copy.position.kv == served.source.kv_state != before


async def test_a_checkpoint_rests_on_copied_records_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Records that were not acknowledged are cut off when another node has served meanwhile."""
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(monkeypatch, tmp_path / "own"))
        await (await subscribed(served.broker.address(), "reader")).close()
        follower = await stack.enter_async_context(FollowerProcess(tmp_path / "copy", served))
        await follower.caught_up()
        served.source.require(("n2",), "")
        follower.may_acknowledge.clear()
        peer = await Peer.connect(served.broker.address(), "writer")
        peer.send(Publish(b"t/1", b"1", 1, packet_id=7))
        while served.source.is_copied(served.source.lsn):
            await asyncio.sleep(0.01)
        before = served.source.kv_state
        written = asyncio.ensure_future(served.store.checkpoint())
        while not served.store.checkpointer.awaits_copies:
            await asyncio.sleep(0.01)
        assert served.source.kv_state == before and not written.done()
        follower.may_acknowledge.set()
        await written
        assert served.source.kv_state != before


async def test_without_copies_a_store_knows_nothing_of_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with serving(monkeypatch, tmp_path / "own", generation=0) as served:
        assert served.store.copies is None
        assert served.store.writer.copies is None
        await publish(await Peer.connect(served.broker.address(), "writer"), 1, 1)
        await served.store.checkpoint()
    assert not (tmp_path / "own" / "COPY").exists()


async def test_a_directory_that_was_used_without_copies_has_no_life_in_common_with_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with serving(monkeypatch, tmp_path / "own") as served:
        assert served.store.kv.get(b"mcopy") is not None
    async with serving(monkeypatch, tmp_path / "own", generation=0) as served:
        assert served.store.kv.get(b"mcopy") is None
    assert read_facts(tmp_path / "own") is None


@pytest.mark.parametrize("seed", few(range(40), *range(4)))
def test_lives(seed: int) -> None:
    copy_lives.run(seed)
