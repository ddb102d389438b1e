"""What nodes say to each other about sessions, and what they note of it for themselves: values, and their bytes
(MessagePack).

They travel on the lines between nodes, in order with messages and as surely (core.routing.forwarding.Forwarding.tell),
so none is ever lost, doubled or overtaken between two nodes that keep what they store; ``epoch`` is the new owner's.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

NOTHING: Final = 0  # in place of the epoch of a session: there is none, and never will be
OVERTAKEN: Final = -1  # somebody with a higher epoch asked before, or it is the former owner's again by such a one
OWES: Final = -2  # there is none, but something of an earlier one may still come
PASSED_ON: Final = -3  # it went to an owner with a lower epoch, who will be asked as well
CANCELLED: Final = -1  # in place of the id of a will that is due
BATCH_BYTES: Final = 32 * 1024  # of what is said to a node in one message, as a rule


class TransferError(ValueError):
    """What came is not what a node of a version that we know would say."""


class SubscriptionFrame(msgspec.Struct, array_like=True):
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
    id: bytes = b""  # by which events tell of the message


class Takeover(msgspec.Struct, array_like=True, tag=1):
    """New owner to former ones: hand over what you have. ``clean``: throw it away. ``offered``: it was offered, its
    client has not come; a former owner to whom that has come back keeps it. ``user``: who has connected (None: nobody,
    or it is not told); a session of another user is thrown away as well (core.session.session_user)."""

    client_id: str
    epoch: int
    clean: bool
    offered: bool = False
    user: str | None = None


class Head(msgspec.Struct, array_like=True, tag=2):
    """Former owner to the new one: what the session is; ``held`` is its epoch there, or one of the above. ``anew``: its
    client has to be told that it is not the one it had (``Session.anew``), unless it is ``aware`` of it. It is said
    again when more is known of ``former``; then nothing else of it counts."""

    client_id: str
    epoch: int
    held: int
    expiry: int = 0
    left: float = 0.0
    last_id: int = 0
    granted: list[SubscriptionFrame] = []
    floor: int = 0
    trail: tuple[int, int, bool] | None = (0, 0, False)  # where its QoS 2 handshakes are (see core.session.session)
    anew: bool = False
    former: list[bytes] = []  # filters of what is on its way to the sender, shared groups left out ...
    unknown: bool = False  # ... as far as they are known
    willed: bool = False  # it had a will that its client's return has cancelled, or made due: see ``will``
    owner: str | None = None  # whose it is. With OVERTAKEN: it stays with that user (auth.session_owner: refuse)
    will: int = 0  # the id of the one that is due; CANCELLED; 0: the sender is of an earlier version
    aware: bool = False


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
    clean: list[str] = []  # of those the client ids with a clean start
    users: dict[str, str] = {}  # and the users, as in ``Takeover``, by client id


class Mark(msgspec.Struct, array_like=True, tag=7):
    """To all: what I send from here on is the new owner's (``owner``) to give, and no earlier one's."""

    owner: int
    entries: list[tuple[str, int]]
    clean: list[str] = []
    users: dict[str, str] = {}


class Unknown(msgspec.Struct, array_like=True, tag=8):
    """To a former owner: I do not wait for this. A node that keeps nothing has begun a new life."""

    client_id: str
    epoch: int


class ReleaseKey(msgspec.Struct, array_like=True, tag=9):
    """To a node: delete your owner key of this epoch, if you have no state of the client id (any more)."""

    client_id: str
    epoch: int


class Offer(msgspec.Struct, array_like=True, tag=20):
    """Of a node that drains: take these sessions over. Client ids, each with its epoch at the sender."""

    entries: list[tuple[str, int]]


class Declined(msgspec.Struct, array_like=True, tag=21):
    """In answer to that: not these."""

    client_ids: list[str]


class Rebalance(msgspec.Struct, array_like=True, tag=22):
    """To all: send clients to where there are fewer, so many a second (0: as you are set)."""

    rate: int


Said = Takeover | Head | Parts | Whole | Passed | Barrier | Mark | Unknown | ReleaseKey | Offer | Declined | Rebalance

_encoder = msgspec.msgpack.Encoder()
_decoder: Any = msgspec.msgpack.Decoder(list[Said])


def encode(said: Said) -> bytes:
    return _encoder.encode(said)


def pack(said: list[bytes]) -> bytes:
    """What was encoded, as one message."""
    return _encoder.encode([msgspec.Raw(each) for each in said])


def unpack(payload: bytes) -> list[Said]:
    """What was packed, in its order. Raises TransferError."""
    try:
        said: list[Said] = _decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise TransferError(f"a frame about sessions is malformed: {error}") from error
    return said


class InboundSessionValue(msgspec.Struct, array_like=True):
    """A ``cluster.takeover.inbound.InboundSession`` as a fact for the store."""

    client_id: str
    epoch: int
    waiting: dict[int, int]
    streaming: dict[int, int]
    marks: list[int]
    best: int
    best_held: int
    owned: int
    session: int  # its number; 0: there is none here
    open: bool
    former: list[bytes]
    vague: list[int]
    discarded: bool = False
    later: dict[int, int] = {}
    user: str | None = None
    whole: bool = False


_arrival = msgspec.msgpack.Decoder(InboundSessionValue)
_marks = msgspec.msgpack.Decoder(list[int])


def encode_arrival(value: InboundSessionValue) -> bytes:
    return _encoder.encode(value)


def decode_arrival(fact: bytes) -> InboundSessionValue:
    return _arrival.decode(fact)


def encode_marks(marks: list[int]) -> bytes:
    return _encoder.encode(marks)


def decode_marks(fact: bytes) -> list[int]:
    return _marks.decode(fact)
