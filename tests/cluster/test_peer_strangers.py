"""The cluster port and strangers: nothing of theirs is read before a proof, and no node is disturbed by them."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme
from tests.cluster.conftest import WAIT_SECONDS, Node, Nodes
from tests.cluster.stranger import MIB, Stranger
from tests.cluster.test_peers import certified
from tests.descriptors import open_descriptors
from tests.few import few
from tests.patience import slowness, within

from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.net.peers import peer_listener
from starlingmq.net.peers.peer_connection import PeerConnection
from starlingmq.net.peers.peer_handshake import MESSAGE_BYTES_MAX, PURPOSES, Dialling, Identity, RefusedError

SECRET = "0123456789abcdef"
CONNECTIONS = 50
CALLS = 100
MESSAGE = 300 * MIB
GROWTH_MAX = 48 * MIB
ONE = Identity("starling", "one", 1, 1, "0", b"fedcba9876543210")


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
            await asyncio.wait_for(process.wait(), WAIT_SECONDS * slowness())
        except TimeoutError:
            process.kill()
            await process.wait()


def peak(pid: int) -> int:
    """Bytes of memory that the process had at most."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024


def hello(purpose: str = "join", me: Identity = ONE) -> Dialling:
    return Dialling(me, 2, bytes(32), purpose)


async def rude(port: int, size: int, says_hello: bool) -> None:
    """Announce a message of so many bytes and send it, until the node closes the connection."""
    async with Stranger(port) as stranger:
        if says_hello:
            stranger.say(hello().hello)
            assert await stranger.answer()
        await stranger.send(size)
        await stranger.until_ended()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
async def test_large_messages_of_strangers_cost_the_node_no_memory_and_disturb_no_node(nodes: Nodes) -> None:
    one = await nodes.start("one", 1, secret=SECRET)
    async with lone_node() as (port, pid), within(120):
        one.peers.set_peers([MemberInfo("two", 2, 1, f"127.0.0.1:{port}")])
        await one.until(lambda: 2 in one.connected)
        await rude(port, MIB, True)
        before = peak(pid)
        await asyncio.gather(*(rude(port, MESSAGE, number % 2 == 0) for number in range(CONNECTIONS)))
        assert peak(pid) - before < GROWTH_MAX
        assert one.connections == 1 and 2 in one.connected
        assert one.give(2, one.data(1, one))


@pytest.mark.parametrize("purpose", [*PURPOSES, "other"])
async def test_every_purpose_asks_for_a_proof(nodes: Nodes, purpose: str) -> None:
    two = await nodes.start("two", 2, secret=SECRET)
    async with Stranger(two.port) as stranger, within(WAIT_SECONDS):
        dialling = hello(purpose)
        stranger.say(dialling.hello)
        challenge = await stranger.answer()
        if purpose == "other":
            assert challenge is None and stranger.reason == "not a valid handshake of a node"
            return
        assert challenge is not None
        stranger.say(dialling.proof(challenge))  # of another secret
        assert await stranger.answer() is None
        assert stranger.reason is not None and "does not know the cluster secret" in stranger.reason
    assert not two.received and not two.peers._inbound


async def test_refused_connections_leave_nothing_that_is_never_freed(nodes: Nodes) -> None:
    two = await nodes.start("two", 2, secret=SECRET)

    async def refused() -> None:
        async with Stranger(two.port) as stranger:
            stranger.say(b"\x0a\x05wrong")
            await stranger.until_ended()
            assert stranger.reason == "not a valid handshake of a node"

    gc.collect()
    gc.disable()
    try:
        async with within(WAIT_SECONDS):
            for _ in range(CALLS):
                await refused()
        left = sum(type(thing) is PeerConnection for thing in gc.get_objects())
    finally:
        gc.enable()
    assert left < CALLS // 10


@pytest.mark.parametrize("size", [MESSAGE_BYTES_MAX + 1, 1 * MIB])
async def test_messages_of_strangers_are_bounded(nodes: Nodes, size: int) -> None:
    two = await nodes.start("two", 2, secret=SECRET)
    async with Stranger(two.port) as stranger, within(WAIT_SECONDS):
        stranger.say(bytes(size))
        assert await stranger.answer() is None and stranger.reason is None


async def test_strangers_are_bounded_in_number_and_nodes_are_not(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_listener, "STRANGERS_MAX", 3)
    one, two = await nodes.pair(secret=SECRET)
    async with AsyncExitStack() as stack, within(WAIT_SECONDS):
        quiet = [await stack.enter_async_context(Stranger(two.port)) for _ in range(3)]
        for stranger in quiet:
            stranger.say(hello().hello)
            assert await stranger.answer()
        async with Stranger(two.port) as more:
            more.say(hello().hello)
            assert await more.answer(), "the newest takes the place"
            await quiet[0].until_ended()  # of the oldest
            assert len(two.peers._listener._strangers) == 3
        assert 2 in one.connected and one.connections == 1


async def test_strangers_of_one_address_leave_room_for_nodes_at_others(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_listener, "STRANGERS_PER_ADDRESS", 3)
    two = await nodes.start("two", 2, secret=SECRET, listen="0.0.0.0:0")
    async with AsyncExitStack() as stack, within(WAIT_SECONDS):
        other = await stack.enter_async_context(Stranger(two.port, "127.0.0.2"))
        strangers = [await stack.enter_async_context(Stranger(two.port)) for _ in range(4)]
        for stranger in (other, *strangers[1:]):
            stranger.say(hello().hello)
            assert await stranger.answer()
        await strangers[0].until_ended()


@pytest.mark.parametrize("addresses", few([1, 4, 15, 250], 250), ids=lambda number: f"{number} addresses")
@pytest.mark.parametrize("slow", few([False, True], True), ids=["silent", "slow"])
async def test_strangers_keep_no_node_out_however_many_they_are(
    nodes: Nodes, caplog: pytest.LogCaptureFixture, addresses: int, slow: bool
) -> None:
    """300 of them, each of which comes again half a second after it is closed; the slow ones send a byte from time to
    time."""
    two = await nodes.start("two", 2, secret=SECRET, listen="0.0.0.0:0")
    one = await nodes.start("one", 1, secret=SECRET)
    came = 0
    there: set[Stranger] = set()

    async def stay(number: int) -> None:
        nonlocal came
        while True:
            with suppress(OSError):
                async with Stranger(two.port, f"127.0.0.{2 + number % addresses}") as stranger:
                    came += 1
                    there.add(stranger)
                    await stranger.until_ended()
                    there.remove(stranger)
            await asyncio.sleep(0.5)

    async def drip() -> None:
        while slow:
            for stranger in there:
                stranger.writer.write(b"\0")
            await asyncio.sleep(0.5)

    stayers = [asyncio.create_task(drip()), *(asyncio.create_task(stay(number)) for number in range(300))]
    try:
        async with within(WAIT_SECONDS):
            while came < 600:
                await asyncio.sleep(0.01)
            before = one.attempts
            one.peers.set_peers([MemberInfo("two", 2, 1, f"127.0.0.1:{two.port}")])
            await one.until(lambda: 2 in one.connected)
        assert one.attempts == before + 1, "the first attempt"
        assert len(two.peers._listener._strangers) <= 256
        assert "let only nodes reach the cluster port" in caplog.text
    finally:
        for stayer in stayers:
            stayer.cancel()
        await asyncio.wait(stayers)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
async def test_strangers_that_stop_within_the_tls_handshake_keep_neither_places_nor_descriptors(
    nodes: Nodes, tmp_path: Path
) -> None:
    authority = trustme.CA()
    two = await nodes.start("two", 2, secret=SECRET, tls=certified(tmp_path / "two", authority), listen="0.0.0.0:0")
    one = await nodes.start("one", 1, secret=SECRET, tls=certified(tmp_path / "one", authority))
    begun = len(open_descriptors())
    async with AsyncExitStack() as stack, within(WAIT_SECONDS):
        strangers = []
        for number in range(300):
            stranger = await stack.enter_async_context(Stranger(two.port, f"127.0.0.{2 + number % 250}"))
            stranger.writer.write(b"\x16\x03\x01\x40\0\x01")  # the begin of a ClientHello of 16 KiB
            strangers.append(stranger)
        one.peers.set_peers([MemberInfo("two", 2, 1, f"127.0.0.1:{two.port}")])
        await one.until(lambda: 2 in one.connected)
        for stranger in strangers[:44]:
            await stranger.until_ended()
        assert one.attempts == 1 and len(two.peers._listener._strangers) <= 256
    while len(os.listdir("/proc/self/fd")) > begun + 4:  # two of the connection that serves, at each side
        await asyncio.sleep(0.01)


async def test_a_connection_that_proves_nothing_is_closed(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_listener, "STRANGER_SECONDS", 0.5)
    one, two = await nodes.pair(secret=SECRET)
    async with AsyncExitStack() as stack, within(WAIT_SECONDS):
        quiet = await stack.enter_async_context(Stranger(two.port))  # says nothing at all
        slow = await stack.enter_async_context(Stranger(two.port))
        slow.writer.write(b"\0\0")
        asked = await stack.enter_async_context(Stranger(two.port))
        asked.say(hello().hello)
        assert await asked.answer()
        for stranger in (quiet, slow, asked):
            await stranger.until_ended()
    assert one.connections == 1 and 2 in one.connected


async def test_names_of_strangers_forge_no_lines_of_the_log(
    nodes: Nodes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = await nodes.start("two", 2, secret=SECRET)
    for number in range(100):
        me = Identity("starling", f"one\n2026-01-01 ERROR forged {number}", 1, 1, "0", b"")
        async with Stranger(two.port) as stranger:
            stranger.say(hello(me=me).hello)
            assert await stranger.answer() is None
    said = [record.message for record in caplog.records if record.name.startswith("starlingmq")]
    assert said == ["refused the connection of a node from 127.0.0.1: not a valid handshake of a node"]
    monkeypatch.setattr(peer_listener, "REASON_AGAIN", 0.0)
    monkeypatch.setattr(peer_listener, "REFUSALS_LOGGED", 0.0)
    async with Stranger(two.port) as stranger:
        stranger.say(b"")
        assert await stranger.answer() is None
    assert "(and 99 more that were not logged)" in caplog.records[-1].message


async def test_lines_about_strangers_are_counted_when_they_come_too_fast(
    nodes: Nodes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = await nodes.start("two", 2, secret=SECRET)
    monkeypatch.setattr(peer_listener, "REFUSALS_LOGGED", 1e9)
    for number in range(100):
        two.peers._listener.note_refusal(f"reason {number}", "10.0.0.1")
    monkeypatch.setattr(peer_listener, "REFUSALS_LOGGED", 0.0)
    two.peers._listener.note_refusal("another", "10.0.0.1")
    lines = [record.message for record in caplog.records if record.name.startswith("starlingmq")]
    assert (
        lines[-1]
        == f"refused the connection of a node from 10.0.0.1: another (and {101 - len(lines)} more that were not logged)"
    )
    assert len(lines) <= 2


async def test_a_node_of_the_older_protocol_that_dials_is_told_of_in_the_log(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    two = await nodes.start("two", 2, secret=SECRET)
    async with Stranger(two.port) as stranger, within(WAIT_SECONDS):
        stranger.writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        await stranger.until_ended()
    assert "upgrade the connecting node" in caplog.text


@pytest.mark.parametrize("length", [b"\0\0\x18", b"\0\x18\0"])
async def test_a_node_of_the_older_protocol_that_is_dialled_is_recognised(
    nodes: Nodes, caplog: pytest.LogCaptureFixture, length: bytes
) -> None:
    """It begins with the settings of HTTP/2, and closes the connection because of what comes."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(length + b"\x04\0\0\0\0\0" + bytes(24))
        await reader.read(4)
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    one: Node = await nodes.start("one", 1, secret=SECRET)
    host, port = server.sockets[0].getsockname()
    with pytest.raises(RefusedError, match="only an older protocol between nodes; upgrade it"):
        async with within(WAIT_SECONDS), one.peers.open_copy(MemberInfo("two", 2, 1, f"{host}:{port}")):
            pass
    server.close()
