"""SIGUSR2 at a single broker: the lame duck mode of nats-server, in a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from urllib.parse import urlsplit

from tests.patience import within

CLIENTS = 5
PATIENCE = 30.0


async def test_sigusr2_closes_nats_clients_one_after_the_other_and_ends_the_broker() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "starlingmq", "serve", "--listen", "nats://127.0.0.1:0"),
        *("--set", "nats.lame_duck_duration=500ms"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with within(PATIENCE):
            assert process.stdout is not None
            url = urlsplit((await process.stdout.readline()).split()[1].decode())
            ended: list[int] = []

            async def client(number: int, connected: asyncio.Event) -> None:
                reader, writer = await asyncio.open_connection(url.hostname, url.port)
                await reader.readline()
                writer.write(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n')
                assert await reader.readline() == b"PONG\r\n"
                connected.set()
                info = await reader.readline()
                assert json.loads(info.removeprefix(b"INFO "))["ldm"] is True
                assert await reader.read() == b""
                ended.append(number)
                writer.close()

            tasks = []
            for number in range(CLIENTS):
                connected = asyncio.Event()
                tasks.append(asyncio.create_task(client(number, connected)))
                await connected.wait()
            process.send_signal(signal.SIGUSR2)
            await asyncio.gather(*tasks)
            assert ended == list(range(CLIENTS)), "the oldest first"
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
