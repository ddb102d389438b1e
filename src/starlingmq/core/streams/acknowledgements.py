"""Acknowledgements as clients send them: to the reply subject of a message, with a word as the payload."""

from __future__ import annotations

from typing import Final

import msgspec

# Kinds of acknowledgements. ACK is also an empty payload.
UNKNOWN: Final = 0
ACK: Final = 1
NAK: Final = 2
PROGRESS: Final = 3
TERM: Final = 4
NEXT: Final = 5

PREFIX: Final = b"$JS.ACK."
SHORT: Final = 9  # tokens of the subject; with domain and account there are two more, and perhaps a token
LONG: Final = 11
BILLION: Final = 1_000_000_000
INT64_MAX: Final = (1 << 63) - 1
LONGEST: Final = INT64_MAX / BILLION  # seconds: the longest duration of Go

_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class AckSubject:
    """The parts of ``$JS.ACK.STREAM.CONSUMER.deliveries.sequence.number.time.pending``."""

    name: bytes  # of stream and consumer, with a dot between them
    deliveries: int
    sequence: int
    number: int

    def __init__(self, name: bytes, deliveries: int, sequence: int, number: int) -> None:
        self.name = name
        self.deliveries = deliveries
        self.sequence = sequence
        self.number = number


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
    if len(sequence) > 18 or len(number) > 18 or len(deliveries) > 18:
        return None
    return AckSubject(b"%b.%b" % (parts[at], parts[at + 1]), int(deliveries), int(sequence), int(number))


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
        return _duration(text.decode("utf-8", "replace"))
    try:
        fields = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return -1.0
    delay = fields.get("delay", 0) if isinstance(fields, dict) else None
    if not isinstance(delay, int) or isinstance(delay, bool):
        return -1.0
    return max(0, min(delay, INT64_MAX)) / BILLION


def _duration(text: str) -> float:
    """A duration of Go, like 1m30.5s; -1.0: it is none."""
    total = 0.0
    at = 0
    if text == "0":
        return 0.0
    while at < len(text):
        start = at
        while at < len(text) and text[at] in "0123456789.":
            at += 1
        digits = text[start:at]
        start = at
        while at < len(text) and text[at] not in "0123456789.":
            at += 1
        unit = _UNITS.get(text[start:at], 0.0)
        if unit == 0.0 or digits.count(".") > 1 or not digits.strip("."):
            return -1.0
        total += float(digits) * unit
    return min(total, LONGEST) if text else -1.0


def duration_text(seconds: float) -> str:
    """As Go prints it."""
    nanoseconds = round(seconds * BILLION)
    if nanoseconds == 0:
        return "0s"
    for unit, size in (("ns", 1), ("µs", 1000), ("ms", 1_000_000)):
        if nanoseconds < size * 1000:
            return f"{_short(nanoseconds, size)}{unit}"
    minutes, rest = divmod(nanoseconds, 60 * BILLION)
    hours, minutes = divmod(minutes, 60)
    text = f"{_short(rest, BILLION)}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def _short(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    if rest == 0:
        return f"{whole}"
    digits = len(f"{unit}") - 1
    return f"{whole}." + f"{rest:0{digits}d}".rstrip("0")
