"""The end of a node's process is seen at once, and nothing else is taken for it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from msgspec.structs import replace
from tests.cluster.conftest import WAIT_SECONDS, Node, Nodes
from tests.patience import within

from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.config.cluster_section import ClusterTlsConfig
from starlingmq.net.peers.process_watch import refuses

BRIEF = {"heartbeat_interval": 0.1, "member_timeout": 0.3}
INCARNATION = 7


class Watched:
    """Node 2, in a process of its own."""

    def __init__(self, settings: dict[str, Any], peer: str) -> None:
        command = [sys.executable, "-m", "tests.cluster.watched_process", "2", str(INCARNATION), json.dumps(settings)]
        self.process = subprocess.Popen([*command, peer], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().decode().strip()
        assert self.address, "it did not start"

    def info(self, address: str = "") -> MemberInfo:
        return MemberInfo("watched", 2, INCARNATION, address or self.address)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_SECONDS)


@contextmanager
def watched(settings: dict[str, Any], peer: str = "") -> Iterator[Watched]:
    process = Watched(settings, peer)
    try:
        yield process
    finally:
        process.end()
        for stream in (process.process.stdin, process.process.stdout):
            assert stream is not None
            stream.close()


async def is_held(node: Node, count: int = 1) -> None:
    """``count`` quiet connections stand: the calls for which the node has proved itself."""
    watches = node.peers._watches
    async with within(WAIT_SECONDS):
        while sum(watch.stands for watch in watches.values()) < count:
            await asyncio.sleep(0.01)


async def is_heard(node: Node, number: int) -> None:
    """The stream that node ``number`` dialled stands. Nothing calls back when it begins."""
    async with within(WAIT_SECONDS):
        while number not in node.peers._inbound:
            await asyncio.sleep(0.01)


class Middle:
    """A proxy between a node and the listener that it dials, which can end in two ways."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self.target = host, int(port)
        self.writers: list[asyncio.StreamWriter] = []

    async def open(self) -> str:
        self.server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        host, port = self.server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self.target)
        self.writers += [writer, far_writer]
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except OSError:
            pass

    def end(self, reset: bool) -> None:
        """Refuse connections, and close those that stand: by RST, as a firewall that rejects them, or by FIN."""
        self.server.close()
        for writer in self.writers:
            if reset:
                linger = struct.pack("ii", 1, 0)
                writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
            else:
                writer.close()


def tls(directory: Path) -> dict[str, str]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(directory / "key.pem")
    for number, blob in enumerate(certificate.cert_chain_pems):
        blob.write_to_path(directory / "cert.pem", append=number > 0)
    return {kind: str(directory / f"{kind}.pem") for kind in ("ca", "cert", "key")}


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
async def test_a_process_that_is_killed_is_found_gone(nodes: Nodes, tmp_path: Path, encrypted: bool) -> None:
    files = tls(tmp_path) if encrypted else {}
    one = await nodes.start("one", 1, watch_processes=True, tls=ClusterTlsConfig(**files))
    with watched(files, f"1={one.peers.address}") as two:
        one.peers.set_peers([two.info()])
        await one.until(lambda: 2 in one.connected)
        await is_held(one)
        two.end()
        await one.until(lambda: bool(one.gone))
        assert one.gone == [(2, INCARNATION)]


async def test_a_process_that_is_killed_while_it_reads_is_found_gone(nodes: Nodes) -> None:
    """The system resets a connection on which something is unread: the quiet one is closed as ever."""
    one = await nodes.start("one", 1, watch_processes=True)
    with watched({}) as two:
        one.peers.set_peers([two.info()])
        await one.until(lambda: 2 in one.connected)
        await is_held(one)
        two.process.send_signal(signal.SIGSTOP)
        blob = bytes(100_000)
        for sequence in range(1, 50):
            one.give(2, one.data(sequence, one, blob))
        await asyncio.sleep(0.05)  # they are with its system, or wait here
        two.end()
        await one.until(lambda: bool(one.gone))


async def test_a_process_that_is_killed_after_it_stood_still_is_found_gone(nodes: Nodes) -> None:
    """Nothing is sent to it on the quiet connection, so nothing is unread there."""
    one = await nodes.start("one", 1, watch_processes=True)
    with watched({}, f"1={one.peers.address}") as two:
        one.peers.set_peers([two.info()])
        await one.until(lambda: 2 in one.connected)
        await is_heard(one, 2)
        await is_held(one)
        (watch,) = one.peers._watches.values()
        held = watch._connection
        assert held is not None
        two.process.send_signal(signal.SIGSTOP)
        timers: set[object] = set()
        async with within(WAIT_SECONDS):
            while len(timers) < 3:
                timers.add(held._timer)
                await asyncio.sleep(0.01)
        assert watch._connection is held
        two.end()
        await one.until(lambda: bool(one.gone))
        assert one.gone == [(2, INCARNATION)]


async def test_a_process_is_still_watched_after_a_later_incarnation_of_it_was_announced(nodes: Nodes) -> None:
    one = await nodes.start("one", 1, watch_processes=True)
    with watched({}, f"1={one.peers.address}") as two:
        one.peers.set_peers([two.info()])
        await one.until(lambda: 2 in one.connected)
        await is_held(one)
        (watch,) = one.peers._watches.values()
        held = watch._connection
        one.peers.set_peers([replace(two.info(), incarnation=INCARNATION + 1)])
        async with within(WAIT_SECONDS):
            while watch._connection in (None, held):
                await asyncio.sleep(0.01)
        two.end()
        await one.until(lambda: bool(one.gone))


async def test_a_process_that_stands_still_is_not_found_gone(nodes: Nodes) -> None:
    one = await nodes.start("one", 1, watch_processes=True, **BRIEF)
    with watched({}) as two:
        one.peers.set_peers([two.info()])
        await one.until(lambda: 2 in one.connected)
        await is_held(one)
        two.process.send_signal(signal.SIGSTOP)
        await one.until(lambda: 2 not in one.connected)
        attempts = one.attempts
        await one.until(lambda: one.attempts >= attempts + 2)  # the watch has given up the connection and dialled again
        assert one.gone == []
        two.process.send_signal(signal.SIGCONT)
        await one.until(lambda: 2 in one.connected)
        await is_held(one)
        assert one.gone == []


@pytest.mark.parametrize(
    ("reset", "dials", "found"),
    [
        pytest.param(True, False, False, id="a firewall rejects what is for it"),
        pytest.param(False, True, False, id="its own stream still stands"),
        pytest.param(False, False, True, id="a proxy ends, and nothing comes from it"),
    ],
)
async def test_a_process_has_ended_if_its_watch_closes_without_a_reset_and_its_stream_is_gone(
    nodes: Nodes, reset: bool, dials: bool, found: bool
) -> None:
    one = await nodes.start("one", 1, watch_processes=True)
    with watched({}, f"1={one.peers.address}" if dials else "") as two:
        middle = Middle(two.address)
        one.peers.set_peers([two.info(await middle.open())])
        await one.until(lambda: 2 in one.connected)
        await is_held(one)
        if dials:
            async with within(WAIT_SECONDS):
                while 2 not in one.peers._inbound:
                    await asyncio.sleep(0.01)
        middle.end(reset)
        await one.until(lambda: 2 not in one.connected)
        if found:
            await one.until(lambda: bool(one.gone))
        else:
            attempts = one.attempts
            await one.until(lambda: one.attempts >= attempts + 6)
            assert one.gone == []


async def test_no_process_is_watched_if_watching_is_switched_off(nodes: Nodes) -> None:
    one = await nodes.start("one", 1, watch_processes=False)
    with watched({}) as two:
        one.peers.set_peers([two.info()])
        await one.until(lambda: 2 in one.connected)
        assert one.peers._watches == {}


async def test_only_a_system_that_says_so_refuses() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert not await refuses(address)
    assert await refuses(address)
    assert not await refuses("name.invalid:1")
