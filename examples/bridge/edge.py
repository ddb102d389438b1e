"""Two brokers, a bridge between them, and a line that is cut again and again: each message arrives once.

The edge box publishes all the time. While the line is cut, its messages wait; then they go on where they stopped.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from urllib.parse import urlsplit

import starlingmq
from starlingmq.client import Client

MESSAGES = 300
CUTS = 3


class Line:
    """Relays TCP connections to a broker, until it is cut."""

    def __init__(self, url: str) -> None:
        self.to = urlsplit(url)
        self.port = 0
        self.server: asyncio.Server | None = None
        self.ends: set[asyncio.StreamWriter] = set()
        self.used = asyncio.Event()

    async def mend(self) -> None:
        self.server = await asyncio.start_server(self.carry, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """As soon as there is a connection."""
        assert self.server is not None
        await self.used.wait()
        self.used.clear()
        self.server.close()
        for end in self.ends:
            end.transport.abort()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self.to.hostname, self.to.port)
        self.ends |= {writer, far_writer}
        self.used.set()
        await asyncio.gather(self.copy(reader, far_writer), self.copy(far_reader, writer))
        self.ends -= {writer, far_writer}

    async def copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # the line was cut
        finally:
            writer.close()


def edge(url: str, directory: str) -> starlingmq.Broker:
    return starlingmq.Broker(
        listeners=["mqtt://127.0.0.1:0"],
        node={"name": "edge", "data_dir": directory},
        bridges=[{"name": "hub", "servers": [url], "topics": [{"filter": "sensors/#", "remote_prefix": "sites/7/"}]}],
    )


async def publish(box: Client) -> None:
    for number in range(MESSAGES):
        await box.publish("sensors/t1", str(number), qos=2)


async def cut_and_mend(line: Line) -> None:
    for _ in range(CUTS):
        await line.cut()
        await asyncio.sleep(0.2)
        await line.mend()


async def main() -> Counter[str]:
    """Return how often each message arrived."""
    arrived: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as directory:
        async with starlingmq.Broker(listeners=["mqtt://127.0.0.1:0"], node={"name": "hub"}) as hub:
            line = Line(hub.address())
            await line.mend()
            async with (
                edge(f"mqtt://127.0.0.1:{line.port}", directory) as box,
                Client(box.address()) as device,
                Client(box.address()) as watcher,
                Client(hub.address()) as reader,
            ):
                await reader.subscribe("sites/7/#", qos=2)
                await watcher.subscribe("$SYS/broker/connection/hub/state")
                while (await anext(watcher.messages())).payload != b"1":
                    pass  # messages wait for a bridge from its first connection on
                work = asyncio.gather(publish(device), cut_and_mend(line))
                async for message in reader.messages():
                    arrived[message.payload.decode()] += 1
                    if len(arrived) == MESSAGES:
                        break
                await work
            await line.cut()
    return arrived


if __name__ == "__main__":
    found = asyncio.run(main())
    twice = sum(count > 1 for count in found.values())
    print(f"the line was cut {CUTS} times: {len(found)} of {MESSAGES} messages arrived, {twice} of them twice")
