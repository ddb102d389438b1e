"""Processes of their own that a command starts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from starlingmq.cli.children import Child
from tests.patience import within

from .commands import Command, leaving_none_behind

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


def test_a_command_that_a_test_leaves_behind_is_ended() -> None:
    with pytest.raises(ZeroDivisionError), leaving_none_behind():
        left = Command([sys.executable, "-c", "import signal; signal.pause()"])
        raise ZeroDivisionError
    assert left.process.returncode == -signal.SIGKILL
