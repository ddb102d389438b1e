"""The asyncio client against real brokers: StarlingMQ, and mosquitto as an independent implementation."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from starlingmq.cli.local_cluster import free_ports
from starlingmq.client import (
    Client,
    ConnectFailed,
    ConnectionLost,
    ConnectRefused,
    Message,
    PublishFailed,
    Subscription,
    Tls,
    Will,
)
from starlingmq.client.client import UNREAD_MAX, acknowledged
from starlingmq.client.link import Link
from starlingmq.client.options import QOS, ConnectFields, ConnectOptions
from starlingmq.wire.properties import CONTENT_TYPE, CORRELATION_DATA, USER_PROPERTY, Properties
from starlingmq.wire.reasons import Reason
from tests.patience import within

from .brokers import Broker

VERSIONS = [3, 4, 5]
PATIENCE = 10.0
_names = itertools.count()


@pytest.fixture
def topic() -> str:
    """A topic of the test's own: the broker outlives it."""
    return f"test/{next(_names)}"


async def take(client: Client, count: int) -> list[Message]:
    messages: list[Message] = []
    async with within(PATIENCE):
        async for message in client.messages():
            messages.append(message)
            if len(messages) == count:
                break
    return messages


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_comes_back(broker: Broker, topic: str, version: int, qos: int) -> None:
    async with Client(broker.url, client_id=f"back-{version}-{qos}", version=version) as client:
        assert await client.subscribe(f"{topic}/#", qos=2) == [2]
        assert await client.publish(f"{topic}/a", "payload", qos=QOS[qos]) == Reason.SUCCESS
        (message,) = await take(client, 1)
    assert (message.topic, message.payload, message.qos, message.retain) == (f"{topic}/a", b"payload", qos, False)


class Owner:
    """Of a connection that was handed over."""

    def __init__(self) -> None:
        self.received = b""
        self.came = asyncio.Event()

    def link_received(self, data: bytes) -> None:
        self.received += data
        self.came.set()

    def link_lost(self, link: Link, error: Exception | None) -> None:
        self.came.set()


async def test_a_connection_is_handed_over_although_messages_are_not_read(broker: Broker, topic: str) -> None:
    """The client had stopped reading; its own calls end."""
    owner = Owner()
    async with Client(broker.url) as publisher:
        client = Client(broker.url)
        await client.connect()
        await client.subscribe(topic)
        for _ in range(UNREAD_MAX):
            await publisher.publish(topic, "x")
        async with within(PATIENCE):
            while client.unread < UNREAD_MAX:
                client._main.arrived.clear()
                await client._main.arrived.wait()
        link, _ = client.hand_over(owner)
        await publisher.publish(topic, "further")
        async with within(PATIENCE):
            await owner.came.wait()
    assert b"further" in owner.received
    with pytest.raises(ConnectionLost, match="handed over"):
        async with within(PATIENCE):
            [each async for each in client.messages()]
    link.abort()


async def test_properties_travel(broker: Broker, topic: str) -> None:
    properties: Properties = {
        CONTENT_TYPE: "text/plain",
        CORRELATION_DATA: b"\0\xff",
        USER_PROPERTY: [("a", "1"), ("b", "2"), ("a", "3")],
    }
    async with Client(broker.url) as client:
        await client.subscribe(topic)
        await client.publish(topic, "x", properties=properties)
        (message,) = await take(client, 1)
    assert message.properties == properties


@pytest.mark.parametrize("scheme", ["mqtt", "ws", "unix", "mqtts", "wss"])
async def test_every_carrier(broker: Broker, topic: str, scheme: str) -> None:
    if scheme not in broker.urls:
        pytest.skip(f"{broker.name} has no {scheme} here")
    payload = bytes(range(256)) * 300  # more than one read, frame and TLS record
    async with Client(broker.urls[scheme], tls=Tls(ca=str(broker.ca))) as client:
        await client.subscribe(topic, qos=1)
        await client.publish(topic, payload, qos=1)
        (message,) = await take(client, 1)
    assert message.payload == payload


async def test_a_certificate_must_be_trusted_unless_it_is_said(broker: Broker) -> None:
    url = broker.urls["mqtts"]
    with pytest.raises(ConnectFailed, match="not trusted"):
        await Client(url).connect()
    async with Client(url, tls=Tls(insecure=True)) as client:
        assert client.connected


async def test_many_messages_at_once_keep_their_order(broker: Broker, topic: str) -> None:
    async with Client(broker.url, version=5) as client:
        await client.subscribe(topic, qos=2)
        answers = [client.publish_soon(topic, str(number), qos=2) for number in range(500)]
        messages = await take(client, 500)
        assert [int(message.payload) for message in messages] == list(range(500))
        assert [acknowledged(topic, await answer) for answer in answers] == [0] * 500
        await client.flush()


async def test_subscription_options(broker: Broker, topic: str) -> None:
    async with Client(broker.url) as client:
        await client.publish(topic, "kept", qos=1, retain=True)
        quiet = Subscription(filter=topic, qos=1, no_local=True, retain_handling=2)
        assert await client.subscribe([quiet, f"{topic}/other"]) == [1, 0]
        await client.publish(topic, "own", qos=1)
        await client.publish(f"{topic}/other", "seen", qos=1)
        (message,) = await take(client, 1)
        assert message.payload == b"seen", "neither what was retained nor what is our own"
        assert await client.unsubscribe([topic, f"{topic}/never"]) == [0, Reason.NO_SUBSCRIPTION_EXISTED]
        await client.publish(topic, "", retain=True)


@pytest.mark.parametrize("version", [4, 5])
async def test_a_session_waits_for_its_client(broker: Broker, topic: str, version: int) -> None:
    fields: ConnectFields = {"client_id": f"waits-{version}", "version": version, "session_expiry": 60}
    async with Client(broker.url, **fields) as client:
        assert not client.session_present
    fields["clean_start"] = False
    async with Client(broker.url, **fields) as client:
        await client.subscribe(topic, qos=1)
    async with Client(broker.url) as other:
        await other.publish(topic, "meanwhile", qos=1)
    async with Client(broker.url, **fields) as client:
        assert client.session_present
        (message,) = await take(client, 1)
        assert message.payload == b"meanwhile"
    fields["clean_start"] = True
    async with Client(broker.url, **fields):
        pass


async def test_unacknowledged_messages_are_sent_again(broker: Broker, topic: str) -> None:
    first = Client(broker.url, client_id="taker", session_expiry=60)
    await first.connect()
    await first.subscribe(topic, qos=2)
    for number in range(3):
        await first.publish(topic, str(number), qos=2)
    assert [each.payload for each in await take(first, 1)] == [b"0"]
    await first.disconnect()
    async with Client(broker.url, client_id="taker", session_expiry=0, clean_start=False) as second:
        assert [each.payload for each in await take(second, 2)] == [b"1", b"2"]


async def test_the_will_of_a_client_that_vanishes(broker: Broker, topic: str) -> None:
    async with Client(broker.url) as witness:
        await witness.subscribe(topic)
        will = Will(topic.encode(), b"gone", 0, False)
        vanishing = Client(broker.url, will=will)
        await vanishing.connect()
        await vanishing.disconnect(Reason.DISCONNECT_WITH_WILL)
        (message,) = await take(witness, 1)
    assert message.payload == b"gone"


async def test_a_session_taken_over_ends_with_its_reason(broker: Broker) -> None:
    if broker.name == "mosquitto":
        pytest.skip("mosquitto 2.0 closes the connection of a clean start without a DISCONNECT")
    first = Client(broker.url, client_id="one", reconnect=True)
    await first.connect()
    async with Client(broker.url, client_id="one"):
        with pytest.raises(ConnectionLost) as caught:
            await take(first, 1)
    assert caught.value.reason == Reason.SESSION_TAKEN_OVER
    with pytest.raises(ConnectionLost):
        await first.publish("t", "x")


async def test_a_slow_reader_stops_the_socket_and_loses_nothing(broker: Broker, topic: str) -> None:
    total = UNREAD_MAX + 200
    async with Client(broker.url) as reader, Client(broker.url) as writer:
        await reader.subscribe(topic)
        for number in range(total):
            await writer.publish(topic, str(number))
        messages = await take(reader, total)
        assert [int(each.payload) for each in messages] == list(range(total))
        assert reader.dropped == 0


async def test_unread_messages_do_not_block_a_waiting_request(broker: Broker, topic: str) -> None:
    async with Client(broker.url) as client:
        await client.subscribe(topic)
        for number in range(UNREAD_MAX * 2):
            await client.publish(topic, str(number))
        async with within(PATIENCE):
            await client.publish(f"{topic}/other", "x", qos=2)
        assert len(await take(client, UNREAD_MAX * 2)) == UNREAD_MAX * 2


@contextlib.asynccontextmanager
async def proxy(broker: Broker) -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """A way to the broker that can be cut: its URL, and the writers to abort."""
    writers: list[asyncio.StreamWriter] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", int(broker.port))
        writers.extend([writer, far_writer])
        running.append(asyncio.gather(copy(reader, far_writer), copy(far_reader, writer)))

    running: list[asyncio.Future[tuple[None, None]]] = []
    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server:
        yield f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}", writers
    cut(writers)
    await asyncio.gather(*running)


def cut(writers: list[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.transport.abort()
    writers.clear()


@pytest.mark.parametrize("version", [4, 5])
async def test_it_comes_back_and_goes_on(broker: Broker, topic: str, version: int) -> None:
    """Cut again and again while messages go round: QoS 2 arrives once each, in order."""
    total = 30
    fields: ConnectFields = {
        "client_id": f"comes-{version}",
        "version": version,
        "session_expiry": 60,
        "clean_start": False,
        "max_inflight": 10,  # above 20 mosquitto completes QoS 2 messages of 3.1.1 that it then does not deliver
    }
    async with (
        proxy(broker) as (url, writers),
        Client(url, reconnect=True, **fields) as client,
    ):
        await client.subscribe(topic, qos=2)
        answers = []
        received: list[int] = []
        for number in range(total):
            answers.append(client.publish_soon(topic, str(number), qos=2))
            if number % 10 == 5:
                cut(writers)
                received += [int(each.payload) for each in await take(client, 1)]
        received += [int(each.payload) for each in await take(client, total - len(received))]
        assert received == list(range(total))
        for answer in answers:
            acknowledged(topic, await answer)
    async with Client(broker.url, client_id=fields["client_id"], version=version):
        pass  # a clean start, to leave nothing behind


async def test_without_a_session_it_subscribes_again(broker: Broker, topic: str) -> None:
    async with proxy(broker) as (url, writers), Client(url, version=4, reconnect=True) as client:
        await client.subscribe(topic, qos=1)
        cut(writers)
        await client.publish(topic, "after", qos=1)
        assert [each.payload for each in await take(client, 1)] == [b"after"]


async def test_a_lost_connection_is_told_to_everybody_who_waits(broker: Broker, topic: str) -> None:
    async with proxy(broker) as (url, writers), Client(url) as client:
        waiting = asyncio.create_task(take(client, 1))
        answer = client.publish_soon(topic, "x", qos=2)
        cut(writers)
        with pytest.raises(ConnectionLost):
            await answer
        with pytest.raises(ConnectionLost):
            await waiting
        with pytest.raises(ConnectionLost):
            await client.subscribe(topic)


async def test_refusals_of_mosquitto_are_named(broker: Broker) -> None:
    if "closed" not in broker.urls:
        pytest.skip("needs a listener that refuses")
    for version in VERSIONS:
        with pytest.raises(ConnectRefused, match="not authorized"):
            await Client(broker.urls["closed"], version=version, reconnect=True).connect()


# Without a broker


async def test_nobody_listens() -> None:
    (port,) = free_ports(1)
    with pytest.raises(ConnectFailed, match=f"no broker listens at mqtt://localhost:{port}; start one"):
        await Client(f"mqtt://localhost:{port}").connect()


async def test_no_socket() -> None:
    with pytest.raises(ConnectFailed, match="socket /nowhere/at"):
        await Client("unix:///nowhere/at.all").connect()


Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]


async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def no_web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno\n")
    await reader.read()


async def speaks_nats(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b'INFO {"server_id":"N","version":"2.10.0","proto":1,"max_payload":1048576,"headers":true}\r\n')
    await reader.read()


async def hangs_up(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


@pytest.mark.parametrize(
    ("scheme", "server", "sentence"),
    [
        ("mqtt", silent, "did not answer CONNECT within 0.2 s; is it an MQTT port"),
        ("ws", silent, "no answer"),
        ("ws", no_web, "HTTP 404"),
        ("mqtt", hangs_up, "ended the connection before CONNACK; is it an MQTT port"),
        ("mqtt", speaks_nats, "is it an MQTT port"),
        ("mqtts", hangs_up, "cannot connect|TLS handshake"),
    ],
)
async def test_servers_that_are_no_brokers(scheme: str, server: Peer, sentence: str) -> None:
    ended = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await server(reader, writer)
            writer.close()
            await writer.wait_closed()
        ended.set()

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with listening, within(PATIENCE):
        port = listening.sockets[0].getsockname()[1]
        limit = 0.2 if server is silent else PATIENCE
        client = Client(f"{scheme}://127.0.0.1:{port}", connect_timeout=limit, reconnect=True)
        with pytest.raises(ConnectFailed, match=sentence):
            await client.connect()
        await ended.wait()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://h", "scheme must be"),
        ("mqtt://h:99999", "port must be"),
        ("mqtt://h:x", "port must be"),
        ("unix://", "needs a path"),
    ],
)
def test_urls_that_lead_nowhere(url: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Client(url)


def test_user_and_password_of_the_url() -> None:
    client = Client("mqtt://us%40er:p%3Aw@h")
    assert (client.state.options.username, client.state.options.password) == ("us@er", b"p:w")


def test_the_keyword_arguments_are_the_options() -> None:
    assert set(ConnectFields.__annotations__) == set(ConnectOptions.__dataclass_fields__)


async def test_publishing_before_connecting_is_an_error() -> None:
    with pytest.raises(ConnectionLost, match="not connected yet"):
        await Client().publish("t", "x")


def test_an_answer_of_failure_is_an_error() -> None:
    from starlingmq.client.events import Completed

    with pytest.raises(PublishFailed, match="not authorized"):
        acknowledged("t", Completed(1, [Reason.NOT_AUTHORIZED], {}))
    lost = Completed(1, [Reason.PACKET_IDENTIFIER_NOT_FOUND], {})
    with pytest.raises(PublishFailed):
        acknowledged("t", lost)
    lost.resent = True
    assert acknowledged("t", lost) == Reason.PACKET_IDENTIFIER_NOT_FOUND
