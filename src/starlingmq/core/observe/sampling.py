"""Which messages are traced with OpenTelemetry, and how all nodes know them (docs/OBSERVING.md).

Invariant: a message is selected once, where it enters, and its id says so from then on: ``NODE:NUMBER~`` and, if it
carried a trace context, that trace and its parent span (W3C Trace Context). So other nodes, and this node after a
restart, recognize it without other state: ids travel with messages through links, journal and migrating sessions.
"""

from __future__ import annotations

import base64
from typing import Final

from starlingmq.core.messages.message import Message
from starlingmq.core.observe.event_lines import EventLine
from starlingmq.core.observe.message_watch import MessageWatch
from starlingmq.wire.properties import USER_PROPERTY, decode_property_bytes

TRACEPARENT: Final = "traceparent"
TRACED: Final = b"~"
SAMPLED: Final = 1  # of the flags
TRACE_CHARS: Final = 22  # of 16 bytes, as encoded in an id
SPAN_CHARS: Final = 11
HEX: Final = frozenset("0123456789abcdef")
SPREAD: Final = (
    2654435769  # 2**32 divided by the golden ratio: its multiples are spread evenly, also those of every n-th message
)


class Parent:
    """A parent span: 16 and 8 bytes, neither of them all zero."""

    trace: bytes
    span: bytes
    sampled: bool

    def __init__(self, trace: bytes, span: bytes, sampled: bool) -> None:
        self.trace = trace
        self.span = span
        self.sampled = sampled


class Sampler(MessageWatch):
    """Selects ``ratio`` of the messages, at most ``rate`` per second; with ``parents``, the sampled flag of a message
    decides."""

    ratio: float
    parents: bool
    chosen: int  # number of selected messages since the start
    _asked: int

    def __init__(self, ratio: float, parents: bool, rate: int) -> None:
        super().__init__("", b"", False, rate)
        self.ratio = ratio
        self.parents = parents
        self.chosen = 0
        self._asked = 0

    def wants(self, message: Message, now: float) -> bool:
        return False  # ``mark`` decides

    def mark(self, message: Message, now: float) -> bytes:
        """The end of the id of a traced message; b"" if it is not traced. Called once, where the message enters."""
        parent = parent_of(message.properties)
        if parent is not None and self.parents:
            if not parent.sampled:
                return b""
        else:
            self._asked += 1
            if (self._asked * SPREAD & 0xFFFFFFFF) >= self.ratio * 4294967296.0:
                return b""
        if not self.may(now):
            return b""
        self.chosen += 1
        if parent is None:
            return TRACED
        return TRACED + _short(parent.trace) + _short(parent.span)

    def entered(self, message: Message) -> None:
        """The id says everything."""

    def chooses(self, line: EventLine) -> bool:
        # the ids of this process have no mark if they have a number
        return line.number == 0 and len(line.topic) != 0 and traced(line.id.decode())


def _short(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def _long(short: str) -> bytes:
    return base64.urlsafe_b64decode(short + "=" * (-len(short) % 4))


def traced(id: str) -> bool:
    """Whether the id belongs to a traced message. (A node's name may contain a ``~``, before the last colon.)"""
    return id.find("~", id.rfind(":") + 1) >= 0


def parent_in(id: str) -> Parent | None:
    """The trace context of the message with this id."""
    mark = id[id.find("~", id.rfind(":") + 1) + 1 :]
    if len(mark) != TRACE_CHARS + SPAN_CHARS:
        return None
    return Parent(_long(mark[:TRACE_CHARS]), _long(mark[TRACE_CHARS:]), True)


def parent_of(properties: bytes) -> Parent | None:
    """The first ``traceparent`` among the User Properties of a message, in any case of letters, if it is valid."""
    if len(properties) == 0 or properties.lower().find(b"traceparent") < 0:
        return None
    users = decode_property_bytes(properties).get(USER_PROPERTY)
    if not isinstance(users, list):
        return None
    for pair in users:
        if isinstance(pair, tuple) and pair[0].lower() == TRACEPARENT:
            return parse(pair[1].strip())
    return None


def parse(text: str) -> Parent | None:
    """``VERSION-TRACE-SPAN-FLAGS`` of W3C Trace Context; None if it is invalid, and must be ignored (3.2.2). A version
    above 00 may have more after its flags (4.3)."""
    if len(text) < 55 or (len(text) > 55 and (text[:2] == "00" or text[55] != "-")):
        return None
    if text[2] != "-" or text[35] != "-" or text[52] != "-" or text[:2] == "ff":
        return None
    for sign in text[:2] + text[3:35] + text[36:52] + text[53:55]:
        if sign not in HEX:
            return None
    trace, span = bytes.fromhex(text[3:35]), bytes.fromhex(text[36:52])
    if trace.count(0) == 16 or span.count(0) == 8:
        return None
    return Parent(trace, span, int(text[53:55], 16) & SAMPLED != 0)
