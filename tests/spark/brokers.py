"""Brokers whose stream ``all`` is read, started again at the same places: in processes of their own, which can be
killed, and in threads, which start faster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread

import pyarrow as pa  # type: ignore[import-untyped]

from starlingmq import Broker
from starlingmq.cli.local_cluster import free_port
from starlingmq.client import Client
from starlingmq.config.settings import load_config
from tests.cli.test_storage_commands import Serving
from tests.cli.test_stream_commands import ask

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
    stream = "all"

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
        """Return when it is ready; nothing happens if it runs."""
        if self.serving is not None:
            return
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
        return {"servers": self.address, "stream": self.stream, "token": TOKEN, "nodeTimeout": "20"}


class ThreadBroker(StreamBroker):
    """A broker in a thread: it can be stopped, but not killed."""

    thread: Thread | None = None

    def start(self) -> None:
        if self.thread is None:
            started: Future[asyncio.AbstractEventLoop] = Future()
            self.thread = Thread(target=self._run, args=(started,), daemon=True)
            self.thread.start()
            self._loop = started.result()

    def _run(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        try:
            asyncio.run(self._serve(started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    async def _serve(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        config = load_config(None, [f"node.data_dir={self.data}", *self.settings])
        self._stop = asyncio.Event()
        async with Broker(config, listeners=[self.url]) as self.broker:
            started.set_result(asyncio.get_running_loop())
            await self._stop.wait()

    def stop(self) -> None:
        if self.thread is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self.thread.join()
            self.thread = None

    def kill(self) -> None:
        raise NotImplementedError("a StreamBroker can be killed")

    def begin_stream(self, name: str) -> None:
        """Read a new stream of all topics from now on."""
        self.stream = name
        ask(self.data, "create", name=name, topics="#")
