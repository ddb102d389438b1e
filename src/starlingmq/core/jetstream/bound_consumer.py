"""A consumer at its stream."""

from __future__ import annotations

from typing import Final

from starlingmq.core.jetstream.stream_source import StreamSource
from starlingmq.core.streams.consumer import JetStreamConsumer
from starlingmq.core.streams.consumer_policy import ConsumerPolicy
from starlingmq.core.streams.sequenced_stream import SequencedStream, StreamWatcher

GROUP_NAME: Final = "mqtt-group-"  # how those that are shared groups of MQTT begin
FACT: Final = b"js/c/"  # number of the stream, and name: settings and state


class BoundConsumer(StreamWatcher):
    """``config``: its settings as JSON, as the API has them."""

    stream: SequencedStream
    consumer: JetStreamConsumer
    source: StreamSource
    config: bytes
    created: float
    timer: float  # when its next tick is planned; 0.0: it is not
    rests_until: float  # its state is not stored before
    gone: bool
    queue: object | None  # it is a work queue of MQTT (core.jetstream.work_queues)
    stored: bool  # the store has something of it
    active: dict[BoundConsumer, None]  # those of the hub that have something to do

    def __init__(
        self,
        stream: SequencedStream,
        consumer: JetStreamConsumer,
        source: StreamSource,
        config: bytes,
        created: float,
        active: dict[BoundConsumer, None],
    ) -> None:
        self.active = active
        self.stream = stream
        self.consumer = consumer
        self.source = source
        self.config = config
        self.created = created
        self.timer = 0.0
        self.rests_until = 0.0
        self.gone = False
        self.queue = None
        self.stored = False

    def full_name(self) -> bytes:
        return f"{self.stream.name}.{self.consumer.name}".encode()

    def wake(self) -> None:
        self.active[self] = None

    def removed(self, seq: int, topic: bytes) -> None:
        self.consumer.removed(seq, topic)
        if self.consumer.effects:
            self.active[self] = None

    def purged(self) -> None:
        self.source.look()
        self.consumer.purged()
        self.active[self] = None

    def needs(self, seq: int) -> bool:
        return not is_group(self.name) and self.consumer.needs(seq)

    def counts(self) -> bool:
        return not is_group(self.name)

    # As the API shows it

    @property
    def name(self) -> str:
        return self.consumer.name

    @property
    def policy(self) -> ConsumerPolicy:
        return self.consumer.policy

    @property
    def delivered(self) -> tuple[int, int]:
        """Sequence of the consumer, and of the stream."""
        return self.consumer.number, self.consumer.delivered

    @property
    def ack_floor(self) -> tuple[int, int]:
        return self.consumer.floor_number(), self.consumer.floor()

    @property
    def last_delivered(self) -> float:
        return self.consumer.delivered_at

    @property
    def last_acknowledged(self) -> float:
        return self.consumer.acknowledged_at

    @property
    def push_bound(self) -> bool:
        """Its deliver subject has a subscriber."""
        return self.consumer.active

    def num_ack_pending(self) -> int:
        return self.consumer.num_ack_pending()

    def num_redelivered(self) -> int:
        return self.consumer.num_redelivered()

    def num_waiting(self, now: float) -> int:
        self.source.look()
        return self.consumer.num_waiting(now)

    def waiting_messages(self) -> int:
        self.source.look()
        return self.consumer.waiting_messages()

    def fact(self) -> bytes:
        return FACT + b"%d/%b" % (self.stream.number, self.consumer.name.encode())

    def encode(self) -> bytes:
        """Its settings and its state, for a store."""
        head = b"%d %.6f " % (len(self.config), self.created)
        return head + self.config + self.consumer.encode()


def is_group(name: str) -> bool:
    """Whether the consumer is a shared group of MQTT. Those have no say in what their stream keeps."""
    return name.startswith(GROUP_NAME)


class StoredConsumer:
    """A consumer as a store has it."""

    number: int
    name: str
    config: bytes
    created: float
    state: bytes

    def __init__(self, fact: bytes, value: bytes) -> None:
        """Raises ValueError."""
        number, _, name = fact[len(FACT) :].partition(b"/")
        length, created, rest = value.split(b" ", 2)
        self.number = int(number)
        self.name = name.decode()
        self.created = float(created)
        self.config = rest[: int(length)]
        self.state = rest[int(length) :]
