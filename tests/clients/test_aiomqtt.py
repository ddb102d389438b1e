"""aiomqtt, the asyncio client, against a broker in its own process."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

import pytest
from aiomqtt import Client, MqttError, ProtocolVersion, Will
from tests.patience import within

from .conftest import ServedBroker

pytestmark = pytest.mark.slow

VERSIONS = pytest.mark.parametrize("version", list(ProtocolVersion), ids=lambda version: version.name)


def client(broker: ServedBroker, version: ProtocolVersion, name: str, **options: object) -> Client:
    settings: dict[str, object] = {"port": broker.port("mqtt"), "protocol": version, "identifier": name, **options}
    return Client("127.0.0.1", **settings)  # type: ignore[arg-type]


async def payloads(from_: Client, number: int) -> list[bytes]:
    """Of the next messages."""
    async with within(20):
        return [bytes((await anext(from_.messages)).payload) for _ in range(number)]


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_every_qos_in_order(broker: ServedBroker, version: ProtocolVersion, qos: int) -> None:
    topic = f"aio/{version.name}/{qos}"
    async with client(broker, version, "a") as receiver, client(broker, version, "b") as sender:
        await receiver.subscribe(topic, qos)
        for number in range(100):
            await sender.publish(topic, str(number), qos)
        assert await payloads(receiver, 100) == [b"%d" % number for number in range(100)]


@VERSIONS
async def test_many_at_once(broker: ServedBroker, version: ProtocolVersion) -> None:
    topic = f"many/{version.name}"
    async with client(broker, version, "all") as receiver:
        await receiver.subscribe(f"{topic}/#", 1)

        async def one(number: int) -> None:
            async with client(broker, version, f"one{number}") as sender:
                await sender.publish(f"{topic}/{number}", str(number), 1)

        await asyncio.gather(*(one(number) for number in range(50)))
        assert sorted(map(int, await payloads(receiver, 50))) == list(range(50))


@VERSIONS
async def test_retained_and_will(broker: ServedBroker, version: ProtocolVersion) -> None:
    topic = f"state/{version.name}"
    async with client(broker, version, "first") as first:
        await first.publish(topic, "on", 1, retain=True)
    async with client(broker, version, "watch") as watcher:
        await watcher.subscribe(topic, 1)
        message = await anext(watcher.messages)
        assert (message.payload, message.retain) == (b"on", True)
        with suppress(MqttError):  # which says that the connection was lost
            doomed, heir = client(broker, version, "same", will=Will(topic, "lost", 1)), client(broker, version, "same")
            async with doomed, heir:  # the heir takes the client id over, so that the will is due
                assert await payloads(watcher, 1) == [b"lost"]


async def test_tls(broker: ServedBroker) -> None:
    context = ssl.create_default_context(cafile=str(broker.ca))
    async with Client("localhost", broker.port("mqtts"), tls_context=context) as one:
        await one.subscribe("tls", 2)
        await one.publish("tls", "secret", 2)
        assert await payloads(one, 1) == [b"secret"]


async def test_a_refusal_is_understood(broker: ServedBroker) -> None:
    async with client(broker, ProtocolVersion.V5, "c") as one:
        with pytest.raises((MqttError, ValueError)):
            await one.publish("no/#/topic", "x", 1)
