"""Records of wills at the leaders of shares (``cluster.shares``), as values and as bytes (MessagePack).

The key ``<node>/<client id>``: the will of a client of that node, from CONNECT until it is
cancelled or published. Only that node creates and deletes its keys (others once it is no longer a member); others write
into them that the will is settled. So no other node knows of a will without a key. Below the node's number are also the
wills that the node has taken from others, to publish them, after a zero byte, which no client id contains
[MQTT-1.5.4-2].
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from starlingmq.core.messages.message import Message
from starlingmq.core.session.connection import UNPROVED
from starlingmq.core.session.session import Client, Will
from starlingmq.core.session.will_rule import due_after

ARMED: Final = 0  # it may be published
FIRING: Final = 1  # its own node is publishing it; of a taken will: it is published, and etcd has not what it retains
SETTLED: Final = 2  # another node has taken it, or its client is back
TAKEN: Final = "\0"  # then client id, "/", node number: a will taken from that node


class WillValueError(ValueError):
    """The record is not one of any version that this node knows."""


class RegisteredWill(msgspec.Struct, array_like=True):
    """``seconds``: it is due at most this long after its connection was lost. ``due_at``: when exactly, in Unix
    seconds; 0.0: not known yet. ``delay``: the client's Will Delay Interval. ``epoch``: the one by which the node owned
    the client id then. SETTLED: all wills of lower epochs than ``epoch`` are, and the one with this id; ``taker`` is
    the node that has taken it to publish it (0: none). The other fields are empty in FIRING and SETTLED records of a
    node's own wills."""

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


def wills_of(node: int) -> bytes:
    """The prefix of the keys of a node."""
    return b"%d/" % node


def will_key(node: int, client_id: str) -> bytes:
    """The key of the will of a client of the node."""
    return wills_of(node) + client_id.encode()


def taken_key(taker: int, node: int, client_id: str) -> bytes:
    """The key of a will that ``taker`` has taken from ``node``."""
    return wills_of(taker) + taken_name(node, client_id).encode()


def taken_name(node: int, client_id: str) -> str:
    return f"{TAKEN}{client_id}/{node}"


def client_of(taken: str) -> str:
    """The client id in a name of ``taken_name``."""
    return taken[len(TAKEN) :].rpartition("/")[0]


def owner_of(key: bytes) -> tuple[int, str]:
    """The node of a record, and its name there."""
    node, _, name = key.partition(b"/")
    return int(node), name.decode()


def is_taken(key: bytes) -> bool:
    """Whether a key is that of a will that was taken from another node."""
    return key.partition(b"/")[2].startswith(TAKEN.encode())


def client_of_key(key: bytes) -> str:
    """The client id of the will of a key."""
    name = key.partition(b"/")[2].decode()
    return client_of(name) if name.startswith(TAKEN) else name


def encode_will(value: RegisteredWill) -> bytes:
    return _encoder.encode(value)


def decode_will(data: bytes) -> RegisteredWill:
    """Raises WillValueError."""
    try:
        value: RegisteredWill = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise WillValueError(f"the record of a will is malformed: {error}") from error
    return value


def registered(will: Will, session_expiry: int, due_at: float) -> RegisteredWill:
    message = will.message
    return RegisteredWill(
        ARMED,
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
        due_after(will.delay, session_expiry),
        due_at,
        will.epoch,
        will.granted,
    )


def will_from(value: RegisteredWill) -> Will:
    """The will as its client left it, under the client's name at that time."""
    client = Client("", value.peer, 0.0)
    client.client_id = value.publisher
    client.username = value.username
    client.standing = UNPROVED
    message = Message(value.topic, value.payload, value.qos, value.retain, value.properties, 0.0, value.publisher, 0.0)
    return Will(message, value.delay, value.expiry, client, value.id, value.granted, value.epoch)
