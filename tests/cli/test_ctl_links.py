"""``starlingmq ctl links`` and ``ctl link`` with a broker that has a bridge to another one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from starlingmq import Broker
from starlingmq.cli.ctl import whole_app
from starlingmq.cli.declare import CommandError
from tests.patience import within

pytestmark = pytest.mark.slow


async def test_links_are_listed_paused_resumed_and_drained(tmp_path: Path) -> None:
    data = tmp_path / "data"

    async def ctl(*words: str) -> str:
        """The command, in a thread: the brokers are in this loop."""
        command = [*words, "--data-dir", str(data)]
        done = await asyncio.to_thread(CliRunner().invoke, whole_app(), command, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    async def until(state: str) -> list[str]:
        async with within(20):
            while state not in (cells := (await ctl("links")).splitlines()[-1].split()):
                await asyncio.sleep(0.05)
        return cells

    async with Broker(listeners=["mqtt://127.0.0.1:0"], node={"name": "far"}) as far:
        bridge = {"name": "hub", "servers": [far.address()], "topics": [{"filter": "out/#"}]}
        near = {"name": "near", "data_dir": str(data)}
        async with Broker(listeners=["mqtt://127.0.0.1:0"], node=near, bridges=[bridge]):
            assert (await until("connected"))[:3] == ["hub", "near", "connected"]
            assert (await ctl("link", "pause", "hub")).strip() == "hub is paused"
            await until("paused")
            await ctl("publish", "out/a", "x", "-q", "1")
            with pytest.raises(CommandError, match=r"hub is paused, and 1 message\(s\) wait; resume it first"):
                await ctl("link", "drain", "hub", "--seconds", "0")
            assert (await ctl("link", "resume", "hub")).strip() == "hub is resumed"
            assert (await ctl("link", "drain", "hub")).strip().endswith("nothing waited for hub, and it is paused")
            cells = await until("paused")
            assert cells[:3] == ["hub", "near", "paused"] and cells[4:6] == ["0", "1"], "none waits, one has gone out"
            with pytest.raises(CommandError, match="there is no link 'other'; links: hub"):
                await ctl("link", "pause", "other")
