"""A broker without a network that has streams with one sequence, in memory or in a store that survives crashes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.harness import FakeClient, World
from tests.storage.memory_engine import MemoryJournal
from tests.storage.world import SteadyStore, StoredWorld

from starlingmq.core.broker import BrokerState
from starlingmq.core.jetstream.bound_consumer import StoredConsumer
from starlingmq.core.jetstream.work_queues import QueueMaker
from starlingmq.core.streams.consumer_policy import ConsumerPolicy
from starlingmq.core.streams.policies import StreamPolicy
from starlingmq.core.streams.sequenced_stream import SequencedStream
from starlingmq.storage.recovery import restore
from starlingmq.storage.streams.sequence_logs import sequenced
from starlingmq.storage.streams.stream_definition import Definition
from starlingmq.storage.streams.stream_logs import StreamLog
from starlingmq.wire.mqtt import PUBCOMP, PUBREC, PUBREL, Ack, Publish, Suback, Subscribe, SubscribeRequest
from starlingmq.wire.properties import USER_PROPERTY, Properties, decode_property_bytes

PUBACK = 4


class CutLog(MemoryJournal):
    """The log of a stream."""

    def skip_to(self, offset: int) -> None:
        raise AssertionError("the log has lost something")

    def cut_to(self, offset: int) -> None:
        raise AssertionError("the log is longer than the journal")

    def go_on_at(self, offset: int) -> None:
        raise NotImplementedError

    def thin(self, first: int, keeps: Callable[[int], bool]) -> bool:
        return False

    def roll(self) -> None:
        pass


class Maker(QueueMaker):
    """Makes consumers without an API."""

    def __init__(self, state: BrokerState) -> None:
        self.state = state

    def make_queue(self, stream: SequencedStream, name: str, filters: list[bytes]) -> None:
        policy = ConsumerPolicy()
        policy.max_deliver = 5
        policy.filters = filters
        self.state.jetstream.add_consumer(stream, name, policy, b"{}", self.state.ctx.now, b"")


def policy_of(*subjects: str, **limits: Any) -> StreamPolicy:
    policy = StreamPolicy()
    policy.subjects = [subject.encode() for subject in subjects or ("t/#",)]
    for name, value in limits.items():
        assert hasattr(policy, name)
        setattr(policy, name, value)
    return policy


class Streaming(World):
    """Streams are in memory."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.begin()

    def begin(self) -> None:
        self.state.jetstream.enabled = True
        self.state.jetstream.reads.queues.maker = Maker(self.state)

    def stream(self, name: str = "S", policy: StreamPolicy | None = None) -> SequencedStream:
        """A new one."""
        policy = policy or policy_of()
        number = -1 - len(self.state.jetstream.streams)
        stream = SequencedStream(self.state.ctx, name, number, policy, b"{}", self.now, None, 1)
        self.state.jetstream.add(stream)
        return stream


class StoredStreaming(StoredWorld):
    """A stream S of ``t/#`` that outlives crashes, with the consumers of its queues."""

    def __init__(self, policy: StreamPolicy | None = None, **settings: Any) -> None:
        self.policy = policy or policy_of()
        self.log = CutLog()
        self.restarts = 0
        super().__init__(**settings)

    def _open_store(self) -> None:
        self.definition = Definition(name="S", number=1 << 40, topics=("t/#",), jetstream="{}")
        self.store = SteadyStore(self.kv, self.journal, "process", lambda: self.now, self.checkpoint_bytes)
        self.state.ctx.recording = True
        log = StreamLog(self.definition, self.log)
        self.sequenced = sequenced(log, self.state.ctx)
        self.store.streams.add(log)
        self.store.attach(self.state, lambda: None)
        self.recovered = restore(self.state, self.kv, self.journal, self.store.streams)
        self.store.replayed(self.recovered.changes, self.recovered.changed)
        self.store.streams.show_all()
        jetstream = self.state.jetstream
        jetstream.enabled = True
        jetstream.reads.queues.maker = Maker(self.state)
        jetstream.change(self.sequenced, self.policy, b"{}")
        if len(jetstream.streams) == 0:
            jetstream.add(self.sequenced)
        for fact, value in jetstream.stored_consumers.items():
            stored = StoredConsumer(fact, value)
            policy = ConsumerPolicy()
            policy.max_deliver = 5
            jetstream.add_consumer(self.sequenced, stored.name, policy, b"{}", stored.created, stored.state)
        jetstream.stored_consumers = {}


def subscribe(fake: FakeClient, filter: str, qos: int = 1, start: str = "", value: str = "", **options: Any) -> Suback:
    """The SUBACK, which must be next."""
    properties: Properties = {USER_PROPERTY: [(start, value)]} if start else {}
    properties.update(options.pop("properties", {}))
    fake.send(Subscribe(1, [SubscribeRequest(filter.encode(), qos, **options)], properties))
    return fake.expect(Suback)


def offset_of(packet: Publish) -> int:
    return int(users(packet)["offset"])


def users(packet: Publish) -> dict[str, str]:
    pairs = decode_property_bytes(packet.properties).get(USER_PROPERTY, [])
    assert isinstance(pairs, list)
    return {pair[0]: pair[1] for pair in pairs if isinstance(pair, tuple)}


def take(fake: FakeClient, acknowledge: bool = True) -> list[Publish]:
    """The PUBLISHes that the client gets, acknowledging as long as more comes."""
    found: list[Publish] = []
    while packets := fake.receive():
        for packet in packets:
            if isinstance(packet, Publish):
                found.append(packet)
                if acknowledge and packet.qos != 0:
                    fake.send(Ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
            elif isinstance(packet, Ack) and packet.type == PUBREL and acknowledge:
                fake.send(Ack(PUBCOMP, packet.packet_id))
    return found


def payloads(packets: list[Publish]) -> list[bytes]:
    return [packet.payload for packet in packets]
