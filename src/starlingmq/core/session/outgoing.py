"""One message on its way to one session: first queued, then in the window until the client has taken it."""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from starlingmq.core.message import Message

QUEUED: Final = 0
PUBLISHED: Final = 1  # PUBLISH sent; PUBACK or PUBREC awaited
RELEASED: Final = 2  # PUBREC seen, PUBREL sent; PUBCOMP awaited


@mypyc_attr(acyclic=True)
class Outgoing:
    """What one receiver gets: the shared message and what is particular to this delivery.

    ``qos`` is the delivered QoS, ``retain`` the flag to send, ``ids`` the encoded Subscription Identifier
    properties; ``source`` is the shared group it was drawn from (None for an ordinary subscription), to which it
    goes back when this receiver can not take it. ``sent_at`` is broker time of the last transmission.
    """

    message: Message
    qos: int
    retain: bool
    ids: bytes
    source: object | None
    stage: int
    packet_id: int  # once it is in the window
    ticket: int  # its packet id in the window of that group's line, which lent it; 0: this receiver has it for itself
    sent_at: float

    def __init__(self, message: Message, qos: int, retain: bool, ids: bytes, source: object | None) -> None:
        self.message = message
        self.qos = qos
        self.retain = retain
        self.ids = ids
        self.source = source
        self.stage = QUEUED
        self.packet_id = 0
        self.ticket = 0
        self.sent_at = 0.0
