"""NATS over WebSocket: no subprotocol is required, and INFO is the first frame."""

from __future__ import annotations

import json

from starlingmq import Broker

from .conftest import FakeDriver, Open
from .test_listeners import port_of
from .websocket_peer import HEADERS, connected, request

PLAIN = [line for line in HEADERS if b"Protocol" not in line]


async def test_output_before_the_request_is_sent_after_it(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("nats+ws://127.0.0.1:0")
    async with connected(port_of(listener.address)) as peer:
        client = await driver.client()
        client.transport.write(b"INFO {}\r\n")
        client.transport.write(b"PING\r\n")
        peer.send(request(b"/", PLAIN))
        status, headers = await peer.response()
        assert status == b"HTTP/1.1 101 Switching Protocols"
        assert b"sec-websocket-protocol" not in headers
        assert await peer.binary(15) == b"INFO {}\r\nPING\r\n"


async def test_nats_in_frames() -> None:
    async with (
        Broker(listeners=["nats+ws://127.0.0.1:0/nats"]) as broker,
        connected(port_of(broker.address("nats+ws"))) as peer,
    ):
        peer.send(request(b"/nats?x=y", PLAIN))
        await peer.response()
        info = b""
        while not info.endswith(b"\n"):
            info += await peer.binary(1)
        assert json.loads(info.removeprefix(b"INFO "))["port"] == port_of(broker.address("nats+ws"))
        peer.send(peer.frames.send_data(b'CONNECT {"verbose":false}\r\nSUB a.> 1\r\nPUB a.b 5\r\nhe', True))
        peer.send(peer.frames.send_data(b"llo\r\nPING\r\n", True))
        said = b"MSG a.b 1 5\r\nhello\r\nPONG\r\n"
        assert await peer.binary(len(said)) == said
