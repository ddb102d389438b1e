"""The NATS side: ``python -m starlingmq.demo.nats_workers URL...``: a worker at each node, all members of one queue
group.

A device's message to ``fleet/REGION/DEVICE/route`` is a NATS request, which one member of the group answers. Every
second the process prints a line of JSON with the number of answers and reconnections of each worker.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from typing import Final

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

import nats
from starlingmq.demo.told import WorkersTick

SUBJECT: Final = "fleet.*.*.route"
GROUP: Final = "dispatch"
TICK_SECONDS: Final = 1.0


class DemoWorker:
    def __init__(self, urls: list[str]) -> None:
        self.answered = 0
        self.reconnected = 0
        self._urls = urls  # its own node first
        self._client: Client | None = None

    async def begin(self) -> None:
        self._client = await nats.connect(
            self._urls,
            dont_randomize=True,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,
            reconnected_cb=self._on_reconnected,
            error_cb=self._on_error,
        )
        await self._client.subscribe(SUBJECT, GROUP, cb=self._answer)

    async def end(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _answer(self, request: Msg) -> None:
        if request.reply:
            await request.respond(json.dumps({"route": ["gate", "bridge", "harbour"]}).encode())
            self.answered += 1

    async def _on_reconnected(self) -> None:
        self.reconnected += 1

    async def _on_error(self, error: Exception) -> None:
        """Ignore errors: unreachable nodes are part of the demo."""


async def _run(urls: list[str]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    workers = [DemoWorker([*urls[index:], *urls[:index]]) for index in range(len(urls))]
    for worker in workers:
        await worker.begin()
    while not stop.is_set():
        tick = WorkersTick([each.answered for each in workers], sum(each.reconnected for each in workers))
        print(msgspec.json.encode(tick).decode(), flush=True)
        try:
            async with asyncio.timeout(TICK_SECONDS):
                await stop.wait()
        except TimeoutError:
            continue
    for worker in workers:
        await worker.end()


if __name__ == "__main__":
    logging.getLogger("nats").setLevel(logging.CRITICAL)
    asyncio.run(_run(sys.argv[1:]))
