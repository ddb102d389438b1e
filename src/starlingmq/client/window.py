"""The messages a client has undertaken to deliver, from the call to the last acknowledgement.

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

The law: first transmissions and resends each keep the order of the calls; nothing is sent above the send quota,
which is the server's Receive Maximum and starts anew with every connection (MQTT 5, 4.9); a message leaves
``RELEASED`` only by PUBCOMP, for its PUBLISH must never be sent again [MQTT-4.3.3-6] while the session lasts.
"""

from __future__ import annotations

from collections import deque
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
        """A free id, in rotation so that a late answer does not meet its id in new hands. Raises when all are used."""
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

    def free(self) -> int:
        return MAX_PACKET_ID - len(self._used)

    def give_back(self, packet_id: int) -> None:
        self._used.discard(packet_id)


class Outgoing:
    """One message on its way out. ``properties`` are encoded, without length prefix; ``alias`` is the one in them.

    ``counted``: it takes room in the send quota of the connection at hand. ``dup``: the transmission at hand repeats
    an earlier one. ``resent``: some transmission did.
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
    """``next_to_send`` hands out what may be sent now; the acknowledgements move it on."""

    def __init__(self, ids: PacketIds) -> None:
        self._ids = ids
        self._sent: dict[int, Outgoing] = {}  # PUBLISHED and RELEASED by packet id, in order of first transmission
        self._resend: deque[Outgoing] = deque()
        self._waiting: deque[Outgoing] = deque()
        self._quota = 0

    def __len__(self) -> int:
        """Messages not yet acknowledged, waiting ones included."""
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
        # The server knows nothing of these [MQTT-3.2.2-5]: they begin again, before whatever has never been sent.
        for outgoing in reversed(self._sent.values()):
            self._ids.give_back(outgoing.packet_id)
            outgoing.packet_id = 0
            outgoing.stage = WAITING
            outgoing.resent = True
            self._waiting.appendleft(outgoing)
        self._sent.clear()
        self._resend.clear()

    def next_to_send(self) -> Outgoing | None:
        """The next message whose turn it is: a new PUBLISH, a repeated one (``dup``) or a repeated PUBREL."""
        while self._resend and self._resend[0].stage == DONE:  # a hasty server acknowledged it before its turn came
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
        """The finished message; None when nothing waits for this (an acknowledgement that came twice)."""
        outgoing = self._sent.get(packet_id)
        if outgoing is None:
            return None
        if outgoing.qos != 1:
            raise ProtocolError(f"PUBACK for the QoS 2 message {packet_id}")
        return self._done(outgoing)

    def pubrec(self, packet_id: int, reason: int) -> Outgoing | None:
        """The message: done when ``reason`` is a failure, else RELEASED: PUBREL is to be sent. None: id unknown."""
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
        """The finished message; None when no PUBREL with this id is unanswered."""
        outgoing = self._sent.get(packet_id)
        if outgoing is None or outgoing.stage != RELEASED:
            return None
        return self._done(outgoing)

    def reject(self, outgoing: Outgoing) -> None:
        """What ``next_to_send`` gave may not be sent after all: the server announced that it would not take it."""
        if outgoing.packet_id:
            self._done(outgoing)

    def _done(self, outgoing: Outgoing) -> Outgoing:
        del self._sent[outgoing.packet_id]
        self._ids.give_back(outgoing.packet_id)
        if outgoing.counted:  # a repeated PUBREL took no room and gives none, so the quota never exceeds its start
            self._quota += 1
        outgoing.stage = DONE
        return outgoing

    def abandon(self) -> list[Outgoing]:
        """Give up on everything: what was still unacknowledged, in order."""
        left = [*self._sent.values(), *self._waiting]
        for packet_id in self._sent:
            self._ids.give_back(packet_id)
        self._sent.clear()
        self._waiting.clear()
        self._resend.clear()
        return left
