"""Behind a proxy for WebSockets, connections count for the client that the proxy names."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from starlingmq.config.settings import LimitsConfig
from starlingmq.core.connect.turned_away import OF_ADDRESS
from starlingmq.net.listeners.connection_counts import ADDRESS_TURNED_AWAY, ConnectionCounts
from starlingmq.net.listeners.listeners import Listener

from .conftest import FakeDriver, Open
from .test_listeners import port_of
from .test_tls import until_empty
from .websocket_peer import Peer, request


async def through(listener: Listener, header: str) -> tuple[Peer, bytes]:
    """Request a WebSocket with an additional header; return the status line of the answer."""
    peer = Peer(*await asyncio.open_connection("127.0.0.1", port_of(listener.address)))
    peer.send(request().replace(b"\r\n\r\n", f"\r\n{header}\r\n\r\n".encode()))
    status, _ = await peer.response()
    return peer, status


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("X-Forwarded-For: 198.51.100.7", "198.51.100.7"),
        ("X-Forwarded-For: 203.0.113.9, 198.51.100.7, 127.0.0.9", "198.51.100.7"),
        ('Forwarded: for="[2001:db8::7]:4711"', "[2001:db8::7]"),
        ("X-Other: 198.51.100.7", "127.0.0.1"),
    ],
)
async def test_a_trusted_proxy_names_the_client(driver: FakeDriver, listen: Open, header: str, host: str) -> None:
    listener = await listen("ws://127.0.0.1:0", trusted_proxies=("127.0.0.0/8",))
    peer, status = await through(listener, header)
    assert status.startswith(b"HTTP/1.1 101")
    client = await driver.client()
    assert client.peer.rpartition(":")[0] == host
    assert client.events == ["readdressed"]
    assert len(listener.gate.admission.addresses) == 1
    peer.writer.close()
    await until_empty(listener)
    assert listener.gate.admission.addresses == {}


async def test_somebody_else_is_not_believed(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("ws://127.0.0.1:0", trusted_proxies=("10.0.0.0/8",))
    peer, status = await through(listener, "X-Forwarded-For: 198.51.100.7")
    assert status.startswith(b"HTTP/1.1 101")
    client = await driver.client()
    assert client.peer.startswith("127.0.0.1:") and client.events == []
    peer.writer.close()


async def test_headers_that_contradict_each_other_are_refused(driver: FakeDriver, listen: Open) -> None:
    listener = await listen("ws://127.0.0.1:0", trusted_proxies=("127.0.0.0/8",))
    peer, status = await through(listener, "X-Forwarded-For: 198.51.100.7\r\nForwarded: for=198.51.100.8")
    assert status == b"HTTP/1.1 400 Bad Request"
    peer.writer.close()
    await until_empty(listener)
    assert listener.gate.refused == {"bad_forwarded": 1}


async def test_clients_behind_a_trusted_proxy_are_limited_each_by_itself(driver: FakeDriver, listen: Open) -> None:
    admission = ConnectionCounts(LimitsConfig(connections_per_address=1))
    options: dict[str, Any] = {"admission": admission}
    listener = await listen("ws://127.0.0.1:0", trusted_proxies=("127.0.0.0/8",), options=options)
    silent = [
        Peer(*await asyncio.open_connection("127.0.0.1", port_of(listener.address)))
        for _ in range(ADDRESS_TURNED_AWAY + 5)
    ]
    opened = [await through(listener, "X-Forwarded-For: 198.51.100.7") for _ in range(2 + ADDRESS_TURNED_AWAY)]
    assert [status.split()[1] for _, status in opened] == [b"101"] * (1 + ADDRESS_TURNED_AWAY) + [b"429"]
    mine = [client.full for client in driver.clients if client.peer.startswith("198.51.100.7:")]
    assert mine == [0] + [OF_ADDRESS] * ADDRESS_TURNED_AWAY
    other, status = await through(listener, "X-Forwarded-For: 198.51.100.8")
    assert status.startswith(b"HTTP/1.1 101")
    assert [client.full for client in driver.clients if client.peer.startswith("198.51.100.8:")] == [0]
    for peer in (*silent, *(peer for peer, _ in opened), other):
        peer.writer.close()
    await until_empty(listener)
    assert (admission.connections, admission.addresses) == (0, {})
