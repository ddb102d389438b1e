"""Frames between the homes of streams and the nodes of their clients (MessagePack).

The frames of a turn for a node are one message to it, in order with its other messages. Most are lost with the
connection of the two nodes (``Delivery.send_to_node``): clients repeat requests, and consumers deliver again what is
not acknowledged. ``Shown`` that tell what is stored are as reliable as messages, and come after it.

Rights are those of the node of the client: a home answers each request.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

TAG: Final = b"J"  # prefix of these messages, and of no other ones: no MessagePack list begins with it
BATCH_BYTES: Final = 256 << 10  # of frames in one message; a single frame may be larger


class StreamFrameError(ValueError):
    """The bytes are not frames of any version that this node knows."""


class ApiCall(msgspec.Struct, array_like=True, tag=1):
    """To a home: a request of a client (its id) to the API."""

    client: str
    subject: str
    reply: bytes  # a topic
    headers: bytes
    payload: bytes


class AckPassed(msgspec.Struct, array_like=True, tag=2):
    """To a home: an acknowledgement, or the answer to a flow control request."""

    client: str
    subject: bytes
    payload: bytes
    reply: bytes


class ClientGone(msgspec.Struct, array_like=True, tag=3):
    """To a home: the connection of this client has ended."""

    client: str


class Shown(msgspec.Struct, array_like=True, tag=4):
    """From a home: a message for the subscription of a client to ``topic``; or, without ``client``, for all
    subscriptions there, or one member of ``group``. ``head`` and ``tail`` are those of NATS clients; without head:
    nothing listens to what it has asked. The payload is at the end of the tail."""

    client: str
    topic: bytes
    head: bytes
    tail: bytes
    size: int  # of the payload
    group: bytes = b""
    properties: bytes = b""


class StreamsAsked(msgspec.Struct, array_like=True, tag=5):
    """To a home: what ``StreamsTold`` is to tell of its streams; ``names`` None: of all of them together."""

    number: int
    names: list[str] | None


class StreamsTold(msgspec.Struct, array_like=True, tag=6):
    number: int
    payload: bytes  # JSON


class Unheard(msgspec.Struct, array_like=True, tag=7):
    """To a home: this client is there, and not subscribed to ``topic``, at which it was shown a message."""

    client: str
    topic: bytes


class ReadAsked(msgspec.Struct, array_like=True, tag=8):
    """To a home: messages for an MQTT session. See core.streams.far_read.FarRead."""

    reader: int
    number: int
    stream: str
    filter: bytes
    queue: bool
    next: int
    start: tuple[int, int, float]  # kind, offset, time
    count: int
    octets: int
    made: float = 0.0
    group: bytes = b""


class ReadEnded(msgspec.Struct, array_like=True, tag=9):
    """To a home: this reader wants nothing more for now, or ``left`` its group (core.jetstream.far_streams)."""

    reader: int
    left: int = 0


class ReadShown(msgspec.Struct, array_like=True, tag=10):
    """From a home: a message for a reader. See core.streams.far_read.ReadTold. ``sequence`` 0: there is no message.
    ``seconds``: until it expires; -1.0: never."""

    reader: int
    number: int
    after: int
    next: int
    left: int
    skipped: int
    sequence: int
    reply: bytes = b""
    topic: bytes = b""
    payload: bytes = b""
    properties: bytes = b""
    publisher: str = ""
    qos: int = 0
    seconds: float = -1.0
    published: float = 0.0
    made: float = 0.0
    waiting: int = -1


StreamFrame = (
    ApiCall | AckPassed | ClientGone | Shown | StreamsAsked | StreamsTold | Unheard | ReadAsked | ReadEnded | ReadShown
)

_encoder = msgspec.msgpack.Encoder()
_decoder: Any = msgspec.msgpack.Decoder(list[StreamFrame])


def encode_frame(frame: StreamFrame) -> bytes:
    return _encoder.encode(frame)


def pack(frames: list[bytes]) -> bytes:
    """Encoded frames as one message."""
    return TAG + _encoder.encode([msgspec.Raw(each) for each in frames])


def unpack(payload: bytes) -> list[StreamFrame]:
    """The frames of a message, in order. Raises StreamFrameError."""
    try:
        frames: list[StreamFrame] = _decoder.decode(payload[len(TAG) :])
    except msgspec.MsgspecError as error:
        raise StreamFrameError(f"a frame about streams is malformed: {error}") from error
    return frames
