"""Worlds by seed: a rule whose broker is torn away at any moment, with any part of what was not stored yet. Each row of
each message is stored once, in order; and mistakes planted in the flow are found."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from starlingmq.core.session.production import Producer
from starlingmq.rules.rule_flow import ALL, ROW_BITS, Arrived, Place, Publication, RuleFlow
from starlingmq.wire.frames import ack_frame

MESSAGES: Final = 60
WINDOW: Final = 6
IDS: Final = 11  # packet ids come again soon


class FlowWorld:
    """A broker's journal, and the session of a rule in it: ``journal`` has rows with the state of the producer after
    them, and acknowledgements; a crash keeps a beginning of it, at least all that was answered."""

    def __init__(self, seed: int, flow: type[RuleFlow] = RuleFlow) -> None:
        self.source = random.Random(seed)
        self.flow_type = flow
        self.journal: list[tuple[str, Any]] = []
        self.answered = 0  # entries that were answered for
        self.producer = Producer(b"log", 0.0)
        self.waiting = deque(range(MESSAGES))
        self.window: deque[tuple[int, int]] = deque()  # packet id and message
        self.last_id = 0
        counts = self.source.choice(([0, 1, 1, 2, 5], [0] * 20 + [1, 2]))
        self.rows = [self.source.choice(counts) for _ in range(MESSAGES)]
        self.offsets = sorted(self.source.sample(range(1, 1000), MESSAGES))
        self.begin([])

    def begin(self, again: list[tuple[int, int]]) -> None:
        self.flow = self.flow_type(self.producer, {packet_id: self.offsets[each] for packet_id, each in again}, 4)
        self.on_the_way: deque[tuple[int, bytes, Place]] = deque()  # PUBLISH of rows: packet id, row
        self.acks: deque[bytes] = deque()
        self.puback: deque[tuple[int, int]] = deque()  # packet id, entry of the journal
        for packet_id, message in again:
            self.arrive(packet_id, message)

    def arrive(self, packet_id: int, message: int) -> None:
        arrived = Arrived(packet_id, self.offsets[message], 1, b"t", b"", False, b"")
        stored = self.flow.came(arrived)
        total = self.rows[message]
        done = total if stored == ALL else min(stored, total)
        work = self.flow.take(arrived, total - done)
        if total == done:
            self.acks += self.flow.out.done(work.sent)
        for row in range(done, total):
            publication: Publication = (b"%d.%d" % (message, row), b"", 1, False, b"")
            self.flow.publish(work, arrived, row, publication)
        self.push()

    def push(self) -> None:
        frames, places = self.flow.frames()
        for frame, place in zip(frames, places, strict=True):
            topic = frame[4 : 4 + int.from_bytes(frame[2:4], "big")]
            packet_id = int.from_bytes(frame[4 + len(topic) : 6 + len(topic)], "big")
            self.on_the_way.append((packet_id, topic, place))

    def step(self) -> None:
        kind = self.source.randrange(10)
        if kind < 3 and self.waiting and len(self.window) < WINDOW:
            stored = sum(1 for kind, _ in self.journal[: self.answered] if kind == "ack")
            if MESSAGES - len(self.waiting) - stored >= IDS - 1:
                self.answered = len(self.journal)  # a packet id is not used again before it is free on the disk
            self.last_id = self.last_id % IDS + 1
            self.window.append((self.last_id, self.waiting.popleft()))
            self.arrive(*self.window[-1])
        elif kind < 6 and self.on_the_way:
            packet_id, row, place = self.on_the_way.popleft()
            producer, before, epoch, mark, digest = place
            assert producer is self.producer and producer.epoch == before, "a row is out of order"
            producer.epoch, producer.next, producer.digest = epoch, mark + 1, digest
            self.journal.append(("row", (row, epoch, mark + 1, digest)))
            self.puback.append((packet_id, len(self.journal)))
        elif kind < 8 and self.puback:
            packet_id, entry = self.puback.popleft()
            self.answered = max(self.answered, entry)
            self.acks += self.flow.acknowledged(packet_id)
            self.push()
        elif kind < 9 and self.acks:
            first, _ = self.window.popleft()
            assert self.acks.popleft() == ack_frame(0x40, first), "acknowledged out of order"
            self.journal.append(("ack", first))
        elif kind == 9 and self.source.random() < 0.2:
            self.crash()

    def crash(self) -> None:
        kept = self.source.randint(self.answered, len(self.journal))
        lost = sum(1 for kind, _ in self.journal[kept:] if kind == "ack")
        del self.journal[kept:]
        self.answered = min(self.answered, kept)
        acknowledged = sum(1 for kind, _ in self.journal if kind == "ack")
        delivered = MESSAGES - len(self.waiting)
        ids = [at % IDS + 1 for at in range(acknowledged, delivered)]
        assert lost + len(self.window) == len(ids)
        self.window = deque(zip(ids, range(acknowledged, delivered), strict=True))
        self.producer = Producer(b"log", 0.0)
        states = [state for kind, state in self.journal if kind == "row"]
        if states:
            _, self.producer.epoch, self.producer.next, self.producer.digest = states[-1]
        self.begin(list(self.window))

    def run(self) -> None:
        for _ in range(20_000):
            self.step()
            if not self.waiting and not self.window:
                break
        found = [state[0].decode() for kind, state in self.journal if kind == "row"]
        assert found == [f"{message}.{row}" for message in range(MESSAGES) for row in range(self.rows[message])]


class Forgets(RuleFlow):
    """Takes nothing for stored."""

    def came(self, message: Arrived) -> int:
        return 0


class OneRowTooMany(RuleFlow):
    """Passes by a row more."""

    def came(self, message: Arrived) -> int:
        stored = super().came(message)
        return stored + 1 if stored > 0 else stored


class OneRowTooFew(RuleFlow):
    def came(self, message: Arrived) -> int:
        stored = super().came(message)
        return stored - 1 if stored > 0 else stored


class ForgetsThoseBefore(RuleFlow):
    """Works again on messages before the last one with a stored row."""

    def came(self, message: Arrived) -> int:
        return max(0, super().came(message))


class RemembersForGood(RuleFlow):
    """Passes by each message with the packet id of one that was passed by."""

    def came(self, message: Arrived) -> int:
        return self._stored.get(message.packet_id, 0)


class BelievesTheId(RuleFlow):
    """Takes a later message for the one that had its packet id before."""

    def __init__(self, producer: Producer, again: Mapping[int, int], limit: int, largest: int = 0) -> None:
        last = (producer.next - 1) >> ROW_BITS
        known = {**again, last: producer.digest - 1} if last in again else again
        super().__init__(producer, known, limit, largest)


class AcknowledgesEarly(RuleFlow):
    """A message is acknowledged with its first row."""

    def stored(self, work: Any) -> list[bytes]:
        work.left = 1 if work.left > 0 else work.left
        return super().stored(work)


def fails(make: Callable[[int], FlowWorld], seeds: range) -> bool:
    for seed in seeds:
        try:
            make(seed).run()
        except AssertionError:
            return True
    return False


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_each_row_is_stored_once_and_in_order_over_all_crashes(first: int) -> None:
    for seed in range(first, first + 100):
        FlowWorld(seed).run()


@pytest.mark.interpreted_only("compiled classes take no subclass")
@pytest.mark.parametrize(
    "mistake",
    [Forgets, OneRowTooMany, OneRowTooFew, ForgetsThoseBefore, RemembersForGood, BelievesTheId, AcknowledgesEarly],
)
def test_a_mistake_is_found(mistake: type[RuleFlow]) -> None:
    assert fails(lambda seed: FlowWorld(seed, mistake), range(100))
