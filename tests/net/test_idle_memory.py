"""The memory of an idle connection: its session, one subscription, and its place in every list and dict.

tracemalloc counts what Python allocates, so the figure depends neither on the machine nor on what the system's
allocator keeps. ``python -m bench --only memory`` measures the resident memory; it is a little more.
"""

from __future__ import annotations

import asyncio
import gc
import select
import socket
import tracemalloc

import pytest
from tests.patience import within

from starlingmq.config.settings import Config, ListenerConfig
from starlingmq.node.assembly import Broker
from starlingmq.wire.mqtt import Connect, Subscribe, SubscribeRequest, encode

from .conftest import PATIENCE
from .test_listeners import port_of

pytestmark = [
    pytest.mark.compiled_only,
    pytest.mark.skipif(not hasattr(select, "epoll"), reason="this system has no epoll"),
    pytest.mark.asyncio(loop_factories=["epoll"]),
]

FIRST = 100  # connections that bring every list and dict to some size
BROKERS = 3
CONNECTIONS = 300  # with both ends in this process, fewer than the usual limit of 1,024 descriptors
BYTES = 1500  # 1,457
ANSWER = 4 + 5  # bytes of CONNACK and SUBACK


async def subscribed(port: int, number: int) -> int:
    """Connect and subscribe. Returns the descriptor: nothing else of this client stays in memory."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    requests = [SubscribeRequest(b"idle/%d/status" % number, 1)]
    packets = Connect(4, f"idle-{number}", keep_alive=600), Subscribe(1, requests)
    await loop.sock_sendall(sock, b"".join(encode(packet, 4) for packet in packets))
    received = 0
    while received < ANSWER:
        data = await loop.sock_recv(sock, ANSWER - received)
        assert data, "the broker closed the connection"
        received += len(data)
    return sock.detach()


async def taken() -> float:
    """Bytes of memory for each of ``CONNECTIONS``."""
    broker = Broker(Config(listeners=(ListenerConfig(url="mqtt://127.0.0.1:0"),)))
    descriptors: list[int] = [0] * (FIRST + CONNECTIONS)
    async with broker, within(PATIENCE):
        port = port_of(broker.address())
        for number in range(FIRST):
            descriptors[number] = await subscribed(port, number)
        gc.collect()
        tracemalloc.start()
        try:
            for number in range(FIRST, FIRST + CONNECTIONS):
                descriptors[number] = await subscribed(port, number)
            gc.collect()
            size, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(broker.state.ctx.sessions) == FIRST + CONNECTIONS
        for descriptor in descriptors:
            socket.close(descriptor)
    return size / CONNECTIONS


async def test_an_idle_connection_with_a_subscription_takes_little_memory() -> None:
    """The least of some brokers: what else the process does meanwhile takes memory, too, up to 40 bytes for each."""
    assert 500 < min([await taken() for _ in range(BROKERS)]) < BYTES
