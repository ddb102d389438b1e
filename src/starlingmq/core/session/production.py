"""The state of a producer (core.publish.producers), and of one of its connections."""

from __future__ import annotations

import struct
from collections import deque
from typing import Final

from starlingmq.wire.producer_properties import digest_of

STATE: Final = struct.Struct(">QQLQ")  # epoch, next, digest, Unix seconds of its last use
STATE_SIZE: Final = STATE.size

# Outcomes for a message.
NEW: Final = 0
AGAIN: Final = 1
AHEAD: Final = 2  # an earlier number is missing
OTHER: Final = 3  # another message had its number, or a later epoch has begun


class Producer:
    """``next``: the number of messages of ``epoch`` that arrived, with ``digest`` over them."""

    key: bytes  # user, 0, name
    epoch: int
    next: int
    digest: int
    used: float

    def __init__(self, key: bytes, now: float) -> None:
        self.key = key
        self.epoch = 0
        self.next = 0
        self.digest = 0
        self.used = now

    def state(self) -> bytes:
        return STATE.pack(self.epoch, self.next, self.digest, int(self.used))


class Production:
    """One connection of a producer: the number in ``epoch`` of its last PUBLISH."""

    producer: Producer
    epoch: int
    number: int
    digest: int  # over all messages up to that one
    held: dict[int, tuple[int, int]]  # number and digest of QoS 2 messages, by packet id
    at_once: bool  # a QoS 2 message counts at PUBLISH, which is answered by PUBACK

    def __init__(self, producer: Producer, epoch: int, next: int, digest: int) -> None:
        self.producer = producer
        self.epoch = epoch
        self.number = next - 1
        self.digest = digest
        self.held = {}
        self.at_once = False

    def pass_by(self) -> None:
        """The PUBLISH that came last is refused for good: it would be again."""

    def came(self, topic: bytes, payload: bytes, retain: bool) -> None:
        """A PUBLISH has arrived, whatever its outcome."""
        self.number += 1
        self.digest = digest_of(self.digest, topic, payload, retain)

    def hold(self, packet_id: int) -> None:
        self.held[packet_id] = (self.number, self.digest)

    def judge(self, number: int, digest: int, qos: int) -> int:
        """The outcome for this message: NEW, AGAIN, AHEAD or OTHER."""
        producer = self.producer
        if self.epoch < producer.epoch:
            return OTHER if qos != 0 else AGAIN
        next = producer.next if self.epoch == producer.epoch else 0
        if number == next or (number > next and qos == 0):
            return NEW
        if number > next:
            return AHEAD
        return OTHER if number == next - 1 and digest != producer.digest and qos != 0 else AGAIN


class LogProduction(Production):
    """The connection of a bridge that publishes the records of logs, such as the partitions of Kafka topics. A log has
    a producer, and each record an epoch of its own: the position after the record, which rises but may skip positions.
    So the stored state of the producer is the position to read on from.

    ``coming``: of each PUBLISH on its way the producer, the epoch that it must be at (that of the record published
    before, so that none is left out after a refusal), and the epoch of the message; and two numbers that are stored
    with it, for the bridge to know its record again.
    """

    before: int
    coming: deque[tuple[Producer, int, int, int, int]]

    def __init__(self) -> None:
        super().__init__(Producer(b"", 0.0), 0, 0, 0)
        self.at_once = True
        self.before = 0
        self.coming = deque()

    def came(self, topic: bytes, payload: bytes, retain: bool) -> None:
        self.producer, self.before, self.epoch, self.number, self.digest = self.coming.popleft()

    def pass_by(self) -> None:
        """The next record is published although this one was not. It stores the position of both."""
        if self.producer.epoch == self.before:
            self.producer.epoch = self.epoch

    def judge(self, number: int, digest: int, qos: int) -> int:
        here = self.producer.epoch
        if here >= self.epoch:
            return AGAIN
        if here != self.before:
            return AHEAD if qos != 0 else AGAIN
        return NEW
