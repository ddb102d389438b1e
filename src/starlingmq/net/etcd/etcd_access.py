"""How a process reaches etcd: an existing one, or a member of its own that runs as long as the process does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from starlingmq.cluster.etcd.etcd_requests import Answer
from starlingmq.config.cluster_section import etcd_tls
from starlingmq.config.settings import Config, ConfigError
from starlingmq.net.etcd.etcd_client import EtcdClient
from starlingmq.net.etcd.etcd_server import EtcdServer, has_data

READY_SECONDS: Final = 10.0  # how long to wait for the node's own etcd before continuing without an answer


class EtcdAccess:
    """``server``: its own member; None: it uses an existing etcd. Brokers in one process share it, each with a client
    of its own."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.server: EtcdServer | None = None
        self.endpoints = list(config.cluster.etcd.endpoints)
        self._starting: asyncio.Future[None] | None = None

    def has_run(self) -> bool:
        """Whether its own member has run here before: it starts without asking another one."""
        return not self.endpoints and has_data(self.directory())

    def begin(self) -> None:
        """Start it beside other work, unless that has begun. ``start`` raises its errors."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())

    async def start(self) -> None:
        """Raises EtcdServerError, ConfigError."""
        self.begin()
        assert self._starting is not None
        await self._starting

    async def _start(self) -> None:
        if self.endpoints:
            return
        settings = self.config.cluster
        tls = etcd_tls(settings)
        self.server = EtcdServer(settings.etcd, self.config.node.name, settings.name, self.directory(), tls)
        await self.server.start()
        self.endpoints = [self.server.address]
        await self.server.wait_ready(READY_SECONDS)  # or until it is known that it will never be ready

    def client(self, on_answer: Callable[[Answer], None]) -> EtcdClient:
        """A client with a lease of its own, not started yet."""
        settings = self.config.cluster
        return EtcdClient(
            self.endpoints,
            on_answer,
            discover=self.server is not None,
            lease_ttl=settings.lease_ttl,
            request_timeout=settings.etcd.request_timeout,
            tls=etcd_tls(settings),
            username=settings.etcd.username,
            password=settings.etcd.password,
        )

    def directory(self) -> Path:
        """Of the data of its own member."""
        settings = self.config.cluster.etcd
        if settings.data_dir is not None:
            return Path(settings.data_dir)
        if self.config.node.data_dir is None:
            raise ConfigError(
                "a cluster node runs etcd, which needs a directory: set node.data_dir (--data-dir), or use "
                "an existing etcd with cluster.etcd.endpoints"
            )
        return Path(self.config.node.data_dir) / "etcd"

    async def stop(self) -> None:
        """May be called twice."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self.server is not None:
            await self.server.stop()
