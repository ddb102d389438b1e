"""Words the conformance tests are written in: bytes made by hand, and short forms of what clients do."""

from __future__ import annotations

from typing import TypeVar

from starlingmq.wire.mqtt import (
    Ack,
    Connack,
    Disconnect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, SUBSCRIPTION_IDENTIFIER, Properties
from starlingmq.wire.reasons import Reason
from tests.harness import FakeClient, World

ALL = (3, 4, 5)  # versions: MQTT 3.1, 3.1.1, 5.0
BOTH = (4, 5)
NEVER = 0xFFFFFFFF  # session expiry

P = TypeVar("P", bound=Packet)


# -- bytes by hand


def utf8(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return len(raw).to_bytes(2) + raw


def frame(first: int, body: bytes = b"") -> bytes:
    """A packet with any first byte."""
    length, header = len(body), b""
    while True:
        length, low = divmod(length, 128)
        header += bytes([low | (0x80 if length else 0)])
        if not length:
            return bytes([first]) + header + body


def connect_frame(
    version: int = 5,
    payload: bytes | None = None,
    flags: int = 0x02,
    *,
    name: str = "",
    keep_alive: int = 0,
    properties: bytes = b"",
) -> bytes:
    """A CONNECT made by hand; ``payload`` is everything from the client id on, ``properties`` the raw ones."""
    name = name or ("MQIsdp" if version == 3 else "MQTT")
    body = utf8(name) + bytes([version, flags]) + keep_alive.to_bytes(2)
    if version == 5:
        body += bytes([len(properties)]) + properties
    return frame(0x10, body + (utf8("c") if payload is None else payload))


def publish_frame(
    topic: str | bytes,
    payload: bytes = b"x",
    *,
    version: int = 5,
    flags: int = 0,
    packet_id: int | None = None,
    properties: bytes = b"",
) -> bytes:
    """A PUBLISH made by hand, with any flags."""
    body = utf8(topic)
    if packet_id is not None:
        body += packet_id.to_bytes(2)
    if version == 5:
        body += bytes([len(properties)]) + properties
    return frame(0x30 | flags, body + payload)


def properties_byte(version: int) -> bytes:
    """An empty property section, where the version has one."""
    return b"\0" if version == 5 else b""


# -- what clients do


def persistent(
    w: World,
    client_id: str,
    version: int,
    *,
    clean: bool = False,
    will: Will | None = None,
    properties: Properties | None = None,
) -> FakeClient:
    """Connect with a session that outlives the connection."""
    expiry: Properties = {SESSION_EXPIRY_INTERVAL: NEVER} if version == 5 else {}
    both = {**expiry, **(properties or {})}
    return w.connect(client_id=client_id, version=version, clean_start=clean, will=will, properties=both)


def subscribe(
    c: FakeClient,
    *filters: str,
    qos: int = 0,
    packet_id: int = 1,
    no_local: bool = False,
    retain_as_published: bool = False,
    retain_handling: int = 0,
    identifier: int = 0,
) -> list[int]:
    """Subscribe and give the reason codes of the SUBACK, which must be the next packet."""
    requests = [
        SubscribeRequest(filter.encode(), qos, no_local, retain_as_published, retain_handling) for filter in filters
    ]
    properties: Properties = {SUBSCRIPTION_IDENTIFIER: [identifier]} if identifier else {}
    c.send(Subscribe(packet_id, requests, properties))
    suback = c.expect(Suback)
    assert suback.packet_id == packet_id
    return suback.reasons


def unsubscribe(c: FakeClient, *filters: str, packet_id: int = 1) -> list[int]:
    """Unsubscribe and give the reason codes of the UNSUBACK, which must be the next packet."""
    c.send(Unsubscribe(packet_id, [filter.encode() for filter in filters]))
    unsuback = c.expect(Unsuback)
    assert unsuback.packet_id == packet_id
    return unsuback.reasons


def subscriber(w: World, *filters: str, qos: int = 0, version: int = 5, client_id: str = "sub") -> FakeClient:
    """A connected client that has subscribed."""
    c = w.connect(client_id=client_id, version=version)
    assert subscribe(c, *filters, qos=qos) == [qos] * len(filters)
    return c


def publish(
    c: FakeClient,
    topic: str,
    payload: bytes = b"x",
    *,
    qos: int = 0,
    packet_id: int = 1,
    retain: bool = False,
    dup: bool = False,
    properties: bytes = b"",
    expiry: int = -1,
) -> None:
    """Send a PUBLISH; the answer is left to be read."""
    c.send(
        Publish(
            topic.encode(),
            payload,
            qos=qos,
            retain=retain,
            dup=dup,
            packet_id=packet_id if qos else 0,
            properties=properties,
            expiry=expiry,
        )
    )


def deliver(c: FakeClient, topic: str, payload: bytes = b"x", **more: object) -> None:
    """Publish and carry the handshake of the QoS through."""
    qos = int(str(more.get("qos", 0)))
    publish(c, topic, payload, **more)  # type: ignore[arg-type]
    if qos == 1:
        assert c.expect(Ack).type == PUBACK
    elif qos == 2:
        assert c.expect(Ack).type == PUBREC
        c.send(Ack(PUBREL, int(str(more.get("packet_id", 1)))))
        assert c.expect(Ack).type == PUBCOMP


def sole(c: FakeClient, kind: type[P]) -> P:
    """The one packet written since last looked at, of this class."""
    packets = c.receive()
    assert [type(packet) for packet in packets] == [kind], packets
    assert isinstance(packets[0], kind)
    return packets[0]


def messages(c: FakeClient) -> list[Publish]:
    """The messages delivered since the last call; no other packets have come."""
    packets = c.receive()
    found = [packet for packet in packets if isinstance(packet, Publish)]
    assert found == packets, packets
    return found


def payloads(c: FakeClient) -> list[bytes]:
    return [message.payload for message in messages(c)]


def topics(c: FakeClient) -> list[bytes]:
    return [message.topic for message in messages(c)]


def acknowledge(c: FakeClient, message: Publish) -> None:
    """Answer a delivered message as its QoS asks, to the end of the handshake."""
    if message.qos == 1:
        c.send(Ack(PUBACK, message.packet_id))
    elif message.qos == 2:
        c.send(Ack(PUBREC, message.packet_id))
        assert c.expect(Ack) == Ack(PUBREL, message.packet_id)
        c.send(Ack(PUBCOMP, message.packet_id))


# -- how connections end


def ended(c: FakeClient, *reasons: int) -> None:
    """The connection was closed: in MQTT 5 after a DISCONNECT with one of the reasons, before that without a word."""
    packets = c.receive()
    assert c.closed
    if c.version == 5:
        assert [type(packet) for packet in packets] == [Disconnect], packets
        assert isinstance(packets[0], Disconnect)
        assert Reason(packets[0].reason) in reasons
    else:
        assert packets == []


def refused(c: FakeClient, *reasons: int, return_code: int = -1) -> None:
    """CONNECT was refused and the connection closed.

    MQTT 5: a CONNACK with one of the reasons. 3.x: one with ``return_code``, or none at all for -1.
    """
    packets = c.receive()
    assert c.closed
    if c.version != 5 and return_code < 0:
        assert packets == []
        return
    assert [type(packet) for packet in packets] == [Connack], packets
    assert isinstance(packets[0], Connack)
    assert not packets[0].session_present
    assert packets[0].reason in (reasons if c.version == 5 else (return_code,))


def will(topic: str = "will", payload: bytes = b"gone", **more: object) -> Will:
    return Will(topic.encode(), payload, **more)  # type: ignore[arg-type]
