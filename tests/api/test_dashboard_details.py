"""Details of the dashboard in a real browser, each of which an operator stumbled over."""

from __future__ import annotations

from pathlib import Path

import pytest

from .browser import BROWSER, Chromium
from .conftest import Ask, Serve

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")]

SHOWN = "document.getElementById('view').textContent"


async def test_details_of_a_single_node_are_shown_as_they_are(
    serve: Serve, ask: Ask, tmp_path: Path, pictures: Path, chromium: Chromium
) -> None:
    broker = await serve(node={"data_dir": str(tmp_path / "data"), "shutdown_timeout": 0.1})
    async with chromium.page() as page:
        await page.look_like(1280, 800, dark=False)
        await page.go(broker.address("http") + "/")
        await page.until(f"document.body?.dataset.shown === 'overview' && {SHOWN}.includes('Event loop turn')")
        assert not await page.run(f"{SHOWN}.includes('Commit')"), "with durability process nothing waits for the disk"
        await page.run("location.hash = '#nodes'")
        await page.until(f"document.body.dataset.shown === 'nodes' && {SHOWN}.includes('this node')")
        assert not await page.run(f"{SHOWN}.includes('undefined')")

        await page.run("location.hash = '#session?client_id=gone'")
        await page.until("document.getElementById('absent')?.textContent.includes('has ended')")
        assert not await page.run("document.getElementById('view').classList.contains('stale')")
        assert await page.run("document.getElementById('state').textContent") == "serving"
        await page.screenshot(pictures / "absent.png")

        await page.run("location.hash = '#topics?filter=' + encodeURIComponent('plant/#')")
        await page.until("document.getElementById('stream-state')?.textContent.startsWith('live')")
        for topic, payload in (("plant/short", "x"), ("plant/long", "word " * 2000)):
            body = {"topic": topic, "payload": payload}
            assert (await ask(broker, "POST", "/api/v1/publish", json=body)).status_code == 200
        await page.until("document.querySelectorAll('#tree .leaf').length === 2")
        long, short = await page.run("[...document.querySelectorAll('#tree .leaf')].map((leaf) => leaf.offsetHeight)")
        assert long == short, "a payload takes one line of the tree"
        await page.screenshot(pictures / "payload.png")

        await page.look_like(390, 844, dark=False)
        for row, lines in (("groups", 2), ("tabs", 1)):
            link = f"document.querySelector('#{row} a:not([hidden])').offsetHeight"
            assert await page.run(f"document.getElementById('{row}').offsetHeight < {lines + 1} * {link}"), "on a phone"
        assert await page.run("document.documentElement.scrollWidth") <= 390
        await page.screenshot(pictures / "tabs.png")
        assert not [problem for problem in page.problems if "404" not in problem]


async def test_views_are_in_groups_and_those_of_what_is_not_configured_are_hidden(
    serve: Serve, ask: Ask, tmp_path: Path, pictures: Path, chromium: Chromium
) -> None:
    broker = await serve(node={"data_dir": str(tmp_path / "data"), "shutdown_timeout": 0.1})
    links = "[...document.querySelectorAll('#{} a')].filter((one) => one.offsetWidth).map((one) => one.textContent)"
    groups, views = links.format("groups"), links.format("tabs")
    async with chromium.page() as page:
        await page.look_like(1280, 800, dark=False)
        await page.go(broker.address("http") + "/")
        await page.until("document.body?.dataset.shown === 'overview'")
        assert await page.run(groups) == ["Now", "Clients and sessions", "Messages", "Settings", "Log", "API"]
        assert await page.run(views) == ["Overview", "Alarms", "Activity", "Dropped"]
        await page.run("document.getElementById('group-messages').click()")
        await page.until(f"{views}[0] === 'Topics'")
        assert "Streams" not in await page.run(views)
        await page.run("location.hash = '#streams'")
        await page.until(f"{views}.includes('Streams')")  # shown because it is asked for
        await page.run("document.getElementById('group-now').click()")
        await page.until(f"{views}[0] === 'Overview'")
        assert (await ask(broker, "POST", "/api/v1/streams", json={"name": "s", "topics": ["a"]})).status_code == 201
        await page.run("document.getElementById('group-messages').click()")
        await page.until(f"{views}[0] === 'Topics' && {views}.includes('Streams')")
        await page.screenshot(pictures / "groups.png")
        await page.run("location.hash = '#nodes'")
        await page.until(f"{groups}.includes('Cluster') && !{views}.length")
