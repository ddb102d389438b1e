"""Acknowledgements as clients send them: to the reply subject of a message, with a word as the payload."""

from __future__ import annotations

from typing import Final

import msgspec

from starlingmq.core.streams.go_durations import BILLION, INT64_MAX, duration_of

# Kinds of acknowledgements. ACK is also an empty payload.
UNKNOWN: Final = 0
ACK: Final = 1
NAK: Final = 2
PROGRESS: Final = 3
TERM: Final = 4
NEXT: Final = 5

PREFIX: Final = b"$JS.ACK."
DIGITS_MAX: Final = 19  # of 2**63
SHORT: Final = 9  # tokens of the subject; with domain and account there are two more, and perhaps a token
LONG: Final = 11


class AckSubject:
    """The parts of ``$JS.ACK.STREAM.CONSUMER.deliveries.sequence.number.time.pending``."""

    name: bytes  # of stream and consumer, with a dot between them
    deliveries: int
    sequence: int
    number: int
    time: bytes  # when the message was published, in nanoseconds

    def __init__(self, name: bytes, deliveries: int, sequence: int, number: int, time: bytes) -> None:
        self.name = name
        self.deliveries = deliveries
        self.sequence = sequence
        self.number = number
        self.time = time


def ack_subject(subject: bytes) -> AckSubject | None:
    """None: it is none."""
    parts = subject.split(b".")
    count = len(parts)
    if (count != SHORT and count < LONG) or not subject.startswith(PREFIX):
        return None
    at = 2 if count == SHORT else 4
    deliveries, sequence, number = parts[at + 2], parts[at + 3], parts[at + 4]
    if not (deliveries.isdigit() and sequence.isdigit() and number.isdigit()):
        return None
    if len(sequence) > DIGITS_MAX or len(number) > DIGITS_MAX or len(deliveries) > DIGITS_MAX:
        return None
    return AckSubject(b"%b.%b" % (parts[at], parts[at + 1]), int(deliveries), int(sequence), int(number), parts[at + 5])


def kind_of(payload: bytes) -> int:
    if len(payload) == 0 or payload == b"+ACK" or payload == b"+OK":
        return ACK
    if payload.startswith(b"+NXT"):
        return NEXT
    if payload.startswith(b"-NAK"):
        return NAK
    if payload == b"+WPI":
        return PROGRESS
    if payload.startswith(b"+TERM"):
        return TERM
    return UNKNOWN


def nak_delay(payload: bytes) -> float:
    """Seconds; -1.0: at once. A delay that is malformed counts as none, as in nats-server."""
    text = payload[4:].strip()
    if not text:
        return -1.0
    if text[:1] != b"{":
        return duration_of(text.decode("utf-8", "replace"))
    try:
        fields = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return -1.0
    delay = fields.get("delay", 0) if isinstance(fields, dict) else None
    if not isinstance(delay, int) or isinstance(delay, bool):
        return -1.0
    return max(0, min(delay, INT64_MAX)) / BILLION
