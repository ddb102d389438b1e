"""The cluster port and strangers: nothing of theirs is read before a proof, and no node is disturbed by them."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from tests.cluster.conftest import WAIT_SECONDS, Nodes
from tests.cluster.stranger import FRAME_BYTES, HEADERS, MIB, Stranger, frame

from starlingmq.cluster.links.peer_frames import MemberInfo
from starlingmq.net.peers import peer_handshake, peer_server
from starlingmq.net.peers.peer_stream import CHALLENGE_METHOD, COPY_METHOD, JOIN_METHOD, SERVICE
from starlingmq.net.peers.process_watch import HOLD_METHOD
from starlingmq.node_process import freeze

SECRET = "0123456789abcdef"
CONNECTIONS = 50
CALLS = 100
MESSAGE = 300 * MIB
GROWTH_MAX = 48 * MIB
OWN_METHODS = [CHALLENGE_METHOD, JOIN_METHOD, HOLD_METHOD, COPY_METHOD, f"/{SERVICE}/Connect"]
METHODS = [*OWN_METHODS, f"/{SERVICE}/Other", "/", "//", "/other.Service/Call"]


@asynccontextmanager
async def lone_node() -> AsyncIterator[tuple[int, int]]:
    """Port and process id of a node in a process of its own."""
    command = [sys.executable, "-m", "tests.cluster.lone_node", SECRET]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdout is not None and process.stdin is not None
    try:
        line = await process.stdout.readline()
        yield int(line.decode().rpartition(":")[2]), process.pid
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), WAIT_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


def peak(pid: int) -> int:
    """Bytes of memory that the process had at most."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024


async def rude(port: int, path: str, size: int) -> int:
    """Send a message of so many bytes on each of two streams; how many bytes went out."""
    async with Stranger(port) as stranger:
        await stranger.until_settled()
        for stream in (1, 3):
            stranger.open(stream, path)
        await asyncio.gather(*(stranger.send(stream, size) for stream in (1, 3)))
        await asyncio.gather(*(stranger.until_over(stream) for stream in (1, 3)))
        return stranger.sent


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
async def test_large_messages_of_strangers_cost_the_node_no_memory_and_disturb_no_node(nodes: Nodes) -> None:
    one = await nodes.start("one", 1, secret=SECRET)
    async with lone_node() as (port, pid), asyncio.timeout(120):
        one.peers.set_peers([MemberInfo("two", 2, 1, f"127.0.0.1:{port}")])
        await one.until(lambda: 2 in one.connected)
        await rude(port, JOIN_METHOD, MIB)
        before = peak(pid)
        paths = [METHODS[number % len(METHODS)] for number in range(CONNECTIONS)]
        sent = await asyncio.gather(*(rude(port, path, MESSAGE) for path in paths))
        assert max(sent) <= 2 * (peer_server.WINDOW_BYTES + FRAME_BYTES), "nobody asked for more"
        assert peak(pid) - before < GROWTH_MAX
        assert one.connections == 1 and 2 in one.connected
        assert one.peers.send(2, one.data(1, one))


@pytest.mark.parametrize("path", METHODS)
async def test_every_call_on_the_port_asks_for_a_proof_before_it_reads(nodes: Nodes, path: str) -> None:
    two = await nodes.start("two", 2, secret=SECRET)
    assert set(two.peers.methods()) == set(OWN_METHODS), "a new call belongs into METHODS"
    async with grpc.aio.insecure_channel(two.peers.address) as channel, asyncio.timeout(WAIT_SECONDS):
        for key in (peer_handshake.HELLO, peer_handshake.PROOF, peer_handshake.TICKET, "authorization-bin"):
            call: Any = channel.stream_stream(path)(metadata=((key, b"\x0a\x05wrong"),))
            assert await call.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED)
            assert not peer_handshake.parts(await call.initial_metadata())
    assert not two.received and not two.peers._inbound


async def test_refused_calls_leave_nothing_that_is_never_freed(nodes: Nodes) -> None:
    """gRPC makes a reference cycle for each call, which has the metadata; a node freezes what it has every second."""
    two = await nodes.start("two", 2, secret=SECRET)
    gc.collect()
    gc.disable()
    try:
        async with grpc.aio.insecure_channel(two.peers.address) as channel, asyncio.timeout(WAIT_SECONDS):
            for _ in range(CALLS):
                call: Any = channel.stream_stream(JOIN_METHOD)(metadata=(("x-bin", bytes(1000)),))
                assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
        freeze()
        gc.unfreeze()
        left = sum(type(thing).__name__ == "_HandlerCallDetails" for thing in gc.get_objects())
    finally:
        gc.enable()
    assert left < CALLS // 10


@pytest.mark.parametrize("size", [10, 12_000, 1 * MIB])
async def test_metadata_of_strangers_is_bounded(nodes: Nodes, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    two = await nodes.start("two", 2, secret=SECRET)
    seen: list[int] = []

    def look(metadata: peer_handshake.Metadata | None) -> dict[str, bytes]:
        seen.append(sum(len(value) for _, value in metadata or ()))
        return {}

    monkeypatch.setattr(peer_server, "parts", look)
    async with Stranger(two.port) as stranger, asyncio.timeout(WAIT_SECONDS):
        await stranger.until_settled()
        stranger.open(1, CHALLENGE_METHOD, [(b"x-long", b"a" * size)])
        await stranger.until_over(1)
    assert seen == [10] if size == 10 else sum(seen) == 0, "all of it is thrown away if it is too much"


async def test_a_stranger_has_a_few_streams(nodes: Nodes) -> None:
    two = await nodes.start("two", 2, secret=SECRET)
    async with Stranger(two.port) as stranger, asyncio.timeout(WAIT_SECONDS):
        assert (await stranger.until_settled())[3] == peer_server.STREAMS_PER_CONNECTION
        for number in range(200):
            stranger.writer.write(frame(HEADERS, 0, 2 * number + 1, b""))  # begun and never ended
        await stranger.until_ended()


@pytest.mark.slow
async def test_a_connection_that_proves_nothing_is_closed(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_server, "STRANGER_SECONDS", 1.0)
    two = await nodes.start("two", 2, secret=SECRET)
    one = await nodes.start("one", 1, secret=SECRET)
    one.peers.set_peers([two.info()])
    await one.until(lambda: 2 in one.connected)
    async with AsyncExitStack() as stack, asyncio.timeout(WAIT_SECONDS):
        quiet = await stack.enter_async_context(Stranger(two.port))
        asked = await stack.enter_async_context(Stranger(two.port))
        asked.open(1, JOIN_METHOD)
        reader, writer = await asyncio.open_connection("127.0.0.1", two.port)  # says nothing at all
        await quiet.until_ended()
        await asked.until_ended()
        while await reader.read(1000):
            pass
        writer.close()
    assert one.connections == 1 and 2 in one.connected


async def test_a_node_that_has_its_challenge_and_says_no_more_is_not_waited_for(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_server, "STRANGER_SECONDS", 0.2)
    two = await nodes.start("two", 2, secret=SECRET)
    async with grpc.aio.insecure_channel(two.peers.address) as channel, asyncio.timeout(WAIT_SECONDS):
        me = peer_handshake.Identity("starling", "one", 1, 1, "0", b"")
        hello = peer_handshake.Dialling(me, 2, bytes(32)).hello()
        call: Any = channel.stream_stream(CHALLENGE_METHOD)(metadata=tuple(hello.items()))
        answer = peer_handshake.parts(await call.initial_metadata())
        assert peer_handshake.CHALLENGE in answer
        assert await call.code() is grpc.StatusCode.OK


async def test_names_of_strangers_forge_no_lines_of_the_log(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    two = await nodes.start("two", 2, secret=SECRET)
    async with grpc.aio.insecure_channel(two.peers.address) as channel:
        for number in range(100):
            name = f"one\n2026-01-01 ERROR forged {number}"
            me = peer_handshake.Identity("starling", name, 1, 1, "0", b"")
            hello = peer_handshake.Dialling(me, 2, bytes(32)).hello()
            call: Any = channel.stream_stream(CHALLENGE_METHOD)(metadata=tuple(hello.items()))
            assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
    said = [record.message for record in caplog.records if record.name.startswith("starlingmq")]
    assert said == ["refused the connection of a node: not a valid handshake of a node"]


async def test_lines_about_strangers_are_counted_when_they_come_too_fast(
    nodes: Nodes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = await nodes.start("two", 2, secret=SECRET)
    monkeypatch.setattr(peer_server, "REFUSALS_LOGGED", 1e9)
    for number in range(100):
        two.peers._note_refusal(f"reason {number}")
    monkeypatch.setattr(peer_server, "REFUSALS_LOGGED", 0.0)
    two.peers._note_refusal("another")
    lines = [record.message for record in caplog.records if record.name.startswith("starlingmq")]
    assert lines[-1] == f"refused the connection of a node: another (and {101 - len(lines)} more that were not logged)"
    assert len(lines) <= 2
