"""Brokers with an HTTP listener, and programs that ask them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from starlingmq import Broker
from tests.api.browser import Page, chromium
from tests.api.trusted import trust
from tests.auth.conftest import Passwd, passwd
from tests.embedding.conftest import Join, Serve, join
from tests.embedding.conftest import serve as serve_plainly
from tests.net.conftest import Certificates, certificates

__all__ = [
    "Ask",
    "Certificates",
    "Join",
    "Passwd",
    "Serve",
    "certificates",
    "chromium",
    "join",
    "passwd",
    "pictures",
    "serve",
    "token_file",
]

TOKEN = "a-token-of-the-test-0123456789"
BEARER = {"authorization": f"Bearer {TOKEN}"}

Ask = Callable[..., Awaitable[httpx.Response]]


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "tokens"
    path.write_text(f"# ours\n{TOKEN}\n", encoding="utf-8")
    return str(path)


async def log_in(page: Page, url: str) -> None:
    """As an operator with ``TOKEN``, before the dashboard is opened."""
    await page.go(url + "/style.css")
    await page.run(f"sessionStorage.setItem('authorization', '{BEARER['authorization']}')")


@pytest.fixture
def pictures() -> Path:
    """Where screenshots are kept, to be looked at."""
    path = Path(__file__).parent.parent.parent / "out" / "dashboard"
    path.mkdir(parents=True, exist_ok=True)
    return path


_serve = serve_plainly


@pytest.fixture
async def serve(_serve: Serve) -> Serve:
    """As in tests.embedding, with an HTTP listener on a free port of loopback."""

    async def start(**options: Any) -> Broker:
        return await _serve(**{"listeners": ["mqtt://127.0.0.1:0", "http://127.0.0.1:0"], **options})

    return start


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    """Send one request to a broker: ``await ask(broker, "GET", "/path", **as_httpx)``."""
    async with AsyncExitStack() as stack:
        clients: dict[str, httpx.AsyncClient] = {}

        async def request(broker: Broker, method: str, path: str, **options: Any) -> httpx.Response:
            url = broker.address(options.pop("scheme", "http"))
            client = clients.get(url)
            if client is None:
                client = await stack.enter_async_context(
                    httpx.AsyncClient(base_url=url, trust_env=False, verify=trust())
                )
                clients[url] = client
            return await client.request(method, path, **options)

        yield request
