"""A bridge to Kafka, whatever is refused, lost or cut off: out at least once and in order, in exactly once."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from tests.planting import FAILURES, Plant, around
from tests.storage.test_producers import Torn, TornWorld, came, reader

import starlingmq.bridges.kafka_state as kafka_state
from starlingmq.bridges.kafka_state import NONE, OUT_COST, InFlow, OutFlow, Partition, Sent, first_offset
from starlingmq.core.publish.producers import LOG, Producers
from starlingmq.core.retained.stamps import stamped
from starlingmq.core.session.production import AGAIN, NEW, LogProduction
from starlingmq.wire.frames import publish_frame
from starlingmq.wire.mqtt import Ack
from starlingmq.wire.packets import PUBACK
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL
from starlingmq.wire.reasons import Reason

SEEDS = 30
PARTITIONS = ("t", 0), ("t", 1)


class InWorld:
    """Partitions with gaps, and a broker whose journal is cut within a turn."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.broker = TornWorld()
        reader(self.broker).drop()
        self.logs: dict[Partition, list[tuple[int, bytes, int]]] = {}
        for partition in PARTITIONS:
            offset, self.logs[partition] = 0, []
            for number in range(25):
                offset += self.random.choice((1, 1, 1, 2, 30)) if number else self.random.choice((0, 3))
                text = b"%d %d" % (partition[1], offset)
                self.logs[partition].append((offset, text, self.random.choice((1, 2))))
        self.committed: dict[Partition, int] = {}
        self.begin()

    def begin(self) -> None:
        """A new attempt."""
        client = self.broker.connect("k", clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF})
        self.production = client.client.production = LogProduction()
        self.client = client
        self.flow = InFlow(self.random.choice((1, 3, 100)))
        self.next: dict[Partition, int] = {}
        producers = self.broker.state.publishing.producers
        for partition, log in self.logs.items():
            name = f"k/{partition[0]}/{partition[1]}"
            committed = self.committed.get(partition, NONE)
            high = log[-1][0] + 1
            start, problem = kafka_state.first_offset(producers.position(name), committed, True, 0, high)
            assert not problem
            self.flow.begin(partition, producers.log(name), start)
            self.next[partition] = start

    def step(self) -> None:
        partition = self.random.choice(PARTITIONS)
        log = [each for each in self.logs[partition] if each[0] >= self.next[partition]]
        frames: list[bytes] = []
        for offset, text, qos in log[: self.random.randint(1, 6)]:
            if self.flow.full():
                break
            packet_id, place = self.flow.offer(partition, offset, qos, len(text))
            self.production.coming.append(place)
            frames.append(publish_frame(b"t/a", text, qos, False, False, packet_id, 5, b""))
            self.next[partition] = offset + 1
        trouble = self.random.random()
        self.broker.state.ctx.refusing = trouble < 0.1
        self.broker.torn.tear = self.random.randint(0, 4) if 0.1 < trouble < 0.2 else -1
        try:
            for frame in frames:  # as when the broker is asked to handle the rest in a later turn
                self.client.send(frame)
                self.broker.state.ctx.refusing = self.broker.state.ctx.refusing and self.random.random() < 0.5
        except Torn:
            self.broker.die()
            self.begin()
            return
        finally:
            self.broker.torn.tear = -1
            self.broker.state.ctx.refusing = False
        self.answers()
        if trouble > 0.9:
            self.client.drop()
            self.begin()

    def answers(self) -> None:
        for packet in self.client.receive():
            if isinstance(packet, Ack) and packet.reason >= 0x80:
                self.client.drop()
                self.begin()
                return
            if isinstance(packet, Ack):
                assert packet.type == PUBACK
                self.flow.acknowledged(packet.packet_id)
        if self.random.random() < 0.3:
            self.committed.update(self.flow.positions())

    def run(self) -> None:
        for _ in range(3000):
            if all(self.next[partition] > log[-1][0] for partition, log in self.logs.items()) and self.flow.idle():
                break
            self.step()
        self.broker.restart()
        found = came(self.broker)
        for partition, log in self.logs.items():
            expected = [text for _, text, _ in log]
            assert [text for text in found if text.startswith(b"%d " % partition[1])] == expected


class OutWorld:
    """A session with messages for Kafka, and partitions that store and report, or die before they report."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.queue = list(range(60))
        self.window: list[int] = []
        self.stored: dict[int, list[int]] = {0: [], 1: [], 2: []}
        self.begin()

    def begin(self) -> None:
        """A new attempt: the session sends its window again, in order."""
        self.flow = OutFlow(wait=500 + 5 * OUT_COST)
        self.owed: list[int] = []
        self.flying: list[tuple[int, Sent]] = []
        for number in self.window:
            self.take(number)

    def take(self, number: int) -> None:
        self.flying.append((number, self.flow.take(number + 1, 1, 100)))
        self.owed.append(number)

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.4 and self.queue and len(self.window) < 8 and not self.flow.full():
            number = self.queue.pop(0)
            self.window.append(number)
            self.take(number)
        elif choice < 0.9 and self.flying:
            partition = self.random.choice([number % 3 for number, _ in self.flying])
            number, sent = next(each for each in self.flying if each[0] % 3 == partition)
            self.flying.remove((number, sent))
            self.stored[partition].append(number)
            for frame in self.flow.done(sent):
                self.acknowledged((frame[2] << 8 | frame[3]) - 1)
        elif choice > 0.95:
            for number, _ in self.flying:  # stored, but the report is lost
                if self.random.random() < 0.3:
                    self.stored[number % 3].append(number)
                else:
                    break
            self.begin()

    def acknowledged(self, number: int) -> None:
        assert number == self.owed.pop(0), "acknowledged in order"
        self.window.remove(number)
        assert number in self.stored[number % 3], "acknowledged, and not stored"

    def run(self) -> None:
        for _ in range(3000):
            if not self.queue and not self.window:
                break
            self.step()
        assert not self.queue and not self.window and self.flow.size == 0
        for partition, stored in self.stored.items():
            assert list(dict.fromkeys(stored)) == list(range(partition, 60, 3)), "in order, and all"


@pytest.mark.parametrize("world", [InWorld, OutWorld])
def test_nothing_is_lost(world: Callable[[int], Any]) -> None:
    for seed in range(SEEDS):
        world(seed).run()


def test_messages_without_payload_are_bounded_too() -> None:
    flow = OutFlow()
    while not flow.full():
        flow.take(0, 0, 0)
        assert len(flow.sent) <= 20_000
    for sent in list(flow.sent):
        flow.done(sent)
    assert flow.size == 0


def eager(sound: Callable[..., Sent], *arguments: Any) -> Sent:
    sent = sound(*arguments)
    sent.done = True
    return sent


def at_once(_: Any, flow: OutFlow, sent: Sent) -> list[bytes]:
    flow.sent.remove(sent)
    flow.size -= sent.size
    return [bytes((0x40, 2, sent.packet_id >> 8, sent.packet_id & 255))]


def skips(_: Any, production: LogProduction, *__: int) -> int:
    return AGAIN if production.producer.epoch >= production.epoch else NEW


def off_by_one(sound: Callable[..., Any], flow: InFlow, partition: Partition, offset: int, *more: int) -> Any:
    return sound(flow, partition, offset - 1, *more)


def unstored(_: Any, producers: Producers, production: LogProduction, *__: Any) -> None:
    production.producer.epoch = production.epoch


PLANTS: list[tuple[Callable[[int], Any], Plant]] = [
    (OutWorld, around(OutFlow, "take", eager)),
    (OutWorld, around(OutFlow, "done", at_once)),
    (InWorld, around(LogProduction, "judge", skips)),
    (InWorld, around(InFlow, "offer", off_by_one)),
    (InWorld, around(Producers, "publish", unstored)),
    (InWorld, patch.object(kafka_state, "first_offset", lambda own, *_: (own + 1 if own else 0, ""))),
]


@pytest.mark.interpreted_only("patches what is compiled")
@pytest.mark.parametrize(("world", "plant"), PLANTS)
def test_mistakes_are_found(world: Callable[[int], Any], plant: Plant) -> None:
    with plant, pytest.raises(FAILURES):
        for seed in range(SEEDS):
            world(seed).run()


@pytest.mark.parametrize(
    ("own", "committed", "by_this_node", "first"),
    [
        (0, NONE, False, 10),  # new: all that is there
        (0, 40, False, 40),  # another node carried it before
        (0, 40, True, 40),  # this node has lost its data
        (30, NONE, False, 30),
        (30, 20, True, 30),  # the journal is ahead of the commits
        (30, 50, True, 30),  # or has lost its end in a power cut: what was lost with it is read again
        (30, 50, False, 50),  # another node carried it since
        (30, 20, False, 30),
    ],
)
def test_where_to_read_on(own: int, committed: int, by_this_node: bool, first: int) -> None:
    assert first_offset(own, committed, by_this_node, 10, 100) == (first, "")


def test_lost_records_are_told() -> None:
    assert first_offset(30, NONE, False, 35, 100) == (35, "5 offsets from 30 on were deleted before they were read")
    start, problem = first_offset(30, NONE, False, 0, 29)
    assert start == NONE and "ends at offset 29, before 30" in problem


def logged(
    broker: TornWorld, *topics: bytes, refusing: bool = False, retained: bytes = b""
) -> tuple[InFlow, list[Ack]]:
    """A connection that publishes records with these topics at QoS 2 and 1 in turn, and what it is answered.
    ``retained``: properties of records that are retained messages."""
    client = broker.connect("k", clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF})
    production = client.client.production = LogProduction()
    ctx = broker.state.ctx
    ctx.refusing = refusing
    ctx.stamping, ctx.linked["k"] = True, 1  # as with bridges
    flow = InFlow(100)
    flow.begin(("t", 0), broker.state.publishing.producers.log("k/t/0"), 0)
    for offset, topic in enumerate(topics):
        qos = 2 - offset % 2
        packet_id, place = flow.offer(("t", 0), offset, qos, 1)
        production.coming.append(place)
        client.send(publish_frame(topic, b"%d" % offset, qos, retained != b"", False, packet_id, 5, retained))
    return flow, [packet for packet in client.receive() if isinstance(packet, Ack)]


def test_records_that_are_refused_for_good_hold_no_others_up() -> None:
    broker = TornWorld()
    reader(broker).drop()
    flow, answers = logged(broker, b"t/a", b"$SYS/a", b"$SYS/b", b"t/a")
    assert [(each.type, each.packet_id, each.reason) for each in answers] == [
        (PUBACK, 1, 0),
        (PUBACK, 2, Reason.NOT_AUTHORIZED),
        (PUBACK, 3, Reason.NOT_AUTHORIZED),
        (PUBACK, 4, 0),
    ]
    assert [flow.refused_for_good(each.packet_id) for each in answers if each.reason] == [True, True]
    broker.restart()
    assert broker.state.publishing.producers.position("k/t/0") == 4
    assert came(broker) == [b"0", b"3"]


def test_a_retained_record_that_has_come_before_holds_no_others_up() -> None:
    broker = TornWorld()
    _, answers = logged(broker, b"t/a", b"t/a", b"t/a", b"t/b", retained=stamped(b"", (1, 1, "far")))
    assert [each.packet_id for each in answers if each.reason < 0x80] == [1, 2, 3, 4]
    assert broker.state.publishing.producers.position("k/t/0") == 4


def test_a_record_that_is_not_taken_now_is_not_passed_by() -> None:
    broker = TornWorld()
    flow, answers = logged(broker, b"t/a", refusing=True)
    assert [each.reason for each in answers] == [Reason.QUOTA_EXCEEDED]
    assert not flow.refused_for_good(1)
    assert broker.state.publishing.producers.position("k/t/0") == 0


def test_handshakes_of_a_former_bridge_of_the_same_name_hide_no_record() -> None:
    broker = TornWorld()
    reader(broker).drop()
    former = broker.connect("k", clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF})
    former.send(publish_frame(b"t/a", b"former", 2, False, False, 1, 5, b""))
    former.drop()
    _, answers = logged(broker, b"t/a", b"t/a")
    assert [each.type for each in answers] == [PUBACK, PUBACK]
    assert came(broker) == [b"0", b"1"]


def test_positions_outlive_other_producers_until_their_bridge_ends() -> None:
    broker = TornWorld(producer_expiry=60.0)
    producers = broker.state.publishing.producers
    for name in ("k/t/0", "k2/t/0"):
        client = broker.connect("")
        production = client.client.production = LogProduction()
        production.coming.append((producers.log(name), 0, 8, 0, 0))
        client.send(publish_frame(b"t/a", b"", 2, False, False, 1, 5, b""))
        assert isinstance(client.expect(Ack), Ack)
    broker.advance(10_000.0)
    assert sorted(producers.by_key) == [LOG + b"k/t/0", LOG + b"k2/t/0"]
    broker.restart()
    producers = broker.state.publishing.producers
    assert producers.position("k/t/0") == producers.position("k2/t/0") == 8
    producers.forget_logs(["k2"])
    broker.run()
    broker.restart()
    assert list(broker.state.publishing.producers.by_key) == [LOG + b"k2/t/0"]
