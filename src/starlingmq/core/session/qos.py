"""The two ends of the QoS 1 and QoS 2 handshakes. All transitions are in this file.

Sender (``SendWindow``), one entry per packet id::

    PUBLISHED --PUBACK (QoS 1)--> done
    PUBLISHED --PUBREC (QoS 2)--> RELEASED --PUBCOMP--> done
    PUBLISHED --PUBREC >= 0x80 --> done (refused by the receiver)

Receiver of QoS 2 (``Inbound``), one entry per packet id::

    unknown   --PUBLISH--> HELD       keep the message, answer PUBREC
    HELD      --PUBLISH--> HELD       answer PUBREC again, keep the first message
    HELD      --PUBREL --> COMPLETED  route the message, answer PUBCOMP
    COMPLETED --PUBREL --> COMPLETED  answer PUBCOMP again, route nothing
    COMPLETED --PUBLISH--> HELD       the packet id is used again
    unknown   --PUBREL --> unknown    no node knows it: 0x92; 3.x: the connection is closed once
    unknown   --PUBREL --> COMPLETED  3.x, the same PUBREL again: answer PUBCOMP, counted and logged
    any       --timeout--> unknown    ``await_rel_timeout``; a message that was HELD is lost, and counted

Invariant: the message of a QoS 2 handshake leaves the receiver once, at the first PUBREL. Handshakes are remembered, so
that a repeated PUBREL is recognised [MQTT-4.3.3-12], until the packet id is used again for another message, the session
ends, or the client has been connected for ``await_rel_timeout``. Time while the client is away does not count: a client
repeats its PUBRELs when it connects [MQTT-4.4.0-1].
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, cast

from mypy_extensions import mypyc_attr

from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import PUBLISHED, RELEASED, Outgoing
from starlingmq.core.messages.stored_messages import LOAD_BATCH
from starlingmq.core.session.packet_ids import packet_id_key

MAX_PACKET_ID: Final = 65535
WINDOW_MAX: Final = 32767  # with half of the ids free, the next free one is found in two steps on average
WINDOW_START: Final = 100
"""Messages in flight at first to a client that names no Receive Maximum. MQTT 5 takes that for 65,535: a client that
does not read would have thousands in flight, and none that waits, before an operator sees it."""
ROUND_FAST: Final = 1.0  # seconds from a message to its acknowledgement, of a client that keeps up
ROUND_STALLED: Final = 30.0


class SendWindow:
    """Messages sent and not acknowledged, by packet id, in the order of their first transmission."""

    entries: dict[int, Outgoing]
    keyed: dict[object, Outgoing]  # the same dict, for keys of core.session.packet_ids
    limit: (
        int  # how many may be unacknowledged at once: the receiver's Receive Maximum, max_inflight, or see ``credit``
    )
    grows: bool  # the receiver has named no limit, and no setting has
    filled: bool  # an acknowledgement has found it full, and ``credited`` counts from there
    credited: int
    last_id: int
    owed: dict[int, None]  # packet ids to be sent again on this connection, the first one last
    bytes: int  # of its messages
    max_bytes: int  # above this it counts as full; 0 sets no limit

    def __init__(self, limit: int, max_bytes: int = 0, grows: bool = False) -> None:
        self.entries = {}
        self.keyed = cast("dict[object, Outgoing]", self.entries)
        self.owed = {}
        self.bytes = 0
        self.max_bytes = max_bytes
        self.limit = limit
        self.grows = grows
        self.filled = False
        self.credited = 0
        self.last_id = 0

    def full(self) -> bool:
        """Whether there is no room for a new message, or earlier ones are to be sent again before it."""
        if len(self.entries) >= self.limit or len(self.owed) != 0:
            return True
        return self.max_bytes != 0 and self.bytes >= self.max_bytes

    def begin(self, limit: int, grows: bool) -> None:
        """A new connection, on which this many may be unacknowledged, if it ``grows`` at first."""
        self.limit = limit
        self.grows = grows
        self.filled = False
        self.credited = 0

    def credit(self, count: int, seconds: float) -> None:
        """``count`` messages have been acknowledged and removed, the last one ``seconds`` after it was sent.

        The law of a window that grows, as slow start of TCP: a round begins when an acknowledgement finds the window
        full, and ends when as many messages as it holds have been acknowledged. The limit is doubled if the last
        acknowledgement of the round took a second at most, and is WINDOW_START again if it took 30. So it stays below
        what the client acknowledges in two seconds, and grows only if messages wait for it."""
        if not self.grows:
            return
        if not self.filled:
            if len(self.entries) + count < self.limit:
                return
            self.filled = True
        self.credited += count
        if self.credited < self.limit:
            return
        self.filled = False
        self.credited = 0
        if seconds <= ROUND_FAST:
            self.limit = min(2 * self.limit, WINDOW_MAX)
        elif seconds >= ROUND_STALLED:
            self.limit = min(self.limit, WINDOW_START)

    def add(self, outgoing: Outgoing, now: float) -> int:
        """Add a message to the window and return its packet id. The caller has checked that there is room."""
        packet_id = self.last_id
        while True:  # ends: limit <= MAX_PACKET_ID, so an id is free [MQTT-2.2.1-3]
            packet_id = packet_id + 1 if packet_id < MAX_PACKET_ID else 1
            if self.keyed.setdefault(packet_id_key(packet_id), outgoing) is outgoing:
                break
        self.last_id = packet_id
        outgoing.stage = PUBLISHED
        outgoing.packet_id = packet_id
        outgoing.sent_at = now
        self.bytes += outgoing.message.octets
        return packet_id

    def acknowledged(self, packet_id: int) -> Outgoing | None:
        """PUBACK: returns the finished entry, or None if the id is not that of an unacknowledged QoS 1 message."""
        outgoing = self.entries.get(packet_id)
        if outgoing is None or outgoing.qos != 1:
            return None
        self._remove(packet_id, outgoing)
        return outgoing

    def received(self, packet_id: int, now: float) -> bool:
        """PUBREC: returns whether the id is that of a QoS 2 message, which is RELEASED from now on."""
        outgoing = self.entries.get(packet_id)
        if outgoing is None or outgoing.qos != 2:
            return False
        outgoing.stage = RELEASED
        outgoing.sent_at = now
        return True

    def refused(self, packet_id: int) -> Outgoing | None:
        """PUBREC >= 0x80: the receiver refuses the message; the id is free again [MQTT-4.3.3-4]."""
        outgoing = self.entries.get(packet_id)
        if outgoing is None or outgoing.qos != 2 or outgoing.stage != PUBLISHED:
            return None
        self._remove(packet_id, outgoing)
        return outgoing

    def completed(self, packet_id: int) -> Outgoing | None:
        """PUBCOMP: returns the finished entry, or None if no PUBREL with this id is outstanding."""
        outgoing = self.entries.get(packet_id)
        if outgoing is None or outgoing.stage != RELEASED:
            return None
        self._remove(packet_id, outgoing)
        return outgoing

    def wanted(self, limit: int = LOAD_BATCH) -> list[int]:
        """The offsets of the next messages to be sent again that are not in memory."""
        offsets: list[int] = []
        for packet_id in reversed(self.owed):
            outgoing = self.entries.get(packet_id)
            if outgoing is not None and not outgoing.message.loaded and outgoing.stage == PUBLISHED:
                offsets.append(outgoing.message.offset)
                if len(offsets) == limit:
                    break
        return offsets

    def fill(self, messages: dict[int, Message]) -> list[int]:
        """Messages were read back, by offset. Returns the packet ids of those that are lost."""
        lost: list[int] = []
        asked = 0
        for packet_id in reversed(self.owed):
            outgoing = self.entries.get(packet_id)
            if outgoing is None or outgoing.message.loaded or outgoing.stage != PUBLISHED:
                continue
            asked += 1
            if asked > LOAD_BATCH:
                break
            message = messages.get(outgoing.message.offset)
            if message is None:
                lost.append(packet_id)
            else:
                outgoing.message = message
                self.bytes += message.size()
        return lost

    def restore(self, packet_id: int, outgoing: Outgoing) -> None:
        """Add an entry that a store kept; entries come in the order of their first transmission."""
        outgoing.packet_id = packet_id
        self.entries[packet_id] = outgoing
        self.bytes += outgoing.message.size()
        self.last_id = packet_id

    def owe_all(self) -> None:
        """A new connection: all messages are to be sent again."""
        self.owed = dict.fromkeys(list(self.entries)[::-1])

    def unanswered(self) -> int:
        """The number of entries that the receiver may not have received."""
        return sum([entry.stage == PUBLISHED for entry in self.entries.values()])

    def discard(self, packet_id: int) -> None:
        outgoing = self.entries.get(packet_id)
        if outgoing is not None:
            self._remove(packet_id, outgoing)

    def _remove(self, packet_id: int, outgoing: Outgoing) -> None:
        del self.entries[packet_id]
        self.bytes -= outgoing.message.size()
        if self.owed:  # an acknowledgement of the earlier connection frees no place on this one
            self.owed.pop(packet_id, None)

    def due(self, before: float) -> list[tuple[int, Outgoing]]:
        """Entries whose last transmission was at or before ``before``, in their original order."""
        return [(packet_id, entry) for packet_id, entry in self.entries.items() if entry.sent_at <= before]

    def oldest(self) -> float:
        """Time of the oldest transmission; the window must not be empty."""
        return min([entry.sent_at for entry in self.entries.values()])


@mypyc_attr(acyclic=True)
class Handshake:
    """An inbound QoS 2 handshake: HELD while it has its message, else COMPLETED."""

    message: Message | None
    since: float

    def __init__(self, message: Message | None, since: float) -> None:
        self.message = message
        self.since = since


class Inbound:
    """Received QoS 2 messages and recently finished handshakes, by packet id."""

    entries: dict[int, Handshake]
    keyed: dict[object, Handshake]  # the same dict, for keys of core.session.packet_ids
    held: int  # how many entries are HELD
    bytes: int  # of their messages
    _completed: Handshake  # one COMPLETED entry, shared by all that finished at about the same time

    def __init__(self) -> None:
        self.entries = {}
        self.keyed = cast("dict[object, Handshake]", self.entries)
        self.held = 0
        self.bytes = 0
        self._completed = Handshake(None, 0.0)

    def holds(self, packet_id: int) -> bool:
        entry = self.keyed.get(packet_id_key(packet_id))
        return entry is not None and entry.message is not None

    def hold(self, packet_id: int, message: Message, now: float) -> None:
        """A first PUBLISH with this id. The caller has called ``holds`` before."""
        self.keyed[packet_id_key(packet_id)] = Handshake(message, now)
        self.held += 1
        self.bytes += message.octets

    def release(self, packet_id: int, now: float) -> Message | None:
        """The first PUBREL of a held handshake: returns its message, to be routed now. None: nothing is held."""
        key = packet_id_key(packet_id)
        entry = self.keyed.get(key)
        if entry is None or entry.message is None:
            return None
        completed = self._completed
        if now - completed.since >= 1.0:
            completed = self._completed = Handshake(None, now)
        self.keyed[key] = completed
        self.held -= 1
        self.bytes -= entry.message.octets
        return entry.message

    def abandon(self, packet_id: int) -> bool:
        """The PUBLISH was refused after all: remove its message. Returns whether there was one."""
        entry = self.entries.get(packet_id)
        if entry is None or entry.message is None:
            return False
        del self.entries[packet_id]
        self.held -= 1
        self.bytes -= entry.message.size()
        return True

    def completed(self, packet_id: int) -> bool:
        entry = self.entries.get(packet_id)
        return entry is not None and entry.message is None

    def answered(self, packet_id: int, now: float) -> None:
        """A PUBLISH was acknowledged by PUBREC although its message is not held: its PUBREL finds it COMPLETED."""
        self.entries[packet_id] = Handshake(None, now)

    def sweep(self, before: float) -> tuple[list[int], int]:
        """Remove entries older than ``before``. Returns their packet ids, and how many were HELD (lost messages)."""
        old = [packet_id for packet_id, entry in self.entries.items() if entry.since <= before]
        abandoned = 0
        for packet_id in old:
            message = self.entries.pop(packet_id).message
            if message is not None:
                abandoned += 1
                self.bytes -= message.size()
        self.held -= abandoned
        return old, abandoned

    def oldest(self) -> float:
        """Creation time of the oldest entry; there must be one."""
        return min([entry.since for entry in self.entries.values()])


class Parking:
    """QoS 2 PUBLISHes beyond ``max_awaiting_rel``, of a client that could not be told the limit, in order. They are
    unanswered, so the client keeps them, too."""

    entries: OrderedDict[int, Message]  # by packet id
    bytes: int

    def __init__(self) -> None:
        self.entries = OrderedDict()
        self.bytes = 0

    def add(self, packet_id: int, message: Message) -> None:
        if packet_id not in self.entries:  # a repeated PUBLISH is ignored
            self.entries[packet_id] = message
            self.bytes += message.size()

    def take(self) -> tuple[int, Message]:
        """The oldest one; there must be one."""
        packet_id, message = self.entries.popitem(last=False)
        self.bytes -= message.size()
        return packet_id, message
