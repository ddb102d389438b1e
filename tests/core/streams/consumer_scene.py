"""A stream that is a dict, and a consumer of it with a clock that the test moves."""

from __future__ import annotations

from typing import Any

from starlingmq.core.messages.message import Message
from starlingmq.core.streams.acknowledgements import ack_subject
from starlingmq.core.streams.consumer import JetStreamConsumer
from starlingmq.core.streams.consumer_policy import ConsumerPolicy
from starlingmq.core.streams.consumer_source import ConsumerSource
from starlingmq.core.streams.effects import Advisory, Deliver, StatusMessage
from starlingmq.core.topics.topics import meet

PLENTY = 10_000


class Shelf(ConsumerSource):
    """A stream as dumb as possible. ``deaf``: reply topics without subscribers."""

    def __init__(self) -> None:
        self.kept: dict[int, Message] = {}
        self.first = 1
        self.last = 0
        self.deaf: set[bytes] = set()
        self.unread: set[int] = set()
        self.damaged: set[int] = set()

    def put(self, topic: bytes, payload: bytes = b"", time: float = 0.0, properties: bytes = b"") -> int:
        self.last += 1
        self.kept[self.last] = Message(topic, payload, 1, False, properties, 0.0, "p", time)
        return self.last

    def drop(self, sequence: int) -> bytes:
        topic = self.kept.pop(sequence).topic
        self.first = min(self.kept, default=self.last + 1)
        return topic

    def _matching(self, filters: list[bytes]) -> list[int]:
        return [
            sequence
            for sequence, message in self.kept.items()
            if not filters or any(meet(each, message.topic) == message.topic for each in filters)
        ]

    def message(self, sequence: int) -> Message | None:
        return None if sequence in self.unread or sequence in self.damaged else self.kept.get(sequence)

    def reads_later(self, sequence: int) -> bool:
        return sequence in self.unread

    def next_from(self, sequence: int, filters: list[bytes]) -> int:
        return min((each for each in self._matching(filters) if each >= sequence), default=0)

    def waiting(self, sequence: int, filters: list[bytes]) -> int:
        return sum(each >= sequence for each in self._matching(filters))

    def last_matching(self, filters: list[bytes]) -> int:
        return max(self._matching(filters), default=0)

    def last_of_each(self, filters: list[bytes]) -> list[int]:
        return sorted({self.kept[each].topic: each for each in self._matching(filters)}.values())

    def first_since(self, time: float) -> int:
        return min((each for each, message in self.kept.items() if message.published_at >= time), default=0)

    def listens(self, reply: bytes, requester: object) -> bool:
        return reply not in self.deaf


def policy_of(**fields: Any) -> ConsumerPolicy:
    policy = ConsumerPolicy()
    for name, value in fields.items():
        getattr(policy, name)
        setattr(policy, name, value)
    return policy


class Scene:
    """Time begins with 1000. Every input is followed by a filling, as the hub does it."""

    def __init__(self, shelf: Shelf | None = None, **fields: Any) -> None:
        self.now = 1000.0
        self.shelf = Shelf() if shelf is None else shelf
        self.policy = policy_of(**fields)
        self.consumer = JetStreamConsumer("S", "C", self.policy, self.shelf)
        self.consumer.reports_done = True
        self.consumer.begin(self.now)

    def restart(self, state: bytes | None = None) -> None:
        """With the state as it is, or an earlier one."""
        state = self.consumer.encode() if state is None else state
        self.consumer = JetStreamConsumer("S", "C", self.policy, self.shelf)
        self.consumer.reports_done = True
        self.consumer.restore(state, self.now)

    def put(self, *topics: bytes) -> None:
        for topic in topics:
            self.shelf.put(topic, topic, self.now)
        self.fill()

    def fill(self) -> None:
        while self.consumer.fill(PLENTY, self.now):
            pass

    def pull(self, reply: bytes = b"r", batch: int = 1, expires: float = 0.0, **more: Any) -> None:
        asked = {"no_wait": False, "max_bytes": 0, "heartbeat": 0.0, "requester": None, **more}
        self.consumer.pull(reply, batch, expires, now=self.now, **asked)
        self.fill()

    def ask(self, payload: bytes, reply: bytes = b"r") -> None:
        self.consumer.request(reply, payload, None, self.now)
        self.fill()

    def ack(self, delivered: Deliver, payload: bytes = b"", reply: bytes = b"") -> bool:
        topic = ack_subject(delivered.reply)
        assert topic is not None
        found = self.consumer.acknowledge(
            topic.sequence, topic.number, topic.deliveries, payload, reply, None, self.now
        )
        self.fill()
        return found

    def remove(self, sequence: int) -> None:
        self.consumer.removed(sequence, self.shelf.drop(sequence))
        self.fill()

    def listen(self, present: bool = True) -> None:
        self.consumer.interest(present, self.now)
        self.fill()

    def later(self, seconds: float) -> None:
        """All timers fire in between."""
        end = self.now + seconds
        while 0.0 < self.consumer.wake_at() <= end:
            self.now = max(self.now, self.consumer.wake_at())
            self.consumer.tick(self.now)
            self.fill()
        self.now = end

    # The effects since it was asked last

    def out(self) -> list[object]:
        effects: list[object] = list(self.consumer.effects)
        self.consumer.effects.clear()
        return effects

    def delivered(self) -> list[Deliver]:
        return [each for each in self.out() if isinstance(each, Deliver)]

    def sequences(self) -> list[int]:
        return [each.sequence for each in self.delivered()]

    def statuses(self) -> list[bytes]:
        return [each.block for each in self.out() if isinstance(each, StatusMessage)]

    def advisories(self) -> list[tuple[str, int, int]]:
        return [(each.kind, each.sequence, each.deliveries) for each in self.out() if isinstance(each, Advisory)]

    def done(self) -> list[int]:
        found = list(self.consumer.done)
        self.consumer.done.clear()
        return found

    def numbers(self) -> tuple[tuple[int, int], tuple[int, int], int, int, int]:
        """Delivered (consumer, stream), floor (consumer, stream), pending, redelivered, waiting."""
        consumer = self.consumer
        return (
            (consumer.number, consumer.delivered),
            (consumer.floor_number(), consumer.floor()),
            consumer.num_ack_pending(),
            consumer.num_redelivered(),
            consumer.waiting_messages(),
        )
