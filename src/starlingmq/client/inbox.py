"""The messages a client receives: acknowledged once the application has taken them, QoS 2 given to it once.

The receiver of a QoS 2 handshake, one entry per packet id::

    state    event                  next     application   sent
    unknown  PUBLISH                OFFERED  gets it       -
    OFFERED  PUBLISH                OFFERED  -             -          it is still in the application's queue
    OFFERED  taken                  TAKEN    -             PUBREC
    TAKEN    PUBLISH                TAKEN    -             PUBREC     [MQTT-4.3.3-10]
    any      PUBREL                 unknown  -             PUBCOMP    [MQTT-4.3.3-11]
    unknown  PUBREL                 unknown  -             PUBCOMP 0x92, in 3.x PUBCOMP

Entries live as long as the session: kept over a reconnection with ``session present``, forgotten without. A QoS 1
message has no entry: PUBACK goes out when it is taken, on the connection that brought it or not at all, because the
server sends it again on the next one.
"""

from __future__ import annotations

from typing import Final

from starlingmq.client.events import Message
from starlingmq.wire.packets import PUBACK, PUBREC
from starlingmq.wire.reasons import ProtocolError, Reason

OFFER: Final = 0  # give the message to the application
REPEAT: Final = 1  # acknowledge again, give nothing
IGNORE: Final = 2  # its acknowledgement is still to come


class Inbox:
    def __init__(self, receive_maximum: int) -> None:
        self._receive_maximum = receive_maximum
        self._entries: dict[int, Message] = {}  # QoS 2, OFFERED and TAKEN
        self._taken: set[int] = set()  # which of them are TAKEN; membership only
        self._unacknowledged = 0  # QoS 1 and 2 of this connection, towards the Receive Maximum we announced
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
        """What to do with a message that has arrived: OFFER, REPEAT or IGNORE. Raises above our Receive Maximum."""
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
            known.connection = self._connection  # from here on this connection is owed the acknowledgement
            return self._again(message.packet_id)
        if message.qos == 2:
            self._entries[message.packet_id] = message
        return OFFER

    def _again(self, packet_id: int) -> int:
        return REPEAT if packet_id in self._taken else IGNORE

    def taken(self, message: Message) -> int:
        """The application has the message: PUBACK or PUBREC when that is now to be sent, else 0."""
        current = message.connection == self._connection
        if message.qos == 1:
            if current:
                self._unacknowledged -= 1
            return PUBACK if current else 0
        if message.qos == 0 or self._entries.get(message.packet_id) is not message:
            return 0  # of a session that is gone
        if message.packet_id in self._taken:
            return 0
        self._taken.add(message.packet_id)
        # From an earlier connection: the server repeats its PUBLISH on this one and is answered then.
        return PUBREC if current else 0

    def pubrel(self, packet_id: int) -> bool:
        """The sender is done with the id; whether a handshake with it was known."""
        message = self._entries.pop(packet_id, None)
        self._taken.discard(packet_id)
        if message is not None and message.connection == self._connection:
            self._unacknowledged -= 1
        return message is not None
