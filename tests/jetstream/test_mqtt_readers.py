"""MQTT clients of several makes read streams of a broker in a process of its own, which is killed meanwhile."""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import paho.mqtt.client as paho
import pytest
from nats.js.api import ConsumerConfig, RetentionPolicy
from nats.js.client import JetStreamContext
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from tests.api.providers import free_port
from tests.few import drawn
from tests.patience import within
from tests.peer import Peer

import nats
from starlingmq.client import Client
from starlingmq.client.events import Message
from starlingmq.wire.mqtt import Ack, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL, USER_PROPERTY, Properties

PATIENCE = 60.0

pytestmark = pytest.mark.timeout(300)


class Serving:
    """A broker for MQTT and NATS, on the same ports in each of its lives."""

    def __init__(self, data: Path, *settings: str) -> None:
        self.mqtt, self.nats = f"mqtt://127.0.0.1:{free_port()}", f"nats://127.0.0.1:{free_port()}"
        self.command = [sys.executable, "-m", "starlingmq", "serve", "--data-dir", str(data), *settings]
        self.command += ["--listen", self.mqtt, "--listen", self.nats]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        if not self.process.stdout.readline().startswith("ready"):
            pytest.fail(f"the broker did not start: {self.process.communicate()[1]}")

    def kill(self) -> None:
        self.process.kill()
        said = self.process.communicate(timeout=20)[1]
        assert '"level": "error"' not in said, said

    def resident(self) -> int:
        """Bytes of its memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) << 10

    @asynccontextmanager
    async def jetstream(self) -> AsyncIterator[JetStreamContext]:
        client = await nats.connect(self.nats, allow_reconnect=False)
        try:
            yield client.jetstream(timeout=PATIENCE)
        finally:
            await client.close()


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    found = Serving(tmp_path / "data")
    yield found
    found.kill()


async def fill(broker: Serving, count: int, first: int = 1, padding: bytes = b"") -> None:
    async with Client(broker.mqtt, max_queued=1 << 20) as client:
        for number in range(first, first + count):
            client.publish_soon("t/1", b"%d" % number + padding, 1)
        await client.flush()


async def numbered(client: Client, count: int) -> list[tuple[int, int]]:
    """Payload and offset of the next messages."""
    found: list[tuple[int, int]] = []
    async with within(PATIENCE):
        async for message in client.messages():
            found.append((int(message.payload), offset_of(message)))
            if len(found) == count:
                break
    return found


def offset_of(message: Message) -> int:
    pairs = message.properties[USER_PROPERTY]
    assert isinstance(pairs, list)
    return int(next(pair[1] for pair in pairs if isinstance(pair, tuple) and pair[0] == "offset"))


@pytest.mark.parametrize("qos", [1, 2])
async def test_each_message_arrives_in_a_session_whose_broker_is_killed(broker: Serving, qos: Literal[1, 2]) -> None:
    async with broker.jetstream() as js:
        await js.add_stream(name="S", subjects=["t.>"])
    await fill(broker, 1000)
    reader = Client(broker.mqtt, client_id="r", session_expiry=3600, receive_maximum=20, reconnect=True)
    found: list[int] = []
    async with reader, within(PATIENCE):
        assert await reader.subscribe("$stream/S/t/+", qos, {USER_PROPERTY: [("earliest", "")]}) == [qos]
        async for message in reader.messages():
            assert offset_of(message) == int(message.payload)
            found.append(offset_of(message))
            if len(found) in (200, 600):
                broker.kill()
                broker.start()
            if found[-1] == 1000:
                break
    if qos == 2:
        assert found == list(range(1, 1001))
    else:
        assert sorted(set(found)) == list(range(1, 1001))
        assert len(found) <= 1000 + 2 * 20  # those that were unacknowledged came again


@pytest.mark.timeout(600)
@drawn(1000, 100_000)
async def test_reading_takes_no_more_memory_than_the_window(broker: Serving, examples: int) -> None:
    async with broker.jetstream() as js:
        await js.add_stream(name="S", subjects=["t.>"])
    padding = b" " * (50_000_000 // examples if examples < 10_000 else 10)  # more than may be taken, in any case
    await fill(broker, examples, padding=padding)
    before = broker.resident()
    highest = 0
    async with Client(broker.mqtt, receive_maximum=10) as reader, within(500.0):
        await reader.subscribe("$stream/S", 1, {USER_PROPERTY: [("earliest", "")]})
        expected = 0
        async for message in reader.messages():
            expected += 1
            assert (int(message.payload), offset_of(message)) == (expected, expected)
            if expected % (examples // 20) == 0:
                highest = max(highest, broker.resident())
            if expected == examples:
                break
    assert highest - before < 16 << 20, "the window is ten messages"


async def test_a_session_goes_on_after_reconnects_and_restarts(broker: Serving) -> None:
    async with broker.jetstream() as js:
        await js.add_stream(name="S", subjects=["t.>"])
    await fill(broker, 10)
    start: Properties = {USER_PROPERTY: [("offset", "4")]}
    async with Client(broker.mqtt, client_id="r", clean_start=False, session_expiry=3600) as reader:
        await reader.subscribe("$stream/S", 2, start)
        assert await numbered(reader, 7) == [(number, number) for number in range(4, 11)]
    broker.process.terminate()
    broker.process.communicate(timeout=20)
    broker.start()
    await fill(broker, 5, 11)
    async with Client(broker.mqtt, client_id="r", clean_start=False, session_expiry=3600) as reader:
        await reader.subscribe("$stream/S", 2, start)  # as programs do at each start
        assert await numbered(reader, 5) == [(number, number) for number in range(11, 16)]
        assert await reader.unsubscribe("$stream/S") == [0]
        await reader.subscribe("$stream/S", 2, start)
        assert (await numbered(reader, 1))[0] == (4, 4)


async def test_headers_of_nats_and_messages_of_mqtt_are_in_one_sequence(broker: Serving) -> None:
    async with broker.jetstream() as js:
        await js.add_stream(name="S", subjects=["t.>"])
        await js.publish("t.a.b", b"1", headers={"Kind": "x", "Nats-Msg-Id": "7"})
        async with Client(broker.mqtt) as client:
            await client.publish("t/c", b"2", 1, properties={USER_PROPERTY: [("Kind", "y")]})
            await client.subscribe("$stream/S@earliest", 1)
            first, second = [message async for message in _next(client, 2)]
    assert (first.topic, first.payload, first.qos) == ("t/a/b", b"1", 1)
    assert first.properties[USER_PROPERTY] == [("offset", "1"), ("Kind", "x"), ("Nats-Msg-Id", "7")]
    assert (second.topic, second.properties[USER_PROPERTY]) == ("t/c", [("offset", "2"), ("Kind", "y")])


async def _next(client: Client, count: int) -> AsyncIterator[Message]:
    async with within(PATIENCE):
        async for message in client.messages():
            yield message
            count -= 1
            if count == 0:
                return


@pytest.mark.parametrize("version", [4, 5])
async def test_paho_reads_a_stream(broker: Serving, version: int) -> None:
    async with broker.jetstream() as js:
        await js.add_stream(name="S", subjects=["t.>"])
    await fill(broker, 100)
    got: queue.Queue[int] = queue.Queue()
    client = paho.Client(CallbackAPIVersion.VERSION2, "p", protocol=MQTTProtocolVersion(version))
    client.on_message = lambda _client, _data, message: got.put(int(message.payload))
    host, _, port = broker.mqtt.removeprefix("mqtt://").partition(":")

    def read() -> list[int]:
        properties = None
        filter = "$stream/S@offset=51/t/#"
        if version == 5:
            filter = "$stream/S/t/#"
            properties = PahoProperties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
            properties.UserProperty = [("offset", "51")]
        client.connect(host, int(port))
        client.loop_start()
        client.subscribe(filter, 2, properties=properties)
        try:
            return [got.get(timeout=PATIENCE) for _ in range(50)]
        finally:
            client.disconnect()
            client.loop_stop()

    assert await asyncio.to_thread(read) == list(range(51, 101))


async def test_a_group_of_sessions_divides_a_stream_while_its_broker_is_killed(broker: Serving) -> None:
    async with broker.jetstream() as js:
        await js.add_stream(name="S", subjects=["t.>"])
    await fill(broker, 1000)
    found: list[list[int]] = [[], []]
    done = asyncio.Event()

    async def work(number: int) -> None:
        client = Client(broker.mqtt, client_id=f"m{number}", session_expiry=3600, receive_maximum=10, reconnect=True)
        async with client:
            await client.subscribe("$share/g/$stream/S", 2, {USER_PROPERTY: [("earliest", "")]})
            async for message in client.messages():
                found[number].append(offset_of(message))
                if len(found[0]) + len(found[1]) == 1000:
                    done.set()

    async with within(PATIENCE), asyncio.TaskGroup() as tasks:
        workers = [tasks.create_task(work(number)) for number in range(2)]
        while len(found[0]) + len(found[1]) < 350:
            await asyncio.sleep(0.01)
        broker.kill()
        broker.start()
        await done.wait()
        for worker in workers:
            worker.cancel()
    assert sorted(found[0] + found[1]) == list(range(1, 1001))
    assert min(len(found[0]), len(found[1])) > 20


async def test_a_work_queue_is_a_consumer_that_nats_sees_and_changes(broker: Serving) -> None:
    async with broker.jetstream() as js:
        await js.add_stream(name="S", subjects=["t.>"], retention=RetentionPolicy.WORK_QUEUE)
        await js.add_stream(name="DEAD", subjects=["$dead.S.>"])
        await fill(broker, 20)
        member = await Peer.connect(broker.mqtt, "m", properties={RECEIVE_MAXIMUM: 5})
        assert await member.subscribe("$queue/S", qos=1) == [1]
        for number in range(1, 20):
            assert (await member.message()).payload == b"%d" % number
        info = await js.consumer_info("S", "mqtt-queue")
        assert (info.config.max_deliver, info.config.ack_wait) == (5, 30.0)
        info.config.max_deliver = 2
        info.config.ack_wait = 1.0
        await js.add_consumer("S", info.config)
        bad = await member.expect(Publish)  # not acknowledged
        again = await member.expect(Publish)
        assert (bad.payload, again.payload) == (b"20", b"20")
        letters = await js.pull_subscribe("$dead.S.>", "letters", stream="DEAD")
        [letter] = await letters.fetch(1, timeout=PATIENCE)
        assert (letter.subject, letter.data) == ("$dead.S.t.1", b"20")
        assert letter.headers is not None and letter.headers["deliveries"] == "2"
        assert (await js.stream_info("S")).state.messages == 0
        await member.close()


async def test_a_filtered_queue_and_a_nats_worker_share_a_consumer(broker: Serving) -> None:
    async with broker.jetstream() as js:
        await js.add_stream(name="S", subjects=["t.>"])
        async with Client(broker.mqtt, receive_maximum=1) as member:
            await member.subscribe("$queue/S/t/#", 1)
            [name] = [info.name for info in await js.consumers_info("S")]
            assert name.startswith("mqtt-queue-t_")
            pull = await js.pull_subscribe_bind(name, "S")
            fetching = asyncio.create_task(pull.fetch(5, timeout=PATIENCE))
            await js.consumer_info("S", name)  # the request was received
            await fill(broker, 20)
            mine = [int(message.data) for message in await fetching]
            theirs = [number for number, _ in await numbered(member, 15)]
            assert sorted(mine + theirs) == list(range(1, 21))
        broker.kill()
        broker.start()
    async with broker.jetstream() as js:
        info = await js.consumer_info("S", name)
        assert isinstance(info.config, ConsumerConfig) and info.config.max_deliver == 5


async def test_a_deleted_consumer_or_stream_ends_the_subscriptions_to_it(broker: Serving) -> None:
    async with broker.jetstream() as js:
        await js.add_stream(name="S", subjects=["t.>"])
        peer = await Peer.connect(broker.mqtt, "p", properties={SESSION_EXPIRY_INTERVAL: 3600})
        assert await peer.subscribe("$queue/S", "$stream/S", qos=1) == [1, 1]
        assert await js.delete_consumer("S", "mqtt-queue")
        await fill(broker, 1)
        assert (await peer.message()).payload == b"1"  # by $stream, once
        assert await js.delete_stream("S")
        await js.add_stream(name="S", subjects=["t.>"])
        await fill(broker, 1, 2)
        peer.send(Subscribe(2, [SubscribeRequest(b"$stream/S", 1)]))
        await peer.expect(Suback)
        await fill(broker, 1, 3)
        assert (await peer.message()).payload == b"3"
        await peer.close()


async def test_a_stranger_is_told_why(broker: Serving) -> None:
    peer = await Peer.connect(broker.mqtt, "stranger")
    for filter in (b"$stream/none", b"$queue/none", b"$stream/a@b=c/d", b"$stream//x", b"$share/g/$stream/none/#"):
        peer.send(Subscribe(1, [SubscribeRequest(filter, 1)], {USER_PROPERTY: [("offset", "x" * 1000)]}))
        assert (await peer.expect(Suback)).reasons == [0x8F]
    assert await peer.publish("$stream/none", qos=1) == 0x87
    peer.send(Ack(4, 7))  # of nothing
    assert await peer.publish("t", qos=1) in (0, 0x10)
    await peer.close()
