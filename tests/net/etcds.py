"""Real etcds for tests, run by the product's code, and a client that records its events."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.patience import within

from starlingmq.cli.local_cluster import free_ports
from starlingmq.cluster.etcd.etcd_requests import Answer, KeyChange, Request, Txn, TxnAnswer, WatchEvent
from starlingmq.config.cluster_section import EtcdConfig, EtcdTlsConfig
from starlingmq.net.etcd.etcd_client import EtcdClient
from starlingmq.net.etcd.etcd_server import EtcdServer

SECONDS = 20.0  # until an awaited event counts as missing
A = TypeVar("A", bound=Answer)


class Client:
    """An EtcdClient with all its events, in order."""

    def __init__(self, endpoints: list[str], **settings: Any) -> None:
        self.answers: list[Answer] = []
        self._news = asyncio.Event()
        self.etcd = EtcdClient(endpoints, self._on_answer, **settings)

    def _on_answer(self, answer: Answer) -> None:
        self.answers.append(answer)
        self._news.set()

    def submit(self, request: Request) -> None:
        self.etcd.submit(request)

    async def first(self, kind: type[A], wanted: Callable[[A], bool] = lambda _: True, start: int = 0) -> A:
        """Wait for the first answer of that kind from the position ``start`` on."""
        async with within(SECONDS):
            while True:
                for answer in self.answers[start:]:
                    if isinstance(answer, kind) and wanted(answer):
                        return answer
                self._news.clear()
                await self._news.wait()

    async def txn(self, txn: Txn) -> TxnAnswer:
        start = len(self.answers)
        self.submit(txn)
        return await self.first(TxnAnswer, lambda answer: answer.tag == txn.tag, start)

    async def done(self, txn: Txn) -> TxnAnswer:
        """Repeat an idempotent request until there is an answer."""
        async with within(SECONDS):
            while (answer := await self.txn(txn)).error:
                await asyncio.sleep(0.05)
        return answer

    async def refused(self, txn: Txn, reason: str) -> None:
        """Repeat a request that etcd never does until its error has this reason: at first it may be one of time."""
        async with within(SECONDS):
            while reason not in (answer := await self.txn(txn)).error:
                assert answer.error, "it was done"

    def changes(self, prefix: bytes, start: int = 0) -> list[KeyChange]:
        events = [each for each in self.answers[start:] if isinstance(each, WatchEvent) and each.prefix == prefix]
        return [change for event in events for change in event.changes]


@asynccontextmanager
async def connected(*endpoints: str, **settings: Any) -> AsyncIterator[Client]:
    client = Client(list(endpoints), **settings)
    await client.etcd.start()
    try:
        yield client
    finally:
        await client.etcd.close()


def settings(**changed: Any) -> EtcdConfig:
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed")
    return EtcdConfig(**{"client_port": 0, "peer_port": 0, **changed})


@asynccontextmanager
async def running(
    directory: Path, name: str = "a", tls: EtcdTlsConfig | None = None, **changed: Any
) -> AsyncIterator[EtcdServer]:
    server = EtcdServer(settings(**changed), name, "test", directory / name, tls)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def three(directory: Path) -> AsyncIterator[list[EtcdServer]]:
    """Start three members together."""
    ports = free_ports(6)
    members = tuple(f"{name}=127.0.0.1:{port}" for name, port in zip("abc", ports, strict=False))
    servers = [
        EtcdServer(
            settings(client_port=ports[3 + number], peer_port=ports[number], initial_members=members),
            name,
            "test",
            directory / name,
        )
        for number, name in enumerate("abc")
    ]
    try:
        for server in servers:
            await server.start()
        for server in servers:
            assert await server.wait_ready(SECONDS)
        yield servers
    finally:
        await asyncio.gather(*(server.stop() for server in servers))
