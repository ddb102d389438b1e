"""What nodes say to each other about sessions, as values and as bytes (MessagePack).

They travel on the lines between nodes, in order with messages and as surely (``core.delivery.Delivery.tell``), so none
is ever lost, doubled or overtaken between two nodes that keep what they store; ``epoch`` is the new owner's.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

NOTHING: Final = 0  # in place of the epoch of a session: there is none, and never will be
REFUSED: Final = -1  # there may be, but not for the one who asks: it was overtaken, or somebody else has it
OWES: Final = -2  # there is none, but something of an earlier one may still come


class TransferError(ValueError):
    """What came is not what a node of a version that we know would say."""


class Granted(msgspec.Struct, array_like=True):
    """A subscription. ``whole`` is the filter as subscribed, $share prefix included; ``ids`` are encoded properties."""

    whole: bytes
    qos: int
    no_local: bool
    retain_as_published: bool
    ids: bytes


class Part(msgspec.Struct, array_like=True):
    """A message of a session. ``packet_id`` 0: it was queued; ``left``: seconds until it expires, -1.0: it does not.
    ``qos`` and ``retain`` are those of the delivery, ``published`` is (QoS, retain, when) of the message."""

    topic: bytes
    payload: bytes
    properties: bytes
    publisher: str
    published: tuple[int, bool, float]
    left: float
    qos: int
    retain: bool
    ids: bytes
    packet_id: int
    stage: int


class Takeover(msgspec.Struct, array_like=True, tag=1):
    """New owner to former ones: hand over what you have. ``clean``: throw it away. ``offered``: it was offered, its
    client has not come; a former owner to whom that has come back keeps it."""

    client_id: str
    epoch: int
    clean: bool
    offered: bool = False


class Head(msgspec.Struct, array_like=True, tag=2):
    """Former owner to the new one: what the session is; ``held`` is its epoch there, or one of the above."""

    client_id: str
    epoch: int
    held: int
    expiry: int = 0
    left: float = 0.0
    last_id: int = 0
    granted: list[Granted] = []
    floor: int = 0
    trail: tuple[int, int, bool] | None = (0, 0, False)  # where its QoS 2 handshakes are (see core.session)


class Parts(msgspec.Struct, array_like=True, tag=3):
    """What it holds: its window first, then its queue, then what still comes."""

    client_id: str
    epoch: int
    parts: list[Part]


class Whole(msgspec.Struct, array_like=True, tag=4):
    """Its window is complete: the client may have it."""

    client_id: str
    epoch: int


class Passed(msgspec.Struct, array_like=True, tag=5):
    """All that came from these nodes before their marks is here. ``done``: the sender has nothing of it any more."""

    client_id: str
    epoch: int
    nodes: list[int]
    done: bool


class Barrier(msgspec.Struct, array_like=True, tag=6):
    """New owner to all: mark your messages, if you have my routes of that epoch and version."""

    route_epoch: int
    version: int
    entries: list[tuple[str, int]]


class Mark(msgspec.Struct, array_like=True, tag=7):
    """To all: what I send from here on is the new owner's (``owner``) to give, and no earlier one's."""

    owner: int
    entries: list[tuple[str, int]]


class Offer(msgspec.Struct, array_like=True, tag=20):
    """Of a node that drains: take these sessions over. Client ids, each with its epoch at the sender."""

    entries: list[tuple[str, int]]


class Declined(msgspec.Struct, array_like=True, tag=21):
    """In answer to that: not these."""

    client_ids: list[str]


class Rebalance(msgspec.Struct, array_like=True, tag=22):
    """To all: send clients to where there are fewer, so many a second (0: as you are set)."""

    rate: int


Said = Takeover | Head | Parts | Whole | Passed | Barrier | Mark | Offer | Declined | Rebalance

_encoder = msgspec.msgpack.Encoder()
_decoder: Any = msgspec.msgpack.Decoder(Said)


def encode(said: Said) -> bytes:
    return _encoder.encode(said)


def decode(payload: bytes) -> Said:
    """Raises TransferError."""
    try:
        said: Said = _decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise TransferError(f"what a node says of sessions can not be read: {error}") from error
    return said
