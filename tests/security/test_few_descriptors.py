"""A real broker with few file descriptors: silent connections get the clients' part of them, and nothing else fails."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from tests.net.conftest import Certificates
from tests.patience import within
from tests.peer import Peer

LIMIT = 192
FLOOD = 300
CONNECT_SECONDS = 3


class Broker:
    def __init__(self, process: asyncio.subprocess.Process, addresses: list[str], log: Path) -> None:
        self.process = process
        self.mqtt, self.mqtts, self.http = addresses
        self._log = log

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def lines(self, text: str) -> list[str]:
        return [line for line in self._log.read_text().splitlines() if text in line]

    async def is_ready(self) -> bool:
        def ask() -> bool:
            with urlopen(self.http + "/health/ready", timeout=10) as answer:
                return bool(answer.status == 200)

        return await asyncio.to_thread(ask)


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Broker]:
    tls = Certificates(directory).server()
    settings = {
        "node": {"data_dir": str(directory / "data")},
        "mqtt": {"connect_timeout": CONNECT_SECONDS},
        "log": {"format": "text"},
        "listeners": [
            "mqtt://127.0.0.1:0",
            {"url": "mqtts://127.0.0.1:0", "tls": {"cert": tls.cert, "key": tls.key}},
            "http://127.0.0.1:0",
        ],
    }
    config, log = directory / "settings.yaml", directory / "log"
    config.write_text(json.dumps(settings))
    serve = [sys.executable, "-m", "starlingmq", "serve", "-c", str(config)]
    with log.open("w") as errors:
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", f'ulimit -n {LIMIT} && exec "$@"', "sh", *serve, stdout=asyncio.subprocess.PIPE, stderr=errors
        )
    try:
        assert process.stdout is not None
        async with within(60):
            word, *addresses = (await process.stdout.readline()).decode().split() or [""]
        assert word == "ready", log.read_text()
        yield Broker(process, addresses, log)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        async with within(30):
            await process.wait()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("flooded", ["mqtt", "mqtts"])
async def test_a_flood_of_silent_connections_leaves_storage_and_health_their_descriptors(
    tmp_path: Path, flooded: str
) -> None:
    async with serving(tmp_path) as broker:
        subscriber = await Peer.connect(broker.mqtt, "lasting", 4, clean_start=False)
        assert await subscriber.subscribe("t/#", qos=1) == [1]
        publisher = await Peer.connect(broker.mqtt, "publisher")
        at_first = broker.descriptors()
        port = urlsplit(getattr(broker, flooded)).port
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(FLOOD)]
        async with within(CONNECT_SECONDS):
            while not broker.lines("are running out"):
                await asyncio.sleep(0.02)
        most = 0
        for number in range(50):
            assert await publisher.publish("t/x", b"%d" % number + bytes(2000)) in (0, 0x10)
            assert (await subscriber.message()).payload.rstrip(b"\0") == b"%d" % number
            most = max(most, broker.descriptors())
        assert at_first < most < LIMIT, "some are free all the time"
        assert await broker.is_ready()
        assert broker.lines("Too many open files") == broker.lines("Traceback") == []
        async with within(60):  # the silent ones are closed in the end, and the waiting client is let in
            late = await Peer.connect(broker.mqtt, "late")
        assert await late.publish("t/late") == 0
        assert len(broker.lines("are running out")) == 1
        for _, writer in silent:
            writer.close()
        for peer in (subscriber, publisher, late):
            with suppress(ConnectionError):
                await peer.close()
