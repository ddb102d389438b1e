"""paho-mqtt against a broker in its own process: what its users do with it, in every version of the protocol."""

from __future__ import annotations

import queue
import ssl
from collections.abc import Callable, Iterator
from itertools import count
from socket import SHUT_RDWR
from typing import Any

import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from .conftest import ServedBroker
from .paho_thread import disconnect, stop_loop

pytestmark = pytest.mark.slow

PATIENCE = 20.0
VERSIONS = pytest.mark.parametrize("version", [3, 4, 5], ids=["3.1", "3.1.1", "5.0"])
QOS = pytest.mark.parametrize("qos", [0, 1, 2])
NEVER = 0xFFFFFFFF

numbers = count(1)


def properties_of(packet: int, **values: Any) -> Properties:
    properties: Properties = Properties(packet)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


def fresh(name: str) -> str:
    """A client id or topic that no other test of the module used."""
    return f"{name}{next(numbers)}"


class Paho:
    """A paho client with its thread. What its callbacks tell waits in queues."""

    def __init__(self, version: int = 5, client_id: str = "", clean: bool = True, **options: Any) -> None:
        options["protocol"] = version
        if version != 5:
            options["clean_session"] = clean
        self.version = version
        self.clean = clean
        self.client_id = client_id or fresh("client")
        self.client = Client(
            CallbackAPIVersion.VERSION2, self.client_id, reconnect_on_failure=False, manual_ack=False, **options
        )
        self.connected: queue.Queue[tuple[ReasonCode, bool, Any]] = queue.Queue()
        self.messages: queue.Queue[MQTTMessage] = queue.Queue()
        self.granted: queue.Queue[list[int]] = queue.Queue()
        self.gone: queue.Queue[int] = queue.Queue()
        on: Any = self.client
        on.on_connect = lambda c, u, flags, code, agreed: self.connected.put((code, flags.session_present, agreed))
        on.on_message = lambda c, u, message: self.messages.put(message)
        on.on_subscribe = lambda c, u, mid, codes, properties: self.granted.put([code.value for code in codes])
        on.on_disconnect = lambda c, u, flags, code, properties: self.gone.put(code.value)

    def connect(self, host: str, port: int, keep_alive: int = 60, expiry: int | None = None) -> Paho:
        """Connect and wait for a CONNACK that says yes."""
        more: dict[str, Any] = {}
        if self.version == 5:
            more["clean_start"] = self.clean
            if expiry is not None:
                more["properties"] = properties_of(PacketTypes.CONNECT, SessionExpiryInterval=expiry)
        self.client.connect(host, port, keep_alive, **more)
        self.client.loop_start()
        self.code, self.session_present, self.agreed = self.connected.get(timeout=PATIENCE)
        assert not self.code.is_failure, self.code
        return self

    def subscribe(self, *filters: tuple[str, int | SubscribeOptions]) -> list[int]:
        """Subscribe and wait; the codes of the SUBACK."""
        self.client.subscribe([(f, o) for f, o in filters])  # type: ignore[arg-type]
        return self.granted.get(timeout=PATIENCE)

    def publish(self, topic: str, payload: Any = b"x", qos: int = 1, retain: bool = False, **properties: Any) -> None:
        """Publish and wait until its handshake is over."""
        more = properties_of(PacketTypes.PUBLISH, **properties) if properties else None
        self.client.publish(topic, payload, qos, retain, more).wait_for_publish(PATIENCE)

    def message(self) -> MQTTMessage:
        return self.messages.get(timeout=PATIENCE)

    def kill(self) -> None:
        """Cut the connection without a word."""
        sock: Any = self.client.socket()
        sock.shutdown(SHUT_RDWR)
        stop_loop(self.client)

    def close(self) -> None:
        disconnect(self.client)


Open = Callable[..., Paho]


@pytest.fixture
def paho(broker: ServedBroker) -> Iterator[Open]:
    """Connect a client over TCP; closed when the test is over."""
    clients: list[Paho] = []

    def open_one(
        version: int = 5,
        client_id: str = "",
        clean: bool = True,
        *,
        prepare: Callable[[Client], object] | None = None,
        keep_alive: int = 60,
        expiry: int | None = None,
    ) -> Paho:
        client = Paho(version, client_id, clean)
        if prepare is not None:
            prepare(client.client)
        clients.append(client)
        return client.connect("127.0.0.1", broker.port("mqtt"), keep_alive, expiry)

    yield open_one
    for client in clients:
        client.close()


def exchange(client: Paho, qos: int = 1) -> None:
    """See that a connection works in both directions."""
    topic = fresh("exchange/")
    assert client.subscribe((topic, qos)) == [qos]
    client.publish(topic, b"\0\xff", qos)
    assert client.message().payload == b"\0\xff"


@VERSIONS
@QOS
def test_every_qos(paho: Open, version: int, qos: int) -> None:
    sender, receiver = paho(version), paho(version)
    topic = fresh("qos/")
    assert receiver.subscribe((f"{topic}/+", qos)) == [qos]
    for sent in range(3):
        sender.publish(f"{topic}/{sent}", f"at {sent}", sent)
    got = [receiver.message() for _ in range(3)]
    assert sorted((m.topic, m.payload, m.qos) for m in got) == [
        (f"{topic}/{sent}", b"at %d" % sent, min(sent, qos)) for sent in range(3)
    ]


@VERSIONS
@QOS
def test_a_thousand_messages_in_order(paho: Open, version: int, qos: int) -> None:
    sender, receiver = paho(version), paho(version)
    topic = fresh("order/")
    receiver.subscribe((topic, qos))
    infos = [sender.client.publish(topic, b"%d" % number, qos) for number in range(1000)]
    assert [int(receiver.message().payload) for _ in infos] == list(range(1000))
    for info in infos:
        info.wait_for_publish(PATIENCE)


@VERSIONS
def test_a_large_payload(paho: Open, version: int) -> None:
    client = paho(version)
    topic = fresh("large/")
    client.subscribe((topic, 2))
    payload = bytes(range(256)) * 2000
    for qos in range(3):
        client.publish(topic, payload, qos)
        assert client.message().payload == payload


@VERSIONS
def test_a_session_is_kept(paho: Open, version: int) -> None:
    topic, name = fresh("kept/"), fresh("kept")
    first = paho(version, name, clean=False, expiry=NEVER)
    assert not first.session_present
    first.subscribe((topic, 2))
    first.close()
    sender = paho(version)
    for qos in range(3):
        sender.publish(topic, f"while away {qos}", qos)
    again = paho(version, name, clean=False, expiry=NEVER)
    assert again.session_present == (version != 3)  # 3.1 has no such flag
    assert [again.message().payload for _ in range(3)] == [b"while away %d" % qos for qos in range(3)]
    sender.publish(topic, "now")
    assert again.message().payload == b"now"
    again.close()
    fresh_start = paho(version, name, clean=True)
    assert not fresh_start.session_present
    exchange(fresh_start)


@VERSIONS
def test_unacknowledged_messages_are_delivered_again(paho: Open, version: int) -> None:
    topic, name = fresh("again/"), fresh("again")
    first = paho(version, name, clean=False, expiry=NEVER, prepare=lambda client: client.manual_ack_set(True))
    first.subscribe((topic, 1))
    sender = paho(version)
    sender.publish(topic, "1")
    assert not first.message().dup
    first.kill()
    sender.publish(topic, "2")
    again = paho(version, name, clean=False, expiry=NEVER)
    got = [again.message() for _ in range(2)]
    assert [m.payload for m in got] == [b"1", b"2"]
    assert got[0].dup  # the other may have gone to the connection that was just cut, or not


@VERSIONS
def test_retained(paho: Open, version: int) -> None:
    sender = paho(version)
    topic = fresh("retained/")
    sender.publish(f"{topic}/a", "old", retain=True)
    sender.publish(f"{topic}/a", "new", retain=True)
    sender.publish(f"{topic}/b", "gone soon", retain=True)
    sender.publish(f"{topic}/b", b"", retain=True)
    receiver = paho(version)
    receiver.subscribe((f"{topic}/#", 1))
    message = receiver.message()
    assert (message.topic, message.payload, message.retain) == (f"{topic}/a", b"new", True)
    sender.publish(f"{topic}/a", "live", retain=True)
    message = receiver.message()
    assert (message.payload, message.retain) == (b"live", False)


@VERSIONS
def test_a_will_of_a_client_that_crashes(paho: Open, version: int) -> None:
    topic = fresh("will/")
    watcher = paho(version)
    watcher.subscribe((topic, 2))
    doomed = paho(version, prepare=lambda client: client.will_set(topic, "crashed", 2, retain=True))
    polite = paho(version, prepare=lambda client: client.will_set(topic, "never to be seen", 1))
    polite.close()
    doomed.kill()
    message = watcher.message()
    assert (message.payload, message.qos, message.retain) == (b"crashed", 2, False)
    later = paho(version)
    later.subscribe((topic, 0))
    assert later.message().retain


@VERSIONS
def test_a_client_id_is_taken_over(paho: Open, version: int) -> None:
    name = fresh("same")
    first, second = paho(version, name), paho(version, name)
    code = first.gone.get(timeout=PATIENCE)
    if version == 5:
        assert code == 0x8E
    exchange(second)


def test_a_silent_client_is_closed_and_one_that_pings_is_not(paho: Open) -> None:
    topic = fresh("silent/")
    watcher = paho()
    watcher.subscribe((f"{topic}/#", 0))

    def leaving(will: str) -> Callable[[Client], object]:
        return lambda client: client.will_set(f"{topic}/{will}")

    pinging = [paho(version, keep_alive=1, prepare=leaving("pinging")) for version in (3, 4, 5)]
    silent = [paho(version, keep_alive=1, prepare=leaving(f"silent {version}")) for version in (3, 4, 5)]
    for client in silent:
        stop_loop(client.client)  # its PINGREQ are not sent any more
    assert sorted(watcher.message().topic for _ in silent) == [f"{topic}/silent {version}" for version in (3, 4, 5)]
    for client in pinging:
        exchange(client)
    assert watcher.messages.empty()


# MQTT 5


def test_request_and_response(paho: Open) -> None:
    service, caller = paho(), paho()
    requests, answers = fresh("requests/"), fresh("answers/")

    def answer(client: Client, userdata: object, message: MQTTMessage) -> None:
        asked: Any = message.properties
        properties = properties_of(
            PacketTypes.PUBLISH, CorrelationData=asked.CorrelationData, UserProperty=asked.UserProperty
        )
        client.publish(asked.ResponseTopic, message.payload.upper(), 1, properties=properties)

    service.client.on_message = answer
    service.subscribe((requests, 1))
    caller.subscribe((answers, 1))
    order = [("b", "2"), ("a", "1"), ("b", "ü"), ("", "")]
    caller.publish(requests, b"how?", ResponseTopic=answers, CorrelationData=b"\0\1\xff", UserProperty=order)
    message = caller.message()
    assert message.payload == b"HOW?"
    properties: Any = message.properties
    assert properties.CorrelationData == b"\0\1\xff"
    assert properties.UserProperty == order


def test_message_properties_are_forwarded(paho: Open) -> None:
    client = paho()
    topic = fresh("described/")
    client.subscribe((topic, 1))
    client.publish(topic, "ä", ContentType="text/plain", PayloadFormatIndicator=1, MessageExpiryInterval=60)
    properties: Any = client.message().properties
    assert (properties.ContentType, properties.PayloadFormatIndicator) == ("text/plain", 1)
    assert 58 <= properties.MessageExpiryInterval <= 60


def test_shared_subscriptions_share(paho: Open) -> None:
    topic = fresh("jobs/")
    workers = [paho() for _ in range(3)]
    everything = paho()
    for worker in workers:
        assert worker.subscribe((f"$share/{topic[:4]}/{topic}/#", 1)) == [1]
    everything.subscribe((f"{topic}/#", 1))
    sender = paho()
    for number in range(60):
        sender.publish(f"{topic}/{number}", b"%d" % number)
    assert len([everything.message() for _ in range(60)]) == 60
    for worker in workers:
        worker.subscribe((fresh("nothing/"), 0))  # the answer comes behind everything it was given
    shares = [[int(worker.messages.get().payload) for _ in range(worker.messages.qsize())] for worker in workers]
    assert sorted(number for share in shares for number in share) == list(range(60))
    assert all(shares), "a worker got nothing"


def test_topic_aliases(paho: Open) -> None:
    sender, receiver = paho(), paho()
    topic = fresh("alias/")
    receiver.subscribe((topic, 1))
    assert sender.agreed.TopicAliasMaximum >= 1
    sender.publish(topic, "names it", TopicAlias=1)
    sender.publish("", "uses it", TopicAlias=1)
    assert [(m.topic, m.payload) for m in (receiver.message(), receiver.message())] == [
        (topic, b"names it"),
        (topic, b"uses it"),
    ]


def test_subscription_options_and_identifiers(paho: Open) -> None:
    client = paho()
    topic = fresh("options/")
    client.publish(topic, "retained", retain=True)
    options = SubscribeOptions(qos=1, noLocal=True, retainAsPublished=True, retainHandling=2)
    properties = properties_of(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=77)
    client.client.subscribe(topic, options=options, properties=properties)
    assert client.granted.get(timeout=PATIENCE) == [1]
    client.publish(topic, "own")
    paho().publish(topic, "other's", retain=True)
    message = client.message()
    assert (message.payload, message.retain) == (b"other's", True)
    received: Any = message.properties
    assert received.SubscriptionIdentifier == [77]


def test_an_assigned_client_id(broker: ServedBroker) -> None:
    client = Paho(5)
    client.client._client_id = b""
    client.connect("127.0.0.1", broker.port("mqtt"))
    assert client.agreed.AssignedClientIdentifier
    exchange(client)
    client.close()


# Other transports


@VERSIONS
def test_tls(broker: ServedBroker, version: int) -> None:
    client = Paho(version)
    client.client.tls_set(str(broker.ca))
    exchange(client.connect("localhost", broker.port("mqtts")), 2)
    client.close()


@VERSIONS
def test_tls_with_a_client_certificate(broker: ServedBroker, version: int) -> None:
    client = Paho(version)
    client.client.tls_set(str(broker.ca), str(broker.directory / "client.pem"), str(broker.directory / "client.key"))
    exchange(client.connect("localhost", broker.port_for_certificates), 2)
    client.close()


def test_tls_without_the_client_certificate_it_takes(broker: ServedBroker) -> None:
    client = Paho(5)
    client.client.tls_set(str(broker.ca))
    with pytest.raises((ssl.SSLError, ConnectionError, queue.Empty)):
        client.client.connect("localhost", broker.port_for_certificates)
        client.client.loop_start()
        client.gone.get(timeout=PATIENCE)
        raise ConnectionError("closed")
    assert client.connected.empty()
    client.close()


@VERSIONS
def test_unix_socket(broker: ServedBroker, version: int) -> None:
    client = Paho(version, transport="unix")
    exchange(client.connect(str(broker.directory / "broker.sock"), 1883), 2)
    client.close()


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_websocket(broker: ServedBroker, scheme: str) -> None:
    client = Paho(5, transport="websockets")
    client.client.ws_set_options("/mqtt")
    if scheme == "wss":
        client.client.tls_set(str(broker.ca))
    exchange(client.connect("localhost", broker.port(scheme)), 2)
    client.close()
