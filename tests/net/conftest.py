"""A driver that only records its calls, and the three event loops that every test here runs on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import trustme
import uvloop
from tests.patience import within

from starlingmq.config.settings import ListenerConfig
from starlingmq.config.tls_section import TlsConfig
from starlingmq.net.broker_loop import BrokerLoop
from starlingmq.net.listeners.listeners import Listener, open_listener, parse_listener
from starlingmq.net.listeners.socket_connection import Handle

PATIENCE = 10.0
"""Seconds after which an awaited event counts as missing."""


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.SelectorEventLoop, "epoll": BrokerLoop, "uvloop": uvloop.new_event_loop}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With a real etcd the loop that the broker runs on stays in ``make test``: gRPC has its own connections, which the
    loops of Python do not see."""
    for item in items:
        real = item.path.name.startswith("test_etcd_") and item.get_closest_marker("slow") is not None
        if real and item.name.endswith(("[asyncio]", "[uvloop]")):
            item.add_marker(pytest.mark.long)


class Seen:
    """One connection as the driver sees it."""

    def __init__(self, driver: FakeDriver, transport: Handle, listener: str, peer: str, full: int = 0) -> None:
        self.driver = driver
        self.transport = transport
        self.listener = listener
        self.peer = peer
        self.full = full
        self.received = b""
        self.reads: list[bytes] = []
        self.events: list[str] = []

    async def until(self, met: Callable[[Seen], bool]) -> None:
        await self.driver.until(lambda: met(self))


class FakeDriver:
    """Records the calls of connections; ``on_received`` may answer immediately, like the broker."""

    def __init__(self) -> None:
        self.clients: list[Seen] = []
        self.on_received: Callable[[Seen, bytes], None] = lambda client, data: None
        self._news = asyncio.Event()

    def opened(self, transport: Handle, listener: str, peer: str, full: int = 0) -> Seen:
        client = Seen(self, transport, listener, peer, full)
        self.clients.append(client)
        self._news.set()
        return client

    def received(self, client: Seen, data: bytes) -> None:
        assert type(data) is bytes
        client.received += data
        client.reads.append(data)
        self.on_received(client, data)
        self._news.set()

    def readdressed(self, client: Seen, peer: str, full: int) -> None:
        client.peer, client.full = peer, full
        self._note(client, "readdressed")

    def identified(self, client: Seen) -> None:
        self._note(client, "identified")

    def secured(self, client: Seen) -> None:
        self._note(client, "secured")

    def lost(self, client: Seen) -> None:
        self._note(client, "lost")

    def blocked(self, client: Seen) -> None:
        self._note(client, "blocked")

    def drained(self, client: Seen) -> None:
        self._note(client, "drained")

    def may_wait(self, client: Seen) -> bool:
        return False

    def _note(self, client: Seen, event: str) -> None:
        client.events.append(event)
        self._news.set()

    async def until(self, met: Callable[[], bool]) -> None:
        """Wait until the driver's records meet the condition ``met``."""
        async with within(PATIENCE):
            while not met():
                self._news.clear()
                await self._news.wait()

    async def client(self, index: int = 0) -> Seen:
        await self.until(lambda: len(self.clients) > index)
        return self.clients[index]


@pytest.fixture
async def driver() -> FakeDriver:
    return FakeDriver()


Open = Callable[..., Awaitable[Listener]]


@pytest.fixture
async def listen(driver: FakeDriver) -> AsyncIterator[Open]:
    """Open listeners from a URL and ``ListenerConfig`` keywords; ``options`` go to ``open_listener``."""
    listeners: list[Listener] = []

    async def open_one(url: str, *, options: dict[str, Any] | None = None, **settings: Any) -> Listener:
        spec = parse_listener(ListenerConfig(url=url, **settings))
        listener = await open_listener(asyncio.get_running_loop(), spec, driver, **(options or {}))
        listeners.append(listener)
        return listener

    yield open_one
    for listener in listeners:
        listener.close()
    for client in driver.clients:
        if "lost" not in client.events:
            client.transport.abort()
            await client.until(lambda seen: "lost" in seen.events)


class Certificates:
    """A certificate authority for tests, and the files of its certificates."""

    def __init__(self, directory: Any) -> None:
        self.directory = directory
        self.authority = trustme.CA()
        self.ca = str(directory / "ca.pem")
        self.authority.cert_pem.write_to_path(self.ca)

    def issue(
        self,
        name: str,
        common_name: str | None = None,
        authority: trustme.CA | None = None,
        ended: datetime | None = None,
    ) -> tuple[str, str]:
        """Paths of a certificate for the host ``name`` and of its key. ``ended``: the end of its validity."""
        began = None if ended is None else ended - timedelta(days=1)
        issued = (authority or self.authority).issue_cert(
            name, common_name=common_name, not_before=began, not_after=ended
        )
        cert, key = str(self.directory / f"{name}.pem"), str(self.directory / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(cert)
        issued.private_key_pem.write_to_path(key)
        return cert, key

    def server(self, **settings: Any) -> TlsConfig:
        cert, key = self.issue("localhost")
        return TlsConfig(cert=cert, key=key, **settings)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Certificates]:
    yield Certificates(tmp_path_factory.mktemp("certificates"))
