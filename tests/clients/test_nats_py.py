"""nats-py against a broker in its own process, and beside MQTT clients of the same broker."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiomqtt import Client as MqttClient
from aiomqtt import ProtocolVersion
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import MaxPayloadError, NoRespondersError
from nats.js.api import StorageType
from tests.patience import within

import nats
from starlingmq import Broker
from starlingmq.hooks import Access, AuthRequest

from .conftest import ServedBroker

pytestmark = pytest.mark.slow

PATIENCE = 20.0
LOCAL = ["nats://127.0.0.1:0"]


@asynccontextmanager
async def connected(address: str, **options: Any) -> AsyncIterator[Client]:
    options.setdefault("allow_reconnect", False)
    client = await nats.connect(address, connect_timeout=PATIENCE, **options)
    try:
        yield client
    finally:
        if not client.is_closed:
            await client.close()


async def payloads(subscription: Any, number: int) -> list[bytes]:
    return [(await subscription.next_msg(timeout=PATIENCE)).data for _ in range(number)]


async def test_a_stream_is_published_to_and_read(broker: ServedBroker) -> None:
    async with connected(broker.address("nats")) as client:
        stream = client.jetstream(timeout=PATIENCE)
        await stream.add_stream(name="orders", subjects=["orders.>"], storage=StorageType.MEMORY)
        assert (await stream.publish("orders.new", b"one")).seq == 1
        reader = await stream.pull_subscribe("orders.>", durable="worker")
        (message,) = await reader.fetch(1, timeout=PATIENCE)
        assert (message.subject, message.data, message.metadata.sequence.stream) == ("orders.new", b"one", 1)
        await message.ack_sync(timeout=PATIENCE)


async def test_messages_in_order_to_every_subscription_that_matches(broker: ServedBroker) -> None:
    address = broker.address("nats")
    async with connected(address) as receiver, connected(address) as sender:
        wanted = [await receiver.subscribe(f"py.{subject}") for subject in ("one.two", "*.two", ">", "one.>")]
        other = await receiver.subscribe("py.one")
        await receiver.flush()
        numbers = [b"%d" % number for number in range(1000)]
        for number in numbers:
            await sender.publish("py.one.two", number)
        await sender.publish("py.one", b"!")
        for subscription in wanted:
            assert await payloads(subscription, 1000) == numbers
        assert await payloads(other, 1) == [b"!"]


async def test_requests(broker: ServedBroker) -> None:
    address = broker.address("nats")
    async with connected(address) as asking, connected(address) as answering:

        async def double(message: Msg) -> None:
            await message.respond(b"%d" % (int(message.data) * 2))

        await answering.subscribe("py.double", cb=double)
        await answering.flush()
        answers = await asyncio.gather(
            *(asking.request("py.double", b"%d" % number, timeout=PATIENCE) for number in range(200))
        )
        assert [int(answer.data) for answer in answers] == [number * 2 for number in range(200)]
        old = await asking.request("py.double", b"21", timeout=PATIENCE, old_style=True)
        assert old.data == b"42"
        with pytest.raises(NoRespondersError):
            await asking.request("py.nobody", b"", timeout=PATIENCE)


async def test_many_answers_to_one_request(broker: ServedBroker) -> None:
    address = broker.address("nats")
    async with connected(address) as asking, connected(address) as one, connected(address) as two:
        for name, answering in ((b"one", one), (b"two", two)):

            async def answer(message: Msg, name: bytes = name) -> None:
                await message.respond(name)

            await answering.subscribe("py.all", cb=answer)
            await answering.flush()
        inbox = asking.new_inbox()
        answers = await asking.subscribe(inbox)
        await asking.publish("py.all", b"?", reply=inbox)
        assert sorted(await payloads(answers, 2)) == [b"one", b"two"]


async def test_headers(broker: ServedBroker) -> None:
    async with connected(broker.address("nats")) as client:
        subscription = await client.subscribe("py.headers")
        await client.publish("py.headers", b"x", headers={"A": "b", "Trace-Id": "1: 2"})
        await client.publish("py.headers", b"y")
        message = await subscription.next_msg(timeout=PATIENCE)
        assert message.headers == {"A": "b", "Trace-Id": "1: 2"}
        assert (await subscription.next_msg(timeout=PATIENCE)).headers is None


async def test_a_queue_is_balanced(broker: ServedBroker) -> None:
    address = broker.address("nats")
    async with connected(address) as one, connected(address) as two, connected(address) as sender:
        got: Counter[str] = Counter()
        everything = asyncio.Event()

        def member(name: str) -> Any:
            async def take(message: Msg) -> None:
                got[name] += 1
                if got.total() == 2000:
                    everything.set()

            return take

        for name, client in (("a", one), ("b", one), ("c", two), ("d", two)):
            await client.subscribe("py.jobs", queue="workers", cb=member(name))
        await one.flush()
        await two.flush()
        for number in range(2000):
            await sender.publish("py.jobs", b"%d" % number)
        async with within(PATIENCE):
            await everything.wait()
        assert sorted(got) == ["a", "b", "c", "d"]
        assert max(got.values()) < 1.3 * 500


async def test_drain_delivers_what_was_sent_before(broker: ServedBroker) -> None:
    address = broker.address("nats")
    async with connected(address) as receiver, connected(address) as sender:
        got: list[bytes] = []

        async def take(message: Msg) -> None:
            got.append(message.data)

        subscription = await receiver.subscribe("py.drain", cb=take)
        await receiver.flush()
        for number in range(500):
            await sender.publish("py.drain", b"%d" % number)
        await sender.flush()
        await subscription.drain()  # type: ignore[no-untyped-call]
        await sender.publish("py.drain", b"too late")
        await receiver.drain()
        assert receiver.is_closed
        assert got == [b"%d" % number for number in range(500)]


async def test_unsubscribing_after_some(broker: ServedBroker) -> None:
    async with connected(broker.address("nats")) as client:
        subscription = await client.subscribe("py.some")
        await subscription.unsubscribe(limit=3)
        every = await client.subscribe("py.some")
        for number in range(5):
            await client.publish("py.some", b"%d" % number)
        assert await payloads(every, 5) == [b"0", b"1", b"2", b"3", b"4"]
        assert await payloads(subscription, 3) == [b"0", b"1", b"2"]
        assert subscription.pending_msgs == 0


async def test_large_payloads(broker: ServedBroker) -> None:
    async with connected(broker.address("nats")) as client:
        assert client.max_payload == 1024 * 1024
        subscription = await client.subscribe("py.large")
        payload = bytes(range(256)) * 4096
        await client.publish("py.large", payload)
        assert await payloads(subscription, 1) == [payload]
        with pytest.raises(MaxPayloadError):
            await client.publish("py.large", payload + b"x")


async def test_tls(broker: ServedBroker) -> None:
    context = ssl.create_default_context(cafile=str(broker.ca))
    address = f"tls://localhost:{broker.port('tls')}"
    async with connected(address, tls=context) as client:
        subscription = await client.subscribe("py.tls")
        payload = b"x" * 1_000_000
        await client.publish("py.tls", payload)
        await client.publish("py.tls", b"end")
        assert await payloads(subscription, 2) == [payload, b"end"]


@pytest.mark.parametrize("version", list(ProtocolVersion), ids=lambda version: version.name)
async def test_beside_mqtt(broker: ServedBroker, version: ProtocolVersion) -> None:
    name = version.name
    async with (
        connected(broker.address("nats")) as client,
        MqttClient("127.0.0.1", broker.port("mqtt"), protocol=version, identifier=f"beside{name}") as mqtt,
    ):
        subscription = await client.subscribe(f"up.{name}.*")
        await client.flush()
        await mqtt.subscribe(f"down/{name}/#", 1)
        for number in range(100):
            await mqtt.publish(f"up/{name}/x.y", b"%d" % number, qos=number % 3)
            await client.publish(f"down.{name}.x/y", b"%d" % number)
        async with within(PATIENCE):
            down = [await anext(mqtt.messages) for _ in range(100)]
        assert [message.payload for message in down] == [b"%d" % number for number in range(100)]
        assert {str(message.topic) for message in down} == {f"down/{name}/x.y"}
        up = [await subscription.next_msg(timeout=PATIENCE) for _ in range(100)]
        assert sorted(int(message.data) for message in up) == list(range(100))
        assert {message.subject for message in up} == {f"up.{name}.x/y"}


async def test_reconnecting_to_a_broker_that_was_restarted() -> None:
    lost, found = asyncio.Event(), asyncio.Event()

    async def disconnected() -> None:
        lost.set()

    async def reconnected() -> None:
        found.set()

    async with Broker(listeners=LOCAL) as first:
        address = first.address("nats")
        client = await nats.connect(
            address, reconnect_time_wait=0.05, disconnected_cb=disconnected, reconnected_cb=reconnected
        )
        subscription = await client.subscribe("a.*")
        await client.flush()
    async with within(PATIENCE), Broker(listeners=[address]):
        await lost.wait()
        await found.wait()
        await client.publish("a.b", b"again")
        assert await payloads(subscription, 1) == [b"again"]
        await client.close()


async def test_credentials_and_permissions() -> None:
    def authenticate(request: AuthRequest) -> bool:
        return (request.username, request.password) in (("ann", b"secret"), (None, b"token"))

    def authorize(access: Access) -> bool:
        return access.topic.startswith("ann/") or access.topic.startswith("_INBOX/")

    errors: asyncio.Queue[Exception] = asyncio.Queue()

    async def failed(error: Exception) -> None:
        errors.put_nowait(error)

    async with Broker(listeners=LOCAL, authenticate=authenticate, authorize=authorize) as broker:
        address = broker.address("nats")
        async with connected(address, token="token") as client:
            await client.flush()
        for wrong in ({"user": "ann", "password": "wrong"}, {"token": "x"}, {}):
            client = Client()
            with pytest.raises(Exception, match=r"(?i)authorization violation"):
                await client.connect(address, allow_reconnect=False, error_cb=failed, **wrong)  # type: ignore[arg-type]
            assert client._transport is not None  # which it leaves open
            client._transport.close()  # type: ignore[no-untyped-call]
            await client._transport.wait_closed()  # type: ignore[no-untyped-call]
        async with connected(address, user="ann", password="secret", error_cb=failed) as client:
            subscription = await client.subscribe("ann.x")
            await client.publish("ann.x", b"mine")
            assert await payloads(subscription, 1) == [b"mine"]
            while not errors.empty():
                errors.get_nowait()
            await client.subscribe("ben.x")
            await client.publish("ben.x", b"his")
            async with within(PATIENCE):
                said = [str(await errors.get()) for _ in range(2)]
            assert 'permissions violation for subscription to "ben.x"' in said[0]
            assert 'permissions violation for publish to "ben.x"' in said[1]
            await client.publish("ann.x", b"still")
            assert await payloads(subscription, 1) == [b"still"]
