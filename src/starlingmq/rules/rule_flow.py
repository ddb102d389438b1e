"""The messages that a rule works on, as pure state: which is acknowledged when, and where it goes on after a loss.

    PUBLISH from the rule's session -> its rows -> PUBLISH of each, or a request
        -> PUBACK of each, or 200 -> PUBACK to the session

The law: a message is acknowledged once all of its rows are stored or can never be, in the order in which the messages
came; rows go out in that order, too. So after a loss the session sends the others again, in order.

Rows that become messages of this broker count once. Each is published with the next number of the rule's log
(core.session.production), and the journal keeps with that number whose row it was: the packet id of the message, its
offset in the journal, and which of its rows. When the session sends again, all before that row was stored, and is
passed by::

    stored: row 1 of message 7      the session sends again: 5, 6, 7, 8
                                    5, 6, and rows 0 and 1 of 7 are passed by; row 2 of 7 is the next one

If that message is not among those that come again it was acknowledged, and all that come are new; its offset tells it
from a later one with the same packet id. Number and offsets belong to the node: another node that carries the rule on
publishes again all that was not acknowledged. So does this one for a message that it did not store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from starlingmq.bridges.kafka_state import InFlow, OutFlow, Sent
from starlingmq.client.options import V5
from starlingmq.core.session.production import Producer
from starlingmq.wire.frames import publish_frame

Publication = tuple[bytes, bytes, int, bool, bytes]
"""Topic, payload, QoS, retain, encoded properties."""
Place = tuple[Producer, int, int, int, int]
"""Of a PUBLISH in ``LogProduction.coming``."""
LOG: Final = ("rows", 0)
ROW_BITS: Final = 32
OFFSETS: Final = (1 << 32) - 1  # offsets are stored modulo this
ALL: Final = -1
HEAD: Final = 16  # bytes of a PUBLISH besides topic, properties and payload, at most


class Arrived:
    """A message of the session. ``offset``: in the journal; -1: not there."""

    packet_id: int
    offset: int
    qos: int
    topic: bytes
    payload: bytes
    retain: bool
    properties: bytes

    def __init__(
        self, packet_id: int, offset: int, qos: int, topic: bytes, payload: bytes, retain: bool, properties: bytes
    ) -> None:
        self.packet_id = packet_id
        self.offset = offset
        self.qos = qos
        self.topic = topic
        self.payload = payload
        self.retain = retain
        self.properties = properties


def mark_of(message: Arrived, row: int) -> tuple[int, int]:
    """The two numbers that are stored with a row; the second one is 0 if the message cannot be known again."""
    return message.packet_id << ROW_BITS | row, message.offset % OFFSETS + 1 if message.offset >= 0 else 0


def stored_rows(producer: Producer, again: Mapping[int, int]) -> dict[int, int]:
    """By packet id of those of ``again`` that have stored rows: how many; ALL: all. ``again``: packet ids and offsets
    of the messages that the session will send again, in order."""
    mark = producer.next - 1
    last, row = mark >> ROW_BITS, mark & ((1 << ROW_BITS) - 1)
    if producer.epoch == 0 or last not in again or again[last] < 0 or again[last] % OFFSETS + 1 != producer.digest:
        return {}
    found: dict[int, int] = {}
    for packet_id in again:
        found[packet_id] = ALL
        if packet_id == last:
            break
    found[last] = row + 1
    return found


class Work:
    """``left``: rows that are not stored yet."""

    sent: Sent
    left: int

    def __init__(self, sent: Sent, left: int) -> None:
        self.sent = sent
        self.left = left


class RuleFlow:
    """``producer`` has the state that is stored; ``again``: see ``stored_rows``."""

    def __init__(self, producer: Producer, again: Mapping[int, int], limit: int, largest: int = 0) -> None:
        """``limit`` and ``largest``: Receive Maximum and Maximum Packet Size of this broker; 0: none."""
        self.out = OutFlow()
        self.rows = InFlow(limit)
        self.rows.begin(LOG, producer, producer.epoch)
        self.largest = largest
        self._stored = stored_rows(producer, again)
        self._waiting: deque[tuple[Publication, Work, int, int]] = deque()
        self._by_id: dict[int, Work] = {}

    def came(self, message: Arrived) -> int:
        """A message of the session. Returns how many of its rows were stored before; ALL: it needs no work."""
        return self._stored.pop(message.packet_id, 0) if self._stored else 0

    def take(self, message: Arrived, rows: int) -> Work:
        """It has so many rows that are not stored yet; without any, it is acknowledged with those before it."""
        size = len(message.topic) + len(message.payload) + len(message.properties)
        return Work(self.out.take(message.packet_id, message.qos, size), rows)

    def publish(self, work: Work, message: Arrived, row: int, publication: Publication) -> None:
        """A row is to become a message."""
        self._waiting.append((publication, work, *mark_of(message, row)))

    def frames(self) -> tuple[list[bytes], list[Place]]:
        """The rows that this broker has room for, and their places in ``LogProduction.coming``."""
        frames: list[bytes] = []
        places: list[Place] = []
        reading = self.rows.readings[LOG]
        while self._waiting and not self.rows.full():
            (topic, payload, qos, retain, properties), work, mark, digest = self._waiting.popleft()
            size = len(topic) + len(payload) + len(properties) + HEAD
            packet_id, place = self.rows.offer(LOG, reading.offered, qos, size, mark, digest)
            places.append(place)
            if qos:
                self._by_id[packet_id] = work
            frames.append(publish_frame(topic, payload, qos, retain, False, packet_id, V5, properties))
            if not qos:
                frames += self.stored(work)
        return frames, places

    def acknowledged(self, packet_id: int) -> list[bytes]:
        """This broker has stored a row. Returns the acknowledgements that are due now."""
        self.rows.acknowledged(packet_id)
        work = self._by_id.pop(packet_id, None)
        return [] if work is None else self.stored(work)

    def refused(self, packet_id: int) -> list[bytes] | None:
        """This broker has refused a row: the acknowledgements due if it always would, else None."""
        if not self.rows.refused_for_good(packet_id):
            return None
        work = self._by_id.pop(packet_id, None)
        return [] if work is None else self.stored(work)

    def stored(self, work: Work) -> list[bytes]:
        """One more row of the message is stored, or can never be."""
        work.left -= 1
        return self.out.done(work.sent) if work.left == 0 else []

    def full(self) -> bool:
        return self.out.full() or bool(self._waiting)

    def idle(self) -> bool:
        return not self.out.sent
