"""A stream, MQTT clients that read it, and crashes, also in the middle of an append: all of it by one seed.

The clients keep their side of the session, as real ones do. Invariants:

- A persistent session at QoS 2 gets each message once, in order, and none is left out.
- The members of a group together get each message once.
- A work queue has each message acknowledged at the end, or keeps it after ``max_deliver`` deliveries in vain: crashes
  and lost connections take some of them, and none while nothing fails.

``python -m tests.core.streams.reader_worlds --seeds 200``, or ``--seed 17 --kind queue`` for one of them.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from random import Random

from tests.core.streams.stream_world import PUBACK, StoredStreaming, offset_of, policy_of, subscribe
from tests.harness import FakeClient
from tests.storage.memory_engine import MemoryJournal

from starlingmq.core.jetstream.bound_consumer import BoundConsumer
from starlingmq.core.streams.policies import LIMITS, WORK_QUEUE
from starlingmq.wire.mqtt import PUBCOMP, PUBREC, PUBREL, Ack, Publish
from starlingmq.wire.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL, Properties

STEPS = 120
READER, GROUP, QUEUE = "reader", "group", "queue"
KINDS = (READER, GROUP, QUEUE)


class Killed(BaseException):
    """The process has ended in the middle of an append."""


class TornJournal(MemoryJournal):
    """``tear``: this append only begins, and then the process ends; -1: never."""

    tear = -1

    def append(self, records: Sequence[bytes]) -> int:
        if self.tear < 0:
            return super().append(records)
        kept = min(self.tear, len(records))
        self.tear = -1
        super().append(records[:kept])
        raise Killed


class Receiver:
    """The client's side of a persistent session."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fake: FakeClient | None = None
        self.begun: dict[int, None] = {}  # packet ids at QoS 2 between PUBREC and PUBCOMP
        self.got: list[tuple[int, bytes]] = []
        self.owed: list[Ack] = []
        self.offsets: dict[int, int] = {}  # of what came at QoS 1 since ``drain``, by packet id
        self.done: set[int] = set()  # of these, those acknowledged

    def take(self) -> None:
        """Read all packets that have come; the answers wait."""
        assert self.fake is not None
        for packet in self.fake.receive():
            if isinstance(packet, Publish):
                if packet.qos == 1:
                    self.got.append((offset_of(packet), packet.payload))
                    self.offsets[packet.packet_id] = offset_of(packet)
                    self.owed.append(Ack(PUBACK, packet.packet_id))
                    continue
                if packet.packet_id not in self.begun:
                    self.begun[packet.packet_id] = None
                    self.got.append((offset_of(packet), packet.payload))
                self.owed.append(Ack(PUBREC, packet.packet_id))
            elif isinstance(packet, Ack) and packet.type == PUBREL:
                self.begun.pop(packet.packet_id, None)
                self.owed.append(Ack(PUBCOMP, packet.packet_id))

    def answer(self, count: int) -> None:
        assert self.fake is not None
        now, self.owed = self.owed[:count], self.owed[count:]
        self.done.update(self.offsets[ack.packet_id] for ack in now if ack.packet_id in self.offsets)
        if now:
            self.fake.send_all(list(now))


class ReaderWorld:
    def __init__(self, seed: int, kind: str, steps: int = STEPS) -> None:
        self.rng = Random(seed)
        self.kind = kind
        self.steps = steps
        self.journal = TornJournal()
        self.world = StoredStreaming(policy_of(retention=WORK_QUEUE if kind == QUEUE else LIMITS), journal=self.journal)
        names = {READER: ("a",), GROUP: ("a", "b"), QUEUE: ("a", "b", "c")}[kind]
        self.receivers = [Receiver(name) for name in names]
        self.sent = 0
        self.filter = {READER: "$stream/S", GROUP: "$share/g/$stream/S", QUEUE: "$queue/S"}[kind]
        for receiver in self.receivers:
            self.connect(receiver, True)
            assert receiver.fake is not None
            assert subscribe(receiver.fake, self.filter, self._qos(), "earliest").reasons == [self._qos()]
            receiver.take()

    def _qos(self) -> int:
        return 1 if self.kind == QUEUE else 2

    def connect(self, receiver: Receiver, first: bool = False) -> None:
        properties: Properties = {RECEIVE_MAXIMUM: self.rng.randint(1, 6), SESSION_EXPIRY_INTERVAL: 100_000}
        receiver.owed = []
        receiver.fake = self.world.connect(receiver.name, clean_start=first, properties=properties)
        if not first:
            assert receiver.fake.connack.session_present

    def publish(self) -> None:
        publisher = self.world.connect("publisher")
        count = self.rng.randint(1, 8)
        packets: list[Publish] = []
        for _ in range(count):
            self.sent += 1
            packets.append(Publish(b"t/%d" % (self.sent % 3), b"%d" % self.sent, 1, packet_id=len(packets) + 1))
        publisher.send_all(list(packets))
        publisher.disconnect()

    def crash(self) -> None:
        self.world.restart()
        for receiver in self.receivers:
            receiver.fake = None

    def step(self) -> None:
        rng = self.rng
        choice = rng.random()
        receiver = rng.choice(self.receivers)
        if rng.random() < 0.15:
            self.journal.tear = rng.randint(0, 5)
        if choice < 0.25:
            self.publish()
        elif choice < 0.65:
            if receiver.fake is None:
                self.connect(receiver)
            receiver.take()
            receiver.answer(rng.randint(0, 8))
            receiver.take()
        elif choice < 0.75:
            if receiver.fake is not None:
                receiver.take()
                receiver.fake.drop()
                receiver.fake = None
        elif choice < 0.82:
            self.world.checkpoint()
        elif choice < 0.9:
            self.world.advance(rng.choice([0.1, 1.0, 40.0]))
        else:
            raise Killed

    def run(self) -> None:
        for _ in range(self.steps):
            try:
                self.step()
            except Killed:
                self.journal.tear = -1
                self.crash()
        self.journal.tear = -1
        self.drain()
        self.check()

    def drain(self) -> None:
        for receiver in self.receivers:
            receiver.offsets, receiver.done = {}, set()
        for _ in range(400):
            moved = False
            for receiver in self.receivers:
                if receiver.fake is None:
                    self.connect(receiver)
                before = len(receiver.got)
                receiver.take()
                moved = moved or bool(receiver.owed) or len(receiver.got) != before
                receiver.answer(len(receiver.owed))
                receiver.take()
            if not moved and self.kind != QUEUE:
                return
            if self.kind == QUEUE:
                self.world.advance(10.0)
                if self.kept().issuperset(self.left()):
                    return
        raise AssertionError("the receivers do not come to rest")

    def left(self) -> list[int]:
        """The messages that the stream has."""
        index = self.world.sequenced.index
        return [seq for seq in range(1, index.last + 1) if self.world.sequenced.message(seq) is not None]

    def kept(self) -> set[int]:
        """The messages that were delivered as often as they may be, and are not pending any more."""
        (bound,) = self.world.sequenced.consumers.values()
        assert isinstance(bound, BoundConsumer)
        consumer = bound.consumer
        again, most = consumer.pending.redelivered, consumer.policy.max_deliver
        return {seq for seq, count in again.items() if count + 1 >= most and consumer.pending.get(seq) is None}

    def check(self) -> None:
        stream = self.world.sequenced
        if self.kind == QUEUE:
            kept, left = self.kept(), set(self.left())
            assert left <= kept, "a message stays that was not delivered as often as it may be"
            done = {offset for receiver in self.receivers for offset in receiver.done}
            assert not left & done, "a message stays that was acknowledged while nothing failed"
            got = {offset for receiver in self.receivers for offset, _ in receiver.got}
            assert got | left == set(range(1, stream.index.last + 1)), "a message was acknowledged that no member got"
            return
        expected = []
        for seq in range(1, stream.index.last + 1):
            message = stream.message(seq)
            assert message is not None
            expected.append((seq, message.payload))
        if self.kind == READER:
            assert self.receivers[0].got == expected
        else:
            assert sorted(self.receivers[0].got + self.receivers[1].got) == expected


def run(seed: int, kind: str) -> None:
    ReaderWorld(seed, kind).run()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--kind", choices=KINDS)
    given = parser.parse_args()
    kinds = KINDS if given.kind is None else (given.kind,)
    seeds = range(given.seeds) if given.seed is None else (given.seed,)
    failed = 0
    for seed in seeds:
        for kind in kinds:
            try:
                run(seed, kind)
            except Exception:
                failed += 1
                traceback.print_exc(limit=-3)
                print(f"seed {seed}, kind {kind}")
    print(f"{failed} of {len(seeds) * len(kinds)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
