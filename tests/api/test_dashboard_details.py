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
        row = "document.querySelector('#tabs a').offsetHeight"
        assert await page.run(f"document.getElementById('tabs').offsetHeight < 2 * {row}"), "one row of tabs on a phone"
        assert await page.run("document.documentElement.scrollWidth") <= 390
        await page.screenshot(pictures / "tabs.png")
        assert not [problem for problem in page.problems if "404" not in problem]
