"""Publishers that go on through a disk that runs full, is emptied, and a broker that dies in between, by chance: what
was acknowledged arrives everywhere, QoS 2 once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from tests.patience import slowness
from tests.storage.killing import Server
from tests.storage.small_disk import SmallDisk, small_disk
from tests.storage.test_full_disk import MEGABYTES

from starlingmq.client import Client, ClientError, PublishFailed
from starlingmq.client.options import QOS

ROUNDS = 3
PATIENCE = 60.0


async def connect(url: str, client_id: str, version: int = 5) -> Client:
    """A persistent session that reconnects by itself; it is refused while the disk is full."""
    expiry = 3600 if version == 5 else 0
    while True:
        client = Client(
            url, client_id=client_id, version=version, clean_start=False, reconnect=True, session_expiry=expiry
        )
        try:
            await client.connect()
        except ClientError:
            await asyncio.sleep(0.1)  # as any refused client would
        else:
            return client


class Filling:
    def __init__(self, disk: SmallDisk, server: Server, seed: int) -> None:
        self.disk = disk
        self.server = server
        self.url = f"mqtt://127.0.0.1:{server.port}"
        self.random = Random(seed)
        self.taken: dict[bytes, int] = {}  # payload -> QoS, of what was acknowledged
        self.refusals = 0
        self.over = False

    async def write(self, name: str, qos: int, version: int) -> None:
        client = await connect(self.url, name, version)
        number = 0
        while not self.over:
            number += 1
            payload = b"%s %d " % (name.encode(), number) + bytes(self.random.choice((10, 2000)))
            while True:
                try:
                    await client.publish(f"t/{name}", payload, QOS[qos])
                except PublishFailed as error:
                    assert error.reason == 0x97
                    self.refusals += 1
                    await asyncio.sleep(0.05)
                else:
                    self.taken[payload] = qos
                    break
        await client.disconnect()

    async def read(self, client: Client, got: Counter[bytes], complete: asyncio.Event) -> None:
        async for message in client.messages():
            got[message.payload] += 1
            if self.over and got.keys() >= self.taken.keys():
                complete.set()

    async def run(self) -> None:
        readers = [await connect(self.url, f"reader{qos}") for qos in (1, 2)]
        for qos, client in enumerate(readers, 1):
            await client.subscribe("#", QOS[qos])
        got = [Counter[bytes](), Counter[bytes]()]
        complete = [asyncio.Event(), asyncio.Event()]
        async with asyncio.TaskGroup() as group:
            reading = [group.create_task(self.read(*each)) for each in zip(readers, got, complete, strict=True)]
            writing = [group.create_task(self.write(f"w{n}", 1 + n % 2, 4 + n // 2)) for n in range(4)]
            for number in range(ROUNDS):
                await self.round(number == 1)
            self.over = True
            await asyncio.wait(writing)
            last = await connect(self.url, "last")
            await last.publish("t/last", b"last", 1)  # so that the readers look once more
            for event in complete:
                await event.wait()
            for task in reading:
                task.cancel()
            for client in (*readers, last):
                await client.disconnect()
        assert self.refusals
        assert not [payload[:9] for payload, qos in self.taken.items() if qos == 2 and got[1][payload] != 1]

    async def round(self, deadly: bool) -> None:
        await asyncio.sleep(self.random.uniform(0.2, 0.6))  # nothing to wait for: any moment is right
        await asyncio.to_thread(self.disk.fill)
        await asyncio.sleep(self.random.uniform(0.3, 1.0))
        if deadly:
            await asyncio.to_thread(self.server.kill)
        self.disk.free()
        if deadly:
            await asyncio.to_thread(self.server.start)


@pytest.mark.parametrize(
    ("journal", "durability"), [("segment", "power"), pytest.param("rocksdb", "process", marks=pytest.mark.long)]
)
@pytest.mark.long(kept="tests/storage/test_full_disk.py")
def test_publishers_go_on_through_a_disk_that_runs_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, journal: str, durability: str
) -> None:
    caplog.set_level(logging.ERROR, "starlingmq.client")  # it tells of each attempt to come back
    with small_disk(tmp_path / "disk", MEGABYTES[journal]) as disk:
        server = Server(str(disk.path / "data"), journal, durability)
        try:
            asyncio.run(asyncio.wait_for(Filling(disk, server, seed=7).run(), PATIENCE * slowness()))
        finally:
            server.kill()
        logged = server.logged()
        server.log.close()
    assert "Traceback" not in logged and "lost" not in logged, logged
