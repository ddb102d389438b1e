"""Bridges to moquette and the MQTT of nats-server, each fetched by name into the cache of the benchmark. Messages pass
each way at QoS 1 and 2, and none is lost when nats-server is restarted.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from bench import fetched_peers
from bench.fetched_peers import CACHE, PeerError, go_program, run, written
from tests.bridges.real import PATIENCE, Near, Running, Serve, bridge
from tests.bridges.test_bridge_rounds import connected
from tests.patience import within

from starlingmq.cli.local_cluster import free_ports
from starlingmq.client import Client
from starlingmq.client.options import QOS, V5, V311
from starlingmq.net.process import ending_with_us

pytestmark = [
    pytest.mark.long(kept="tests/bridges/test_bridge_mosquitto.py::test_messages_pass_each_way_once"),
    pytest.mark.timeout(600),
]

EACH: Final = 20  # messages of each QoS and direction, before, during and after the restart
MOQUETTE: Final = "0.17"
NEVER: Final = 0xFFFFFFFF

MOQUETTE_POM: Final = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>moquette</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>io.moquette</groupId><artifactId>moquette-broker</artifactId><version>{MOQUETTE}</version>
    </dependency>
  </dependencies>
</project>
"""

MOQUETTE_CONF: Final = """\
host 127.0.0.1
port {port}
allow_anonymous true
persistence_enabled true
data_path {directory}/data
telemetry_enabled false
"""

NATS_CONF: Final = """\
listen: 127.0.0.1:{other}
server_name: far
jetstream {{store_dir: "{directory}/jetstream"}}
mqtt {{listen: 127.0.0.1:{port}}}
"""


def moquette(directory: Path, port: int) -> list[str]:
    folder = CACHE / "moquette"
    if not (folder / "lib").exists():
        folder.mkdir(parents=True, exist_ok=True)
        written(folder / "pom.xml", MOQUETTE_POM)
        run("mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib", cwd=folder)
    (directory / "data").mkdir()
    (directory / "config").mkdir()
    written(directory / "config" / "moquette.conf", MOQUETTE_CONF, port=port, directory=directory)
    home = f"-Dmoquette.path={directory}"
    return ["java", "-Xmx256m", home, "-cp", f"{folder}/lib/*", "io.moquette.broker.Server"]


def nats_server(directory: Path, port: int) -> list[str]:
    fetched_peers.install("nats-server")
    (other,) = free_ports(1)
    path = written(directory / "nats.conf", NATS_CONF, port=port, other=other, directory=directory)
    return [str(go_program("nats-server")), "-c", path]


FAR: Final[dict[str, tuple[Callable[[Path, int], list[str]], bool]]] = {
    "moquette": (moquette, False),  # MQTT 3.1.1, as the other one
    "nats-server": (nats_server, True),
}
"""How each is started, and whether it is restarted."""


class FarEnd(Running):
    async def start(self) -> None:
        """Two of them refuse a CONNECT of MQTT 5, and one without a client id: to listen is enough."""
        assert self.process is None
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ending_with_us(self.command, signal.SIGKILL), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        async with within(3 * PATIENCE):
            while True:
                assert self.process.poll() is None, self.log.read_text()[-3000:]
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", int(self.url.rpartition(":")[2]))
                except OSError:
                    await asyncio.sleep(0.05)
                    continue
                writer.close()
                await writer.wait_closed()
                return


@pytest.fixture(params=FAR)
def far(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Running, bool]]:
    make, restarts = FAR[request.param]
    (port,) = free_ports(1)
    directory = tmp_path / "far"
    directory.mkdir()
    try:
        fetched_peers.CACHE.mkdir(parents=True, exist_ok=True)
        command = make(directory, port)
    except PeerError as error:
        pytest.skip(f"{request.param}: {error}")
    program = shutil.which(command[0])
    if program is None:
        pytest.skip(f"{request.param}: {command[0]} is not installed")
    yield FarEnd([program, *command[1:]], f"mqtt://127.0.0.1:{port}", directory / "log"), restarts


class Way:
    """Messages that are published at one broker and read at the other."""

    def __init__(self, name: str, source: str, target: str, versions: tuple[int, int]) -> None:
        self.name = name
        self.source = source
        self.target = target
        self.versions = versions
        self.sent: set[str] = set()
        self.came: Counter[str] = Counter()
        self.ready = asyncio.Event()

    def client(self, url: str, version: int, name: str) -> Client:
        more: dict[str, Any] = {"session_expiry": NEVER} if version == V5 else {}
        return Client(url, client_id=f"{name}-{self.name}", version=version, reconnect=True, clean_start=False, **more)

    async def read(self) -> None:
        client = self.client(self.target, self.versions[1], "reader")
        await connected(client)
        await client.subscribe(f"{self.name}/#", qos=2)
        self.ready.set()
        async for message in client.messages():
            self.came[message.payload.decode()] += 1

    async def publish(self, part: str) -> None:
        client = self.client(self.source, self.versions[0], "publisher")
        await connected(client)
        for number in range(EACH):
            for qos in (1, 2):
                payload = f"{part} {number} {qos}"
                await client.publish(f"{self.name}/{qos}", payload, qos=QOS[qos])
                self.sent.add(payload)
        await client.disconnect()

    async def complete(self, log: Path) -> None:
        try:
            async with within(3 * PATIENCE):
                while self.sent - set(self.came):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"lost {self.name}: {sorted(self.sent - set(self.came))}\n{log.read_text()[-2000:]}")


async def settled(near: Near) -> None:
    async with within(3 * PATIENCE):
        while near.view().state != "connected" or near.view().waiting + near.view().in_flight:
            await asyncio.sleep(0.02)


async def test_messages_pass_each_way_and_over_a_restart(far: tuple[Running, bool], serve: Serve) -> None:
    running, restarts = far
    async with running:
        topics = [{"filter": "out/#"}, {"filter": "in/#", "direction": "in"}]
        near = await serve(bridge(running.url, *topics, version="3.1.1", client_id="near"))
        ways = [Way("out", near.url, running.url, (V5, V311)), Way("in", running.url, near.url, (V311, V5))]
        readers = [asyncio.ensure_future(way.read()) for way in ways]
        try:
            async with within(3 * PATIENCE):
                await asyncio.gather(*(way.ready.wait() for way in ways))
            await settled(near)
            await asyncio.gather(*(way.publish("before") for way in ways))
            for way in ways:
                await way.complete(running.log)
            if restarts:
                await running.stop()
                await ways[0].publish("during")
                assert near.view().waiting >= EACH
                await running.start()
                await asyncio.gather(*(way.publish("after") for way in ways))
                for way in ways:
                    await way.complete(running.log)
            await settled(near)
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
    twice = [payload for way in ways for payload, times in way.came.items() if times > 1]
    assert not [payload for payload in twice if payload.endswith("2")]
