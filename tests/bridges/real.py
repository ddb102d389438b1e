"""Real ends of bridges: mosquitto and StarlingMQ in processes of their own, brokers inside the test, readers of all.

Each process is on ports of its own, keeps them over restarts, and is ended by its id.
"""

from __future__ import annotations

import asyncio
import getpass
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import pytest
import yaml
from tests.patience import within

from starlingmq import Broker
from starlingmq.bridges.link_view import LinkView
from starlingmq.cli.local_cluster import free_ports
from starlingmq.client import Client, ConnectFailed, ConnectRefused, Message
from starlingmq.client.options import Qos
from starlingmq.config.settings import Config, from_tree
from starlingmq.net.process import ending_with_us

PATIENCE: Final = 20.0
LOOK: Final = 0.01  # between two looks at a process, which reports nothing by itself
MOSQUITTO: Final = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin") or ""
HAS_MOSQUITTO: Final = pytest.mark.skipif(not MOSQUITTO, reason="mosquitto is not installed")


class Running:
    """A broker as a process. ``log`` has what it said in all its lives."""

    def __init__(self, command: list[str], url: str, log: Path) -> None:
        self.command = command
        self.url = url
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        assert self.process is None
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ending_with_us(self.command, signal.SIGKILL), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        async with within(PATIENCE):
            while True:
                assert self.process.poll() is None, self.log.read_text()[-3000:]
                try:
                    async with Client(self.url):
                        return
                except ConnectRefused:
                    return
                except ConnectFailed:
                    pass
                await asyncio.sleep(LOOK)

    async def stop(self, how: int = signal.SIGTERM) -> None:
        if self.process is not None:
            process, self.process = self.process, None
            process.send_signal(how)
            await asyncio.to_thread(process.wait, PATIENCE)

    async def kill(self) -> None:
        await self.stop(signal.SIGKILL)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.kill()


def mosquitto(directory: Path, settings: str = "", listener: str = "allow_anonymous true\n") -> Running:
    """``settings`` and those of its plain ``listener`` are lines of its configuration."""
    if not MOSQUITTO:
        pytest.skip("mosquitto is not installed")
    (port,) = free_ports(1)
    path = directory / "mosquitto.conf"
    path.write_text(
        f"user {getpass.getuser()}\nset_tcp_nodelay true\nlog_type all\nmax_queued_messages 0\n{settings}"
        f"listener {port} 127.0.0.1\n{listener}"
    )
    return Running([MOSQUITTO, "-c", str(path)], f"mqtt://127.0.0.1:{port}", directory / "mosquitto.log")


def kept(directory: Path, more: str = "") -> str:
    """Settings for a mosquitto that keeps its sessions at an orderly end; ``more``: and when else."""
    return f"persistence true\npersistence_location {directory}/\n{more}"


def starlingmq(directory: Path, tree: dict[str, Any]) -> Running:
    """StarlingMQ with these settings, a listener and a data directory."""
    (port,) = free_ports(1)
    path = directory / "starlingmq.yaml"
    tree = {"node": {"name": directory.name, "data_dir": str(directory / "data")}, "log": {"format": "text"}, **tree}
    tree["listeners"] = [f"mqtt://127.0.0.1:{port}"]
    path.write_text(yaml.safe_dump(tree))
    command = [sys.executable, "-m", "starlingmq", "serve", "-c", str(path)]
    return Running(command, f"mqtt://127.0.0.1:{port}", directory / "starlingmq.log")


FROM_BRIDGE: Final = "from the bridge"
TO_BRIDGE: Final = "to the bridge"


class Line:
    """A way to a broker, at ``url``, that can be cut. ``watch(direction, data)`` sees all bytes; false: the line breaks
    before these arrive, and stays broken until ``mend``."""

    def __init__(self, target: str, watch: Callable[[str, bytes], bool] = lambda direction, data: True) -> None:
        self.target = target
        self.watch = watch
        self.url = ""
        self.broken = False
        self.breaks = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"mqtt://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Reset all connections; new ones are accepted."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def mend(self) -> None:
        self.broken = False
        self.breaks.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with suppress(OSError):
            if self.broken:
                raise ConnectionResetError
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", int(self.target.rpartition(":")[2]))
            self._writers.append(far_writer)
            await asyncio.gather(self._copy(FROM_BRIDGE, reader, far_writer), self._copy(TO_BRIDGE, far_reader, writer))
        writer.transport.abort()

    async def _copy(self, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                if not self.watch(direction, data):
                    self.broken = True
                    self.cut()
                    self.breaks.set()
                    return
                writer.write(data)
        writer.transport.abort()


class Reader:
    """Messages of one client, in the order of their arrival."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._messages = client.messages()

    async def take(self, count: int = 1) -> list[Message]:
        found: list[Message] = []
        async with within(PATIENCE):
            while len(found) < count:
                found.append(await anext(self._messages))
        return found

    async def one(self) -> tuple[str, bytes]:
        (message,) = await self.take()
        return message.topic, message.payload

    async def until(self, *payloads: bytes) -> list[Message]:
        """All other messages, until there was one with each of these payloads."""
        found: list[Message] = []
        missing = set(payloads)
        async with within(PATIENCE):
            while missing:
                message = await anext(self._messages)
                if message.payload in payloads:
                    missing.discard(message.payload)
                else:
                    found.append(message)
        return found


@asynccontextmanager
async def reading(url: str, *filters: str, qos: Qos = 2, **fields: Any) -> AsyncIterator[Reader]:
    async with Client(url, **fields) as client:
        for each in filters:
            await client.subscribe(each, qos=qos)
        yield Reader(client)


async def publish(url: str, topic: str, payload: bytes | str = b"", qos: Qos = 1, retain: bool = False) -> None:
    async with Client(url) as client:
        await client.publish(topic, payload, qos=qos, retain=retain)


class Near:
    """A broker inside the test, with its bridges."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.url = broker.address()

    def view(self, name: str = "b") -> LinkView:
        assert self.broker._bridges is not None
        return next(view for view in self.broker._bridges.views() if view.name == name)

    async def until(self, condition: Callable[[LinkView], bool], name: str = "b") -> LinkView:
        async with within(PATIENCE):
            while not condition(self.view(name)):
                await asyncio.sleep(LOOK)
        return self.view(name)

    async def connected(self, name: str = "b") -> LinkView:
        return await self.until(lambda view: view.state == "connected", name)

    def use(self, bridges: Iterable[dict[str, Any]], **sections: Any) -> None:
        self.broker.reload(settings(bridges, **sections))


def settings(bridges: Iterable[dict[str, Any]], **sections: Any) -> Config:
    return from_tree(
        {
            "listeners": ["mqtt://127.0.0.1:0"],
            "node": {"shutdown_timeout": 0.1, **sections.pop("node", {})},
            "bridges": list(bridges),
            **sections,
        }
    )


def bridge(servers: str | list[str], *topics: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The settings of a bridge; its client id is its own, because the other broker outlives the test."""
    urls = [servers] if isinstance(servers, str) else servers
    return {"name": "b", "servers": urls, "topics": list(topics), **more}


Serve = Callable[..., Awaitable[Near]]


@asynccontextmanager
async def serving() -> AsyncIterator[Serve]:
    """Brokers that begin in the block and end with it."""
    async with AsyncExitStack() as stack:

        async def begin(*bridges: dict[str, Any], **sections: Any) -> Near:
            return Near(await stack.enter_async_context(Broker(settings(bridges, **sections))))

        yield begin


def lines_with(log: str, text: str) -> list[str]:
    return [line for line in log.splitlines() if re.search(text, line)]
