"""Whole sessions through all events of connections, against a model of the rules that is independent of the code.

Two publishers and a receiver. The model checks:

- nothing acknowledged is lost for a session, unless it is counted as dropped, and every drop is counted;
- a QoS 2 message is routed once, and delivered at most once (once, in the end, if it was not dropped);
- the first transmissions of each publisher, topic and QoS keep their order;
- a message sent again is the same under the same id, with DUP, and never within an MQTT 5 connection;
- neither queue nor window ever exceeds its bound.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.session_clients import Publisher, Receiver, Witness
from tests.few import drawn, live
from tests.harness import World

versions = st.sampled_from([3, 4, 5, 5])


def connected(machine: Sessions) -> bool:
    return machine.receiver.fake is not None


class Sessions(RuleBasedStateMachine):
    @initialize(
        publishers=st.tuples(versions, versions),
        max_queue=st.sampled_from([1, 3, 6, 0]),
        max_inflight=st.sampled_from([0, 0, 1, 2]),
        hold=st.sampled_from([0.0, 1.0]),
        store_qos0=st.booleans(),
        awaiting=st.sampled_from([0, 0, 2]),
    )
    def begin(
        self,
        publishers: tuple[int, int],
        max_queue: int,
        max_inflight: int,
        hold: float,
        store_qos0: bool,
        awaiting: int,
    ) -> None:
        self.max_queue = max_queue
        self.world = World(
            max_mqueue_len=max_queue,
            max_inflight=max_inflight,
            publisher_hold=hold,
            mqueue_store_qos0=store_qos0,
            max_awaiting_rel=awaiting,
            await_rel_timeout=1_000_000.0,
        )
        self.witness = Witness(self.world)
        self.receiver = Receiver(self.world, self.witness, max_inflight)
        self.receiver.connect(5, clean=False, lasting=True, receive_maximum=65535)
        self.publishers = [Publisher(self.world, f"pub{n}", version) for n, version in enumerate(publishers)]
        self.published: list[bytes] = []

    # Publishers

    @rule(
        which=st.integers(0, 1),
        messages=st.lists(st.tuples(st.sampled_from([b"t/a", b"t/b"]), st.integers(0, 2)), min_size=1, max_size=6),
        expiry=st.sampled_from([-1, -1, 1, 20]),
        finish=st.sampled_from([True, True, True, False]),
    )
    def publish(self, which: int, messages: list[tuple[bytes, int]], expiry: int, finish: bool) -> None:
        publisher = self.publishers[which]
        if expiry >= 0:
            messages = [(topic, min(qos, 1)) for topic, qos in messages]  # a held QoS 2 message could expire unrouted
        numbered = []
        for topic, qos in messages:
            payload = b"%s %s %d %d" % (publisher.client_id.encode(), topic, qos, len(self.published))
            self.published.append(payload)
            numbered.append((topic, payload, qos))
        publisher.publish(numbered, expiry)
        if finish:
            publisher.finish()

    @rule(which=st.integers(0, 1), release=st.booleans())
    def publisher_reads(self, which: int, release: bool) -> None:
        self.publishers[which].read()
        if release:
            self.publishers[which].release()

    @rule(which=st.integers(0, 1))
    def publisher_loses_its_connection(self, which: int) -> None:
        self.publishers[which].lose_connection()

    # The receiver

    @precondition(connected)
    @rule(arrived=st.integers(0, 6))
    def lose_connection(self, arrived: int) -> None:
        self.receiver.lose_connection(arrived)

    @rule(
        version=versions,
        clean=st.sampled_from([False, False, False, True]),
        lasting=st.sampled_from([True, True, True, False]),
        receive_maximum=st.sampled_from([1, 2, 3, 65535]),
        arrived=st.integers(0, 6),
    )
    def connect(self, version: int, clean: bool, lasting: bool, receive_maximum: int, arrived: int) -> None:
        if connected(self):
            self.receiver.lose_connection(arrived)
        self.receiver.connect(version, clean=clean, lasting=lasting, receive_maximum=receive_maximum)

    @precondition(connected)
    @rule(count=st.integers(1, 6))
    def read(self, count: int) -> None:
        self.receiver.read(count)

    @precondition(connected)
    @rule(picks=st.lists(st.tuples(st.integers(0, 5), st.sampled_from([1, 1, 1, 2, 0])), min_size=1, max_size=4))
    def answer(self, picks: list[tuple[int, int]]) -> None:
        """Answer in any order, some twice, some never."""
        self.receiver.read(len(self.receiver.inbox))
        for index, times in picks:
            if self.receiver.answers:
                self.receiver.answer(index, times)

    @precondition(connected)
    @rule(times=st.sampled_from([1, 2]))
    def read_and_answer_everything(self, times: int) -> None:
        self.receiver.read(len(self.receiver.inbox))
        while self.receiver.answers:
            self.receiver.answer(0, times)

    @precondition(connected)
    @rule()
    def block_or_unblock(self) -> None:
        if self.receiver.blocked:
            self.receiver.unblock()
        else:
            self.receiver.block()

    @rule(seconds=st.sampled_from([0.5, 2.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.advance(seconds)

    # Invariants

    @invariant()
    def the_rules_are_kept(self) -> None:
        self.receiver.observe()
        self.receiver.check_inside(self.max_queue)
        for counter in (self.receiver.seen, self.receiver.delivered):
            assert all(count == 1 for payload, count in counter.items() if payload.split()[2] == b"2")

    def finished(self) -> bool:
        session = self.world.state.ctx.sessions["sub"]
        underway = any(publisher.sent for publisher in self.publishers) or self.receiver.inflight
        return not underway and session.queue is None and session.waiters is None

    def teardown(self) -> None:
        """At the end all clients complete their handshakes: nothing is open, and the counts are consistent."""
        if not hasattr(self, "published"):
            return
        if connected(self):
            self.receiver.lose_connection(0)
        self.receiver.connect(5, clean=False, lasting=True, receive_maximum=65535)
        for _ in range(10 * len(self.published)):
            if self.finished():
                break
            for publisher in self.publishers:
                publisher.finish()
            self.read_and_answer_everything(1)
            self.world.advance(2.0)
            self.the_rules_are_kept()
        assert self.finished()
        for publisher in self.publishers:
            assert set(publisher.acknowledged) <= set(self.receiver.seen)


@drawn(40, 200)
def test_sessions_live_as_their_twins(examples: int) -> None:
    live(Sessions, examples, stateful_step_count=40, report_multiple_bugs=False)


@pytest.mark.parametrize("seed", range(40))
def test_a_long_life(seed: int) -> None:
    """Long runs, which reach states that short ones rarely do. Each seed can be replayed."""
    chance = random.Random(seed)
    one_of = chance.choice
    machine = Sessions()
    machine.begin(
        publishers=(one_of([3, 4, 5]), one_of([3, 4, 5])),
        max_queue=one_of([1, 3, 6, 20, 0]),
        max_inflight=one_of([0, 0, 1, 2]),
        hold=one_of([0.0, 1.0]),
        store_qos0=one_of([True, False]),
        awaiting=one_of([0, 0, 2]),
    )
    topics = [b"t/a", b"t/b"]
    everything: list[tuple[int, Callable[[], None]]] = [
        (
            10,
            lambda: machine.publish(
                which=chance.randrange(2),
                messages=[(one_of(topics), chance.randrange(3)) for _ in range(chance.randint(1, 6))],
                expiry=one_of([-1, -1, 1, 20]),
                finish=chance.random() < 0.8,
            ),
        ),
        (3, lambda: machine.publisher_reads(which=chance.randrange(2), release=one_of([True, False]))),
        (1, lambda: machine.publisher_loses_its_connection(which=chance.randrange(2))),
        (
            2,
            lambda: machine.connect(
                version=one_of([3, 4, 5, 5]),
                clean=chance.random() < 0.1,
                lasting=chance.random() < 0.9,
                receive_maximum=one_of([1, 2, 3, 65535]),
                arrived=chance.randrange(6),
            ),
        ),
        (1, lambda: machine.time_passes(seconds=one_of([0.5, 2.0, 31.0]))),
    ]
    while_connected: list[tuple[int, Callable[[], None]]] = [
        (1, lambda: machine.lose_connection(arrived=chance.randrange(6))),
        (3, lambda: machine.read(count=chance.randint(1, 6))),
        (6, lambda: machine.answer(picks=[(chance.randrange(6), one_of([1, 1, 1, 2, 0])) for _ in range(4)])),
        (3, lambda: machine.read_and_answer_everything(times=one_of([1, 2]))),
        (1, machine.block_or_unblock),
    ]
    for _ in range(250):
        choices = everything + while_connected if connected(machine) else everything
        (act,) = chance.choices([act for _, act in choices], [weight for weight, _ in choices])
        act()
        machine.the_rules_are_kept()
    machine.teardown()
