"""A microservice with nats-py's framework for services: ``python service.py URL``."""

from __future__ import annotations

import asyncio
import signal
import sys

from nats.aio.client import Client
from nats.micro import add_service
from nats.micro.request import Request
from nats.micro.service import Service

import nats

GROUP = "converters"


async def fahrenheit(request: Request) -> None:
    try:
        celsius = float(request.data)
    except ValueError:
        await request.respond_error("400", "that is no number")
        return
    await request.respond(f"{celsius * 9 / 5 + 32:g}".encode())


async def serve(client: Client) -> Service:
    service = await add_service(client, name="converter", version="1.0.0")
    await service.add_endpoint(name="celsius", subject="convert.celsius", handler=fahrenheit, queue_group=GROUP)
    return service


async def main(url: str) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    client = await nats.connect(url)
    service = await serve(client)
    await client.flush()
    print("ready", flush=True)
    await stop.wait()
    await service.stop()
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
