"""``python -m tests.storage.seeds --seeds N``: seeded runs of a broker that crashes between any two steps.

A seed draws the settings, the clients, their actions, the disk failures and the crash points; the same seed replays the
same run. Each payload names its origin (``publisher topic qos number``), so a check needs no look inside the broker.
The invariants of every run:

- an acknowledged message reaches every session that was subscribed when it was sent, or is counted as dropped;
- QoS 2 arrives once between persistent sessions; QoS 0 arrives at most once, except after power failures;
- first deliveries for a publisher, topic and QoS are in the order of publication;
- the retained message of a topic is the last acknowledged one, or one sent since;
- session present is right, as far as a client can know; an expired session is gone;
- a will is published once if the connection was lost for its delay, and never after a DISCONNECT or a return in time;
- the broker refuses or closes a client only while the disk fails, refused QoS 2 never arrives, and the broker recovers
  without help;
- every message that arrives was published, and every reference leads to a stored message.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections.abc import Callable
from random import Random
from typing import Any

from tests.storage.crash_engines import NEVER, Crash
from tests.storage.crash_world import CrashWorld
from tests.storage.people import FOREVER, SLACK, Author, Guest, Mortal, Person, Reader

from starlingmq.wire.mqtt import Publish, Subscribe, SubscribeRequest

GUEST_SECONDS = 100
SICKNESSES = (("append",), ("sync",), ("write",), ("drop",), ("append", "sync"), ("append", "sync", "write", "drop"))


class Life:
    """One seed. ``frail`` and ``fixed``, settings of the world: what is not drawn."""

    topics: tuple[str, ...] = ()  # that a stream keeps, if there is one

    def __init__(self, seed: int, frail: bool | None = None, **fixed: Any) -> None:
        random = self.random = Random(seed)
        self.bounded = random.random() < 0.15
        self.ordered = not self.bounded
        power = random.random() < 0.5
        drawn: dict[str, Any] = {
            "random": random,
            "fate": Random(~seed),
            "power": power,
            "span": random.choice([0, 2, 5, 20]),
            "piece": random.choice([1, 2, 5]),
            "topics": self.topics,
            "checkpoint_bytes": random.choice([0, 0, 300, 3000, 1 << 30]),
            "max_mqueue_len": random.choice([3, 10]) if self.bounded else 0,
            "max_inflight": random.choice([0, 0, 1, 2, 5]),
            "write_buffer": random.choice([200, 1 << 20]),
            "publisher_hold": 0.0,
            "await_rel_timeout": 1_000_000.0,
            "retry_interval": 30.0,
            "max_awaiting_rel": 0,
            "session_expiry_v3": FOREVER,
        }
        self.world = self.make_world(**drawn | fixed)
        self.power = self.world.power
        self.frail = random.random() < 0.4 if frail is None else frail
        self.all: dict[bytes, Publish] = {}
        self.ages: dict[bytes, int] = {}
        self.acked: set[bytes] = set()
        self.cancelled: set[bytes] = set()  # wills
        self.refused: set[bytes] = set()  # at QoS 2
        self.resent: set[bytes] = set()
        self.owed: list[tuple[bytes, Reader, int]] = []  # messages that a reader must get once they are acknowledged
        self.group_owed: set[bytes] = set()
        self.retained: dict[bytes, list[bytes]] = {}  # values that may be retained, the oldest first
        self.retained_known: dict[bytes, bytes] = {}
        self.invite()

    def make_world(self, **settings: Any) -> CrashWorld:
        return CrashWorld(**settings)

    def invite(self) -> None:
        random = self.random
        ids = [0, 0, 7]

        def expiry() -> int:
            return FOREVER if random.random() < 0.8 else 0

        self.authors = [
            Author(self, f"author{n}", random.choice([4, 5]), expiry()) for n in range(random.randint(1, 3))
        ]
        self.readers = [
            Reader(self, f"reader{n}", random.choice([4, 5]), expiry(), filters, random.choice(ids))
            for n in range(random.randint(1, 3))
            for filters in [random.choice([(b"t/#", b"x/#", b"w/#"), (b"t/#", b"w/#"), (b"#",)])]
        ]
        both = (b"$share/g/g/#", b"g/#")  # a member that gets some of them twice
        self.members = [
            Reader(self, f"member{n}", random.choice([4, 5]), FOREVER, filters, random.choice(ids))
            for n in range(random.randint(0, 2))
            for filters in [random.choice([both[:1], both[:1], both])]
        ]
        self.mortals = [
            Mortal(self, f"mortal{n}", version, random.choice(lives), random.choice([0, 5, 40]))
            for n in range(random.randint(0, 2))
            for version in [random.choice([4, 5, 5])]
            for lives in [(0, FOREVER) if version == 4 else (0, 20, FOREVER, FOREVER)]
        ]
        self.guests = [Guest(self, f"guest{n}", 5, GUEST_SECONDS) for n in range(random.randint(0, 1))]
        self.people: list[Person] = [*self.authors, *self.readers, *self.members, *self.mortals, *self.guests]

    def surely_kept(self) -> bool:
        """Whether everything done so far survives a crash now, even before it was acknowledged."""
        return not self.power and not self.world.durable.failure

    # Record what happens

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
        """Which of the empty values was acknowledged is unknown; the first one allows most."""
        return values.index(b"")

    def begin_will(self, mortal: Mortal) -> None:
        """A session subscribed both when the will is left and when it is due must get the will."""
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
                mortal.connect(clean=mortal.version == 5 and random.random() < 0.1)
            else:
                self.end_connection(mortal)
        elif chance < 0.86 and self.guests:
            guest = random.choice(self.guests)
            guest.connect() if guest.fake is None else guest.cut()
        elif chance < 0.9:
            self.world.advance(random.choice([0.5, 2.0, 31.0]))
        elif chance < 0.93 and self.frail:
            self.sicken_or_heal()
        elif self.world.loop.jobs:
            self.world.settle()

    def end_connection(self, mortal: Mortal) -> None:
        way = self.random.randrange(4)
        if way < 2:
            mortal.cut()
        else:
            mortal.leave(with_will=way == 2)

    def sicken_or_heal(self) -> None:
        machine = self.world.machine
        if machine.sick:
            machine.sick = ()
        else:
            machine.sick = self.random.choice(SICKNESSES)
            machine.sickness = self.random.choice([1.0, 0.5])

    def guarded(self, act: Callable[[], None]) -> None:
        """Do it; if the broker dies over it, so be it."""
        try:
            act()
        except Crash:
            self.begin_again()

    def begin_again(self) -> None:
        """Restart after some time: the wall clock goes on while the broker is down."""
        self.world.now += self.random.choice([0, 0, 0, 3, 30, 150])
        for person in self.people:
            person.forget()
        while True:
            try:
                self.world.crash(self.draw_fuse())
                return
            except (Crash, OSError) as error:
                if isinstance(error, OSError):  # it does not begin on a disk like this
                    self.world.machine.sick = ()
                self.world.now += self.random.choice([0, 0, 30])
                for person in self.people:
                    person.crashed_again()

    def draw_fuse(self) -> int:
        return int(self.random.expovariate(1 / self.random.choice([10, 60, 300]))) + 1

    def live(self, acts: int) -> None:
        self.world.settle()
        self.world.machine.fuse = self.draw_fuse()
        for _ in range(acts):
            self.guarded(self.act)
        self.world.machine.fuse = NEVER
        self.end()

    def end(self) -> None:
        """Everybody comes back, behaves, and gets what is theirs; then the books are balanced, twice."""
        for crash in (self.random.random() < 0.5, True):
            if crash:
                self.begin_again()
                self.world.machine.fuse = NEVER
            self.recover()
            self.everybody_behaves()
            self.check()

    def recover(self) -> None:
        """The disk works again, and so does the broker, by itself."""
        self.world.machine.sick = ()
        for _ in range(3):
            self.world.settle()
            self.world.advance(1.5)
        self.world.settle()
        assert not self.world.durable.failure and not self.world.state.ctx.refusing, "it does not recover"

    def everybody_behaves(self) -> None:
        for person in self.people:
            person.listen()
            if person.excused() and self.random.random() < 0.5:  # the others are told what was put off
                person.cut()
        for mortal in self.mortals:
            mortal.cut()
        self.world.advance(50.0)  # timers fall due
        for mortal in self.mortals:
            mortal.look_back()
        for reader in self.readers + self.members:
            if reader.fake is None or reader.blocked:
                reader.cut()
                reader.connect()
        for author in self.authors:
            if author.fake is None:
                author.connect()
            author.publish(1)
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

    # Check the invariants

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
        sessions = self.world.state.ctx.sessions
        for person in [*self.authors, *self.readers, *self.members]:
            assert not person.lasting or person.name in sessions
        for person in [*self.guests, *self.mortals]:
            if person.fake is None and self.world.now - person.away_since[1] > person.expiry + SLACK:
                assert person.name not in sessions, f"{person.name} has expired"

    def check_once(self, reader: Reader) -> None:
        twice = 2 if len(reader.filters) == 2 and reader.filters[1] == b"g/#" else 1
        for payload, count in reader.got.items():
            _, topic, qos, _ = payload.split()
            if topic[:1] == b"r":
                continue
            assert payload not in self.cancelled, f"a will that was taken back: {payload!r}"
            assert payload not in self.refused, f"refused, but not forgotten: {payload!r}"
            if qos == b"2" or (qos == b"0" and not self.power and not self.world.machine.trouble):
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


def run(seed: int, acts: int = 120, **fixed: Any) -> int:
    """Live one seed; how often the broker died."""
    life = Life(seed, **fixed)
    life.live(acts)
    return life.world.crashes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storage.seeds", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--failures", type=int, default=1, help="stop after so many")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed")
    arguments = parser.parse_args()
    logging.getLogger("starlingmq").setLevel(logging.CRITICAL)  # a disk that fails has a lot to say
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
