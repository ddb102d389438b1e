"""The effects of a consumer, in order: messages and statuses to be sent, and advisories.

A status is a message without payload whose header block says it all, as nats-server writes it.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from starlingmq.core.messages.message import Message

# Kinds of advisories: $JS.EVENT.ADVISORY.CONSUMER.<kind>.STREAM.CONSUMER
MAX_DELIVERIES: Final = "MAX_DELIVERIES"
MSG_NAKED: Final = "MSG_NAKED"
MSG_TERMINATED: Final = "MSG_TERMINATED"

DELETED: Final = b"Consumer Deleted"
SHUTDOWN: Final = b"Server Shutdown"


@mypyc_attr(acyclic=True)
class Effect:
    """One of the following."""


@mypyc_attr(acyclic=True)
class Deliver(Effect):
    """Send a message to a topic, with ``reply`` as its reply subject. ``requester``: who has asked for it; None: all
    who are subscribed get it."""

    to: bytes
    message: Message
    reply: bytes
    sequence: int
    requester: object

    def __init__(self, to: bytes, message: Message, reply: bytes, sequence: int, requester: object) -> None:
        self.to = to
        self.message = message
        self.reply = reply
        self.sequence = sequence
        self.requester = requester


@mypyc_attr(acyclic=True)
class StatusMessage(Effect):
    to: bytes
    block: bytes  # the whole NATS header block
    reply: bytes  # a subject; b"": none is wanted
    requester: object

    def __init__(self, to: bytes, block: bytes, reply: bytes, requester: object) -> None:
        self.requester = requester
        self.to = to
        self.block = block
        self.reply = reply


@mypyc_attr(acyclic=True)
class Advisory(Effect):
    kind: str
    sequence: int
    number: int  # consumer sequence; not part of MAX_DELIVERIES
    deliveries: int
    reason: str  # of MSG_TERMINATED

    def __init__(self, kind: str, sequence: int, number: int, deliveries: int, reason: str) -> None:
        self.kind = kind
        self.sequence = sequence
        self.number = number
        self.deliveries = deliveries
        self.reason = reason


def status(to: bytes, code: int, description: bytes, requester: object) -> StatusMessage:
    return StatusMessage(to, b"NATS/1.0 %d %b\r\n\r\n" % (code, description), b"", requester)


def unfinished(
    to: bytes, code: int, description: bytes, messages: int, octets: int, requester: object
) -> StatusMessage:
    """The end of a pull request, and the part of it that was not used."""
    return StatusMessage(
        to,
        b"NATS/1.0 %d %b\r\nNats-Pending-Messages: %d\r\nNats-Pending-Bytes: %d\r\n\r\n"
        % (code, description, messages, octets),
        b"",
        requester,
    )


def idle_heartbeat(to: bytes, number: int, sequence: int, stalled: bytes, requester: object) -> StatusMessage:
    """``stalled``: the reply subject of a flow control request that was not answered yet; b"": there is none."""
    more = b"Nats-Consumer-Stalled: %b\r\n" % stalled if stalled else b""
    return StatusMessage(
        to,
        b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n%b\r\n"
        % (number, sequence, more),
        b"",
        requester,
    )


def flow_control_request(to: bytes, reply: bytes) -> StatusMessage:
    return StatusMessage(to, b"NATS/1.0 100 FlowControl Request\r\n\r\n", reply, None)
