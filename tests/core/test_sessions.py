"""Whole sessions through everything that happens to connections, against a model that knows the rules and no code.

Two publishers and a receiver. What the model holds the broker to:

- nothing acknowledged is lost for a session, unless it is counted as dropped, and every drop is counted;
- a QoS 2 message is routed once, and delivered at most once (once, in the end, if it was not dropped);
- the first appearances of each publisher, topic and QoS keep their order;
- what is sent again is the same under the same id, with DUP, and never within an MQTT 5 connection;
- neither queue nor window ever exceeds its bound.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.session_clients import Publisher, Receiver, Witness
from tests.harness import World

versions = st.sampled_from([3, 4, 5, 5])


def connected(machine: Sessions) -> bool:
    return machine.receiver.fake is not None


def answering(machine: Sessions) -> bool:
    return bool(machine.receiver.answers)


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
        messages=st.lists(st.tuples(st.sampled_from([b"t/a", b"t/b"]), st.integers(0, 2)), min_size=1, max_size=4),
        expiry=st.sampled_from([-1, -1, 1, 20]),
    )
    def publish(self, which: int, messages: list[tuple[bytes, int]], expiry: int) -> None:
        publisher = self.publishers[which]
        if expiry >= 0:
            messages = [(topic, min(qos, 1)) for topic, qos in messages]  # a held QoS 2 message could expire unrouted
        numbered = []
        for topic, qos in messages:
            payload = b"%s %s %d %d" % (publisher.client_id.encode(), topic, qos, len(self.published))
            self.published.append(payload)
            numbered.append((topic, payload, qos))
        publisher.publish(numbered, expiry)

    @rule(which=st.integers(0, 1))
    def publisher_reads(self, which: int) -> None:
        self.publishers[which].read()

    @rule(which=st.integers(0, 1))
    def publisher_releases(self, which: int) -> None:
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

    @precondition(answering)
    @rule(index=st.integers(0, 5), times=st.sampled_from([1, 1, 1, 2, 0]))
    def answer(self, index: int, times: int) -> None:
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

    # What must hold

    @invariant()
    def the_rules_are_kept(self) -> None:
        self.receiver.observe()
        self.receiver.check_inside(self.max_queue)
        for counter in (self.receiver.seen, self.receiver.delivered):
            assert all(count == 1 for payload, count in counter.items() if payload.split()[2] == b"2")

    def teardown(self) -> None:
        """In the end everybody behaves: everything is finished, and the books are balanced."""
        if not hasattr(self, "published"):
            return
        if connected(self):
            self.receiver.lose_connection(0)
        self.receiver.connect(5, clean=False, lasting=True, receive_maximum=65535)
        for _ in range(10 * len(self.published) + 10):
            for publisher in self.publishers:
                publisher.read()
                publisher.release()
            self.read_and_answer_everything(1)
            self.world.advance(2.0)
            self.the_rules_are_kept()
        assert not any(publisher.sent for publisher in self.publishers)
        assert not self.receiver.inflight
        session = self.world.state.ctx.sessions["sub"]
        assert session.queue is None and session.waiters is None
        for publisher in self.publishers:
            assert set(publisher.acknowledged) <= set(self.receiver.seen)


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=250, stateful_step_count=40, deadline=None, report_multiple_bugs=False)
