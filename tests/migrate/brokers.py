"""The broker that is migrated, and StarlingMQ with what was written, each in a process of its own."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from starlingmq.cli.local_cluster import free_ports
from tests.cli.commands import run
from tests.client.brokers import ended

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
needs_mosquitto = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")


@contextmanager
def mosquitto(settings: Path) -> Iterator[None]:
    """It serves; at the end it is stopped as a service manager does, so it writes its persistence file."""
    assert MOSQUITTO is not None
    process = subprocess.Popen([MOSQUITTO, "-c", str(settings)], stderr=subprocess.PIPE, text=True)
    with ended(process):
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if " running" in line:
                break
        else:
            pytest.fail(f"mosquitto did not start: {''.join(said)}")
        yield


@contextmanager
def starlingmq(settings: Path) -> Iterator[list[str]]:
    """The addresses at which it serves. It does not slow down logins that fail."""
    command = [sys.executable, "-m", "starlingmq", "serve", "-c", str(settings)]
    failures = {"STARLINGMQ_AUTH__FAILURES__DELAY": "0", "STARLINGMQ_AUTH__FAILURES__LIMIT": "0"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **failures}
    )
    with ended(process):
        assert process.stdout is not None
        word, *addresses = process.stdout.readline().split() or [""]
        if word != "ready":
            pytest.fail(f"the broker did not start: {process.communicate(timeout=10)[1]}")
        yield addresses


def migrate(source: str, *files: Path, out: Path, code: int = 0) -> dict[str, Any]:
    """Run the command, which must end with that exit code; its report."""
    ended_with, output, errors = run("migrate", source, *map(str, files), "--out", str(out), "--json")
    assert ended_with == code, (output, errors)
    report: dict[str, Any] = json.loads(output)
    return report


def settings_of(directory: Path, lines: str) -> tuple[Path, list[int]]:
    """A mosquitto.conf with two free ports in place of {0} and {1}."""
    ports = free_ports(2)
    path = directory / "mosquitto.conf"
    path.write_text(f"user {getpass.getuser()}\n" + lines.format(*ports, directory=directory), encoding="utf-8")
    return path, ports
