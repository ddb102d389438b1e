"""What etcd holds of wills, as values and as bytes (MessagePack).

``/starlingmq/<cluster>/wills/<node>/<client id>``: the will of a client of that node, from CONNECT until it is
cancelled or published. Only that node makes and deletes its keys (others once it is no member); others write into them
that it is settled. So a will without a key was never told to anybody. Below its number is also, behind a zero byte,
which no client id has [MQTT-1.5.4-2], what the node has taken to publish in the place of others.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from starlingmq.core.connection import UNPROVED
from starlingmq.core.message import Message
from starlingmq.core.session.session import Client, Will

REGISTERED: Final = 0  # it may be published
FIRING: Final = 1  # its own node publishes it
SETTLED: Final = 2  # another node has taken it, or its client is back
TAKEN: Final = "\0"  # and a client id, "/", a node number: what was taken from that node


class WillValueError(ValueError):
    """What etcd has is not what a node of a version that we know would write."""


class RegisteredWill(msgspec.Struct, array_like=True):
    """``seconds`` after its connection is lost it is due, at the latest; ``due_at`` is when that is known, in Unix
    seconds, 0.0 before. ``delay`` is what the client asked for, ``epoch`` the one in which its node owned the client
    id then. SETTLED: all wills of epochs before ``epoch`` are, and the one with that id; ``taker`` is the node that has
    taken it to publish it (0: none has). All others are empty unless REGISTERED."""

    state: int
    id: int
    topic: bytes = b""
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: bytes = b""
    delay: int = 0
    expiry: int = -1
    username: str = ""
    peer: str = ""
    publisher: str = ""
    seconds: int = 0
    due_at: float = 0.0
    epoch: int = 0
    granted: bool = False
    taker: int = 0


_encoder = msgspec.msgpack.Encoder()
_decoder: Any = msgspec.msgpack.Decoder(RegisteredWill)


def all_wills(cluster: str) -> bytes:
    return f"/starlingmq/{cluster}/wills/".encode()


def wills_of(cluster: str, node: int) -> bytes:
    return all_wills(cluster) + b"%d/" % node


def taken_key(cluster: str, taker: int, node: int, client_id: str) -> bytes:
    """Of what ``taker`` has taken from ``node``."""
    return wills_of(cluster, taker) + taken_name(node, client_id).encode()


def taken_prefix(cluster: str, taker: int, client_id: str) -> bytes:
    """Of all that ``taker`` has taken of one client id, and of others that go on with "/"."""
    return wills_of(cluster, taker) + f"{TAKEN}{client_id}/".encode()


def taken_name(node: int, client_id: str) -> str:
    return f"{TAKEN}{client_id}/{node}"


def client_of(taken: str) -> str:
    """Of a name that ``taken_name`` has made."""
    return taken[len(TAKEN) :].rpartition("/")[0]


def encode_will(value: RegisteredWill) -> bytes:
    return _encoder.encode(value)


def decode_will(data: bytes) -> RegisteredWill:
    """Raises WillValueError."""
    try:
        value: RegisteredWill = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise WillValueError(f"the record of a will in etcd is malformed: {error}") from error
    return value


def registered(will: Will, session_expiry: int, due_at: float) -> RegisteredWill:
    message = will.message
    return RegisteredWill(
        REGISTERED,
        will.id,
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        message.properties,
        will.delay,
        will.expiry,
        will.client.username,
        will.client.peer,
        message.publisher,
        min(will.delay, session_expiry),
        due_at,
        will.epoch,
        will.granted,
    )


def will_from(value: RegisteredWill) -> Will:
    """As its client left it, under the name that the client had."""
    client = Client("", value.peer, 0.0)
    client.client_id = value.publisher
    client.username = value.username
    client.standing = UNPROVED
    message = Message(value.topic, value.payload, value.qos, value.retain, value.properties, 0.0, value.publisher, 0.0)
    return Will(message, value.delay, value.expiry, client, value.id, value.granted, value.epoch)
