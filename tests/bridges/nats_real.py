"""Real ends of NATS bridges: nats-server in a process of its own, StarlingMQ inside the test, and nats-py at both."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from bench.fetched_peers import go_program
from nats.aio.client import Client
from tests.patience import within

import nats
from starlingmq import Broker
from starlingmq.bridges.link_view import LinkView
from starlingmq.cli.local_cluster import free_ports
from starlingmq.config.settings import from_tree
from starlingmq.net.process import ending_with_us

PATIENCE: Final = 20.0
LOOK: Final = 0.01  # between two looks at a bridge, which reports nothing by itself
FETCHED: Final = go_program("nats-server")
NATS_SERVER: Final = shutil.which("nats-server") or (str(FETCHED) if FETCHED.exists() else "")
HAS_NATS_SERVER: Final = pytest.mark.skipif(not NATS_SERVER, reason="nats-server is not installed")


class NatsServer:
    """``settings`` are lines of its configuration file. It keeps its port when it is started again."""

    def __init__(self, directory: Path, settings: str = "", scheme: str = "nats") -> None:
        (self.port,) = free_ports(1)
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.path = directory / "nats-server.conf"
        self.path.write_text(f"listen: 127.0.0.1:{self.port}\n{settings}\n")
        self.log = directory / "nats-server.log"
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> NatsServer:
        with self.log.open("ab") as log:
            command = ending_with_us([NATS_SERVER, "-c", str(self.path)], signal.SIGKILL)
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        async with within(PATIENCE):
            while True:
                assert self.process.poll() is None, self.log.read_text()[-3000:]
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(LOOK)
                    continue
                writer.close()
                await writer.wait_closed()
                return self

    async def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(how)
            await asyncio.to_thread(process.wait, PATIENCE)


class Ends:
    """Everything that a test begins ends with it."""

    def __init__(self, stack: AsyncExitStack, directory: Path) -> None:
        self.stack = stack
        self.directory = directory

    async def server(self, settings: str = "", scheme: str = "nats") -> NatsServer:
        server = NatsServer(self.directory, settings, scheme)
        self.stack.push_async_callback(server.end)
        return await server.start()

    async def broker(self, name: str = "near", bridges: list[dict[str, Any]] | None = None, **sections: Any) -> Broker:
        tree: dict[str, Any] = {
            "node": {"name": name},
            "listeners": ["nats://127.0.0.1:0", "mqtt://127.0.0.1:0"],
            "bridges": bridges or [],
        }
        return await self.stack.enter_async_context(Broker(from_tree({**tree, **sections})))

    async def bridged(
        self, url: str, *topics: dict[str, Any], name: str = "near", sections: dict[str, Any] | None = None, **more: Any
    ) -> Broker:
        """A broker with a bridge to ``url`` that is connected; ``more``: settings of the bridge."""
        bridge = {"name": "far", "servers": [url], "topics": list(topics), **more}
        broker = await self.broker(name, [bridge], **(sections or {}))
        await until(lambda: view(broker).state == "connected", lambda: view(broker))
        return broker

    async def client(self, end: Broker | NatsServer | str, **options: Any) -> Client:
        url = end.address("nats") if isinstance(end, Broker) else end if isinstance(end, str) else end.url
        client = await nats.connect(url, allow_reconnect=False, connect_timeout=PATIENCE, **options)
        self.stack.push_async_callback(client.close)
        return client


@asynccontextmanager
async def ends(directory: Path) -> AsyncIterator[Ends]:
    async with AsyncExitStack() as stack:
        yield Ends(stack, directory)


def view(broker: Broker) -> LinkView:
    assert broker._bridges is not None
    return broker._bridges.views()[0]


async def until(met: Callable[[], bool], shown: Callable[[], object]) -> None:
    try:
        async with within(PATIENCE):
            while not met():
                await asyncio.sleep(LOOK)
    except TimeoutError:
        raise AssertionError(f"it never came: {shown()}") from None


async def payloads(subscription: Any, number: int) -> list[bytes]:
    return [(await subscription.next_msg(timeout=PATIENCE)).data for _ in range(number)]


async def known(client: Client) -> None:
    """Wait until the server knows the subscriptions. The PING of a flush may overtake the SUB before it."""
    await client.flush()
    await client.flush()
