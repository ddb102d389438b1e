"""axe-core finds nothing on any view of the dashboard: light, dark and on a phone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from .browser import BROWSER, Chromium, Page
from .conftest import Ask, Join, Serve

AXE = Path(__file__).parent.parent / "js/node_modules/axe-core/axe.min.js"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(BROWSER is None, reason="chromium is not installed"),
    pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: npm ci in tests/js"),
]

VIEWS = {
    "overview": "Now",
    "clients": "reader",
    "sessions": "reader",
    "subscriptions": "plant/#",
    "activity": "messages in/s",
    "topics?filter=plant%2F%23": "Messages",
    "hand": "ws://127.0.0.1:8083/mqtt",
    "retained": "plant/1",
    "groups": "workers",
    "streams": "none",
    "nodes": "this node",
    "alarms": "There are no alarms.",
    "links": "No link is set.",
    "connectors": "No connector is set.",
    "bans": "intruder",
    "rules": "May this client do that?",
    "settings": "mqtt.max_qos",
    "actions": "intruder",
    "droppers": "none",
    "log": "Log of ",
    "lines?text=nothing-like-it": "Nothing found",
    "session?client_id=reader": "End session",
    "session?client_id=nobody": "There is no session of this client",
    "message?topic=plant%2F1": "21.5",
}
"""The address of each view, and a text that it shows when it is complete."""
RUN = """axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations
.map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`.slice(0, 400)))"""


async def violations(page: Page) -> list[str]:
    found: list[str] = await page.run(RUN)
    return found


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (1280, False),
        (390, True),
        *(pytest.param(*look, marks=pytest.mark.long) for look in ((1280, True), (390, False))),
    ],
)
async def test_no_view_has_findings(
    serve: Serve, join: Join, ask: Ask, chromium: Chromium, width: int, dark: bool
) -> None:
    broker = await serve()
    reader = await join(broker, "reader")
    await reader.subscribe("plant/#", "$share/workers/jobs", qos=1)
    body = {"topic": "plant/1", "payload": "21.5", "retain": True}
    assert (await ask(broker, "POST", "/api/v1/publish", json=body)).status_code == 200
    ban = {"kind": "client", "name": "intruder"}
    assert (await ask(broker, "POST", "/api/v1/bans", json=ban)).status_code == 201
    axe = await asyncio.to_thread(AXE.read_text, encoding="utf-8")
    async with chromium.page() as page:
        await page.go(broker.address("http") + "/")
        await page.until("document.body && document.body.dataset.shown === 'overview'")
        await page.run(axe + "; 1")
        await page.look_like(width, 844, dark=dark)
        found = []
        for address, text in VIEWS.items():
            await page.run(f"location.hash = '#{address}'")
            name = address.partition("?")[0]
            shown = "document.getElementById('view').textContent"
            await page.until(f"document.body.dataset.shown === '{name}' && {shown}.includes('{text}')")
            found += [f"{address}: {one}" for one in await violations(page)]
        assert found == [], "\n".join(found)


@pytest.mark.parametrize(("path", "shown"), [("/", "dialog[open]"), ("/docs", "#view details")])
async def test_the_login_and_the_page_of_the_api_have_no_serious_findings(
    serve: Serve, token_file: str, chromium: Chromium, path: str, shown: str
) -> None:
    broker = await serve(auth={"api": {"token_file": token_file}} if path == "/" else {})
    axe = await asyncio.to_thread(AXE.read_text, encoding="utf-8")
    async with chromium.page() as page:
        await page.go(broker.address("http") + path)
        await page.until(f"document.querySelector('{shown}')")
        await page.run(axe + "; 1")
        assert await violations(page) == []


async def test_a_field_without_a_name_is_found(serve: Serve, chromium: Chromium) -> None:
    """The checks above can fail."""
    broker = await serve()
    axe = await asyncio.to_thread(AXE.read_text, encoding="utf-8")
    async with chromium.page() as page:
        await page.go(broker.address("http") + "/")
        await page.until("document.body && document.body.dataset.shown === 'overview'")
        await page.run(axe + "; document.querySelector('header').append(document.createElement('input')); 1")
        (found,) = await violations(page)
        assert found.startswith("label: ")
