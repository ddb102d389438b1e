"""Real brokers in processes of their own: StarlingMQ as users start it, and mosquitto as a cross-check for the client.

Each has every kind of listener, on free ports, and is ended by its process id.
"""

from __future__ import annotations

import contextlib
import getpass
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from starlingmq.cli.local_cluster import free_ports

ATTEMPTS = 5  # a port that was free a moment ago may be taken when the broker comes to it
STOP_SECONDS = 10


@dataclass(frozen=True)
class Broker:
    """``url`` by scheme (mqtt, mqtts, ws, wss, unix), ``ca`` the file that vouches for its certificate."""

    name: str
    urls: dict[str, str]
    ca: Path

    @property
    def url(self) -> str:
        return self.urls["mqtt"]

    @property
    def port(self) -> str:
        return self.url.rpartition(":")[2]


def certificate(directory: Path) -> Path:
    """A certificate for localhost and 127.0.0.1 in ``directory``, and the file of its authority."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(directory / "server.key")
    issued.cert_chain_pems[0].write_to_path(directory / "server.pem")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    return directory / "ca.pem"


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def starlingmq(directory: Path) -> Iterator[Broker]:
    """StarlingMQ, by its command."""
    ca = certificate(directory)
    tls = f"{{cert: {directory}/server.pem, key: {directory}/server.key}}"
    settings = directory / "starlingmq.yaml"
    settings.write_text(
        "listeners:\n"
        "  - mqtt://127.0.0.1:0\n"
        "  - ws://127.0.0.1:0/mqtt\n"
        f"  - unix://{directory}/s.sock\n"
        f"  - {{url: 'mqtts://127.0.0.1:0', tls: {tls}}}\n"
        f"  - {{url: 'wss://127.0.0.1:0/mqtt', tls: {tls}}}\n"
    )
    command = [sys.executable, "-m", "starlingmq", "serve", "-c", str(settings)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with ended(process):
        assert process.stdout is not None
        word, *addresses = process.stdout.readline().split() or [""]
        if word != "ready":
            pytest.fail(f"the broker did not start: {process.communicate(timeout=STOP_SECONDS)[1]}")
        yield Broker("starlingmq", {each.partition(":")[0]: each for each in addresses}, ca)


@contextlib.contextmanager
def mosquitto(directory: Path) -> Iterator[Broker]:
    """The broker of Debian. Its tests are skipped where it is not installed."""
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if program is None:
        pytest.skip("mosquitto is not installed")
    ca = certificate(directory)
    for _ in range(ATTEMPTS):
        plain, web, secure, closed = free_ports(4)
        tls = f"certfile {directory}/server.pem\nkeyfile {directory}/server.key\n"
        settings = directory / "mosquitto.conf"
        settings.write_text(
            f"per_listener_settings true\nuser {getpass.getuser()}\n"  # as root it would switch to another user
            f"listener {plain} 127.0.0.1\nallow_anonymous true\n"
            f"listener {web} 127.0.0.1\nprotocol websockets\nallow_anonymous true\n"
            f"listener {secure} 127.0.0.1\nallow_anonymous true\n{tls}"
            f"listener {closed} 127.0.0.1\nallow_anonymous false\n"
            f"listener 0 {directory}/s.sock\nallow_anonymous true\n"
        )
        process = subprocess.Popen([program, "-c", str(settings)], stderr=subprocess.PIPE, text=True)
        with ended(process):
            assert process.stderr is not None
            if any("running" in line for line in process.stderr):  # ends without it when a port is taken
                urls = {
                    "mqtt": f"mqtt://127.0.0.1:{plain}",
                    "ws": f"ws://127.0.0.1:{web}/mqtt",
                    "mqtts": f"mqtts://localhost:{secure}",
                    "closed": f"mqtt://127.0.0.1:{closed}",
                    "unix": f"unix://{directory}/s.sock",
                }
                yield Broker("mosquitto", urls, ca)
                return
    pytest.fail("mosquitto did not start")


BROKERS = {"starlingmq": starlingmq, "mosquitto": mosquitto}
