"""Commands as a user runs them: ``run`` in this process, ``start`` in processes of their own."""

from __future__ import annotations

import io
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from unittest import mock

import pytest
import typer.main

from starlingmq.cli.main import INTERRUPTED, main
from tests.patience import slowness

PATIENCE = 20.0

made_once = mock.patch("typer.main.get_command_from_info", cache(typer.main.get_command_from_info))
"""``ctl`` has fifty commands, whose options a process reads from their functions at its start: 0.1 s."""


started: list[Command] = []
"""Those that may still run, the youngest last."""


@contextmanager
def leaving_none_behind() -> Iterator[None]:
    """Commands that are started meanwhile and still run at the end are killed: a test that fails waits for none."""
    before = len(started)
    try:
        yield
    finally:
        for command in started[before:]:
            if command.process.poll() is None:
                command.process.kill()
                command.process.communicate()
        del started[before:]


class Command:
    """A running command. ``subscribed`` waits for the line about SUBACK that ``-d`` prints."""

    def __init__(self, words: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            list(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.errors = b""
        started.append(self)

    def wait_for(self, words: bytes) -> None:
        """Until a line of stderr contains ``words``."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors += line
            if words in line:
                return
        pytest.fail(f"never said {words!r}: {self.errors.decode()}")

    def finish(self, stdin: bytes | None = None) -> tuple[int, bytes, str]:
        """Exit code, stdout and stderr."""
        output, errors = self.process.communicate(stdin, timeout=PATIENCE * slowness())
        return self.process.returncode, output, (self.errors + errors).decode()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)


def start(*words: str) -> Command:
    """``starlingmq words...``, on its way."""
    return Command([sys.executable, "-m", "starlingmq", *words])


def run(*words: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
    """``starlingmq words...`` in this process, without the second that a start takes. Exit code, stdout and stderr.

    ``serve`` has a process of its own: it changes the signals, the imports and the garbage collector of its process.
    """
    if words[:1] == ("serve",):
        return start(*words).finish(stdin)
    output, errors = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with tempfile.TemporaryFile() as given, io.TextIOWrapper(given, "utf-8") as text:
        given.write(stdin)
        given.seek(0)
        with redirect_stdout(output), redirect_stderr(errors), mock.patch("sys.stdin", text), made_once:
            try:
                code = main(words)
            except SystemExit as end:
                code = int(end.code or 0)
    if code == INTERRUPTED:  # it was meant for the tests
        raise KeyboardInterrupt
    output.flush()
    return code, output.buffer.getvalue(), errors.getvalue()


def subscriber(url: str, *words: str) -> Command:
    """``starlingmq sub -L url -d words...``, subscribed."""
    command = start("sub", "-L", url, "-d", *words)
    command.wait_for(b"received SUBACK")
    return command


def foreign(name: str, *words: str) -> Command:
    """A command of mosquitto's; the test is skipped where it is not installed."""
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed")
    if name == "mosquitto_sub":
        # line buffered, so that its debug line can be waited for; they go to stdout
        words = ("-d", *words)
        return Command(["stdbuf", "-oL", program, *words])
    return Command([program, *words])
