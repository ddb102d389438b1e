"""Real listeners and streams between nodes, on loopback and free ports."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from tests.patience import within

from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.cluster.links.peer_frames import Data, Envelope
from starlingmq.config.cluster_section import ClusterConfig
from starlingmq.net.peers.peer_server import PeerServer

WAIT_SECONDS = 20.0


class Node:
    """A node's view of the others, and an event to wait on for each kind of change."""

    def __init__(self, name: str, number: int, **settings: Any) -> None:
        self.name = name
        self.number = number
        self.incarnation = settings.pop("incarnation", 1)
        listen = settings.pop("listen", "127.0.0.1:0")
        settings.setdefault("watch_processes", False)  # so that connections can be counted
        config = msgspec.structs.replace(ClusterConfig(listen=listen), **settings)
        self.received: list[Envelope] = []
        self.connected: set[int] = set()
        self.gone: list[tuple[int, int]] = []
        self.connections = 0  # made, to any node
        self.attempts = 0  # to make one, or to answer one
        self._news = asyncio.Event()
        self.peers = PeerServer(
            config,
            name,
            self._envelope,
            self._connect,
            self._disconnect,
            self._gone,
            random.Random(number).random,
            self._nonce,
        )

    async def start(self) -> None:
        await self.peers.start()
        self.introduce()

    def introduce(self) -> None:
        self.peers.introduce(self.number, self.incarnation)

    @property
    def port(self) -> int:
        return int(self.peers.address.rpartition(":")[2])

    def info(self, address: str = "") -> MemberInfo:
        return MemberInfo(self.name, self.number, self.incarnation, address or self.peers.address)

    def data(self, sequence: int, target: Node, blob: bytes = b"") -> Envelope:
        return Envelope(self.number, self.incarnation, target.number, 0, Data(sequence, 1, blob))

    def send(self, sequence: int, target: Node, blob: bytes = b"") -> bool:
        return self.give(target.number, self.data(sequence, target, blob))

    def give(self, number: int, envelope: Envelope) -> bool:
        """Sent at the end of this turn of the event loop."""
        asyncio.get_running_loop().call_soon(self.peers.flush)
        return self.peers.send(number, envelope)

    def sequences(self) -> list[int]:
        return [envelope.body.sequence for envelope in self.received if isinstance(envelope.body, Data)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what the callbacks tell of."""
        async with within(WAIT_SECONDS):
            while not condition():
                self._news.clear()
                await self._news.wait()

    def _nonce(self, size: int) -> bytes:
        self.attempts += 1
        self._news.set()
        return os.urandom(size)

    def _envelope(self, envelope: Envelope) -> None:
        self.received.append(envelope)
        self._news.set()

    def _connect(self, number: int) -> None:
        self.connected.add(number)
        self.connections += 1
        self._news.set()

    def _disconnect(self, number: int) -> None:
        self.connected.discard(number)
        self._news.set()

    def _gone(self, number: int, incarnation: int) -> None:
        self.gone.append((number, incarnation))
        self._news.set()


class Nodes:
    def __init__(self) -> None:
        self.all: list[Node] = []

    async def start(self, name: str, number: int, **settings: Any) -> Node:
        node = Node(name, number, **settings)
        self.all.append(node)
        await node.start()
        return node

    async def pair(self, **settings: Any) -> tuple[Node, Node]:
        """Two nodes that are connected both ways."""
        one, two = await self.start("one", 1, **settings), await self.start("two", 2, **settings)
        for node, other in ((one, two), (two, one)):
            node.peers.set_peers([one.info(), two.info()])
            await node.until(lambda node=node, other=other: other.number in node.connected)  # type: ignore[misc]
        return one, two

    async def stop(self, node: Node) -> None:
        self.all.remove(node)
        await node.peers.close()

    async def close(self) -> None:
        for node in self.all:
            await node.peers.close()


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    nodes = Nodes()
    yield nodes
    await nodes.close()
