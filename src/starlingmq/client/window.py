"""The messages that a client has accepted for delivery, from the call to the last acknowledgement.

Every transition of the sender lives here (receiver: ``inbox``)::

    stage      event                       next       sent
    WAITING    quota is free               PUBLISHED  PUBLISH
    PUBLISHED  PUBACK (QoS 1)              done       -
    PUBLISHED  PUBREC < 0x80 (QoS 2)       RELEASED   PUBREL
    PUBLISHED  PUBREC >= 0x80 (QoS 2)      done       -          [MQTT-4.3.3-4]
    RELEASED   PUBREC                      RELEASED   PUBREL
    RELEASED   PUBCOMP                     done       -
    PUBLISHED  reconnected, session kept   PUBLISHED  PUBLISH with DUP, same id [MQTT-4.4.0-1]
    RELEASED   reconnected, session kept   RELEASED   PUBREL     [MQTT-4.4.0-1]
    both       reconnected, session gone   WAITING    as new, under a new id

Invariant: first transmissions and resends each keep the order of the calls; the send quota, which is the server's
Receive Maximum and is reset with every connection (MQTT 5, 4.9), is never exceeded; a message leaves ``RELEASED`` only
by PUBCOMP, because its PUBLISH must never be sent again [MQTT-4.3.3-6] while the session lasts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from starlingmq.wire.reasons import ProtocolError

WAITING: Final = 0
PUBLISHED: Final = 1
RELEASED: Final = 2
DONE: Final = 3

MAX_PACKET_ID: Final = 65_535


class PacketIds:
    """The packet ids in use towards one server: PUBLISH, SUBSCRIBE and UNSUBSCRIBE share them [MQTT-2.2.1-3]."""

    def __init__(self) -> None:
        self._used: set[int] = set()
        self._last = 0

    def take(self) -> int:
        """Return a free id, in rotation so that a late answer matches no new packet. Raises if all are in use."""
        if len(self._used) >= MAX_PACKET_ID:
            raise ProtocolError("all packet ids are in use")
        candidate = self._last
        while True:
            candidate = candidate % MAX_PACKET_ID + 1
            if candidate not in self._used:
                break
        self._used.add(candidate)
        self._last = candidate
        return candidate

    def reserve(self, packet_ids: Iterable[int]) -> None:
        self._used.update(packet_ids)

    def free(self) -> int:
        return MAX_PACKET_ID - len(self._used)

    def give_back(self, packet_id: int) -> None:
        self._used.discard(packet_id)


class Outgoing:
    """One outgoing message. ``properties`` are encoded, without length prefix; ``alias`` is the topic alias in them.

    ``counted``: it counts in the send quota of the current connection. ``dup``: the current transmission repeats an
    earlier one. ``resent``: some transmission did.
    """

    __slots__ = (
        "alias",
        "counted",
        "dup",
        "packet_id",
        "payload",
        "properties",
        "qos",
        "resent",
        "retain",
        "stage",
        "token",
        "topic",
    )

    def __init__(self, token: int, topic: bytes, payload: bytes, qos: int, retain: bool, properties: bytes) -> None:
        self.token = token
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.alias = 0
        self.counted = False
        self.packet_id = 0
        self.stage = WAITING
        self.dup = False
        self.resent = False


class Window:
    """``next_to_send`` returns the messages that may be sent now; acknowledgements free quota."""

    def __init__(self, ids: PacketIds) -> None:
        self._ids = ids
        self._sent: dict[int, Outgoing] = {}  # PUBLISHED and RELEASED by packet id, in order of first transmission
        self._resend: deque[Outgoing] = deque()
        self._waiting: deque[Outgoing] = deque()
        self._quota = 0

    def __len__(self) -> int:
        """Return the number of unacknowledged messages, waiting ones included."""
        return len(self._sent) + len(self._waiting)

    @property
    def inflight(self) -> int:
        return len(self._sent)

    def add(self, outgoing: Outgoing) -> None:
        self._waiting.append(outgoing)

    def connected(self, session_present: bool, quota: int) -> None:
        """A new connection with room for ``quota`` unacknowledged PUBLISH packets."""
        self._quota = quota
        for outgoing in self._sent.values():
            outgoing.counted = False
        if session_present:
            self._resend = deque(self._sent.values())
            return
        # The server has no state of these [MQTT-3.2.2-5]: they start again, before messages that were never sent.
        for outgoing in reversed(self._sent.values()):
            self._ids.give_back(outgoing.packet_id)
            outgoing.packet_id = 0
            outgoing.stage = WAITING
            outgoing.resent = True
            self._waiting.appendleft(outgoing)
        self._sent.clear()
        self._resend.clear()

    def next_to_send(self) -> Outgoing | None:
        """Return the next message to send: a new PUBLISH, a repeated one (``dup``) or a repeated PUBREL."""
        while self._resend and self._resend[0].stage == DONE:  # the server acknowledged it before it was repeated
            self._resend.popleft()
        if self._resend:
            return self._next_resend()
        if not self._waiting:
            return None
        outgoing = self._waiting[0]
        if outgoing.qos == 0:
            return self._waiting.popleft()
        if self._quota <= 0 or self._ids.free() == 0:
            return None
        self._waiting.popleft()
        self._count(outgoing)
        outgoing.packet_id = self._ids.take()
        outgoing.stage = PUBLISHED
        outgoing.dup = False
        self._sent[outgoing.packet_id] = outgoing
        return outgoing

    def _next_resend(self) -> Outgoing | None:
        outgoing = self._resend[0]
        if outgoing.stage == PUBLISHED:
            if self._quota <= 0:
                return None
            self._count(outgoing)
        outgoing.dup = outgoing.resent = True
        return self._resend.popleft()

    def _count(self, outgoing: Outgoing) -> None:
        outgoing.counted = True
        self._quota -= 1

    def puback(self, packet_id: int) -> Outgoing | None:
        """Return the completed message; None if no message waits for this PUBACK (a duplicate acknowledgement)."""
        outgoing = self._sent.get(packet_id)
        if outgoing is None:
            return None
        if outgoing.qos != 1:
            raise ProtocolError(f"PUBACK for the QoS 2 message {packet_id}")
        return self._done(outgoing)

    def pubrec(self, packet_id: int, reason: int) -> Outgoing | None:
        """Return the message: done if ``reason`` is a failure, else RELEASED (send PUBREL). None: id unknown."""
        outgoing = self._sent.get(packet_id)
        if outgoing is None:
            return None
        if outgoing.qos != 2:
            raise ProtocolError(f"PUBREC for the QoS 1 message {packet_id}")
        if reason >= 0x80 and outgoing.stage == PUBLISHED:
            return self._done(outgoing)
        outgoing.stage = RELEASED
        return outgoing

    def pubcomp(self, packet_id: int) -> Outgoing | None:
        """Return the completed message; None if no PUBREL with this id is unanswered."""
        outgoing = self._sent.get(packet_id)
        if outgoing is None or outgoing.stage != RELEASED:
            return None
        return self._done(outgoing)

    def reject(self, outgoing: Outgoing) -> None:
        """Withdraw a message that ``next_to_send`` returned: the server's announced limits exclude it."""
        if outgoing.packet_id:
            self._done(outgoing)

    def _done(self, outgoing: Outgoing) -> Outgoing:
        del self._sent[outgoing.packet_id]
        self._ids.give_back(outgoing.packet_id)
        if outgoing.counted:  # a repeated PUBREL took no quota and returns none
            self._quota += 1
        outgoing.stage = DONE
        return outgoing

    def abandon(self) -> list[Outgoing]:
        """Give up all messages; return those still unacknowledged, in order."""
        left = [*self._sent.values(), *self._waiting]
        for packet_id in self._sent:
            self._ids.give_back(packet_id)
        self._sent.clear()
        self._waiting.clear()
        self._resend.clear()
        return left
