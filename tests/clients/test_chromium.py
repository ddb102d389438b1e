"""A real browser page that speaks MQTT over a WebSocket: mqtt.js's browser bundle in headless Chromium.

The page posts what it found to the server it came from, so the test waits for that request and for nothing else.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.api.browser import BROWSER, Chromium, chromium
from tests.patience import slowness

from .conftest import ServedBroker
from .test_mqttjs import JS, STEPS, STEPS_5

BUNDLE = JS / "node_modules/mqtt/dist/mqtt.min.js"
PAGE_SECONDS = 45

__all__ = ["chromium"]

PAGE = """\
<!doctype html>
<meta charset="utf-8">
<script src="/mqtt.js"></script>
<script src="/scenario.js"></script>
<script>
  const report = (body) => fetch("/report", {method: "POST", body: JSON.stringify(body)});
  addEventListener("error", (event) => report({error: event.message}));
  const Bytes = {from: (data) => Uint8Array.from(data)};
  const query = new URLSearchParams(location.search);
  runScenario({connect: mqtt.connect, Buffer: Bytes}, query.get("url"), Number(query.get("version"))).then(
    (steps) => report({steps}),
    (error) => report({error: error.message}),
  );
</script>
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="chromium is not installed"),
    pytest.mark.skipif(not BUNDLE.exists(), reason="mqtt.js is not installed: npm ci in tests/js"),
]

Report = dict[str, Any]


class PageServer(ThreadingHTTPServer):
    """Serves the page and its scripts on a free port, and queues what the page reports."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), PageHandler)
        self.reports: queue.Queue[Report] = queue.Queue()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class PageHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/":
            self._answer(PAGE.encode(), "text/html")
        elif path == "/mqtt.js":
            self._answer(BUNDLE.read_bytes(), "text/javascript")
        elif path == "/scenario.js":
            self._answer((JS / "scenario.js").read_bytes(), "text/javascript")
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        assert isinstance(self.server, PageServer)
        self.server.reports.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer(b"", "text/plain")

    def _answer(self, body: bytes, content_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Pages are served in silence."""


@pytest.fixture
def pages() -> Iterator[PageServer]:
    server = PageServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("version", [4, 5])
async def test_a_page_finds_what_it_expects(
    broker: ServedBroker, pages: PageServer, chromium: Chromium, version: int
) -> None:
    async with chromium.page() as page:
        await page.go(f"{pages.url}?version={version}&url={broker.address('ws')}")
        report = await asyncio.to_thread(pages.reports.get, timeout=PAGE_SECONDS * slowness())
    assert report == {"steps": STEPS_5 if version == 5 else STEPS}
