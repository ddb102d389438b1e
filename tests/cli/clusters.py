"""``cluster up`` and ``serve`` as running commands, and what tests ask of them."""

from __future__ import annotations

import contextlib
import json
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.patience import slowness

from .commands import run

PATIENCE = 60.0
BARE = ("--no-nats", "--no-http", "--no-streams")
POLL = 0.05
DEGRADED = 3  # exit code


class Running:
    """A command that serves: ``urls`` are those of its ``ready`` line. What it says on stderr goes to a file."""

    def __init__(self, log: Path, *words: str) -> None:
        self.log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "starlingmq", *words], stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.urls: list[str] = []

    def wait_ready(self) -> list[str]:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(PATIENCE * slowness()):
                pytest.fail(f"not ready: {self.log.read_text()}")
        word, *self.urls = self.process.stdout.readline().split() or [""]
        if word != "ready":
            pytest.fail(f"it did not start: {self.log.read_text()}")
        return self.urls

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit code; nothing that it started is left."""
        started = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(number)
        self.process.communicate(timeout=PATIENCE)
        _, left = psutil.wait_procs(started, timeout=5)
        assert left == []
        return self.process.returncode


@contextlib.contextmanager
def running(log: Path, *words: str) -> Iterator[Running]:
    command = Running(log, *words)
    with command.process:  # its pipe is closed, also if a test has killed it
        try:
            command.wait_ready()
            yield command
        finally:
            if command.process.poll() is None:
                command.stop()


def control(directory: Path, node: str, *words: str) -> Any:
    code, output, errors = run("ctl", "cluster", *words, "--data-dir", str(directory / node / "data"), "--json")
    assert code in (0, DEGRADED), errors
    return json.loads(output)


def health_in(output: bytes) -> str:
    """The first line, without the number of alarms: some are of the machine, as of a clock that is not synchronized."""
    return re.sub(r"^([A-Z]+), \d+ alarms?[^:]*", r"\1", output.decode().splitlines()[0])


def said(directory: Path) -> str:
    return (directory / "log").read_text()


def until(condition: Callable[[], bool]) -> None:
    """Wait for a state that other processes reach in time."""
    deadline = time.monotonic() + PATIENCE * slowness()
    while not condition():
        assert time.monotonic() < deadline, "it does not come to be so"
        time.sleep(POLL)


def member_of(status: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [member for member in status["members"] if member["name"] == name]
    return dict(found)


def nodes_of(command: Running) -> dict[str, psutil.Process]:
    """The brokers below a command, by the settings that tell them apart."""
    found = {}
    for process in psutil.Process(command.process.pid).children():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            which = [word for word in line if word.startswith("node.name=") or word.endswith(".yaml")]
            if "serve" in line and which:
                found[which[-1]] = process
    return found


def kill_node(command: Running, name: str) -> None:
    next(each for key, each in nodes_of(command).items() if f"/{name}/" in key).kill()


def all_connected(data: Path) -> bool:
    code, output, _ = run("ctl", "cluster", "status", "--data-dir", str(data), "--json")
    return code == 0 and all(member["connected"] for member in json.loads(output)["members"])
