"""Bridges to far NATS servers that the test speaks for, over TCP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.bridges.nats_real import LOOK, PATIENCE, Ends, ends, until, view
from tests.patience import within

from starlingmq import Broker
from starlingmq.bridges.nats_bridge import NatsBridge
from starlingmq.client.dial import open_link, secure_link
from starlingmq.client.endpoint import Endpoint, Tls
from starlingmq.client.errors import ConnectFailed
from starlingmq.client.link import Link

INFO = b'INFO {"server_id": "NX", "headers": true, "max_payload": 1000000}\r\n'
FLOOD = b"PING\r\n" * 700_000
QUIET = 3.0  # seconds in which a bridge answers all of it


class Far:
    """A server for one connection."""

    def __init__(self) -> None:
        self.info = INFO
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter
        self.greeted = asyncio.Event()
        self.url = ""

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        writer.write(self.info)
        self.greeted.set()

    async def log_in(self) -> None:
        """Until the bridge is connected: both its PINGs are answered."""
        async with within(PATIENCE):
            await self.greeted.wait()
            for _ in range(2):
                await self.reader.readuntil(b"PING\r\n")
                self.writer.write(b"PONG\r\n")


class Idle:
    """An owner that does nothing."""

    def link_received(self, data: bytes) -> None:
        """Of ``client.link.Owner``."""

    def link_lost(self, link: Link, error: Exception | None) -> None:
        """Of ``client.link.Owner``."""


@asynccontextmanager
async def bridged(tmp_path: Path, **more: Any) -> AsyncIterator[tuple[Far, Ends, Broker]]:
    far = Far()
    server = await asyncio.start_server(far.accept, "127.0.0.1", 0)
    far.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with ends(tmp_path) as begun:
            topics = [{"filter": "a/#", "direction": "both"}]
            broker = await begun.broker(bridges=[{"name": "far", "servers": [far.url], "topics": topics, **more}])
            await far.log_in()
            await until(lambda: view(broker).state == "connected", lambda: view(broker))
            yield far, begun, broker
    finally:
        far.writer.close()
        server.close()


async def test_a_server_that_asks_and_does_not_read_is_not_read_either(tmp_path: Path) -> None:
    async with bridged(tmp_path) as (far, _, broker):
        assert broker._bridges is not None
        bridge = broker._bridges._bridges["far"]
        assert isinstance(bridge, NatsBridge)
        link = bridge._link
        assert isinstance(link, Link) and link._transport is not None
        transport = link._transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        far.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        far.writer.write(FLOOD)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(QUIET):
                while transport.get_write_buffer_size() < len(FLOOD) // 4:
                    await asyncio.sleep(LOOK)
        assert view(broker).state == "connected"
        read = 0
        async with within(PATIENCE):
            while read < len(FLOOD):  # and all of it is answered
                read += len(await far.reader.read(1 << 20))


async def test_no_session_of_it_keeps_messages(tmp_path: Path) -> None:
    """The base class begins a session of MQTT, whose queue nothing would read."""
    async with bridged(tmp_path) as (_, _, broker):
        assert broker._bridges is not None
        bridge = broker._bridges._bridges["far"]
        assert bridge.session is None and view(broker).waiting == 0
        assert bridge._connected_at >= bridge._since


async def test_a_topic_with_a_long_name_here_ends_no_bridge(tmp_path: Path) -> None:
    async with bridged(tmp_path) as (far, begun, broker):
        client = await begun.client(broker)
        await client.publish("a." + "x" * 3990, b"long")
        await client.publish("a.b", b"short")
        async with within(PATIENCE):
            text = await far.reader.readuntil(b"short\r\n")
        assert b"long" not in text
        far.writer.write(b"MSG a.%b 1 4\r\nlong\r\nMSG a.b 1 5\r\nshort\r\n" % (b"x" * 20_000))
        await until(lambda: view(broker).messages_in == 1, lambda: view(broker))
        assert view(broker).kept_out == 2 and view(broker).state == "connected"


async def test_a_server_that_closes_before_the_handshake_is_known_at_once() -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    endpoint = Endpoint("tls", "127.0.0.1", server.sockets[0].getsockname()[1], "")
    link = await open_link(endpoint, Tls(insecure=True), Idle())
    await link.closed
    with pytest.raises(ConnectFailed, match="closed before the TLS handshake"):
        await secure_link(link, endpoint, Tls(insecure=True))
    server.close()
