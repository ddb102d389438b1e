"""Frames about sessions between nodes, and the values that a node stores about them (MessagePack).

The frames travel on the links between nodes, in order and as reliably as messages
(core.delivery.delivery.Delivery.send_to_node): none is lost, duplicated or reordered between two nodes that keep
their storage. ``epoch`` is that of the new owner.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

NOTHING: Final = 0  # in place of the epoch of a session: the node has none, and never will
OVERTAKEN: Final = -1  # a node with a higher epoch has asked before, or the former owner has claimed it back with one
OWES: Final = -2  # the node has no session, but messages of an earlier one may still arrive
PASSED_ON: Final = -3  # it went to an owner with a lower epoch, which the new owner will ask as well
CANCELLED: Final = -1  # in place of the id of a will that is due
UNREPORTED: Final = -2  # never sent: the node was asked and has not answered yet
BATCH_BYTES: Final = 32 * 1024  # of frames to one node in one message; a single frame may be larger


class TransferError(ValueError):
    """The bytes are not a frame of any version that this node knows."""


class SubscriptionFrame(msgspec.Struct, array_like=True):
    """A subscription. ``whole`` is the filter as subscribed, including a $share prefix; ``ids`` are encoded
    properties, ``position`` is that in a stream."""

    whole: bytes
    qos: int
    no_local: bool
    retain_as_published: bool
    ids: bytes
    position: bytes = b""


class Part(msgspec.Struct, array_like=True):
    """A message of a session. ``packet_id`` 0: it was queued. ``left``: seconds until it expires, -1.0: never. ``qos``
    and ``retain`` are those of the delivery; ``published`` is (QoS, retain, time) of the message."""

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
    id: bytes = b""  # identifies the message in events


class Takeover(msgspec.Struct, array_like=True, tag=1):
    """New owner to former owners: hand over the session. ``clean``: discard it instead. ``offered``: this node claims
    it because it was offered, not because its client connected; a former owner whose client has returned keeps it.
    ``user``: who connected (None: no client, or users are not compared); a session of another user is discarded too
    (core.session.session_user)."""

    client_id: str
    epoch: int
    clean: bool
    offered: bool = False
    user: str | None = None


class Head(msgspec.Struct, array_like=True, tag=2):
    """Former owner to new owner: description of the session. ``held`` is its epoch there, or one of the constants
    above. ``needs_reset``: the client must be told that this is not its earlier session (``Session.needs_reset``),
    unless it is known to have noticed (``reset_confirmed``). ``holders``: other nodes that may have state of the
    client's sessions, as the sender knows; None: there may be more. The frame is repeated when ``former_filters`` has
    grown; only ``former_filters``, ``unknown`` and ``holders`` of a repetition count."""

    client_id: str
    epoch: int
    held: int
    expiry: int = 0
    left: float = 0.0
    last_id: int = 0
    granted: list[SubscriptionFrame] = []
    floor: int = 0
    trail: tuple[int, int, bool] | None = (0, 0, False)  # where its QoS 2 handshakes are (core.session.session)
    needs_reset: bool = False
    former_filters: list[bytes] = []  # filters of sessions that are moving to the sender, without shared groups ...
    unknown: bool = False  # ... as far as they are known
    had_will: bool = False  # it had a will that the client's return has cancelled, or made due: see ``will``
    # its user. With OVERTAKEN: the session is reserved for that user (auth.session_owner: refuse)
    owner: str | None = None
    will: int = 0  # id of the will that is due; CANCELLED; 0: the record of the will says it
    reset_confirmed: bool = False
    holders: list[int] | None = None


class Parts(msgspec.Struct, array_like=True, tag=3):
    """Messages of the session: its inflight window first, then its queue, then messages that still arrive."""

    client_id: str
    epoch: int
    parts: list[Part]


class Whole(msgspec.Struct, array_like=True, tag=4):
    """The inflight window is complete: the client may get its session."""

    client_id: str
    epoch: int


class Passed(msgspec.Struct, array_like=True, tag=5):
    """All messages of these nodes from before their cut markers have been handed over. ``done``: the sender has no
    state left."""

    client_id: str
    epoch: int
    nodes: list[int]
    done: bool


class Barrier(msgspec.Struct, array_like=True, tag=6):
    """New owner to all nodes: mark your messages, once you have my routes of that epoch and version. ``holders``: the
    other nodes that need the marker; None: all."""

    route_epoch: int
    version: int
    entries: list[tuple[str, int]]
    clean: list[str] = []  # client ids of ``entries`` with a clean start
    users: dict[str, str] = {}  # the users, as in ``Takeover``, by client id
    holders: list[int] | None = None


class Mark(msgspec.Struct, array_like=True, tag=7):
    """To the new owner and the earlier ones: ``owner`` delivers what I send from here on, and no earlier owner does."""

    owner: int
    entries: list[tuple[str, int]]
    clean: list[str] = []
    users: dict[str, str] = {}


class ShortBarrier(msgspec.Struct, array_like=True, tag=10):
    """``Barrier`` for sessions that all ``holders`` hand over to the new owner, by their short names
    (``cluster.takeover.short_names``)."""

    route_epoch: int
    version: int
    holders: list[int]
    names: bytes


class ShortMark(msgspec.Struct, array_like=True, tag=11):
    """``Mark`` for sessions that its receivers know, by their short names."""

    owner: int
    names: bytes


class Unknown(msgspec.Struct, array_like=True, tag=8):
    """To a former owner: I do not wait for this session. Sent by a node without storage that has restarted."""

    client_id: str
    epoch: int


class ReleaseKey(msgspec.Struct, array_like=True, tag=9):
    """To a node: delete your owner key of this epoch, unless you have state of the client id."""

    client_id: str
    epoch: int


class Offer(msgspec.Struct, array_like=True, tag=20):
    """From a draining node: take these sessions over. (client id, epoch at the sender) each."""

    entries: list[tuple[str, int]]


class Declined(msgspec.Struct, array_like=True, tag=21):
    """Answer to ``Offer``: the client ids that are declined."""

    client_ids: list[str]


class Rebalance(msgspec.Struct, array_like=True, tag=22):
    """To all nodes: send clients to nodes with fewer, at this rate per second (0: the configured rate)."""

    rate: int


TransferFrame = (
    Takeover
    | Head
    | Parts
    | Whole
    | Passed
    | Barrier
    | Mark
    | ShortBarrier
    | ShortMark
    | Unknown
    | ReleaseKey
    | Offer
    | Declined
    | Rebalance
)

_encoder = msgspec.msgpack.Encoder()
_decoder: Any = msgspec.msgpack.Decoder(list[TransferFrame])


def encode(frame: TransferFrame) -> bytes:
    return _encoder.encode(frame)


def pack(frames: list[bytes]) -> bytes:
    """Encoded frames as one message."""
    return _encoder.encode([msgspec.Raw(each) for each in frames])


def unpack(payload: bytes) -> list[TransferFrame]:
    """The frames of a message, in order. Raises TransferError."""
    try:
        frames: list[TransferFrame] = _decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise TransferError(f"a frame about sessions is malformed: {error}") from error
    return frames


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
    session: int  # its number; 0: none at this node
    open: bool
    former_filters: list[bytes]
    filters_unknown: list[int]
    discarded: bool = False
    later: dict[int, int] = {}
    user: str | None = None
    whole: bool = False


_kept_decoder = msgspec.msgpack.Decoder(list[tuple[int, Parts]])
_inbound_decoder = msgspec.msgpack.Decoder(InboundSessionValue)
_marks = msgspec.msgpack.Decoder(list[int])


def encode_inbound(value: InboundSessionValue) -> bytes:
    return _encoder.encode(value)


def decode_inbound(fact: bytes) -> InboundSessionValue:
    return _inbound_decoder.decode(fact)


def encode_kept(kept: list[tuple[int, Parts]]) -> bytes:
    return _encoder.encode(kept)


def decode_kept(fact: bytes) -> list[tuple[int, Parts]]:
    return _kept_decoder.decode(fact)


def encode_marks(marks: list[int]) -> bytes:
    return _encoder.encode(marks)


def decode_marks(fact: bytes) -> list[int]:
    return _marks.decode(fact)
