"""One message for one session: first queued, then in the window until the client has acknowledged it."""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from starlingmq.core.messages.message import Message

QUEUED: Final = 0
PUBLISHED: Final = 1  # PUBLISH sent; PUBACK or PUBREC awaited
RELEASED: Final = 2  # PUBREC received, PUBREL sent; PUBCOMP awaited


@mypyc_attr(acyclic=True)
class Outgoing:
    """A delivery: the shared message, and what is particular to this receiver.

    ``qos`` is the delivered QoS, ``retain`` the flag to send, ``ids`` the encoded Subscription Identifier properties.
    ``source`` is the shared group that lent the message (None for an ordinary subscription), and takes it back if this
    receiver cannot take it. ``sent_at`` is broker time of the last transmission.
    """

    message: Message
    qos: int
    retain: bool
    promised: bool  # the limits of the queue that has it do not count it
    ids: bytes
    source: object | None
    stage: int
    packet_id: int  # set in the window
    ticket: int  # its packet id in the window of the group queue that lent it; 0: it is not lent
    sent_at: float

    def __init__(self, message: Message, qos: int, retain: bool, ids: bytes, source: object | None) -> None:
        self.message = message
        self.qos = qos
        self.retain = retain
        self.promised = False
        self.ids = ids
        self.source = source
        self.stage = QUEUED
        self.packet_id = 0
        self.ticket = 0
        self.sent_at = 0.0
