"""A stream beside the load of ``tests.cluster.chaos_copies``: publishers go from node to node, and readers find every
row that was acknowledged, at the offset at which it was found before, whichever node has served it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing, suppress
from itertools import count
from typing import Any, Final

from tests.cluster.real import Node
from tests.patience import within

from starlingmq.bulk.protocol import Ticket
from starlingmq.client import Client, ClientError
from starlingmq.spark.nodes import NodeBook
from starlingmq.spark.read_options import Options

SECONDS: Final = 60.0
TOKEN: Final = "a token for readers of streams"
PUBLISHERS: Final = 3
AGAIN_SECONDS: Final = 0.1


def keep_stream(settings: dict[str, Any]) -> None:
    settings["streams"] = {
        "listen": "127.0.0.1:0",
        "token": TOKEN,
        "define": [{"name": "readings", "topics": ["readings/#"]}],
    }


def stream_rows(node: Node, origin: str, stream: str = "readings") -> tuple[str, list[tuple[int, bytes]]]:
    """The id of the stream, and offset and payload of each row of the origin's part, as a reader finds them that knows
    only ``node``."""
    servers = (str(node.ask("stream.nodes")["nodes"][0]["address"]),)
    with closing(NodeBook(Options(servers=servers, stream=stream, token=TOKEN, node_timeout=SECONDS))) as book:
        bounds = book.bounds([origin])[origin]
        ticket = Ticket(stream=stream, start=bounds.first, end=bounds.next, id=bounds.id)
        rows: list[tuple[int, bytes]] = []
        for batch, _ in book.at(book.addresses[origin]).rows(ticket, origin):
            rows += zip(batch.column("offset").to_pylist(), batch.column("payload").to_pylist(), strict=True)
        return bounds.id, rows


class Streamed:
    def __init__(self) -> None:
        self.acknowledged: set[bytes] = set()
        self._found: dict[str, tuple[str, list[tuple[int, bytes]]]] = {}  # by origin, at the last check
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, nodes: Sequence[Node]) -> None:
        self._tasks = [asyncio.ensure_future(self._publish(number, nodes)) for number in range(PUBLISHERS)]

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _publish(self, publisher: int, nodes: Sequence[Node]) -> None:
        numbers = count()
        for turn in count(publisher):
            with suppress(ClientError, OSError, TimeoutError):
                async with Client(nodes[turn % len(nodes)].url) as client:
                    while True:
                        payload = b"%d:%d" % (publisher, next(numbers))
                        await client.publish(f"readings/{publisher}", payload, qos=1)
                        self.acknowledged.add(payload)
                        await asyncio.sleep(0)
            await asyncio.sleep(AGAIN_SECONDS)

    async def check(self, nodes: Sequence[Node]) -> None:
        """Called while all nodes serve."""
        acknowledged = set(self.acknowledged)
        there: set[bytes] = set()
        for asked, origin in enumerate(nodes):
            id, rows = await self._rows(nodes[(asked + 1) % len(nodes)], origin.name)
            offsets = [offset for offset, _ in rows]
            assert offsets == list(range(len(rows))), f"{origin.name}: offsets have gaps"
            before = self._found.get(origin.name, (id, []))
            assert before[0] == id, f"{origin.name}: the stream was begun anew"
            assert rows[: len(before[1])] == before[1], f"{origin.name}: offsets were given twice"
            self._found[origin.name] = (id, rows)
            there.update(payload for _, payload in rows)
        lost = sorted(acknowledged - there)
        assert not lost, f"{len(lost)} acknowledged rows are in no stream, such as {lost[:5]}"

    @staticmethod
    async def _rows(asked: Node, origin: str) -> tuple[str, list[tuple[int, bytes]]]:
        async with within(SECONDS):
            return await asyncio.to_thread(stream_rows, asked, origin)
