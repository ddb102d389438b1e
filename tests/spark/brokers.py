"""A broker in a process of its own whose stream ``all`` is read: killed, and begun again at the same places."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]

from starlingmq.cli.local_cluster import free_port
from starlingmq.client import Client
from tests.cli.test_storage_commands import Serving

TOKEN = "a token that nobody guesses"


def batches_of(options: dict[str, str]) -> list[tuple[str, pa.RecordBatch]]:
    """All that a stream holds, by node, read without Spark."""
    from starlingmq.spark.read_options import read_options
    from starlingmq.spark.row_reading import RowPartition, read_part
    from starlingmq.spark.source import BatchReader

    reader = BatchReader(read_options(options, streaming=False))
    pieces = [part for part in reader.partitions() if isinstance(part, RowPartition)]
    return [(part.node, batch) for part in pieces for batch in read_part(part, reader.options)]


def rows_of(options: dict[str, str]) -> list[tuple[str, bytes]]:
    """The same, payload by payload."""
    return [(node, payload) for node, batch in batches_of(options) for payload in batch.column("payload").to_pylist()]


async def published(url: str, payloads: list[bytes], topic: str) -> None:
    """Each of them is acknowledged."""
    async with Client(url) as client:
        for payload in payloads:
            await client.publish(topic, payload, qos=1)


class StreamBroker:
    def __init__(self, data: Path, name: str, *settings: str) -> None:
        self.data = data
        self.name = name
        self.address = f"127.0.0.1:{free_port()}"
        self.url = f"mqtt://127.0.0.1:{free_port()}"
        self.settings = [
            f"node.name={name}",
            "streams.define=[{name: all, topics: ['#']}]",
            f"streams.listen={self.address}",
            f"streams.token={TOKEN}",
            *settings,
        ]
        self.serving: Serving | None = None
        self.start()

    def start(self) -> None:
        words = [word for setting in self.settings for word in ("--set", setting)]
        self.serving = Serving(self.data, *words, listen=self.url)

    def stop(self) -> None:
        if self.serving is not None:
            self.serving.stop()
            self.serving = None

    def kill(self) -> None:
        assert self.serving is not None
        self.serving.kill()
        self.serving = None

    def publish(self, payloads: Iterable[bytes], topic: str = "a/b") -> None:
        asyncio.run(published(self.url, list(payloads), topic))

    @property
    def options(self) -> dict[str, str]:
        return {"servers": self.address, "stream": "all", "token": TOKEN, "nodeTimeout": "20"}
