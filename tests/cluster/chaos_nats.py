"""NATS publishers beside the load of ``tests.cluster.chaos_copies``: what was published before a PONG reaches a
persistent MQTT session, whatever was lost since."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final

from tests.cluster.real import Node
from tests.patience import within

from starlingmq.cli.local_cluster import free_ports
from starlingmq.client import Client, ClientError

SECONDS: Final = 60.0
PUBLISHERS: Final = 2
FLUSHED_TOGETHER: Final = 10  # messages
AGAIN_SECONDS: Final = 0.1
ANSWER_SECONDS: Final = 5.0
PONG: Final = b"PONG\r\n"


class Natsed:
    def __init__(self) -> None:
        self.flushed: set[bytes] = set()
        self._came: set[bytes] = set()
        self.ports: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def listen(self, nodes: Sequence[Node]) -> None:
        """Before the nodes start."""
        for node, port in zip(nodes, free_ports(len(nodes)), strict=True):
            self.ports[node.name] = port

            def change(settings: dict[str, Any], port: int = port) -> None:
                settings["listeners"].append(f"nats://127.0.0.1:{port}")

            node.configure(change)

    async def begin(self, nodes: Sequence[Node]) -> None:
        async with self._subscriber(nodes[0]) as client, within(SECONDS):
            await client.subscribe("flushed/#", 1)
        self._tasks = [asyncio.ensure_future(self._publish(number)) for number in range(PUBLISHERS)]

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @staticmethod
    def _subscriber(node: Node) -> Client:
        return Client(node.url, client_id="flushed", clean_start=False, session_expiry=3600)

    async def _publish(self, publisher: int) -> None:
        numbers = count()
        ports = list(self.ports.values())
        for turn in count(publisher):
            with suppress(OSError, EOFError, TimeoutError):
                reader, writer = await asyncio.open_connection("127.0.0.1", ports[turn % len(ports)])
                try:
                    writer.write(b'CONNECT {"verbose":false,"pedantic":false}\r\n')
                    while True:
                        batch = [b"%d:%d" % (publisher, next(numbers)) for _ in range(FLUSHED_TOGETHER)]
                        for payload in batch:
                            writer.write(b"PUB flushed.%d %d\r\n%b\r\n" % (publisher, len(payload), payload))
                        writer.write(b"PING\r\n")
                        async with asyncio.timeout(ANSWER_SECONDS):
                            await _until_pong(reader)
                        self.flushed.update(batch)
                        await asyncio.sleep(AGAIN_SECONDS)
                finally:
                    writer.close()
            await asyncio.sleep(AGAIN_SECONDS)

    async def check(self, node: Node) -> None:
        """Called while all nodes serve."""
        flushed = set(self.flushed)
        async with within(SECONDS):
            while not flushed <= self._came:
                with suppress(ClientError, OSError, TimeoutError):
                    async with self._subscriber(node) as client, asyncio.timeout(3.0):
                        assert client.session_present, "the session of the subscriber was lost"
                        async for message in client.messages():
                            self._came.add(message.payload)


async def _until_pong(reader: asyncio.StreamReader) -> None:
    """Raises EOFError if the node closes the connection or has refused a message."""
    while (line := await reader.readline()) != PONG:
        if not line or line.startswith(b"-ERR"):
            raise EOFError
