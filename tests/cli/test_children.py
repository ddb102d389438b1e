"""Processes of their own that a command starts."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from starlingmq.cli.children import Child
from tests.patience import within

PROGRAM = """
import signal, sys
open(sys.argv[1]).read()  # a pipe: until the test has written
signal.signal(signal.SIGHUP, lambda number, frame: sys.exit("heard"))
print("ready", flush=True)
while True:
    signal.pause()
"""


async def test_a_signal_waits_until_a_process_is_ready_for_it(tmp_path: Path) -> None:
    """SIGHUP would end it before."""
    (tmp_path / "waits.py").write_text(PROGRAM)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    lines: asyncio.Queue[str] = asyncio.Queue()
    settings = {"PYTHONPATH": str(tmp_path)}
    child = Child("one", [str(pipe)], lambda name, line: lines.put_nowait(line), settings, ("waits",))
    await child.start()
    child.signal_when_ready(signal.SIGHUP)
    await asyncio.to_thread(pipe.write_text, "go")
    async with within(10):
        assert await lines.get() == "heard"
        await child.ended.wait()
    assert child.code == 1
    await child.stop(1)
