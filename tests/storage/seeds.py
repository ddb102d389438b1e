"""``python -m tests.storage.seeds --seeds N``: whole lives of a broker that crashes between any two steps, by seed.

A seed draws the settings, the clients, what they do and where the broker dies; the same seed is the same life again.
Payloads say what they are (``publisher topic qos number``), so what arrives can be told without a look inside. What
every life is held to:

- an acknowledged message reaches every session that was subscribed when it was sent, or is counted as dropped;
- QoS 2 arrives once, from a session that lasts to a session that lasts; QoS 0 once at most, but for power failures;
- what appears first for a publisher, topic and QoS appears in the order of publication;
- the retained message of a topic is the last acknowledged one, or one sent since;
- session present is the truth, as far as a client can know it; a session that has expired is gone;
- a will is published once if the connection was lost, not at all after a DISCONNECT;
- nothing arrives that nobody published, and no reference leads to a message that is not there.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from random import Random

from tests.harness import FakeClient
from tests.storage.crash_world import NEVER, Crash, CrashWorld

from starlingmq.wire.mqtt import Ack, Connack, Connect, Packet, Publish, Suback, Subscribe, SubscribeRequest, Will
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, SUBSCRIPTION_IDENTIFIER, Properties

FOREVER = 0xFFFFFFFF
TOPICS = ((b"t/a", 3), (b"t/b", 3), (b"g/a", 2), (b"x/a", 1))
"""Topics and their weights: t for everybody, g for the shared group, x for messages that expire."""


class Person:
    """A client id with a memory of its own, which survives its connections."""

    def __init__(self, life: Life, name: str, version: int, lasting: bool) -> None:
        self.life = life
        self.world = life.world
        self.name = name
        self.version = version
        self.lasting = lasting
        self.fake: FakeClient | None = None
        self.connack: Connack | None = None
        self.known: bool | None = False  # whether the broker has our session; None: we can not know

    def call(self, *more: Packet, clean: bool = False, will: Will | None = None) -> None:
        """Connect, and say ``more`` in the same breath."""
        clean = clean or not self.lasting
        properties: Properties = {}
        if self.version == 5 and self.lasting:
            properties = {SESSION_EXPIRY_INTERVAL: FOREVER}
        expected, self.known = (False if clean else self.known), None
        self.expected = expected
        self.connack = None
        self.fake = self.world.open(self.version, self.name)
        self.fake.send_all([Connect(self.version, self.name, clean, will=will, properties=properties), *more])
        self.listen()

    def listen(self) -> None:
        if self.fake is None:
            return
        for packet in self.fake.receive():
            if isinstance(packet, Connack):
                assert packet.reason == 0
                if self.expected is not None:
                    assert packet.session_present == self.expected, f"{self.name}: session present is a lie"
                self.connack = packet
                self.known = self.lasting
                self.accepted(packet.session_present)
            else:
                self.hear(packet)
        assert self.fake is None or not self.fake.closed, f"{self.name} was closed"

    def accepted(self, present: bool) -> None:
        pass

    def hear(self, packet: Packet) -> None:
        raise AssertionError(f"{self.name} got {packet!r}")

    def cut(self) -> None:
        """The connection is lost. What was written to us we may have read or not; our answers are lost."""
        fake, self.fake = self.fake, None
        if fake is not None:
            fake.drop()

    def forget(self) -> None:
        """The broker crashed."""
        self.fake = None

    def say(self, packets: list[Packet]) -> None:
        if self.fake is not None and packets:
            self.fake.send_all(packets)


class Author(Person):
    """Publishes; ``sent`` is what is not finished, in order."""

    def __init__(self, life: Life, name: str, version: int, lasting: bool) -> None:
        super().__init__(life, name, version, lasting)
        self.sent: dict[int, Publish] = {}
        self.released: set[int] = set()
        self.to_release: list[int] = []
        self.count = 0
        self.packet_id = 0

    def connect(self) -> None:
        if not self.lasting:
            self.sent.clear()  # its session is over, and with it what it owes
            self.released.clear()
        self.to_release.clear()
        again: list[Packet] = []
        for packet_id, packet in self.sent.items():
            packet.dup = True
            again.append(Ack(PUBREL, packet_id) if packet_id in self.released else packet)
        self.call()
        self.say(again)
        self.listen()

    def publish(self, count: int) -> None:
        random = self.life.random
        packets: list[Packet] = []
        for _ in range(count):
            if random.random() < 0.2:
                qos = random.randrange(3)
                topic = b"r/%b/%d" % (self.name.encode(), qos)
                packets.append(self.message(topic, qos, True, -1, random.random() < 0.3))
            else:
                (topic,) = random.choices([name for name, _ in TOPICS], [weight for _, weight in TOPICS])
                expiring = topic == b"x/a"
                if expiring and self.version != 5:
                    continue
                qos = random.choice([0, 1, 1, 2, 2])
                packets.append(self.message(topic, qos, False, random.choice([1, 10]) if expiring else -1, False))
        self.say(packets)
        self.listen()

    def message(self, topic: bytes, qos: int, retain: bool, expiry: int, empty: bool) -> Publish:
        self.count += 1
        payload = b"" if empty else b"%b %b %d %d" % (self.name.encode(), topic, qos, self.count)
        if qos:
            self.packet_id += 1
        packet = Publish(topic, payload, qos, retain=retain, packet_id=self.packet_id if qos else 0, expiry=expiry)
        if qos:
            self.sent[self.packet_id] = packet
        self.life.published(self, packet)
        return packet

    def hear(self, packet: Packet) -> None:
        assert isinstance(packet, Ack) and packet.reason < 0x80, packet
        if packet.type == PUBREC:
            if packet.packet_id in self.sent and packet.packet_id not in self.released:
                self.released.add(packet.packet_id)
                self.to_release.append(packet.packet_id)
            return
        self.released.discard(packet.packet_id)
        finished = self.sent.pop(packet.packet_id, None)
        if finished is not None:
            assert packet.type == (PUBACK if finished.qos == 1 else PUBCOMP)
            self.life.acknowledged(finished)

    def finish(self) -> None:
        self.listen()
        to_release, self.to_release = self.to_release, []
        self.say([Ack(PUBREL, packet_id) for packet_id in to_release])
        self.listen()


class Reader(Person):
    """Subscribes once for the life of its session; ``got`` is what came."""

    def __init__(
        self, life: Life, name: str, version: int, lasting: bool, filters: tuple[bytes, ...], ids: int, qos: int = 2
    ) -> None:
        super().__init__(life, name, version, lasting)
        self.filters = filters
        self.ids = ids if version == 5 else 0
        self.qos = qos
        self.subscribed = False
        self.got = Counter[bytes]()
        self.places: dict[bytes, int] = {}
        self.open: dict[int, bytes] = {}
        self.answers: list[Packet] = []
        self.blocked = False
        self.restarted = 0
        self.since = NEVER  # how many messages were published before

    def connect(self, clean: bool = False) -> None:
        self.answers.clear()
        self.blocked = False
        if clean or not self.lasting:
            self.begin_anew()
        self.call(clean=clean)
        if self.fake is not None and not self.subscribed:
            requests = [SubscribeRequest(filter, self.qos) for filter in self.filters]
            for number, request in enumerate(requests, 1):
                properties: Properties = {SUBSCRIPTION_IDENTIFIER: [self.ids]} if self.ids else {}
                self.say([Subscribe(number, [request], properties)])
            self.listen()

    def begin_anew(self) -> None:
        self.subscribed = False
        self.since = NEVER
        self.open.clear()
        self.places.clear()
        self.got.clear()
        self.restarted += 1

    def accepted(self, present: bool) -> None:
        if not present:
            self.open.clear()

    def hear(self, packet: Packet) -> None:
        if isinstance(packet, Suback):
            if packet.packet_id == len(self.filters) and not self.subscribed:
                self.subscribed = True
                self.since = len(self.life.all)
        elif isinstance(packet, Publish):
            self.take(packet)
        else:
            assert isinstance(packet, Ack) and packet.type == PUBREL, packet
            self.open.pop(packet.packet_id, None)
            self.answers.append(Ack(PUBCOMP, packet.packet_id))

    def take(self, packet: Publish) -> None:
        payload = packet.payload
        if packet.qos == 2:
            self.answers.append(Ack(PUBREC, packet.packet_id))
            if packet.packet_id in self.open:
                assert self.open[packet.packet_id] == payload, "another message under an id that is open"
                return
            self.open[packet.packet_id] = payload
        elif packet.qos == 1:
            self.answers.append(Ack(PUBACK, packet.packet_id))
        if not payload:
            return  # a retained message was taken back
        assert payload in self.life.all, f"{self.name} got {payload!r}, which nobody published"
        if self.ids:
            assert packet.subscription_ids, "without its subscription identifier"
        self.got[payload] += 1
        self.check_order(payload)

    def check_order(self, payload: bytes) -> None:
        key, _, number = payload.rpartition(b" ")
        if self.got[payload] != 1 or not self.life.ordered or payload.split()[1][:1] in b"rwg":
            return
        if self.life.ages[payload] < self.since:
            return  # it may have been published before we subscribed, and again after later ones
        assert self.places.get(key, 0) < int(number), f"{self.name}: {payload!r} after {self.places[key]}"
        self.places[key] = int(number)

    def answer(self, share: float) -> None:
        """Answer the first of what there is to answer."""
        self.listen()
        count = round(len(self.answers) * share + 0.49)
        answers = self.answers[:count]
        del self.answers[:count]
        self.say(answers)
        self.listen()

    def cut(self) -> None:
        super().cut()
        self.answers.clear()

    def block_or_unblock(self) -> None:
        if self.fake is None:
            return
        self.blocked = not self.blocked
        if self.blocked:
            self.fake.block()
        else:
            self.fake.unblock()


class Mortal(Person):
    """Leaves a will with every connection."""

    wills = 0
    payload = b""

    def connect(self) -> None:
        self.wills += 1
        self.payload = b"%b w/%b 1 %d" % (self.name.encode(), self.name.encode(), self.wills)
        self.life.begin_will(self)
        self.call(will=Will(b"w/" + self.name.encode(), self.payload, 1))

    def cut(self) -> None:
        if self.fake is not None and self.connack is not None:
            self.life.will_is_due(self.payload)
        super().cut()

    def forget(self) -> None:
        if self.fake is not None and self.connack is not None:
            self.life.will_is_due(self.payload)
        super().forget()

    def leave(self) -> None:
        if self.fake is not None and self.connack is not None:
            fake, self.fake = self.fake, None
            payload = self.payload
            fake.disconnect()
            self.life.cancelled.add(payload)


class Guest(Person):
    """A session that expires 100 seconds after its connection is lost."""

    left_at = -1.0  # when we know that its connection was lost; -1: we do not

    def connect(self) -> None:
        if self.left_at >= 0:
            away = self.world.now - self.left_at
            self.known = self.known if away < 99 else False if away > 101 else None
        expected, self.known = self.known, None
        self.left_at = -1.0
        self.expected = expected
        self.fake = self.world.open(5, self.name)
        self.fake.send(Connect(5, self.name, False, properties={SESSION_EXPIRY_INTERVAL: 100}))
        self.listen()

    def cut(self) -> None:
        if self.fake is None:
            return
        super().cut()
        self.left_at = self.world.now

    def forget(self) -> None:
        super().forget()
        if self.left_at < 0 or self.world.now - self.left_at > 99:
            self.known = None
        elif self.known:
            self.known = None  # its deadline may or may not have been written down
        self.left_at = -1.0


class Life:
    """One seed."""

    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.bounded = random.random() < 0.15
        self.ordered = not self.bounded
        power = random.random() < 0.5
        self.world = CrashWorld(
            random,
            power=power,
            span=random.choice([0, 2, 5, 20]),
            piece=random.choice([1, 2, 5]),
            checkpoint_bytes=random.choice([0, 0, 300, 3000, 1 << 30]),
            max_mqueue_len=random.choice([3, 10]) if self.bounded else 0,
            max_inflight=random.choice([0, 0, 1, 2, 5]),
            write_buffer=random.choice([200, 1 << 20]),
            publisher_hold=0.0,
            await_rel_timeout=1_000_000.0,
            retry_interval=30.0,
            max_awaiting_rel=0,
            session_expiry_v3=FOREVER,
        )
        self.power = power
        self.all: dict[bytes, Publish] = {}
        self.ages: dict[bytes, int] = {}
        self.acked: set[bytes] = set()
        self.cancelled: set[bytes] = set()  # wills
        self.owed: list[tuple[bytes, Reader, int]] = []  # what a reader must get once it is acknowledged
        self.group_owed: set[bytes] = set()
        self.retained: dict[bytes, list[bytes]] = {}  # what may be there, the oldest first
        self.retained_known: dict[bytes, bytes] = {}
        ids = [0, 0, 7]
        self.authors = [
            Author(self, f"author{n}", random.choice([4, 5]), random.random() < 0.8)
            for n in range(random.randint(1, 3))
        ]
        self.readers = [
            Reader(self, f"reader{n}", random.choice([4, 5]), random.random() < 0.8, filters, random.choice(ids))
            for n in range(random.randint(1, 3))
            for filters in [random.choice([(b"t/#", b"x/#", b"w/#"), (b"t/#", b"w/#"), (b"#",)])]
        ]
        both = (b"$share/g/g/#", b"g/#")  # a member that gets some of them twice
        self.members = [
            Reader(self, f"member{n}", random.choice([4, 5]), True, filters, random.choice(ids))
            for n in range(random.randint(0, 2))
            for filters in [random.choice([both[:1], both[:1], both])]
        ]
        self.mortals = [
            Mortal(self, f"mortal{n}", random.choice([4, 5]), random.random() < 0.5)
            for n in range(random.randint(0, 2))
        ]
        self.guests = [Guest(self, f"guest{n}", 5, True) for n in range(random.randint(0, 1))]
        self.people: list[Person] = [*self.authors, *self.readers, *self.members, *self.mortals, *self.guests]

    # What happens is told here

    def published(self, author: Author, packet: Publish) -> None:
        payload = packet.payload
        if payload:
            self.ages[payload] = len(self.all)
            self.all[payload] = packet
        if packet.retain:
            self.retained.setdefault(packet.topic, [b""]).append(payload)
            return
        if packet.topic == b"x/a" or packet.qos == 0:
            return
        if packet.topic == b"g/a":
            if self.members and all(member.subscribed for member in self.members):
                self.group_owed.add(payload)
            return
        self._owe(payload)

    def _owe(self, payload: bytes) -> None:
        for reader in self.readers:
            if reader.subscribed and reader.lasting:
                self.owed.append((payload, reader, reader.restarted))

    def acknowledged(self, packet: Publish) -> None:
        if packet.retain:
            values = self.retained[packet.topic]
            values[: values.index(packet.payload) if packet.payload else self._last_empty(values)] = []
            return
        self.acked.add(packet.payload)

    @staticmethod
    def _last_empty(values: list[bytes]) -> int:
        """Which empty one it was that was acknowledged can not be told: the first one allows most."""
        return values.index(b"")

    def begin_will(self, mortal: Mortal) -> None:
        self.all[mortal.payload] = Publish(b"w/" + mortal.name.encode(), mortal.payload, 1)
        self._owe(mortal.payload)

    def will_is_due(self, payload: bytes) -> None:
        self.acked.add(payload)

    # The life itself

    def act(self) -> None:
        random = self.random
        chance = random.random()
        if chance < 0.35:
            author = random.choice(self.authors)
            if author.fake is None:
                author.connect()
            author.publish(random.randint(1, 5))
        elif chance < 0.55:
            author = random.choice(self.authors)
            author.finish()
        elif chance < 0.75:
            reader = random.choice(self.readers + self.members)
            if reader.fake is None:
                reader.connect(clean=reader.version == 5 and reader in self.readers and random.random() < 0.03)
            else:
                reader.answer(random.choice([0.3, 0.6, 1.0]))
        elif chance < 0.78:
            random.choice(self.people).cut()
        elif chance < 0.80:
            random.choice(self.readers + self.members).block_or_unblock()
        elif chance < 0.84 and self.mortals:
            mortal = random.choice(self.mortals)
            if mortal.fake is None:
                mortal.connect()
            elif random.random() < 0.5:
                mortal.cut()
            else:
                mortal.leave()
        elif chance < 0.86 and self.guests:
            guest = random.choice(self.guests)
            guest.connect() if guest.fake is None else guest.cut()
        elif chance < 0.9:
            self.world.advance(random.choice([0.5, 2.0, 31.0]))
        elif self.world.tickets:
            self.world.settle()

    def guarded(self, act: Callable[[], None]) -> None:
        """Do it; if the broker dies over it, so be it."""
        try:
            act()
        except Crash:
            self.begin_again()

    def begin_again(self) -> None:
        for person in self.people:
            person.forget()
        while True:
            try:
                self.world.fuse = NEVER
                fuse = self.draw_fuse()
                self.world.crash()
                self.world.fuse = fuse
                return
            except Crash:
                continue

    def draw_fuse(self) -> int:
        return int(self.random.expovariate(1 / self.random.choice([10, 60, 300]))) + 1

    def live(self, acts: int) -> None:
        self.world.settle()
        self.world.fuse = self.draw_fuse()
        for _ in range(acts):
            self.guarded(self.act)
        self.world.fuse = NEVER
        self.end()

    def end(self) -> None:
        """Everybody comes back, behaves, and gets what is theirs; then the books are balanced, twice."""
        for crash in (self.random.random() < 0.5, True):
            if crash:
                self.begin_again()
                self.world.fuse = NEVER
            self.everybody_behaves()
            self.check()

    def everybody_behaves(self) -> None:
        for mortal in self.mortals:
            mortal.cut()
        self.world.advance(2.0)  # what is due falls due
        for reader in self.readers + self.members:
            if reader.fake is None or reader.blocked:
                reader.cut()
                reader.connect()
        for author in self.authors:
            if author.fake is None:
                author.connect()
        for _ in range(10_000):
            before = sum(len(fake.output) for fake in self.world.clients)
            self.world.settle()
            for author in self.authors:
                author.finish()
            for reader in self.readers + self.members:
                reader.answer(1.0)
            self.world.settle()
            if sum(len(fake.output) for fake in self.world.clients) == before:
                break
        assert not any(author.sent for author in self.authors), "a handshake never ends"

    # What must hold

    def check(self) -> None:
        dropped = self.world.all_dropped()
        assert self.world.lost == 0 and "lost_in_storage" not in dropped, "a reference to a message that is lost"
        assert self.bounded or "queue_full" not in dropped
        missing = [
            (reader.name, payload)
            for payload, reader, restarted in self.owed
            if payload in self.acked and reader.restarted == restarted and payload not in reader.got
        ]
        everywhere: set[bytes] = set()
        for member in self.members:
            everywhere |= set(member.got)
        missing += [("group", payload) for payload in self.group_owed & self.acked if payload not in everywhere]
        if len(missing) > dropped.get("queue_full", 0):
            raise AssertionError(f"lost: {missing[:5]}, {len(missing)} in all; dropped: {dropped}")
        for reader in self.readers + self.members:
            self.check_once(reader)
        self.check_retained()
        session = self.world.state.ctx.sessions
        for person in [*self.authors, *self.readers, *self.members]:
            assert not person.lasting or person.name in session

    def check_once(self, reader: Reader) -> None:
        twice = 2 if len(reader.filters) == 2 and reader.filters[1] == b"g/#" else 1
        for payload, count in reader.got.items():
            _, topic, qos, _ = payload.split()
            if topic[:1] == b"r":
                continue
            if topic[:1] == b"w":
                assert self.power or payload not in self.cancelled, f"a will that was taken back: {payload!r}"
            if qos == b"2" or (qos == b"0" and not self.power):
                assert count <= twice, f"{reader.name} got {payload!r} {count} times"

    def check_retained(self) -> None:
        witness = self.world.connect_and_settle("witness")
        witness.send(Subscribe(1, [SubscribeRequest(b"r/#", 0)]))
        self.world.settle()
        there = {packet.topic: packet.payload for packet in witness.receive() if isinstance(packet, Publish)}
        witness.drop()
        self.world.settle()
        for topic, values in self.retained.items():
            value = there.pop(topic, b"")
            assert topic.endswith(b"0") or value in values, f"{topic!r} has {value!r}, not one of {values}"
        assert not there


def run(seed: int, acts: int = 120) -> int:
    """Live one seed; how often the broker died."""
    life = Life(seed)
    life.live(acts)
    return life.world.crashes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storage.seeds", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--failures", type=int, default=1, help="stop after so many")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.replay is not None:
        seeds = range(arguments.replay, arguments.replay + 1)
    began = time.perf_counter()
    crashes = failures = 0
    for seed in seeds:
        try:
            crashes += run(seed)
        except (AssertionError, LookupError, ValueError, RecursionError):
            traceback.print_exc(limit=-6)
            print(f"FAILED seed {seed}; again: python -m tests.storage.seeds --replay {seed}", flush=True)
            failures += 1
            if failures >= arguments.failures:
                return 1
    took = time.perf_counter() - began
    print(f"{len(seeds)} seeds, {crashes} crashes, {took:.1f} s, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
