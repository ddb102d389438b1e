"""Input of a faulty client: packets that make sense, that nearly do, and noise, in any order."""

from __future__ import annotations

from random import Random
from typing import Final

from starlingmq.wire.mqtt import (
    Ack,
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Publish,
    Subscribe,
    SubscribeRequest,
    Unsubscribe,
    Will,
    encode,
)
from starlingmq.wire.properties import (
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    MESSAGE_EXPIRY_INTERVAL,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS_MAXIMUM,
    WILL_DELAY_INTERVAL,
    Properties,
)
from tests.fuzz.mutate import VERSIONS, mutated, some_frame

NAMES: Final = ("fuzz1", "fuzz2", "fuzz3", "fuzz4", "")
TOPICS: Final = ("f", "f/a", "f/b", "f/a/b", "$SYS/f", "/", "f//x")
FILTERS: Final = (
    *TOPICS,
    "#",
    "f/#",
    "+",
    "+/+",
    "f/+/b",
    "$share/g/f/#",
    "$share/g/f",
    "$share/h/#",
    "f#",
    "$share/g",
)
METHOD: Final = "magic"


def version(rng: Random) -> int:
    return rng.choice(VERSIONS)


def connect(rng: Random, version: int) -> Packet:
    properties: Properties = {}
    if version == 5:
        for name, values in (
            (SESSION_EXPIRY_INTERVAL, (0, 5, 60)),
            (RECEIVE_MAXIMUM, (1, 2, 65535)),
            (MAXIMUM_PACKET_SIZE, (1, 20, 64, 100_000)),
            (TOPIC_ALIAS_MAXIMUM, (0, 1, 10)),
        ):
            if rng.random() < 0.3:
                properties[name] = rng.choice(values)
        if rng.random() < 0.2:
            properties[AUTHENTICATION_METHOD] = METHOD
    will = None
    if rng.random() < 0.3:
        will = Will(
            rng.choice(TOPICS).encode(),
            b"will",
            rng.randrange(3),
            rng.random() < 0.3,
            {WILL_DELAY_INTERVAL: rng.choice((0, 3, 100)), MESSAGE_EXPIRY_INTERVAL: 50} if version == 5 else {},
        )
    return Connect(
        version, rng.choice(NAMES), rng.random() < 0.4, rng.choice((0, 0, 1, 60)), will=will, properties=properties
    )


def packet_id(rng: Random) -> int:
    return rng.randrange(1, 5) if rng.random() < 0.9 else rng.randrange(1, 65536)


def publish(rng: Random, version: int) -> Packet:
    qos = rng.randrange(3)
    alias = rng.choice((0, 0, 1, 2, 40)) if version == 5 else 0
    return Publish(
        b"" if alias and rng.random() < 0.5 else rng.choice(TOPICS).encode(),
        rng.randbytes(rng.choice((0, 1, 10, 300))),
        qos,
        rng.random() < 0.2,
        qos > 0 and rng.random() < 0.1,
        packet_id(rng) if qos else 0,
        b"\x26\0\1k\0\1v" * rng.randrange(3) if version == 5 else b"",
        rng.choice((-1, -1, 0, 5)) if version == 5 else -1,
        alias,
    )


def subscribe(rng: Random, version: int) -> Packet:
    options = version == 5
    requests = [
        SubscribeRequest(
            rng.choice(FILTERS).encode(),
            rng.randrange(3),
            options and rng.random() < 0.2,
            options and rng.random() < 0.2,
            rng.randrange(3) if options else 0,
        )
        for _ in range(rng.randrange(1, 4))
    ]
    identifier: Properties = {SUBSCRIPTION_IDENTIFIER: [rng.randrange(1, 300)]}
    return Subscribe(packet_id(rng), requests, identifier if options and rng.random() < 0.3 else {})


def other(rng: Random, version: int) -> Packet:
    """Acknowledgements of anything, PINGREQ, AUTH, DISCONNECT, UNSUBSCRIBE, a second CONNECT."""
    kind = rng.randrange(30)
    if kind < 18:
        return Ack(4 + kind % 4, packet_id(rng), 0x92 if version == 5 and kind % 5 == 0 else 0)
    if kind < 22:
        return Pingreq()
    if kind < 26:
        return Unsubscribe(packet_id(rng), [rng.choice(FILTERS).encode()])
    if kind < 27:
        return connect(rng, version)
    if kind < 29 and version == 5:
        properties: Properties = {AUTHENTICATION_METHOD: METHOD, AUTHENTICATION_DATA: b"data"}
        return Auth(rng.choice((0x18, 0x19)), properties)
    return Disconnect(rng.choice((0, 4)) if version == 5 else 0)


def sense(rng: Random, version: int) -> bytes:
    """A packet that a client may send at some time."""
    make = rng.choice((publish, publish, publish, subscribe, other, other))
    return encode(make(rng, version), version)


def anything(rng: Random, version: int) -> bytes:
    kind = rng.random()
    if kind < 0.75:
        return sense(rng, version)
    if kind < 0.85:
        return some_frame(rng, version)
    if kind < 0.98:
        return mutated(rng, version)
    return rng.randbytes(rng.randrange(1, 60))


def opening(rng: Random, version: int) -> bytes:
    """How a connection begins: with CONNECT, mostly."""
    kind = rng.random()
    if kind < 0.85:
        return encode(connect(rng, version), version)
    return anything(rng, version)


def pieces(rng: Random, data: bytes) -> list[bytes]:
    """The same bytes as the network may bring them."""
    if rng.random() < 0.8 or len(data) < 2:
        return [data]
    if rng.random() < 0.2:
        return [data[at : at + 1] for at in range(len(data))]
    at = rng.randrange(1, len(data))
    return [data[:at], data[at:]]
