"""How connections between nodes end: what the other side sees of it, and that nothing is left."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import uvloop
from tests.cluster.conftest import Node, Nodes
from tests.cluster.stranger import MIB, Stranger
from tests.cluster.test_peer_strangers import SECRET, hello
from tests.cluster.test_process_watch import tls
from tests.patience import within

from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.config.cluster_section import ClusterTlsConfig
from starlingmq.net.broker_loop import BrokerLoop
from starlingmq.net.peers import peer_listener
from starlingmq.net.peers.peer_connection import PeerConnection
from starlingmq.net.peers.peer_handshake import JOIN, Dialling, Identity
from starlingmq.net.peers.peer_server import ListenError
from starlingmq.net.peers.peer_tls import PeerTls, peer_tls
from starlingmq.net.peers.peer_wire import framed

SILENCE = 0.1
PATIENCE = 20.0
LIMIT = 64 * MIB
TURNS = 5
WAITING = 50
RECONNECTIONS = 40


@asynccontextmanager
async def pair(contexts: PeerTls, silence: float) -> AsyncIterator[tuple[PeerConnection, PeerConnection]]:
    loop = asyncio.get_running_loop()
    near, far = PeerConnection(silence, LIMIT), PeerConnection(silence, LIMIT)
    server = await loop.create_server(far.protocol, "127.0.0.1", 0, ssl=contexts.listener)
    name = "127.0.0.1" if contexts.dialler is not None else None
    address = server.sockets[0].getsockname()
    await loop.create_connection(near.protocol, *address, ssl=contexts.dialler, server_hostname=name)
    async with within(PATIENCE):
        while far._transport is None:
            await asyncio.sleep(0)
    try:
        yield near, far
    finally:
        near.abort("the test is over")
        far.abort("the test is over")
        server.close()


def kill(connection: PeerConnection) -> None:
    """Close it as the system does with a process that has ended: by FIN, and without an end of TLS."""
    descriptor = connection._transport.get_extra_info("socket").fileno()
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        sock.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("factory", [asyncio.SelectorEventLoop, BrokerLoop, uvloop.new_event_loop])
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("way", ["killed", "ended", "ended with a reason", "aborted"])
def test_the_end_of_a_process_is_told_from_all_other_ends(
    factory: type[asyncio.AbstractEventLoop], encrypted: bool, way: str, tmp_path: Path
) -> None:
    """A process that lives and gives a connection up, since it stood still for example, has not ended."""
    files = tls(tmp_path) if encrypted else {}
    contexts = peer_tls(ClusterTlsConfig(**files))

    async def run() -> bool:
        async with pair(contexts, PATIENCE) as (near, far), within(PATIENCE):
            if way == "killed":
                kill(far)
            elif way == "aborted":
                far.abort("nothing has come from it for too long")
            else:
                far.end("" if way == "ended" else "a reason")
            await near.until_ended()
            return near.by_fin

    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(run()) == (way in ("killed", "ended"))


async def test_an_end_does_not_wait_for_a_side_that_reads_nothing_more() -> None:
    """Neither of them reads: the one because its disk is slow, the other since it stands still."""
    async with pair(PeerTls(None, None), SILENCE) as (near, far), within(PATIENCE):
        assert near._timer is not None
        near._timer.cancel()
        near._transport.pause_reading()
        for _ in range(4):
            near.send(bytes(MIB))
        while far._is_reading:
            await asyncio.sleep(0.001)
        ended = asyncio.Event()
        far.on_end = ended.set
        far.send(bytes(16 * MIB))
        far.end("")
        await ended.wait()


async def test_nothing_is_given_on_after_what_is_given_on_has_ended_the_connection() -> None:
    async with pair(PeerTls(None, None), PATIENCE) as (near, far), within(PATIENCE):
        given = []

        def receive(message: bytes) -> None:
            given.append(message)
            far.abort("it is malformed")

        far.receive = receive
        near._transport.write(framed(b"first") + framed(b"second"))
        await near.until_ended()
        assert given == [b"first"]


async def test_streams_that_have_ended_leave_nothing_for_the_collector(nodes: Nodes) -> None:
    """Old objects are collected seldom."""
    two = await nodes.start("two", 2)
    me = Identity("starling", "one", 1, 1, "0", b"")
    gc.collect()
    gc.disable()
    try:
        async with within(PATIENCE):
            for _ in range(RECONNECTIONS):
                dialling = Dialling(me, 2, bytes(32), JOIN)
                async with Stranger(two.port) as stranger:
                    stranger.say(dialling.hello)
                    challenge = await stranger.answer()
                    assert challenge is not None
                    stranger.say(dialling.proof(challenge))
                    assert await stranger.answer()
            while two.peers._inbound:
                await asyncio.sleep(0.001)
        left = sum(type(thing) is PeerConnection for thing in gc.get_objects())
    finally:
        gc.enable()
    assert left < RECONNECTIONS // 4


async def test_many_connections_at_once_do_not_keep_the_event_loop(nodes: Nodes) -> None:
    two = await nodes.start("two", 2, secret=SECRET)
    with ExitStack() as stack:
        for _ in range(WAITING):
            stack.enter_context(socket.create_connection(("127.0.0.1", two.port)))
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert len(two.peers._listener._strangers) <= TURNS
        async with within(PATIENCE), Stranger(two.port) as stranger:
            stranger.say(hello().hello)
            assert await stranger.answer()


async def test_an_address_of_a_host_name_that_is_not_of_this_system_is_left_out(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ::1 of localhost, where the system has no IPv6."""

    async def addresses(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
        return [(socket.AF_INET, (address, port)) for address in found]

    monkeypatch.setattr(peer_listener, "_addresses", addresses)
    found = ["192.0.2.1", "127.0.0.1"]
    two = await nodes.start("two", 2, secret=SECRET)
    async with within(PATIENCE), Stranger(two.port) as stranger:
        stranger.say(hello().hello)
        assert await stranger.answer()
    found = ["192.0.2.1"]
    with pytest.raises(ListenError, match="annot assign"):
        await nodes.start("three", 3)


async def test_a_dialler_that_is_cancelled_ends_even_if_the_other_side_is_an_older_node(nodes: Nodes) -> None:
    asked = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\0\0\x02\x04\0\0\0\0\0")
        await reader.read(4)
        asked.set()
        with suppress(OSError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    one: Node = await nodes.start("one", 1, secret=SECRET)
    host, port = server.sockets[0].getsockname()

    async def copy() -> None:
        async with one.peers.open_copy(MemberInfo("two", 2, 1, f"{host}:{port}")):
            pass

    task = asyncio.create_task(copy())
    async with within(PATIENCE):
        await asked.wait()
        await asyncio.sleep(0.05)  # the settings have come
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    server.close()
