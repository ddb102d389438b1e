"""A broker that was stopped does nothing more, also if a turn is asked for: a node that serves the data of a lost one
stops that broker and goes on itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlingmq import Broker
from starlingmq.config.settings import from_tree


async def test_no_turn_follows_the_end(tmp_path: Path) -> None:
    broker = Broker(from_tree({"node": {"data_dir": str(tmp_path)}, "listeners": ["mqtt://127.0.0.1:0"]}))
    await broker.start()
    driver = broker._driver
    assert driver is not None
    await broker.stop()
    turns = sum(driver.state.ctx.counters.turns.counts)
    driver.request_turn()
    for _ in range(3):
        await asyncio.sleep(0)
    assert sum(driver.state.ctx.counters.turns.counts) == turns
