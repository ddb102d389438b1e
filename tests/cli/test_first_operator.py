"""The first start in a terminal offers to make an operator; no other start waits for an answer."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from starlingmq.cli import first_operator
from starlingmq.config.settings import from_tree
from tests.cli.commands import PATIENCE, run
from tests.patience import slowness

ASKS = b"Name of an operator"


class Terminal:
    """``starlingmq serve`` in a terminal of its own."""

    def __init__(self, *words: str) -> None:
        self.end, inner = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "starlingmq", "serve", "--listen", "mqtt://127.0.0.1:0", *words],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(inner)
        self.shown = b""
        self._seen = 0

    def wait_for(self, words: bytes) -> None:
        """Until these words come, behind those of the last call."""
        end = time.monotonic() + PATIENCE * slowness()
        while (at := self.shown.find(words, self._seen)) < 0:
            assert select.select([self.end], [], [], max(0.0, end - time.monotonic()))[0], self.shown
            self.shown += os.read(self.end, 4096)
        self._seen = at + len(words)

    def type(self, text: str) -> None:
        os.write(self.end, text.encode() + b"\n")


@contextmanager
def terminal(*words: str) -> Iterator[Terminal]:
    made = Terminal(*words)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        os.close(made.end)


def address(shown: bytes) -> list[str]:
    host, port = shown.split(b"ready mqtt://")[1].split()[0].decode().split(":")
    return ["pub", "-h", host, "-p", port, "-t", "a", "-m", "b", "-q", "1"]


def test_a_name_and_a_password_make_an_operator_and_the_next_start_does_not_ask(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with terminal("--data-dir", str(data)) as first:
        first.wait_for(ASKS)
        first.type("boss")
        first.wait_for(b"Password for boss")
        first.type("one-thing-8")
        first.wait_for(b"Repeat")
        first.type("another-thing")
        first.wait_for(b"differ")
        first.wait_for(ASKS)
        first.type("boss")
        for prompt in (b"Password for boss", b"Repeat"):
            first.wait_for(prompt)
            first.type("long-enough-1")
        first.wait_for(b"boss is an operator now")
        first.wait_for(b"ready mqtt://")
        first.wait_for(b"\n")
        publish = address(first.shown)
        assert run(*publish, "-u", "boss", "-P", "long-enough-1")[0] == 0
        assert run(*publish)[0] != 0, "a client without a login comes in"
        code, output, _ = run("ctl", "users", "--data-dir", str(data))
        assert code == 0 and b"boss" in output and b"operator" in output
        assert b"long-enough-1" not in first.shown
    with terminal("--data-dir", str(data)) as second:
        second.wait_for(b"ready mqtt://")
        assert ASKS not in second.shown


def test_enter_starts_without_an_operator(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with terminal("--data-dir", str(data)) as first:
        first.wait_for(ASKS)
        first.type("")
        first.wait_for(b"ready mqtt://")
        first.wait_for(b"\n")
        assert run(*address(first.shown))[0] == 0
    assert not (data / "access.json").exists()


@pytest.mark.parametrize("words", [[], ["--data-dir", "DATA", "--set", "auth.api.token_file=TOKEN"]])
def test_a_broker_that_stores_nothing_or_has_a_login_does_not_ask(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "token").write_text("x" * 40 + "\n")
    (tmp_path / "token").chmod(0o600)
    given = [word.replace("DATA", f"{tmp_path}/data").replace("TOKEN", f"{tmp_path}/token") for word in words]
    with terminal(*given) as first:
        first.wait_for(b"ready mqtt://")
        assert ASKS not in first.shown


def test_a_directory_with_something_in_it_is_not_new(tmp_path: Path) -> None:
    (tmp_path / "passwords").touch()
    with terminal("--data-dir", str(tmp_path)) as first:
        first.wait_for(b"ready mqtt://")
        assert ASKS not in first.shown


def test_a_broker_in_the_background_of_a_terminal_does_not_ask(tmp_path: Path) -> None:
    """Reading the terminal would stop it."""
    words = [sys.executable, "-m", "starlingmq", "serve", "--listen", "mqtt://127.0.0.1:0", "--data-dir"]
    script = "set -m; " + " ".join([*words, f"{tmp_path}/data"]) + " & echo pid $!.; wait"
    end, inner = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "-c", script],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(inner)
    shown = b""
    try:
        while b"ready mqtt://" not in shown:
            assert select.select([end], [], [], PATIENCE * slowness())[0], shown
            shown += os.read(end, 4096)
        assert ASKS not in shown
    finally:
        os.kill(int(shown.split(b"pid ")[1].split(b".")[0]), signal.SIGKILL)
        shell.wait()
        os.close(end)


def test_without_an_answer_the_broker_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end, inner = pty.openpty()
    with os.fdopen(inner, "r") as keyboard, os.fdopen(os.dup(inner), "w") as screen:
        monkeypatch.setattr("sys.stdin", keyboard)
        monkeypatch.setattr("sys.stdout", screen)
        monkeypatch.setattr("os.tcgetpgrp", lambda _: os.getpgrp())
        first_operator.offer_operator(from_tree({"node": {"data_dir": f"{tmp_path}/data"}}), 0.05)
    os.close(end)
    assert not (tmp_path / "data").exists()
