"""The messages that a client receives: acknowledged once the application has taken them, QoS 2 delivered to it once.

The receiver of a QoS 2 handshake, one entry per packet id::

    state    event                  next     application   sent
    unknown  PUBLISH                OFFERED  gets it       -
    OFFERED  PUBLISH                OFFERED  -             -          still in the application's queue
    OFFERED  taken                  TAKEN    -             PUBREC
    TAKEN    PUBLISH                TAKEN    -             PUBREC     [MQTT-4.3.3-10]
    any      PUBREL                 unknown  -             PUBCOMP    [MQTT-4.3.3-11]
    unknown  PUBREL                 unknown  -             PUBCOMP 0x92, in 3.x PUBCOMP

Entries live as long as the session: a reconnection with ``session present`` keeps them, one without discards them. A
QoS 1 message has no entry: PUBACK is sent when the application takes the message, and only on the connection on which
it arrived, because the server sends it again on the next one.
"""

from __future__ import annotations

from typing import Final

from starlingmq.client.events import Message
from starlingmq.wire.packets import PUBACK, PUBREC
from starlingmq.wire.reasons import ProtocolError, Reason

OFFER: Final = 0  # deliver the message to the application
REPEAT: Final = 1  # acknowledge again, deliver nothing
IGNORE: Final = 2  # it will be acknowledged later


class Inbox:
    def __init__(self, receive_maximum: int) -> None:
        self._receive_maximum = receive_maximum
        self._entries: dict[int, Message] = {}  # QoS 2, OFFERED and TAKEN
        self._taken: set[int] = set()  # packet ids in TAKEN; membership only
        self._unacknowledged = 0  # QoS 1 and 2 of this connection, counted against the announced Receive Maximum
        self._connection = 0

    def connected(self, session_present: bool) -> None:
        self._connection += 1
        self._unacknowledged = 0
        if not session_present:
            self._entries.clear()
            self._taken.clear()

    @property
    def connection(self) -> int:
        return self._connection

    def publish(self, message: Message) -> int:
        """Return OFFER, REPEAT or IGNORE for a message that has arrived. Raises above the announced Receive Maximum."""
        if message.qos == 0:
            return OFFER
        known = self._entries.get(message.packet_id) if message.qos == 2 else None
        if known is not None and known.connection == self._connection:
            return self._again(message.packet_id)
        self._unacknowledged += 1
        if self._unacknowledged > self._receive_maximum:
            raise ProtocolError(
                "the server sent more unacknowledged messages than Receive Maximum allows",
                Reason.RECEIVE_MAXIMUM_EXCEEDED,
            )
        if known is not None:
            known.connection = self._connection  # the acknowledgement now belongs to this connection
            return self._again(message.packet_id)
        if message.qos == 2:
            self._entries[message.packet_id] = message
        return OFFER

    def _again(self, packet_id: int) -> int:
        return REPEAT if packet_id in self._taken else IGNORE

    def taken(self, message: Message) -> int:
        """The application has the message. Returns PUBACK or PUBREC if one is to be sent now, else 0."""
        current = message.connection == self._connection
        if message.qos == 1:
            if current:
                self._unacknowledged -= 1
            return PUBACK if current else 0
        if message.qos == 0 or self._entries.get(message.packet_id) is not message:
            return 0  # of a session that no longer exists
        if message.packet_id in self._taken:
            return 0
        self._taken.add(message.packet_id)
        # From an earlier connection: the server repeats its PUBLISH on this one, and that is acknowledged.
        return PUBREC if current else 0

    def pubrel(self, packet_id: int) -> bool:
        """The sender releases the id. Returns whether a handshake with it was known."""
        message = self._entries.pop(packet_id, None)
        self._taken.discard(packet_id)
        if message is not None and message.connection == self._connection:
            self._unacknowledged -= 1
        return message is not None
