"""A client that knows several nodes goes to the next one where none answers."""

from __future__ import annotations

import asyncio

from starlingmq import Broker
from starlingmq.client import Client

LISTEN = ["mqtt://127.0.0.1:0"]


async def test_brokers_are_tried_in_turn_until_one_answers() -> None:
    first, second = Broker(listeners=LISTEN), Broker(listeners=LISTEN)
    await first.start()
    await second.start()
    home, other = first.address(), second.address()
    async with Client(home, others=["mqtt://127.0.0.1:1", other], reconnect=True, client_id="it") as client:
        await client.subscribe("a")
        await first.stop()
        await client.publish("a", b"1", qos=1)  # once there is a connection
        assert str(client.endpoint) == other
        async for message in client.messages():
            assert message.payload == b"1"  # subscribed there, too
            break
        first = Broker(listeners=[home])
        await first.start()
        await second.stop()
        assert await asyncio.wait_for(client.publish("a", b"2", qos=1), 30) == 0
        assert str(client.endpoint) == home
    await first.stop()
