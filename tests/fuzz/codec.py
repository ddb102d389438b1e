"""The decoder under fire: a packet or an MqttError, the same wherever the frame lies, and stable when written again."""

from __future__ import annotations

from random import Random

from starlingmq.wire.mqtt import Packet, Publish, decode, decode_publish, encode, frame_length
from starlingmq.wire.reasons import MqttError, Reason
from tests.fuzz.mutate import VERSIONS, mutated, some_frame


def run(seed: int) -> int:
    """One episode of a hundred frames; how many. Raises AssertionError, or whatever the codec let through."""
    rng = Random(seed)
    for _ in range(100):
        version = rng.choice(VERSIONS)
        data = mutated(rng, version) if rng.random() < 0.95 else rng.randbytes(rng.randrange(40))
        check(data, version, some_frame(rng, version))
    return 100


def check(data: bytes, version: int, noise: bytes) -> None:
    frame = whole(data)
    if frame is None:
        return
    first, start = frame[0], body_start(frame)
    packet = outcome(first, frame, start, len(frame), version)
    # Inside a larger buffer, with other frames around it, it means the same.
    around = noise + frame + noise
    assert outcome(first, around, len(noise) + start, len(noise) + len(frame), version) == packet
    if isinstance(packet, int):
        return
    if isinstance(packet, Publish):
        assert decode_publish(first, frame, start, len(frame), version) == packet
    written = encode(packet, version)
    assert frame_length(written, 0) == len(written), written
    assert outcome(written[0], written, body_start(written), len(written), version) == packet, written


def whole(data: bytes) -> bytes | None:
    """The first frame in ``data``; None if there is none."""
    if len(data) < 2:
        return None
    try:
        length = frame_length(data, 0)
    except MqttError:
        return None
    return data[:length] if 0 < length <= len(data) else None


def body_start(frame: bytes) -> int:
    start = 2
    while frame[start - 1] & 0x80:
        start += 1
    return start


def outcome(first: int, data: bytes, start: int, end: int, version: int) -> Packet | int:
    """The packet, or the reason code of the error."""
    try:
        return decode(first, data, start, end, version)
    except MqttError as error:
        assert error.detail
        return Reason(error.reason)
