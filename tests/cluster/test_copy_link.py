"""A data directory is copied to another node over the port of the nodes."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from threading import Event

import msgspec
import pytest
from tests.patience import slowness, within

from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.config.cluster_section import ClusterConfig
from starlingmq.config.settings import load_config
from starlingmq.core.broker import BrokerState
from starlingmq.net.copies.copy_place import CopyPlace
from starlingmq.net.peers.copy_link import CopyRefused, ask_follower, feed_follower, served
from starlingmq.net.peers.peer_handshake import Proved, RefusedError
from starlingmq.net.peers.peer_server import PeerServer
from starlingmq.net.peers.pipe import Pipe
from starlingmq.storage.copies.copy_directory import CopyDirectory
from starlingmq.storage.copies.copy_facts import read_facts
from starlingmq.storage.copies.copy_feed import CopyFeed
from starlingmq.storage.copies.copy_files import CopyFiles
from starlingmq.storage.copies.copy_frames import ASKS, CopyPosition, Hello
from starlingmq.storage.copies.copy_life import begin_copies
from starlingmq.storage.copies.copy_receiver import CopyReceiver
from starlingmq.storage.copies.copy_source import CopySource
from starlingmq.storage.directory_store import DirectoryStore, open_directory
from starlingmq.storage.journal_writer import Durability

PATIENCE = 20.0
SECRET = "c" * 32


@asynccontextmanager
async def node(number: int) -> AsyncIterator[PeerServer]:
    peers = PeerServer(
        msgspec.structs.replace(ClusterConfig(listen="127.0.0.1:0"), secret=SECRET),
        f"n{number}",
        lambda envelope: None,
        lambda number: None,
        lambda number: None,
        lambda number, incarnation: None,
        random.random,
        os.urandom,
    )
    await peers.start()
    peers.introduce(number, 1)
    try:
        yield peers
    finally:
        await peers.close()


@asynccontextmanager
async def owned(path: Path, generation: int = 1) -> AsyncIterator[tuple[DirectoryStore, CopySource]]:
    config = load_config(None, ["cluster.copies=2"])
    config = msgspec.structs.replace(config, cluster=msgspec.structs.replace(config.cluster, enabled=True))
    state = BrokerState(config.mqtt, config.limits, time.time(), b"s" * 32, "test")
    store = open_directory(config, str(path), state, time.time)
    store.attach(state, lambda: None)
    source = begin_copies(store, "n1", generation, (), time.monotonic)
    try:
        yield store, source
    finally:
        await store.close()


class Follower:
    """``begun``: receivers that were handed out; ``ends``: why connections ended."""

    def __init__(self, path: Path, durability: Durability = "process") -> None:
        self.path = path
        self.durability = durability
        self.copy: CopyDirectory | None = None
        self.threads = ThreadPoolExecutor(1)
        self.ends: list[str] = []

    async def receiver(self, hello: Hello) -> CopyReceiver:
        if self.copy is None:
            self.copy = CopyDirectory(CopyFiles(self.path, hello.owner, hello.engine, hello.segment_size))
        return CopyReceiver(self.copy, hello, self.durability, self.threads)

    async def look(self, hello: Hello) -> CopyPosition | None:
        return await CopyPlace(self.path, hello.owner).look(hello)

    async def serve(self, proved: Proved, pipe: Pipe) -> str:
        assert proved.name == "n1"
        self.ends.append(await served(pipe, 77, self.receiver, self.look))
        return self.ends[-1]


def accept(life: int, position: CopyPosition) -> bool:
    return life == 77 and not position.excess


async def until_copied(source: CopySource, task: asyncio.Task[None]) -> None:
    while source.acknowledged("n2") < source.lsn:
        assert not task.done(), task.exception()
        await asyncio.sleep(0.001)


async def test_a_follower_gets_what_there_was_and_what_comes(tmp_path: Path) -> None:
    async with within(PATIENCE), node(1) as near, node(2) as far, owned(tmp_path / "own") as (store, source):
        follower = Follower(tmp_path / "copy")
        far.on_copy = follower.serve
        store.journal.append([b"%d" % number for number in range(5000)])
        async with near.open_copy(MemberInfo("n2", 2, 1, far.address)) as pipe:
            feed = CopyFeed(store, source, "n2")
            task = asyncio.create_task(feed_follower(pipe, source.hello(), feed, accept))
            await until_copied(source, task)
            source.require(("n2",), "")
            waiting = store.writer.write([b"live"], False)
            assert waiting is not None
            await waiting
            assert follower.copy is not None
            assert follower.copy.files.journal.read(4999, 10, 100) == [(4999, b"4999"), (5000, b"live")]
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        assert source.behind("n2") is None
        follower.copy.close()


async def test_turns_that_come_during_a_sync_share_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: list[int] = []
    slow, released = Event(), Event()

    def sync(copy: CopyDirectory) -> None:
        syncs.append(copy.files.journal.next)
        assert not slow.is_set() or released.wait(PATIENCE * slowness())

    monkeypatch.setattr(CopyDirectory, "sync", sync)
    async with within(PATIENCE), node(1) as near, node(2) as far, owned(tmp_path / "own") as (store, source):
        follower = Follower(tmp_path / "copy", "power")
        far.on_copy = follower.serve
        async with near.open_copy(MemberInfo("n2", 2, 1, far.address)) as pipe:
            feed = CopyFeed(store, source, "n2")
            task = asyncio.create_task(feed_follower(pipe, source.hello(), feed, accept))
            await until_copied(source, task)
            syncs.clear()
            slow.set()
            for number in range(50):
                store.writer.write([b"%d" % number], False)
                while not syncs:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0)  # each turn is sent alone
            assert follower.copy is not None and follower.copy.files.journal.next < 50
            released.set()
            await until_copied(source, task)
            assert follower.copy.files.journal.next == 50 and len(syncs) <= 3, syncs
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        follower.copy.close()


async def test_a_node_is_asked_how_much_it_has_and_nothing_changes(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "copy")
    hello = Hello("n1", ASKS, "segment", 1 << 20, ())
    async with within(PATIENCE), node(1) as near, node(2) as far, owned(tmp_path / "own") as (store, source):
        far.on_copy = follower.serve
        member = MemberInfo("n2", 2, 1, far.address)
        async with near.open_copy(member) as pipe:
            assert (await ask_follower(pipe, hello)).generation == 0
        assert not follower.path.exists()
        store.journal.append([b"1", b"2"])
        async with near.open_copy(member) as pipe:
            task = asyncio.create_task(feed_follower(pipe, source.hello(), CopyFeed(store, source, "n2"), accept))
            await until_copied(source, task)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        assert follower.copy is not None
        follower.copy.close()
        before = read_facts(follower.path)
        async with near.open_copy(member) as pipe:
            position = await ask_follower(pipe, hello)
        assert (position.generation, position.journal) == (1, store.journal.next)
        assert read_facts(follower.path) == before


async def test_nothing_is_cut_off_unless_the_cluster_accepts_it(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "copy")
    async with within(PATIENCE), node(1) as near, node(2) as far:
        far.on_copy = follower.serve
        member = MemberInfo("n2", 2, 1, far.address)
        async with owned(tmp_path / "own") as (store, source), near.open_copy(member) as pipe:
            store.journal.append([b"a", b"b"])
            task = asyncio.create_task(feed_follower(pipe, source.hello(), CopyFeed(store, source, "n2"), accept))
            await until_copied(source, task)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        async with owned(tmp_path / "other", 2) as (store, source), near.open_copy(member) as pipe:
            with pytest.raises(CopyRefused, match="2 of its records"):
                await feed_follower(pipe, source.hello(), CopyFeed(store, source, "n2"), accept)
        assert follower.copy is not None
        assert follower.copy.position.journal == 2
        follower.copy.close()


async def test_a_node_without_copies_refuses_them(tmp_path: Path) -> None:
    async with within(PATIENCE), node(1) as near, node(2) as far:
        for _ in range(50):  # one in 30 lost the answer to its challenge
            with pytest.raises(RefusedError, match="stores no copies"):
                async with near.open_copy(MemberInfo("n2", 2, 1, far.address)):
                    pass


async def test_an_owner_whose_generation_is_over_is_told_so(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "copy")
    async with within(PATIENCE), node(1) as near, node(2) as far, owned(tmp_path / "own") as (store, source):
        far.on_copy = follower.serve
        receiver = await follower.receiver(Hello("n1", 1, "segment", store.segment_size, source.facts.lives))
        receiver.copy.fence(3)
        async with near.open_copy(MemberInfo("n2", 2, 1, far.address)) as pipe:
            with pytest.raises((CopyRefused, OSError)):
                await feed_follower(pipe, source.hello(), CopyFeed(store, source, "n2"), accept)
        assert follower.ends == ["n1: generation 1 is over"]
        assert follower.copy is not None
        follower.copy.close()
