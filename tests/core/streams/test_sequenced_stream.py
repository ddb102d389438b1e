"""The messages that a stream takes, refuses and gives up, against a model; and that a restart changes nothing of it."""

import random
from collections.abc import Callable, Iterable

import pytest

from starlingmq.config.settings import LimitsConfig, MqttConfig
from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import DELIVERIES, FACT_DELETE, FACT_PUT, STREAM_PUT, Deliveries
from starlingmq.core.messages.message import Message
from starlingmq.core.streams import sequenced_stream
from starlingmq.core.streams.policies import DISCARD_NEW, INTEREST, StreamPolicy
from starlingmq.core.streams.sequenced_stream import (
    AHEAD,
    DUPLICATE,
    REFUSED,
    TAKEN,
    SequencedStream,
    SequenceLog,
)
from starlingmq.wire.nats_headers import properties_of

NOW = 1_700_000_000.0


class Log(SequenceLog):
    """A log that keeps messages in a list, and has them once a turn is over."""

    def __init__(self) -> None:
        self.messages: list[Message | None] = []

    def stored(self) -> int:
        return len(self.messages) + 1

    def given(self) -> int:
        return len(self.messages) + 1

    def go_on_at(self, seq: int) -> None:
        self.messages += [None] * (seq - 1 - len(self.messages))

    def read(self, seq: int, count: int) -> list[Message | None]:
        return self.messages[seq - 1 : seq - 1 + count] or [None]


class Broker:
    """A stream, its log, and a store of facts, with turns and restarts."""

    def __init__(self, policy: StreamPolicy, memory: bool = False) -> None:
        self.policy = policy
        self.memory = memory
        self.log = Log()
        self.facts: dict[bytes, bytes] = {}
        self.ctx, self.stream = self._make()

    def _make(self) -> tuple[Context, SequencedStream]:
        ctx = Context(MqttConfig(), LimitsConfig(), NOW)
        ctx.record(True)
        log = None if self.memory else self.log
        stream = SequencedStream(ctx, "S", 7, self.policy, b"{}", NOW, log, 1)
        return ctx, stream

    def turn(self) -> None:
        self.stream.flush()
        for write in self.ctx.ready.writes:
            if write.kind == FACT_PUT:
                self.facts[write.topic] = write.value
            elif write.kind == FACT_DELETE:
                del self.facts[write.topic]  # a fact that was never put is not deleted
            else:
                assert write.kind == DELIVERIES and isinstance(write, Deliveries)
                assert set(write.kinds) == {STREAM_PUT}
                for outgoing in write.outgoings:
                    self.log.messages += [None] * outgoing.packet_id
                    self.log.messages.append(outgoing.message)
        self.ctx.ready.renew()

    def restart(self) -> None:
        self.ctx, self.stream = self._make()
        for message in self.log.messages:
            self.stream.restore(message)
        facts = dict(self.facts)
        self.stream.restored(facts)
        assert facts == {}

    def publish(self, topic: bytes, payload: bytes = b"x", at: float = NOW, **headers: str) -> int:
        """Returns the outcome."""
        block = b"".join(f"Nats-{name.replace('_', '-')}: {value}\r\n".encode() for name, value in headers.items())
        properties = properties_of(b"NATS/1.0\r\n%b\r\n" % block, b"") if block else b""
        self.ctx.now = at
        self.stream.take(self.ctx, Message(topic, payload, 1, False, properties, 0.0, "c", at))
        return self.stream.outcome

    def there(self) -> dict[int, bytes]:
        index = self.stream.index
        found = {}
        seq = index.next(index.first)
        while seq:
            message = self.stream.message(seq)
            assert message is not None and message.topic == index.topic_of(seq)
            found[seq] = message.payload
            seq = index.next(seq + 1)
        return found


def policy_of(**settings: object) -> StreamPolicy:
    policy = StreamPolicy()
    policy.subjects = [b"#"]
    for name, value in settings.items():
        assert hasattr(policy, name)
        setattr(policy, name, value)
    return policy


def refused(broker: Broker) -> tuple[int, str]:
    assert broker.stream.outcome == REFUSED and broker.stream.refusal is not None
    return broker.stream.refusal.error, broker.stream.refusal.description


def test_a_message_id_is_taken_once_within_its_window_also_over_a_restart() -> None:
    broker = Broker(policy_of(duplicate_window=10.0))
    assert broker.publish(b"a", Msg_Id="one") == TAKEN
    assert broker.publish(b"a", Msg_Id="two") == TAKEN
    assert broker.publish(b"a", Msg_Id="one", at=NOW + 9) == DUPLICATE
    assert broker.stream.answer == 1
    broker.turn()
    broker.restart()
    assert broker.publish(b"b", Msg_Id="two", at=NOW + 9.5) == DUPLICATE
    assert broker.stream.answer == 2
    broker.stream.expire(NOW + 10.5)
    assert broker.publish(b"a", Msg_Id="one", at=NOW + 10.5) == TAKEN
    assert broker.stream.answer == 3


def test_what_a_publisher_expects_decides() -> None:
    broker = Broker(policy_of())
    assert broker.publish(b"a", Expected_Last_Sequence="0", Msg_Id="i") == TAKEN
    broker.publish(b"a", Expected_Last_Sequence="0")
    assert refused(broker) == (10071, "wrong last sequence: 1")
    assert broker.publish(b"b", Expected_Last_Subject_Sequence="0", Expected_Last_Msg_Id="i") == TAKEN
    broker.publish(b"b", Expected_Last_Subject_Sequence="0")
    assert refused(broker) == (10071, "wrong last sequence: 2")
    broker.publish(b"b", Expected_Last_Subject_Sequence="1", Expected_Last_Subject_Sequence_Subject="a")
    assert broker.stream.outcome == TAKEN
    broker.publish(b"a", Expected_Last_Msg_Id="other")
    assert refused(broker) == (10070, "wrong last msg ID: ")
    broker.publish(b"a", Expected_Stream="T")
    assert refused(broker) == (10060, "expected stream does not match")
    assert list(broker.there()) == [1, 2, 3]


def test_the_newest_goes_where_it_is_to_be_discarded() -> None:
    broker = Broker(policy_of(discard=DISCARD_NEW, max_messages=2))
    assert [broker.publish(b"a"), broker.publish(b"b")] == [TAKEN, TAKEN]
    broker.publish(b"c")
    assert refused(broker) == (10077, "maximum messages exceeded")
    broker = Broker(policy_of(discard=DISCARD_NEW, max_per_subject=1, discard_new_per_subject=True))
    assert [broker.publish(b"a"), broker.publish(b"b")] == [TAKEN, TAKEN]
    broker.publish(b"a")
    assert refused(broker) == (10077, "maximum messages per subject exceeded")
    broker = Broker(policy_of(discard=DISCARD_NEW, max_bytes=70))
    assert broker.publish(b"a") == TAKEN
    assert broker.publish(b"a") == TAKEN
    broker.publish(b"a")
    assert refused(broker) == (10077, "maximum bytes exceeded")
    broker = Broker(policy_of(max_message_size=4))
    broker.publish(b"a", b"12345")
    assert refused(broker) == (10054, "message size exceeds maximum allowed")


def test_a_rollup_replaces_what_was_before_it() -> None:
    broker = Broker(policy_of(allow_rollup=True))
    for topic in (b"a", b"b", b"a"):
        broker.publish(topic, topic)
    broker.publish(b"a", b"sub", Rollup="sub")
    assert broker.there() == {2: b"b", 4: b"sub"}
    broker.publish(b"c", b"all", Rollup="all")
    assert broker.there() == {5: b"all"}
    broker.publish(b"c", Rollup="none")
    assert refused(broker) == (10111, 'rollup value invalid: "none"')
    broker = Broker(policy_of())
    broker.publish(b"a", Rollup="sub")
    assert refused(broker) == (10111, "rollup not permitted")


def test_a_stream_that_keeps_by_interest_keeps_nothing_that_nobody_wants() -> None:
    broker = Broker(policy_of(retention=INTEREST))
    assert broker.publish(b"a") == TAKEN
    assert (broker.stream.answer, broker.there()) == (1, {})
    broker.turn()
    broker.restart()
    assert (broker.stream.index.first, broker.stream.index.last) == (2, 1)


def test_what_makes_no_sense_is_refused() -> None:
    broker = Broker(policy_of(allow_ttl=True))
    broker.publish(b"a", Expected_Last_Sequence="nonsense")
    assert refused(broker) == (10071, "wrong last sequence: 0")
    broker.publish(b"a", TTL="0")
    assert refused(broker) == (10165, "invalid per-message TTL")
    broker = Broker(policy_of(max_message_size=4))
    broker.publish(b"a", b"12345", Expected_Last_Subject_Sequence="7")
    assert refused(broker)[0] == 10054


def test_messages_end_with_their_time_to_live_and_with_the_age_of_the_stream() -> None:
    broker = Broker(policy_of(allow_ttl=True, max_age=100.0))
    broker.publish(b"a", TTL="5s")
    broker.publish(b"b", at=NOW + 1)
    broker.publish(b"c", TTL="1m", at=NOW + 2)
    broker.turn()
    broker.restart()
    assert broker.stream.due_at() == NOW + 5
    broker.stream.expire(NOW + 5)
    assert list(broker.there()) == [2, 3]
    broker.stream.expire(NOW + 63)
    assert list(broker.there()) == [2]
    broker.stream.expire(NOW + 101)
    assert broker.there() == {}
    assert broker.stream.index.first == 4
    broker.publish(b"a", TTL="soon")
    assert refused(broker) == (10165, "invalid per-message TTL")
    broker = Broker(policy_of())
    broker.publish(b"a", TTL="5s")
    assert refused(broker) == (10166, "per-message TTL is disabled")


def kept_by(policy: StreamPolicy, there: dict[int, tuple[bytes, int]]) -> dict[int, tuple[bytes, int]]:
    """The model of the limits: the newest stay."""
    left = dict(there)
    if policy.max_per_subject > 0:
        for topic in {topic for topic, _ in left.values()}:
            mine = [seq for seq, (each, _) in left.items() if each == topic]
            for seq in mine[: -policy.max_per_subject]:
                del left[seq]
    while policy.max_messages > 0 and len(left) > policy.max_messages:
        del left[min(left)]
    while policy.max_bytes > 0 and sum(size for _, size in left.values()) > policy.max_bytes:
        del left[min(left)]
    return left


def policies() -> Iterable[StreamPolicy]:
    yield policy_of()
    yield policy_of(max_messages=40)
    yield policy_of(max_bytes=3000)
    yield policy_of(max_per_subject=1)
    yield policy_of(max_per_subject=3, max_messages=9)


class World:
    def __init__(self, seed: int, policy: StreamPolicy, memory: bool = False) -> None:
        self.rng = random.Random(seed)
        self.broker = Broker(policy, memory)
        self.there: dict[int, tuple[bytes, int]] = {}
        self.payloads: dict[int, bytes] = {}
        self.last = 0

    def step(self) -> None:
        rng, broker = self.rng, self.broker
        what = rng.random()
        if what < 0.7:
            topic = b"t/%d" % rng.randrange(6)
            self.last += 1
            payload = b"%d" % self.last * rng.randrange(1, 20)
            assert broker.publish(topic, payload) == TAKEN
            assert broker.stream.answer == self.last, "each sequence once, in order"
            self.there[self.last] = topic, (16 if broker.memory else 30) + len(topic) + len(payload)
            self.payloads[self.last] = payload
            self.there = kept_by(broker.policy, self.there)
        elif what < 0.8 and self.there:
            seq = rng.choice(list(self.there))
            assert broker.stream.remove(seq)
            del self.there[seq]
        elif what < 0.84:
            filter, keep = rng.choice((b"", b"t/1", b"t/+")), rng.choice((0, 0, 2))
            matching = [seq for seq, (topic, _) in self.there.items() if filter != b"t/1" or topic == filter]
            gone = matching[: len(matching) - keep] if keep else matching
            assert broker.stream.purge(filter, keep, 0) == len(gone)
            for seq in gone:
                del self.there[seq]
        elif what < 0.95:
            broker.turn()
        elif not broker.memory:
            broker.turn()
            broker.restart()
        index = broker.stream.index
        assert index.first == min(self.there, default=self.last + 1)
        assert index.octets == sum(size for _, size in self.there.values())

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.broker.turn()
        assert self.broker.there() == {seq: self.payloads[seq] for seq in self.there}


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("memory", [False, True])
def test_a_stream_has_what_its_limits_keep(number: int, memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequenced_stream, "RECENT_BYTES", 400)
    for seed in range(6):
        World(seed, list(policies())[number], memory).run(400)


def forgetful() -> type[SequencedStream]:
    class Forgetful(SequencedStream):
        """It does not tell the store of gaps."""

        def flush(self) -> None:
            self.index.changed = {}
            super().flush()

    return Forgetful


def reused() -> type[SequencedStream]:
    class Reused(SequencedStream):
        """A restart begins behind the last message that is there, not behind the last that was given."""

        def restored(self, facts: dict[bytes, bytes]) -> None:
            super().restored(facts)
            if self.index.count == 0:
                self.index.last = 0

    return Reused


@pytest.mark.interpreted_only("what is compiled cannot be patched")
@pytest.mark.parametrize("mistake", [forgetful, reused])
def test_a_stream_that_forgets_is_found(
    mistake: Callable[[], type[SequencedStream]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "SequencedStream", mistake())
    with pytest.raises(AssertionError):
        for seed in range(20):
            World(seed, policy_of()).run(400)


def test_the_ends_of_messages_that_are_gone_are_forgotten() -> None:
    """Such as those of a key that is written again and again."""
    policy = StreamPolicy()
    policy.allow_ttl = True
    policy.max_per_subject = 1
    broker = Broker(policy)
    for _ in range(1000):
        assert broker.publish(b"a", TTL="1h") == TAKEN
    assert len(broker.stream._ends) < 200
    broker.publish(b"b", TTL="2h", at=NOW + 3600.0)
    broker.stream.expire(NOW + 3600.0)
    assert broker.there() == {1001: b"x"}


class CountedLog(Log):
    def __init__(self) -> None:
        super().__init__()
        self.wanted: list[int] = []

    def read(self, seq: int, count: int) -> list[Message | None]:
        self.wanted.append(count)
        return super().read(seq, count)


@pytest.mark.interpreted_only("a log that counts")
def test_only_who_reads_in_order_has_messages_read_ahead() -> None:
    broker = Broker(StreamPolicy())
    log = broker.log = CountedLog()
    broker.ctx, broker.stream = broker._make()
    for _ in range(600):
        broker.publish(b"a", b"x" * 1000)
        broker.turn()
    for seq in (100, 50, 10):
        assert broker.stream.message(seq) is not None
    assert log.wanted == [1, 1, 1]
    for seq in range(11, 75):
        assert broker.stream.message(seq) is not None
    assert log.wanted == [1, 1, 1, AHEAD]


def test_a_roll_up_of_many_messages_leaves_the_last_one_over_a_restart() -> None:
    policy = StreamPolicy()
    policy.allow_rollup = True
    broker = Broker(policy)
    for number in range(3000):
        broker.publish(b"a/%d" % (number % 7))
    broker.turn()
    assert broker.publish(b"a/1", b"all", Rollup="all") == TAKEN
    broker.turn()
    for _ in range(2):
        assert broker.there() == {3001: b"all"}
        assert broker.stream.index.topics[b"a/1"].first == 3001
        broker.restart()
