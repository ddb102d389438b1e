"""``python -m tests.docs.picture``: draw docs/images/dashboard.png, the dashboard of a broker with some traffic, in a
real browser. Look at it before it is committed."""

from __future__ import annotations

import asyncio
import math
import random
import sys
import tempfile
from pathlib import Path
from typing import Final

import starlingmq
from starlingmq.client import Client
from starlingmq.client.options import QOS
from starlingmq.config.settings import from_tree
from tests.api.browser import browser
from tests.docs.blocks import ROOT

PICTURE: Final = ROOT / "docs/images/dashboard.png"
DEVICES: Final = 32
SITES: Final = 4
SECONDS: Final = 130.0  # until the charts are full
SIZE: Final = (1280, 760)


async def device(url: str, number: int) -> None:
    """Publishes temperatures, now more of them, now fewer; every third one listens to its site."""
    site = f"site/{number % SITES}"
    async with Client(url, client_id=f"sensor-{number:02d}") as client, asyncio.TaskGroup() as tasks:
        if number % 3 == 0:
            await client.subscribe(f"{site}/#", qos=1)
            tasks.create_task(read(client))
        for step in range(1 << 30):
            degrees = f"{20 + 3 * math.sin(step / 50):.2f}".encode()
            await client.publish(f"{site}/sensor/{number}/temperature", degrees, qos=QOS[number % 2])
            await asyncio.sleep(0.05 + 0.04 * math.sin(step * 0.02) + random.random() * 0.03)


async def read(client: Client) -> None:
    async for _ in client.messages():
        pass


async def main(picture: Path) -> None:
    listeners = [f"{scheme}://127.0.0.1:0" for scheme in ("mqtt", "nats", "http")]
    config = from_tree({"node": {"name": "greenhouse"}, "listeners": listeners})
    async with starlingmq.Broker(config) as broker:
        fleet = [asyncio.create_task(device(broker.address("mqtt"), number)) for number in range(1, DEVICES + 1)]
        with tempfile.TemporaryDirectory() as directory:
            async with browser(Path(directory)) as page:
                await page.look_like(*SIZE, dark=False)
                await page.go(broker.address("http") + "/")
                await asyncio.sleep(SECONDS)
                await page.screenshot(picture)
        for one in fleet:
            one.cancel()
        await asyncio.gather(*fleet, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE))
