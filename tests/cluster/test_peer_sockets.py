"""Connections between nodes in the rounds of the broker's event loop, through TCP and through Unix sockets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.cluster.conftest import Node, Nodes
from tests.descriptors import left_open, open_descriptors
from tests.patience import within

from starlingmq.net.broker_loop import BrokerLoop, client_sockets
from starlingmq.net.peers.peer_connection import CLOSED, PeerConnection
from starlingmq.net.peers.peer_listener import STRANGERS_PER_ADDRESS
from starlingmq.net.peers.peer_socket import PeerSocket

PATIENCE = 20.0
LIMIT = 64 * 1024 * 1024
SECRET = "a secret that nobody guesses"


def in_rounds(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        before = asyncio.all_tasks()
        async with within(PATIENCE):
            await test()
            while left := asyncio.all_tasks() - before:
                await asyncio.wait(left)
        sockets = client_sockets(asyncio.get_running_loop())
        assert sockets is not None
        while any(type(each) is PeerSocket for each in sockets.by_descriptor):
            await asyncio.sleep(0)

    descriptors = open_descriptors()
    with asyncio.Runner(loop_factory=BrokerLoop) as runner:
        runner.run(run())
    assert left_open(descriptors) == set()


async def pair_in_rounds() -> tuple[PeerConnection, PeerConnection]:
    loop = asyncio.get_running_loop()
    near, far = PeerConnection(PATIENCE, LIMIT), PeerConnection(PATIENCE, LIMIT)
    server = await loop.create_server(far.protocol, "127.0.0.1", 0)
    await loop.create_connection(near.protocol, *server.sockets[0].getsockname())
    while far._transport is None:
        await asyncio.sleep(0)
    server.close()
    for side in (near, far):
        side.serve_in_rounds()
        assert type(side._transport) is PeerSocket
    return near, far


async def ended(*sides: PeerConnection) -> None:
    for side in sides:
        await side.until_ended()
        while side._transport is not None:
            await asyncio.sleep(0)


@pytest.mark.parametrize("size", [0, 1, 4091, 4092, 4093, 300_000, 5_000_000])
def test_messages_of_any_size_arrive_in_order(size: int) -> None:
    async def test() -> None:
        near, far = await pair_in_rounds()
        messages = [os.urandom(size), b"between", os.urandom(size)]
        for message in messages:
            near.send(message)
        assert [await far.read() for _ in messages] == messages
        near.abort("the test is over")
        await ended(near, far)

    in_rounds(test)


def test_a_writer_waits_for_a_slow_reader_and_nothing_is_lost() -> None:
    async def test() -> None:
        near, far = await pair_in_rounds()
        taken: list[bytes] = []
        messages = [number.to_bytes(4, "big") * 25_000 for number in range(200)]
        far._pause()

        async def write() -> None:
            for message in messages:
                await near.write(message)
            near.end("")

        writing = asyncio.ensure_future(write())
        while near.has_room:
            await asyncio.sleep(0)
        assert not writing.done()
        far._resume()
        while (message := await far.read()) is not None:
            taken.append(message)
        assert taken == messages and far.reason == CLOSED and far.by_fin
        await writing
        await ended(near, far)

    in_rounds(test)


def test_a_reset_ends_the_connection_and_is_told_from_an_orderly_end() -> None:
    async def test() -> None:
        near, far = await pair_in_rounds()
        near.abort("the test says so")
        await ended(near, far)
        assert near.reason == "the test says so" and not near.by_fin
        assert far.reason and not far.by_fin

    in_rounds(test)


def test_a_write_to_a_connection_that_has_ended_is_no_error() -> None:
    async def test() -> None:
        near, far = await pair_in_rounds()
        far.end("it has enough")
        while not near.reason:
            near.send(b"more")
            await asyncio.sleep(0)
        near.send(b"still more")
        await ended(near, far)
        assert "enough" in near.reason

    in_rounds(test)


async def exchange(one: Node, two: Node, count: int) -> None:
    for sequence in range(1, count + 1):
        assert one.send(sequence, two)
        assert two.send(count - sequence, one)
        if sequence % 100 == 0:
            await asyncio.sleep(0)
    await two.until(lambda: len(two.received) == count)
    await one.until(lambda: len(one.received) == count)
    assert two.sequences() == list(range(1, count + 1))
    assert one.sequences() == list(range(count - 1, -1, -1))


def test_streams_of_nodes_are_served_in_rounds() -> None:
    async def test() -> None:
        nodes = Nodes()
        one, two = await nodes.pair(secret=SECRET)
        sockets = client_sockets(asyncio.get_running_loop())
        assert sockets is not None
        while sum(type(each) is PeerSocket for each in sockets.by_descriptor) != 4:
            await asyncio.sleep(0)  # two streams, both ends of each
        await exchange(one, two, 2000)
        await nodes.close()

    in_rounds(test)


@pytest.mark.parametrize("factory", [asyncio.SelectorEventLoop, BrokerLoop])
def test_nodes_of_one_machine_use_unix_sockets(
    factory: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    async def test() -> None:
        nodes = Nodes()
        settings = {"secret": SECRET, "one_machine": True, "socket_dir": str(tmp_path)}
        one, two = await nodes.pair(**settings)
        assert {path.name for path in tmp_path.iterdir()} == {str(one.port), str(two.port)}
        for node, other in ((one, two), (two, one)):
            (stream,) = node.peers._streams.values()
            assert stream._connection is not None and stream._connection.peer == f"{tmp_path}/{other.port}"
        await exchange(one, two, 500)
        await nodes.close()
        assert not list(tmp_path.iterdir()), "their files are gone"

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(test())


def test_without_its_file_a_node_is_reached_by_tcp(tmp_path: Path) -> None:
    async def test() -> None:
        nodes = Nodes()
        settings = {"secret": SECRET, "one_machine": True, "socket_dir": str(tmp_path)}
        one, two = [await nodes.start(name, number, **settings) for number, name in ((1, "one"), (2, "two"))]
        (tmp_path / str(two.port)).unlink()
        one.peers.set_peers([two.info()])
        await one.until(lambda: 2 in one.connected)
        assert one.send(1, two)
        await two.until(lambda: two.sequences() == [1])
        await nodes.close()

    in_rounds(test)


@pytest.mark.parametrize("answers", [True, False], ids=["closes", "is silent"])
def test_a_node_whose_unix_socket_proves_nothing_is_reached_by_tcp(
    answers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("starlingmq.net.peers.peer_dialling.FILE_SECONDS", PATIENCE if answers else 0.05)

    async def test() -> None:
        nodes = Nodes()
        settings = {"secret": SECRET, "one_machine": True, "socket_dir": str(tmp_path)}
        one, two = [await nodes.start(name, number, **settings) for number, name in ((1, "one"), (2, "two"))]
        path = tmp_path / str(two.port)
        path.unlink()
        taken: list[asyncio.StreamWriter] = []

        def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            taken.append(writer)
            if answers:
                writer.close()

        impostor = await asyncio.start_unix_server(take, path)
        one.peers.set_peers([two.info()])
        await one.until(lambda: 2 in one.connected)
        assert taken, "the Unix socket is tried first"
        (stream,) = one.peers._streams.values()
        assert stream._connection is not None and stream._connection.peer != str(path)
        for writer in taken:
            writer.close()
        impostor.close()
        await nodes.close()

    asyncio.run(test())


def test_silent_connections_to_a_nodes_unix_socket_do_not_keep_other_nodes_away(tmp_path: Path) -> None:
    async def test() -> None:
        nodes = Nodes()
        settings = {"secret": SECRET, "one_machine": True, "socket_dir": str(tmp_path)}
        one, two = [await nodes.start(name, number, **settings) for number, name in ((1, "one"), (2, "two"))]
        path = str(tmp_path / str(two.port))
        silent = [await asyncio.open_unix_connection(path) for _ in range(STRANGERS_PER_ADDRESS)]
        while len(two.peers._listener._strangers) < STRANGERS_PER_ADDRESS:
            await asyncio.sleep(0)
        before = one.attempts
        one.peers.set_peers([two.info()])
        await one.until(lambda: 2 in one.connected)
        assert one.attempts == before + 1, "the first attempt"
        for _, writer in silent:
            writer.close()
        await nodes.close()

    asyncio.run(test())
