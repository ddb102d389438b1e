"""Bridges to a real Kafka: both ways, through kills of either side."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from starlingmq.cli.local_cluster import free_port
from starlingmq.client import Client, Message
from starlingmq.wire.properties import CONTENT_TYPE, CORRELATION_DATA, RESPONSE_TOPIC, USER_PROPERTY
from tests.cli.test_storage_commands import Serving
from tests.lake.services import CLUSTER_ID, Kafka, ran
from tests.lake.session import LAKE
from tests.patience import slowness, within

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PATIENCE = 20.0
KAFKA_AWAY = 20.0  # seconds, in place of an hour


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[Kafka]:
    """One that may be killed."""
    running = Kafka(tmp_path / "kafka", LAKE)
    yield running
    running.kill()


class SecureKafka(Kafka):
    """With a second listener, for TLS and a login."""

    SECRET = "no secret"

    def prepare(self) -> None:
        super().prepare()
        ca = trustme.CA()
        ca.cert_pem.write_to_path(self.ca)
        issued = ca.issue_cert("127.0.0.1")
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        store = self.directory / "server.pem"
        store.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        issued.cert_chain_pems[0].write_to_path(store, append=True)
        self.secure_port = free_port()
        modules = "org.apache.kafka.common.security"
        text = self._settings.read_text()
        for line in ("\nlisteners=", "\nadvertised.listeners="):
            text = text.replace(line, f"{line}SASL_SSL://127.0.0.1:{self.secure_port},")
        self._settings.write_text(
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL\n"
            f"{text}ssl.keystore.type=PEM\nssl.keystore.location={store}\n"
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512\nlistener.name.sasl_ssl.plain.sasl.jaas.config="
            f'{modules}.plain.PlainLoginModule required user_bridge="{self.SECRET}";\n'
            f"listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={modules}.scram.ScramLoginModule required;\n"
        )
        shutil.rmtree(self.directory / "data")
        scram = f"SCRAM-SHA-512=[name=bridge,password={self.SECRET}]"
        tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._settings), "--add-scram", scram]
        ran(*self._java, *tool)

    @property
    def ca(self) -> Path:
        return self.directory / "ca.pem"


class BridgedBroker:
    """A broker in a process, with bridges. It is killed and started again at the same places."""

    def __init__(self, data: Path, kafka: Kafka, topics: list[dict[str, Any]], **more: Any) -> None:
        bridge = {"name": "k", "servers": [f"kafka://{kafka.servers}"], "topics": topics} | more
        self.data = data
        self.url = f"mqtt://127.0.0.1:{free_port()}"
        self.settings = ["--set", f"bridges={json.dumps([bridge])}", "--set", "mqtt.max_mqueue_len=0"]
        self.serving = Serving(self.data, *self.settings, listen=self.url)

    def kill(self) -> None:
        self.serving.kill()

    def start(self) -> None:
        self.serving = Serving(self.data, *self.settings, listen=self.url)

    def __enter__(self) -> BridgedBroker:
        return self

    def __exit__(self, *error: object) -> None:
        self.serving.kill()


def make_topic(kafka: Kafka, name: str, partitions: int = 3, settings: dict[str, str] | None = None) -> None:
    client = admin.AdminClient({"bootstrap.servers": kafka.servers})
    for future in client.create_topics([admin.NewTopic(name, partitions, 1, config=settings or {})]).values():
        future.result(PATIENCE)


def records(kafka: Kafka, topic: str, count: int) -> list[Any]:
    """At least so many records of a topic, and all that come within a second more, in the order of each partition."""
    reader = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka.servers, "group.id": "test", "auto.offset.reset": "earliest"}
    )
    numbers = reader.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
    reader.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in numbers])
    found: list[Any] = []
    end = time.monotonic() + PATIENCE * slowness()
    while len(found) < count and time.monotonic() < end:
        found += reader.consume(1000, 0.2)
    found += reader.consume(100_000, 1.0)
    reader.close()
    assert all(each.error() is None for each in found)
    return found


def write(kafka: Kafka, topic: str, messages: list[tuple[bytes | None, bytes]], headers: Any = None) -> None:
    writer = confluent_kafka.Producer({"bootstrap.servers": kafka.servers, "enable.idempotence": True})
    for key, value in messages:
        writer.produce(topic, value, key, headers=headers)
    assert writer.flush(PATIENCE) == 0


async def connected(url: str) -> None:
    """Return when the bridge of this broker is connected."""
    async with Client(url) as client, within(PATIENCE):
        await client.subscribe("$SYS/broker/connection/k/state")
        async for message in client.messages():
            if message.payload == b"1":
                return


async def received(client: Client, count: int) -> list[Message]:
    found: list[Message] = []
    async with within(PATIENCE):
        async for message in client.messages():
            found.append(message)
            if len(found) == count:
                break
    return found


async def more(client: Client, seconds: float = 1.0) -> list[Message]:
    """The messages that still come."""
    found: list[Message] = []
    try:
        async with asyncio.timeout(seconds):
            async for message in client.messages():
                found.append(message)
    except TimeoutError:
        pass
    return found


OUT = [{"filter": "plant/#", "rename": "plant"}]
IN = [{"filter": "orders", "direction": "in", "rename": "shop/{key}"}]


async def test_a_message_becomes_a_record_and_a_record_a_message(kafka: Kafka, tmp_path: Path) -> None:
    make_topic(kafka, "plant")
    make_topic(kafka, "orders")
    with BridgedBroker(tmp_path / "data", kafka, OUT + IN) as broker:
        await connected(broker.url)
        async with Client(broker.url) as client:
            await client.subscribe("shop/#", qos=2)
            properties: Any = {
                CONTENT_TYPE: "text/plain",
                RESPONSE_TOPIC: "answers",
                CORRELATION_DATA: b"\0\1",
                USER_PROPERTY: [("unit", "C"), ("mqtt.retain", "1")],
            }
            await client.publish("plant/1", b"20", qos=2, properties=properties)
            await client.publish("plant/2", b"21", qos=0)
            found = {each.key(): each for each in await asyncio.to_thread(records, kafka, "plant", 2)}
            assert {key: each.value() for key, each in found.items()} == {b"plant/1": b"20", b"plant/2": b"21"}
            headers = dict(found[b"plant/1"].headers())
            assert headers.pop("starlingmq-sites")
            assert headers == {
                "mqtt.topic": b"plant/1",
                "mqtt.qos": b"1",
                "mqtt.content-type": b"text/plain",
                "mqtt.response-topic": b"answers",
                "mqtt.correlation-data": b"\0\1",
                "unit": b"C",
            }
            write(kafka, "orders", [(b"7", b"new")], [("mqtt.content-type", b"text/plain"), ("trace", b"x")])
            (message,) = await received(client, 1)
            assert (message.topic, message.payload, message.qos) == ("shop/7", b"new", 2)
            assert message.properties[CONTENT_TYPE] == "text/plain"
            users = message.properties[USER_PROPERTY]
            assert isinstance(users, list) and ("trace", "x") in users and ("kafka.key", "7") in users


async def publish(url: str, numbers: range) -> None:
    """Each is acknowledged, whatever happens to the broker meanwhile."""
    async with Client(url, client_id="publisher", clean_start=False, session_expiry=600, reconnect=True) as client:
        for number in numbers:
            await client.publish(f"plant/{number % 5}", b"%d" % number, qos=1)


async def count_until(url: str, filter: str, count: int) -> None:
    """Return when so many messages have come by."""
    async with Client(url) as client, within(PATIENCE):
        await client.subscribe(filter)
        async for _ in client.messages():
            count -= 1
            if count <= 0:
                return


async def test_no_message_is_lost_and_none_waits_for_a_dead_kafka(own_kafka: Kafka, tmp_path: Path) -> None:
    make_topic(own_kafka, "plant")
    total = 3000
    with BridgedBroker(tmp_path / "data", own_kafka, OUT) as broker:
        await connected(broker.url)
        publishing = asyncio.ensure_future(publish(broker.url, range(total)))
        await count_until(broker.url, "plant/#", 300)
        broker.kill()
        broker.start()
        await count_until(broker.url, "plant/#", 300)
        own_kafka.kill()
        await asyncio.sleep(KAFKA_AWAY)
        began = time.monotonic()
        await publishing
        async with Client(broker.url) as client:
            await client.subscribe("other")
            await client.publish("other", b"", qos=1)
            await received(client, 1)
        assert time.monotonic() - began < 10 * slowness(), "others do not wait for Kafka"
        broker.kill()
        broker.start()
        await asyncio.to_thread(own_kafka.start)
        found = await asyncio.to_thread(records, own_kafka, "plant", total)
    for topic in range(5):
        own = [each for each in found if each.key() == b"plant/%d" % topic]
        assert len({each.partition() for each in own}) == 1
        assert list(dict.fromkeys(int(each.value()) for each in own)) == list(range(topic, total, 5))
    assert len(found) - total < 2500, "a crash repeats what is in flight, at most 1000 messages, and not everything"


async def test_each_record_is_published_once(own_kafka: Kafka, tmp_path: Path) -> None:
    make_topic(own_kafka, "orders")
    total = 4000
    with BridgedBroker(tmp_path / "data", own_kafka, IN) as broker:
        async with Client(broker.url, client_id="reader", session_expiry=600) as client:
            await client.subscribe("shop/#", qos=2)
        await connected(broker.url)
        watching = asyncio.ensure_future(count_until(broker.url, "shop/#", 200))
        await asyncio.sleep(0.5)
        write(own_kafka, "orders", [(b"%d" % (number % 7), b"%d" % number) for number in range(total // 2)])
        await watching
        broker.kill()
        broker.start()
        await connected(broker.url)
        watching = asyncio.ensure_future(count_until(broker.url, "shop/#", 200))
        await asyncio.sleep(0.5)
        write(own_kafka, "orders", [(b"%d" % (number % 7), b"%d" % number) for number in range(total // 2, total)])
        await watching
        own_kafka.kill()
        await asyncio.sleep(1)
        broker.kill()
        await asyncio.to_thread(own_kafka.start)
        broker.start()
        async with Client(broker.url, client_id="reader", clean_start=False, session_expiry=600) as client:
            found = await received(client, total)
            assert not await more(client, 3.0)
    assert sorted(int(message.payload) for message in found) == list(range(total))
    for key in range(7):
        own = [int(message.payload) for message in found if message.topic == f"shop/{key}"]
        assert own == list(range(key, total, 7)), "in order"


async def test_kafka_with_tls_and_a_login(tmp_path: Path) -> None:
    kafka = SecureKafka(tmp_path / "kafka", LAKE)
    try:
        make_topic(kafka, "plant", 1)
        for number, mechanism in enumerate(("PLAIN", "SCRAM-SHA-512")):
            secure: dict[str, Any] = {
                "servers": [f"kafka+ssl://127.0.0.1:{kafka.secure_port}"],
                "credentials": {"username": "bridge", "password": kafka.SECRET, "sasl": mechanism},
                "tls": {"ca": str(kafka.ca)},
            }
            with BridgedBroker(tmp_path / mechanism, kafka, OUT, **secure) as broker:
                await connected(broker.url)
                async with Client(broker.url) as client:
                    await client.publish("plant/1", mechanism.encode(), qos=1)
                found = await asyncio.to_thread(records, kafka, "plant", number + 1)
                assert found[number].value() == mechanism.encode()
        secure["credentials"]["password"] = "another"
        with BridgedBroker(tmp_path / "wrong", kafka, OUT, **secure) as broker:
            assert broker.serving.process.stderr is not None
            line = await asyncio.to_thread(said, broker.serving.process.stderr)
            assert "uthentication" in line and kafka.SECRET not in line
    finally:
        kafka.kill()


def said(log: IO[str], text: str = "") -> str:
    """The next line about the bridge, with this text."""
    return next(line for line in log if "bridge k:" in line and text in line)


async def test_messages_that_kafka_never_takes_are_left_out(kafka: Kafka, tmp_path: Path) -> None:
    """The topic takes 2000 bytes at once: batches of small messages are refused as a whole, and are no reason to leave
    one out."""
    make_topic(kafka, "small", 1, {"max.message.bytes": "2000"})
    with BridgedBroker(tmp_path / "data", kafka, [{"filter": "small/#", "rename": "small"}]) as broker:
        await connected(broker.url)
        async with Client(broker.url) as client:
            for number in range(200):
                size = 5000 if number in (50, 120) else 300
                await client.publish("small/a", b"%d" % number + b" " * size, qos=1)
        found = await asyncio.to_thread(records, kafka, "small", 198)
    numbers = sorted({int(each.value()) for each in found})
    assert numbers == [number for number in range(200) if number not in (50, 120)]


async def test_partitions_come_records_and_topics_go(kafka: Kafka, tmp_path: Path) -> None:
    for name in ("changing", "gone"):
        make_topic(kafka, name, 1)
    topics = [{"filter": name, "direction": "in"} for name in ("changing", "gone")]
    client_of = admin.AdminClient({"bootstrap.servers": kafka.servers})

    def changed(futures: dict[Any, Any]) -> None:
        for future in futures.values():
            future.result(PATIENCE)

    with BridgedBroker(tmp_path / "data", kafka, topics) as broker:
        await connected(broker.url)
        async with Client(broker.url, client_id="reader", session_expiry=600) as client:
            await client.subscribe("#", qos=2)
            write(kafka, "gone", [(b"", b"%d" % number) for number in range(20)])
            assert len(await received(client, 20)) == 20
            changed(client_of.create_partitions([admin.NewPartitions("changing", 3)]))
            write(kafka, "changing", [(b"%d" % number, b"%d" % number) for number in range(30)])
            assert sorted(int(each.payload) for each in await received(client, 30)) == list(range(30))

            changed(client_of.delete_topics(["gone"]))
            write(kafka, "changing", [(b"a", b"gone")])
            assert [each.payload for each in await received(client, 1)] == [b"gone"], "the others are read"
            assert broker.serving.process.stderr is not None
            await asyncio.to_thread(said, broker.serving.process.stderr, "gone: ")
            make_topic(kafka, "gone", 1)
            write(kafka, "gone", [(b"", b"again")])
            await asyncio.to_thread(said, broker.serving.process.stderr, "it was made again")
            write(kafka, "changing", [(b"a", b"made again")])
            assert [each.payload for each in await received(client, 1)] == [b"made again"]
        broker.kill()
        write(kafka, "changing", [(b"a", b"late %d" % number) for number in range(10)])
        (end,) = [each for each in records(kafka, "changing", 42) if each.value() == b"late 6"]
        place = confluent_kafka.TopicPartition("changing", end.partition(), end.offset() + 1)
        changed(client_of.delete_records([place]))
        broker.start()
        assert broker.serving.process.stderr is not None
        await asyncio.to_thread(said, broker.serving.process.stderr, "were deleted before they were read")
        async with Client(broker.url, client_id="reader", clean_start=False, session_expiry=600) as client:
            found = [each.payload for each in [*await received(client, 3), *await more(client)]]
        # The end of a handshake of QoS 2 before the kill may be missing.
        assert [each for each in found if each != b"made again"] == [b"late 7", b"late 8", b"late 9"]
