"""A real mosquitto as a bridge to StarlingMQ, with its defaults (``try_private``, ``notifications``): messages in both
directions, once, and over a restart of either side.
"""

from __future__ import annotations

import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from starlingmq.cli.local_cluster import free_ports

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto's clients are not installed"),
    pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not installed"),
]

SECONDS = 60.0  # after which what is waited for counts as never going to happen
STATE = "$SYS/broker/connection/site.hub/state"

LEAF = """\
listener {leaf} 127.0.0.1
allow_anonymous true
connection hub
address 127.0.0.1:{hub}
remote_clientid site.hub
bridge_protocol_version {version}
restart_timeout 1
topic out/# out 1
topic in/# in 1
topic both/# both {qos}
"""


class Running:
    """One broker, StarlingMQ or mosquitto, that is started and stopped by its process."""

    def __init__(self, command: list[str], port: int, log: Path) -> None:
        self.command = command
        self.port = port
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        until(lambda: ask(self.port, "start") == "no", f"it serves: {self.log.read_text()}")

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(SECONDS)
            self.process = None


def until(met: object, what: str) -> None:
    assert callable(met)
    deadline = time.monotonic() + SECONDS
    while not met():
        assert time.monotonic() < deadline, f"it never came that {what}"
        time.sleep(0.1)


def ask(port: int, topic: str) -> str:
    """The retained value there; ``no`` if there is none, "" if no broker answers."""
    command = ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(port), "-t", topic, "-C", "1", "-W", "1"]
    asked = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    if asked.returncode == 27:  # it timed out with a connection
        return "no"
    return asked.stdout.decode().strip() if asked.returncode == 0 else ""


def publish(port: int, topic: str, payload: str, *more: str) -> None:
    command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(port), "-q", "1", "-t", topic, "-m", payload, *more]
    subprocess.run(command, timeout=SECONDS, check=True)


class Reader:
    """Lines of a mosquitto_sub that has its SUBACK."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdout is not None
        self.selector = selectors.DefaultSelector()
        self.selector.register(process.stdout, selectors.EVENT_READ)

    def line(self) -> str:
        assert self.process.stdout is not None
        assert self.selector.select(SECONDS), "nothing came"
        return self.process.stdout.readline().decode().strip()

    def up_to(self, last: str) -> list[str]:
        """Payloads, without the last one."""
        found: list[str] = []
        while (line := self.line()) != last:
            if not line.startswith(("Client ", "Subscribed ")):
                found.append(line)
        return found


@contextmanager
def reading(port: int, *topics: str) -> Iterator[Reader]:
    command = ["stdbuf", "-oL", "mosquitto_sub", "-d", "-h", "127.0.0.1", "-p", str(port), "-q", "2"]
    for topic in topics:
        command += ["-t", topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        reader = Reader(process)
        try:
            while not reader.line().startswith("Subscribed"):
                pass
            yield reader
        finally:
            reader.selector.close()
            process.kill()


class Pair:
    hub: Running
    leaf: Running

    def __init__(self, directory: Path, version: str, qos: int) -> None:
        hub, leaf = free_ports(2)
        settings = directory / "leaf.conf"
        settings.write_text(LEAF.format(hub=hub, leaf=leaf, version=version, qos=qos))
        ours = [sys.executable, "-m", "starlingmq", "serve", "--listen", f"mqtt://127.0.0.1:{hub}"]
        self.hub = Running([*ours, "--data-dir", str(directory / "data")], hub, directory / "hub.log")
        self.leaf = Running(["mosquitto", "-c", str(settings)], leaf, directory / "leaf.log")

    def told(self, state: str) -> None:
        until(lambda: ask(self.hub.port, STATE) == state, f"the state is {state}: {self.leaf.log.read_text()}")


LONG = pytest.mark.long
BRIDGES = [
    pytest.param(("mqttv31", 1), marks=LONG),
    pytest.param(("mqttv311", 1), marks=LONG),
    ("mqttv311", 2),
    ("mqttv50", 1),
    pytest.param(("mqttv50", 2), marks=LONG),
]


@pytest.fixture(params=BRIDGES, ids=str)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path, *request.param)
    try:
        made.hub.start()
        made.leaf.start()
        made.told("1")
        yield made
    finally:
        made.leaf.stop()
        made.hub.stop()
    assert "Traceback" not in made.hub.log.read_text()


def test_messages_go_in_out_and_both_ways_once(pair: Pair) -> None:
    hub, leaf = pair.hub.port, pair.leaf.port
    with reading(hub, "out/#", "in/#", "both/#") as at_hub, reading(leaf, "out/#", "in/#", "both/#") as at_leaf:
        for number in range(5):
            for topic in ("out", "in", "both"):
                publish(leaf, f"{topic}/a", f"leaf {topic} {number}")
                publish(hub, f"{topic}/a", f"hub {topic} {number}")
        for topic in ("in", "both"):  # in the order of their topics' ways
            publish(hub, f"{topic}/end", f"hub end {topic}")
        for topic in ("out", "both"):
            publish(leaf, f"{topic}/end", f"leaf end {topic}")
        got_hub = at_hub.up_to("leaf end both")
        got_leaf = at_leaf.up_to("hub end both") + at_leaf.up_to("leaf end both")
    for where, got, only in (("hub", got_hub, "in"), ("leaf", got_leaf, "out")):
        other = "leaf" if where == "hub" else "hub"
        expected = {f"{where} {topic} {number}" for topic in ("out", "in", "both") for number in range(5)}
        through = "out" if where == "hub" else "in"
        expected |= {f"{other} {topic} {number}" for topic in (through, "both") for number in range(5)}
        messages = [line for line in got if " end " not in line]
        assert sorted(messages) == sorted(expected), (where, only)


def test_it_goes_on_when_our_broker_was_restarted(pair: Pair) -> None:
    pair.hub.stop()
    publish(pair.leaf.port, "out/late", "waited for the hub", "-r")
    pair.hub.start()
    pair.told("1")
    until(lambda: ask(pair.hub.port, "out/late") == "waited for the hub", "what waited is there, and retained")
    publish(pair.hub.port, "both/again", "from the hub", "-r")
    until(lambda: ask(pair.leaf.port, "both/again") == "from the hub", "it goes the other way too")


def test_it_goes_on_when_the_bridge_was_killed(pair: Pair) -> None:
    pair.leaf.stop(signal.SIGKILL)
    pair.told("0")
    publish(pair.hub.port, "in/late", "waited for the bridge", "-r")
    pair.leaf.start()
    pair.told("1")
    until(lambda: ask(pair.leaf.port, "in/late") == "waited for the bridge", "what waited is there, and retained")
    publish(pair.leaf.port, "both/again", "from the leaf", "-r")
    until(lambda: ask(pair.hub.port, "both/again") == "from the leaf", "it goes the other way too")
