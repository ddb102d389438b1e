"""Records of retained messages in etcd, and frames about large ones: values and bytes (MessagePack).

``/starlingmq/<cluster>/retained/`` and a topic: a small message as a whole; for a larger one, the holders of its
payload. After a zero byte, which no topic contains [MQTT-1.5.4-2], the number of a node: the *mark* of that node, the
sequence up to which its published messages are in etcd. So a watcher knows which of them it has seen.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from starlingmq.core.messages.message import Message

MARK: Final = b"\0"
TAG: Final = b"R"  # prefix of all frames about retained messages, and of no other ones


class RetainedError(ValueError):
    """The bytes are not a record or frame of any version that this node knows."""


class RetainedValue(msgspec.Struct, array_like=True):
    """A message; (origin, sequence) is its id. ``expires_at`` and ``published_at`` are Unix seconds. ``holders``: the
    nodes that have the payload if it is not here, () if it is."""

    origin: int
    sequence: int
    qos: int
    properties: bytes
    publisher: str
    published_at: float
    expires_at: float
    payload: bytes
    size: int = 0  # of the payload
    holders: tuple[int, ...] = ()


class Keep(msgspec.Struct, array_like=True, tag=1):
    """To a holder: keep this copy."""

    topic: bytes
    value: RetainedValue


class Fetch(msgspec.Struct, array_like=True, tag=2):
    """To a holder: send the message that this topic retains."""

    topic: bytes
    origin: int
    sequence: int


class Fetched(msgspec.Struct, array_like=True, tag=3):
    """The answer; None: it is not here, or no longer."""

    topic: bytes
    origin: int
    sequence: int
    value: RetainedValue | None


RetainedFrame = Keep | Fetch | Fetched

_encoder = msgspec.msgpack.Encoder()
_value = msgspec.msgpack.Decoder(RetainedValue)
_frame_decoder: Any = msgspec.msgpack.Decoder(RetainedFrame)


def prefix(cluster: str) -> bytes:
    return f"/starlingmq/{cluster}/retained/".encode()


def mark_key(cluster: str, node: int) -> bytes:
    return prefix(cluster) + MARK + b"%d" % node


def value_of(message: Message, holders: tuple[int, ...]) -> RetainedValue:
    """``holders`` (): with payload and properties."""
    return RetainedValue(
        message.origin,
        message.sequence,
        message.qos,
        b"" if holders else message.properties,
        message.publisher,
        message.published_at,
        message.expires_at,
        b"" if holders else message.payload,
        len(message.payload),
        holders,
    )


def message_of(topic: bytes, value: RetainedValue) -> Message:
    """A message without its payload is not ``loaded``."""
    message = Message(
        topic,
        value.payload,
        value.qos,
        True,
        value.properties,
        value.expires_at,
        value.publisher,
        value.published_at,
    )
    message.loaded = not value.holders
    return message


def encode_value(value: RetainedValue) -> bytes:
    return _encoder.encode(value)


def decode_value(data: bytes) -> RetainedValue:
    """Raises RetainedError."""
    try:
        return _value.decode(data)
    except msgspec.MsgspecError as error:
        raise RetainedError(f"the record of a retained message in etcd is malformed: {error}") from error


def encode_frame(frame: RetainedFrame) -> bytes:
    return TAG + _encoder.encode(frame)


def decode_frame(payload: bytes) -> RetainedFrame:
    """Raises RetainedError."""
    try:
        frame: RetainedFrame = _frame_decoder.decode(payload[len(TAG) :])
    except msgspec.MsgspecError as error:
        raise RetainedError(f"a frame about retained messages is malformed: {error}") from error
    return frame
