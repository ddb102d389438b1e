"""JetStream's API by itself, over streams that are kept in memory and consumers that do nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from starlingmq.core.jetstream.requesters import Requester
from starlingmq.core.limits.access import Rights
from starlingmq.core.messages.message import Message
from starlingmq.core.streams.consumer_policy import ConsumerPolicy
from starlingmq.core.streams.message_index import MessageIndex, TopicSelection
from starlingmq.core.streams.policies import StreamPolicy
from starlingmq.core.streams.sourcing import Sourcing
from starlingmq.jetstream.advisories import Advisories
from starlingmq.jetstream.api import answer
from starlingmq.jetstream.api_requests import Api, ApiRequest

NOW = 1_800_000_000.0


class FakeConsumer:
    def __init__(self, name: str, policy: ConsumerPolicy, config: bytes) -> None:
        self.name, self.policy, self.config, self.created = name, policy, config, NOW
        self.delivered = self.ack_floor = (0, 0)
        self.last_delivered = self.last_acknowledged = 0.0
        self.push_bound = False

    def num_ack_pending(self) -> int:
        return 0

    def num_redelivered(self) -> int:
        return 0

    def num_waiting(self, now: float) -> int:
        return 0

    def waiting_messages(self) -> int:
        return 0


class FakeStream:
    def __init__(self, name: str, policy: StreamPolicy, config: bytes) -> None:
        self.name, self.policy, self.config, self.created = name, policy, config, NOW
        self.index = MessageIndex(True, policy.first_seq or 1)
        self.last_time = 0.0
        self.consumers: dict[str, Any] = {}
        self.sourcings = [Sourcing(each, self, {}) for each in policy.sources]  # type: ignore[arg-type]
        self.places: dict[bytes, tuple[int, bytes]] = {}

    def add(self, topic: bytes, payload: bytes = b"", when: float = NOW, properties: bytes = b"") -> int:
        message = Message(topic, payload, 0, False, properties, 0.0, "", when)
        self.last_time = when
        return self.index.add(topic, message.octets, when, message)

    def message(self, seq: int) -> Message | None:
        return self.index.kept(seq)

    def remove(self, seq: int) -> bool:
        return self.index.remove(seq)

    def purge(self, filter: bytes, keep: int, below: int) -> int:
        selection = TopicSelection([filter] if filter else [])
        found = []
        seq = self.index.next_of(1, selection)
        while 0 < seq < (below or self.index.last + 1):
            found.append(seq)
            seq = self.index.next_of(seq + 1, selection)
        return sum(self.remove(each) for each in found[: len(found) - keep])


class FakeHub:
    def __init__(self) -> None:
        self.streams: dict[str, Any] = {}
        self.pulls: list[Any] = []

    def create(self, name: str, policy: StreamPolicy, config: bytes) -> FakeStream:
        self.streams[name] = stream = FakeStream(name, policy, config)
        return stream

    def change(self, stream: Any, policy: StreamPolicy, config: bytes) -> None:
        stream.policy, stream.config = policy, config

    def delete(self, stream: Any) -> None:
        del self.streams[stream.name]

    def add_consumer(self, stream: Any, name: str, policy: ConsumerPolicy, config: bytes) -> FakeConsumer:
        stream.consumers[name] = consumer = FakeConsumer(name, policy, config)
        return consumer

    def change_consumer(self, stream: Any, name: str, policy: ConsumerPolicy, config: bytes) -> FakeConsumer:
        return self.add_consumer(stream, name, policy, config)

    def delete_consumer(self, stream: Any, name: str) -> None:
        del stream.consumers[name]

    def pull(self, stream: Any, consumer: Any, reply: bytes, payload: bytes, client: object) -> None:
        self.pulls.append((stream.name, consumer.name, reply, payload))


class FakeRequest(ApiRequest):
    def __init__(self, subject: str, payload: bytes, headers: bytes = b"", rights: Rights | None = None) -> None:
        super().__init__(f"$JS.API.{subject}", payload, headers, b"_INBOX/x", Requester(""), rights, NOW)
        self.sent: list[tuple[bytes, bytes]] = []
        self.unheard = False

    def send(self, headers: bytes, payload: bytes) -> None:
        self.sent.append((headers, payload))

    def no_responders(self) -> None:
        self.unheard = True


class ApiAlone:
    """``told``: the advisories."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.rights: Rights | None = None  # of those who ask
        self.names: Iterator[str] = (f"name{number}" for number in range(1 << 20))
        self.hub = FakeHub()
        advisories = Advisories(self._publish, lambda subject: True, self._unique)
        hub: Any = self.hub
        self.api = Api(hub, "1.0", self._unique, advisories)

    def _unique(self) -> str:
        return next(self.names)

    def _publish(self, subject: str, payload: bytes) -> None:
        self.told.append((subject, json.loads(payload)))

    def request(self, subject: str, payload: Any = b"", headers: bytes = b"") -> tuple[Any, FakeRequest]:
        """The JSON of the answer, or None, and the request."""
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        request = FakeRequest(subject, data, headers, self.rights)
        found = answer(self.api, request)
        return None if found is None else json.loads(found), request

    def ask(self, subject: str, payload: Any = b"", headers: bytes = b"") -> Any:
        return self.request(subject, payload, headers)[0]

    def error(self, subject: str, payload: Any = b"", headers: bytes = b"") -> tuple[int, int, str] | None:
        """Code, error code and description; None: it is no error."""
        found = self.ask(subject, payload, headers).get("error")
        return found and (found["code"], found["err_code"], found["description"])

    def messages(self, subject: str, payload: Any = b"") -> list[tuple[bytes, bytes]]:
        """Of an answer that is messages: headers and payload of each."""
        found, request = self.request(subject, payload)
        assert found is None
        return request.sent
