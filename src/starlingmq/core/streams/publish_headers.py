"""The headers by which a publisher says when its message is to be stored, and for how long (ADR-8, ADR-36, ADR-43, and
nats-server's ``stream.go``). They are the same for MQTT 5: a User Property of that name."""

from __future__ import annotations

from typing import Final

from starlingmq.core.streams.go_durations import LONGEST, duration_of
from starlingmq.wire.nats_headers import carried

PREFIX: Final = b"Nats-"
NEVER: Final = -1.0
NO_SEQUENCE: Final = 1 << 64


class PublishHeaders:
    """None and b"": the header is not there. ``time_to_live`` in seconds, NEVER; ``invalid``: the name of a header that
    has no valid value."""

    size: int  # of all headers
    message_id: bytes
    expected_stream: bytes
    expected_last: int  # -1 without
    expected_last_of_subject: int  # -1 without
    expected_subject: bytes
    expected_id: bytes | None
    rollup: bytes
    time_to_live: float
    invalid: bytes
    source: bytes  # of which stream it is a copy

    def __init__(self) -> None:
        self.size = 0
        self.message_id = b""
        self.expected_stream = b""
        self.expected_last = -1
        self.expected_last_of_subject = -1
        self.expected_subject = b""
        self.expected_id = None
        self.rollup = b""
        self.time_to_live = 0.0
        self.invalid = b""
        self.source = b""


NO_HEADERS: Final = PublishHeaders()


def publish_headers(properties: bytes) -> PublishHeaders:
    block = carried(properties).headers
    found = PublishHeaders()
    found.size = len(block)
    if PREFIX not in block:
        return found
    for line in block.split(b"\r\n")[1:]:
        if not line.startswith(PREFIX):
            continue
        name, _, value = line.partition(b":")
        _read(found, name, value.strip())
    return found


def _read(found: PublishHeaders, name: bytes, value: bytes) -> None:
    if name == b"Nats-Msg-Id":
        found.message_id = value
    elif name == b"Nats-Expected-Stream":
        found.expected_stream = value
    elif name == b"Nats-Expected-Last-Sequence":
        found.expected_last = _number(value)
    elif name == b"Nats-Expected-Last-Subject-Sequence":
        found.expected_last_of_subject = _number(value)
    elif name == b"Nats-Expected-Last-Subject-Sequence-Subject":
        found.expected_subject = value
    elif name == b"Nats-Expected-Last-Msg-Id":
        found.expected_id = value or None
    elif name == b"Nats-Rollup":
        found.rollup = value.lower()
    elif name == b"Nats-Stream-Source":
        found.source = value
    elif name == b"Nats-TTL":
        found.time_to_live = time_to_live(value)
        if found.time_to_live == 0.0:
            found.invalid = name


def _number(value: bytes) -> int:
    """Of a sequence. What is none is expected in vain."""
    return int(value) if value.isdigit() and len(value) < 20 else NO_SEQUENCE


def time_to_live(value: bytes) -> float:
    """Seconds, from a number of them or a duration such as ``1h30m``; NEVER; 0.0 for anything invalid."""
    if value.lower() == b"never":
        return NEVER
    if value.isdigit() and len(value) < 12:
        return float(int(value))
    total = duration_of(value.decode("utf-8", "replace"))
    return float(int(total)) if 1.0 <= total < LONGEST else 0.0
