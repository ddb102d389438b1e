"""A bridge to Kafka as pure state: which messages are acknowledged when, and from where the partitions are read.

Out, at least once::

    PUBLISH from this broker -> the producer -> its report: stored by all replicas in sync -> PUBACK

The law: a message is acknowledged once Kafka has stored it, or can never store it; and in the order in which the
messages came [MQTT-4.6.0-2]. The session of the bridge at this broker keeps the others, and sends them again, in
order. Messages with one topic go to one partition, in order, so a crash repeats a part of that order and changes
none of it.

In, exactly once::

    record of a partition -> PUBLISH to this broker -> its journal: the message, and the position after its record

A position is an offset plus 1, so that 0 is before everything. Offsets rise, with gaps (compaction, transactions).
Positions are the epochs of a producer of this broker (core.publish.producers, LogProduction): each PUBLISH names the
position before and the position after, and counts only if the broker is at the one before. So no record is left out
after a refusal, and none counts twice.

These positions belong to the node that publishes. Another node that carries the bridge later reads on where the
offset is that was committed at Kafka, which happens about every second: at least once.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from starlingmq.core.session.production import Producer
from starlingmq.wire.frames import ack_frame

Partition = tuple[str, int]  # topic and number

OUT_BYTES: Final = 16 * 1024**2  # on their way to Kafka before this broker is asked to wait
OUT_COST: Final = 1024  # bytes of a message there beside its payload and properties; without a bound at QoS 0
IN_BYTES: Final = 8 * 1024**2  # on their way to this broker before no more is read
IN_COUNT: Final = 2000
IDS: Final = 65_535
NONE: Final = -1  # no offset


class Sent:
    """A message from this broker that the producer has."""

    packet_id: int
    qos: int
    size: int
    done: bool

    def __init__(self, packet_id: int, qos: int, size: int) -> None:
        self.packet_id = packet_id
        self.qos = qos
        self.size = size
        self.done = False


class OutFlow:
    sent: deque[Sent]  # in the order in which they came
    size: int  # of all of them with their cost, in bytes
    wait: int  # bytes from which on this broker is to wait

    def __init__(self, wait: int = OUT_BYTES) -> None:
        self.sent = deque()
        self.size = 0
        self.wait = wait

    def take(self, packet_id: int, qos: int, size: int) -> Sent:
        sent = Sent(packet_id, qos, size)
        self.sent.append(sent)
        self.size += size + OUT_COST
        return sent

    def done(self, sent: Sent) -> list[bytes]:
        """Kafka has stored it, or never will. Returns the acknowledgements that are due now."""
        sent.done = True
        acknowledgements: list[bytes] = []
        while self.sent and self.sent[0].done:
            first = self.sent.popleft()
            self.size -= first.size + OUT_COST
            if first.qos != 0:
                acknowledgements.append(ack_frame(0x40 if first.qos == 1 else 0x50, first.packet_id))
        return acknowledgements

    def full(self) -> bool:
        return self.size >= self.wait


class PartitionReading:
    """A partition that is read: the position of the last record that was offered to this broker, the one up to which
    all is acknowledged, and the records between."""

    producer: Producer
    offered: int
    stored: int
    waiting: int

    def __init__(self, producer: Producer, position: int) -> None:
        self.producer = producer
        self.offered = producer.epoch
        self.stored = position
        self.waiting = 0


class InFlow:
    readings: dict[Partition, PartitionReading]
    size: int  # of what is not acknowledged, in bytes
    limit: int
    _waiting: dict[int, tuple[PartitionReading, int, int]]  # by packet id: its reading, position and size
    _last: int

    def __init__(self, limit: int) -> None:
        """``limit``: the Receive Maximum of this broker."""
        self.readings = {}
        self.size = 0
        self.limit = min(limit, IN_COUNT)
        self._waiting = {}
        self._last = 0

    def begin(self, partition: Partition, producer: Producer, position: int) -> None:
        """The partition is read from ``position`` on."""
        self.readings[partition] = PartitionReading(producer, position)

    def offer(
        self, partition: Partition, offset: int, qos: int, size: int, mark: int = 0, digest: int = 0
    ) -> tuple[int, tuple[Producer, int, int, int, int]]:
        """A record is published next. Returns its packet id, 0 at QoS 0, and its place for ``LogProduction``."""
        reading = self.readings[partition]
        position = offset + 1
        place = (reading.producer, reading.offered, position, mark, digest)
        reading.offered = position
        if qos == 0:
            self.pass_by(partition, offset)
            return 0, place
        self._last = self._last % IDS + 1  # free: fewer are in flight than there are, and answered in order
        self._waiting[self._last] = (reading, position, size)
        reading.waiting += 1
        self.size += size
        return self._last, place

    def pass_by(self, partition: Partition, offset: int) -> None:
        """A record needs no acknowledgement."""
        reading = self.readings[partition]
        if reading.waiting == 0:
            reading.stored = offset + 1

    def acknowledged(self, packet_id: int) -> None:
        found = self._waiting.pop(packet_id, None)
        if found is not None:
            reading, position, size = found
            reading.waiting -= 1
            reading.stored = position
            self.size -= size

    def refused_for_good(self, packet_id: int) -> bool:
        """This broker has refused a record: whether it would again, so that it is passed by."""
        found = self._waiting.get(packet_id)
        if found is None or found[0].producer.epoch < found[1]:
            return False
        self.acknowledged(packet_id)
        return True

    def full(self) -> bool:
        return len(self._waiting) >= self.limit or self.size >= IN_BYTES

    def idle(self) -> bool:
        return not self._waiting

    def positions(self) -> dict[Partition, int]:
        """Up to where each partition is stored here."""
        return {partition: reading.stored for partition, reading in list(self.readings.items())}  # from another thread


def first_offset(own: int, committed: int, by_this_node: bool, low: int, high: int) -> tuple[int, str]:
    """The offset from which to read a partition, and what is wrong with it.

    ``own``: the position that this node has, 0 if none; ``committed``: the offset that is committed at Kafka, NONE if
    none, ``by_this_node`` or by another one; ``low`` and ``high``: the first offset that is there, and the one after
    the last. NONE if the partition cannot be read.
    """
    wanted = own
    if committed != NONE and not (own and by_this_node):
        wanted = max(own, committed)  # another node has carried the bridge since
    if wanted > high:
        return (
            NONE,
            f"ends at offset {high}, before {wanted}, which was reached: it was made again, or has lost records",
        )
    if wanted < low:
        return low, f"{low - wanted} offsets from {wanted} on were deleted before they were read" if wanted else ""
    return wanted, ""
