"""Filters by which MQTT clients read streams, and where a new subscription begins.

::

    $stream/NAME[@START][/FILTER]    the messages of a stream, or those whose topics match FILTER
    $queue/NAME[/FILTER]             a work queue over them

START is for MQTT 3.1.1. A SUBSCRIBE of MQTT 5 says it in a User Property of that name.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.topics.topics import OF_STREAMS, QUEUE, STREAM, parse_share, valid_filter
from starlingmq.wire.characters import HASH, PLUS
from starlingmq.wire.properties import USER_PROPERTY, Properties

# Where a new subscription begins
NEW: Final = 0  # with messages that come from now on
EARLIEST: Final = 1
LATEST: Final = 2  # with the last message that matches
OFFSET: Final = 3
TIMESTAMP: Final = 4
WORDS: Final = {"new": NEW, "earliest": EARLIEST, "latest": LATEST}
DIGITS_MAX: Final = 18


class Start:
    kind: int
    offset: int
    time: float

    def __init__(self, kind: int, offset: int = 0, time: float = 0.0) -> None:
        self.kind = kind
        self.offset = offset
        self.time = time


class StreamFilter:
    """``plain`` is the filter without START, as groups have it. ``filter`` b"": all topics. ``group``: in a
    cluster, the shared group for which the stream is read; b"": none."""

    queue: bool
    group: bytes
    name: str
    filter: bytes
    plain: bytes
    start: Start | None

    def __init__(self, queue: bool, name: str, filter: bytes, start: Start | None) -> None:
        self.queue = queue
        self.group = b""
        self.name = name
        self.filter = filter
        self.plain = (QUEUE if queue else STREAM) + name.encode() + (b"/" + filter if filter else b"")
        self.start = start

    def wanted(self) -> bytes:
        """The filter that rules and limits are about."""
        return self.plain if self.filter else self.plain + b"/#"

    def filters(self) -> list[bytes]:
        return [self.filter] if self.filter else []

    def competes(self) -> bool:
        """Whether each message is for one of several sessions, which a consumer at the home decides."""
        return self.queue or self.group != b""


def parse_stream_filter(filter: bytes) -> StreamFilter:
    """``filter`` begins with one of ``OF_STREAMS``, and is valid as a filter. Raises ValueError."""
    queue = filter.startswith(QUEUE)
    name, _, rest = filter[len(QUEUE if queue else STREAM) :].partition(b"/")
    name, at, start = name.partition(b"@")
    if not name or PLUS in name or HASH in name:
        raise ValueError("the name of one stream is needed here")
    if at and queue:
        raise ValueError("a queue begins with the first message of its stream")
    if rest and (not valid_filter(rest) or rest.startswith(b"$share/")):
        raise ValueError("the filter within the stream is not valid")
    begin: Start | None = None
    if at:
        word, _, value = start.decode().partition("=")
        begin = start_of(word, value)
        if begin is None:
            raise ValueError(
                f"a subscription begins with earliest, latest, new, offset=N or timestamp=T, not {word[:40]}"
            )
    return StreamFilter(queue, name.decode(), rest, begin)


def parse_subscription(whole: bytes) -> StreamFilter:
    """The filter as subscribed to, with its group. Raises ValueError."""
    share = parse_share(whole)
    parsed = parse_stream_filter(whole if share is None else share[1])
    parsed.group = b"" if share is None else share[0]
    return parsed


def shown_to_hooks(whole: bytes) -> bytes:
    """A filter of a SUBSCRIBE as rules see it: without where it begins, and with the topics of the stream."""
    try:
        share = parse_share(whole)
        filter = whole if share is None else share[1]
        if not filter.startswith(OF_STREAMS):
            return whole
        wanted = parse_stream_filter(filter).wanted()
    except ValueError:
        return whole  # it is refused
    return wanted if share is None else b"$share/%b/%b" % (share[0], wanted)


def start_of(word: str, value: str) -> Start | None:
    """None: it is another word. Raises ValueError."""
    kind = WORDS.get(word, -1)
    if kind >= 0:
        return Start(kind)
    if word == "offset":
        if not (value.isascii() and value.isdigit() and len(value) <= DIGITS_MAX):
            raise ValueError(f"offset is no number of a message: {value[:40]}")
        return Start(OFFSET, int(value))
    if word == "timestamp":
        return Start(TIMESTAMP, 0, time_of_text(value))
    return None


def start_in(properties: Properties) -> Start:
    """The start that the User Properties of a SUBSCRIBE say. Raises ValueError."""
    pairs = properties.get(USER_PROPERTY)
    if isinstance(pairs, list):
        for pair in pairs:
            if isinstance(pair, tuple):
                found = start_of(pair[0], pair[1])
                if found is not None:
                    return found
    return Start(NEW)


def time_of_text(text: str) -> float:
    """Seconds since 1970, from such a number or from RFC 3339. Raises ValueError."""
    try:
        if text[:1].isdigit() and "-" not in text:
            return _seconds(text)
        whole, decimals = moment_of(text)
        return float(whole) + float(f"0.{decimals}0")
    except ValueError:
        raise ValueError(f"timestamp is neither Unix seconds nor RFC 3339: {text[:40]}") from None


def _seconds(text: str) -> float:
    if len(text) > DIGITS_MAX or not text.isascii() or not text.replace(".", "", 1).isdigit():
        raise ValueError
    return float(text)


def moment_of(text: str) -> tuple[int, str]:
    """RFC 3339, 2026-01-02T03:04:05[.678](Z|+01:00): the whole seconds since 1970, and the decimals. Raises
    ValueError."""
    if not 20 <= len(text) <= 40:
        raise ValueError
    if text[4] != "-" or text[7] != "-" or text[10] not in "Tt " or text[13] + text[16] != "::":
        raise ValueError
    year, month, day = _number(text[:4]), _number(text[5:7]), _number(text[8:10])
    hour, minute, second = _number(text[11:13]), _number(text[14:16]), _number(text[17:19])
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second <= 60):
        raise ValueError
    days = _days(year, month, day)
    if day > 28 and days >= _days(year + month // 12, month % 12 + 1, 1):  # the month is shorter
        raise ValueError
    decimals, zone = "", text[19:]
    if zone[0] == ".":
        end = 1
        while end < len(zone) and zone[end] in "0123456789":
            end += 1
        decimals, zone = zone[1:end], zone[end:]
        if not decimals:
            raise ValueError
    shift = 0
    if zone not in ("Z", "z"):
        if len(zone) != 6 or zone[0] not in "+-" or zone[3] != ":":
            raise ValueError
        shift = _number(zone[1:3]) * 3600 + _number(zone[4:6]) * 60
        if zone[0] == "-":
            shift = -shift
    return days * 86400 + hour * 3600 + minute * 60 + second - shift, decimals


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError
    return int(text)


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970 of a date. Years are taken to begin with March, so that the leap day comes last."""
    if month <= 2:
        year -= 1
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + day_of_year - 719468
