"""Connections leave nothing for the garbage collector: a serving process freezes old objects and never collects
them.
"""

from __future__ import annotations

import asyncio
import gc
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

import starlingmq
from starlingmq.config.settings import from_tree
from starlingmq.core.turn.timers import TimerWheel

CONNECT = b"\x10\x0c\0\4MQTT\4\2\0\0\0\0"
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
ROUNDS = 50


async def visit(address: str, context: ssl.SSLContext | None) -> None:
    """Connect a client, wait for CONNACK, and cut the connection."""
    url = urlsplit(address)
    reader, writer = await asyncio.open_connection(url.hostname, url.port, ssl=context)
    if url.scheme == "ws":
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x82\x8e\0\0\0\0" + CONNECT)
        await reader.readexactly(6)
    else:
        writer.write(CONNECT)
        assert await reader.readexactly(4) == b"\x20\x02\0\0"
    writer.transport.abort()


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws"])
async def test_a_closed_connection_is_freed_by_its_reference_count(scheme: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    listener: dict[str, object] = {"url": f"{scheme}://127.0.0.1:0"}
    context = None
    if scheme == "mqtts":
        listener["tls"] = {"cert": str(tmp_path / "server.pem")}
        context = ssl.create_default_context()
        authority.configure_trust(context)
    closed = asyncio.Event()
    config = from_tree({"listeners": [listener]})
    async with starlingmq.Broker(
        config, on_event=lambda e: closed.set() if e.kind == "disconnected" else None
    ) as broker:
        await visit(broker.address(scheme), context)
        await closed.wait()
        gc.collect()
        gc.disable()
        there = {id(thing) for thing in gc.get_objects()}  # of earlier tests, perhaps released only now
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(ROUNDS):
                closed.clear()
                await visit(broker.address(scheme), context)
                await closed.wait()
            broker.state.ctx.client_wheel = TimerWheel()  # it holds closed connections for some seconds
            gc.collect()
            made = [thing for thing in gc.garbage if id(thing) not in there]
            ours = [thing for thing in made if type(thing).__module__.startswith("starlingmq")]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert ours == []
