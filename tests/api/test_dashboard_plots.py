"""The dashboard's plots of real traffic, and of stream consumers, in a real browser."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from starlingmq.admin import history
from starlingmq.wire.mqtt import Publish
from tests.cli.test_stream_commands import ask as command

from .browser import BROWSER, Chromium
from .conftest import Join, Serve

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")]

SHOWN = "document.getElementById('view').textContent"
TIMES = "[...document.querySelector('.times').children].map((one) => one.textContent)"
HEIGHTS = """((title) => {
  const named = (one) => one.getAttribute('aria-label').startsWith(title);
  const line = [...document.querySelectorAll('svg.plot')].find(named)?.querySelector('polyline');
  const points = (line?.getAttribute('points') ?? '').split(' ').filter(Boolean);
  return new Set(points.map((point) => point.split(',')[1])).size;
})"""

POINTS = """((title) => {
  const named = (one) => one.getAttribute('aria-label').startsWith(title);
  const lines = [...[...document.querySelectorAll('svg.plot')].find(named)?.querySelectorAll('polyline') ?? []];
  return lines.reduce((sum, line) => sum + line.getAttribute('points').split(' ').length, 0);
})"""


async def test_plots_follow_the_traffic_and_streams_show_who_lags(
    serve: Serve, join: Join, tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, chromium: Chromium
) -> None:
    monkeypatch.setattr(history, "STEP", 1)
    data = tmp_path / "data"
    broker = await serve(
        node={"name": "n1", "data_dir": str(data), "shutdown_timeout": 0.1},
        storage={"durability": "power"},
        streams={"define": [{"name": "plant", "topics": ["plant/#"]}]},
    )
    author, reader = await join(broker, "author"), await join(broker, "reader")
    await reader.subscribe("plant/#", qos=0)

    async def work() -> None:
        for number in range(1_000_000):
            await author.publish("plant/1/temperature", b"%d" % number, 1)
            await reader.expect(Publish)
            await asyncio.sleep(0.01 * (1 + number // 100 % 3))

    working = asyncio.create_task(work())
    try:
        async with chromium.page() as page:
            await page.look_like(1280, 900, dark=False)
            await page.go(broker.address("http") + "/")
            await page.until("document.body && document.body.dataset.shown === 'overview'")
            for title in ("Messages in", "Messages out", "Event loop turn", "Commit", "Fsync"):
                await page.until(f"{HEIGHTS}('{title}') >= 2")
            assert await page.run(f"{HEIGHTS}('Dropped')") == 1, "nothing is dropped, and it says so"
            before = await page.run(f"{POINTS}('Messages in')")
            await page.go(broker.address("http") + "/?again")
            await page.until(f"{POINTS}('Messages in') >= {before}")  # the broker has kept them
            plot = "document.querySelector('svg.plot')"
            assert len({*await page.run(TIMES)}) == 4, "an axis with times that differ"
            await page.run(f"{plot}.focus()")
            await page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowLeft")
            await page.until("/\\d:\\d\\d.*\\/s/.test(document.querySelector('.chart .told').textContent)")
            await page.until("document.querySelector('svg.plot .pointer')")
            await page.screenshot(pictures / "plots.png")
            assert await page.run(f"document.activeElement === {plot}"), "the chart keeps the focus when values change"
            await page.look_like(390, 844, dark=True)
            await page.screenshot(pictures / "plots-phone.png")
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working
            (log,) = (await asyncio.to_thread(command, data, "list"))["streams"]
            told = {"name": "plant", "consumer": "alerts.yaml", "next": str(log["next"] - 3)}
            await asyncio.to_thread(partial(command, data, "commit", **told))
            await page.look_like(1280, 900, dark=True)
            await page.run("location.hash = '#streams'")
            await page.until(f"{SHOWN}.includes('alerts.yaml')")
            cells = "[...document.querySelectorAll('#view td')].map((one) => one.textContent)"
            assert "plant/#" in await page.run(cells)
            row = "[...document.querySelectorAll('#view tr')].find((one) => one.textContent.includes('alerts.yaml'))"
            told = await page.run(f"[...{row}.children].map((one) => one.textContent.replace(',', ''))")
            assert told[3] == str(log["next"] - 3) and int(told[4]) >= 3, "its offset, and the lag"
            await page.screenshot(pictures / "streams.png")
            assert await page.run("document.documentElement.scrollWidth") <= 1280
            assert not page.problems
    finally:
        working.cancel()
