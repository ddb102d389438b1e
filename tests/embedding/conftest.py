"""Brokers inside the test, as in any program that embeds one, and peers that talk to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from starlingmq import Broker
from starlingmq.config.settings import from_tree
from tests.peer import Peer

Serve = Callable[..., Awaitable[Broker]]
Join = Callable[..., Awaitable[Peer]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start a broker on a free port: hooks by name, anything else is a section of the configuration."""
    async with AsyncExitStack() as stack:

        async def start(**options: Any) -> Broker:
            hooks = {
                name: options.pop(name)
                for name in ("authenticate", "authorize", "on_publish", "on_event")
                if name in options
            }
            tree = {"listeners": ["mqtt://127.0.0.1:0"], "node": {"shutdown_timeout": 0.1}, **options}
            return await stack.enter_async_context(Broker(from_tree(tree), **hooks))

        yield start


@pytest.fixture
async def join() -> AsyncIterator[Join]:
    """Connect a peer to a broker; closed when the test is over."""
    peers: list[Peer] = []

    async def connect(broker: Broker, client_id: str = "", version: int = 5, **fields: Any) -> Peer:
        peers.append(await Peer.connect(broker.address(), client_id, version, **fields))
        return peers[-1]

    yield connect
    for peer in peers:
        await peer.close()
