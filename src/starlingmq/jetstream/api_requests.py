"""A request to the API, and what the API needs of the streams and consumers of the core."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, cast

from starlingmq.core.jetstream.bound_consumer import BoundConsumer as Consumer
from starlingmq.core.jetstream.requesters import Requester
from starlingmq.core.limits.access import Rights
from starlingmq.core.streams.consumer_policy import ConsumerPolicy
from starlingmq.core.streams.policies import StreamPolicy
from starlingmq.core.streams.sequenced_stream import SequencedStream
from starlingmq.jetstream.advisories import Advisories
from starlingmq.jetstream.api_errors import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND, ApiError

__all__ = [
    "Api",
    "ApiRequest",
    "Consumer",
    "Hub",
    "NotAllowedError",
    "RequestTaker",
    "SequencedStream",
    "consumers_of",
]


class NotAllowedError(Exception):
    """The rules do not allow this request: it gets no answer but the refusal of its PUB."""


class ApiRequest:
    """``subject`` is whole, ``reply`` a topic (b"" without), ``headers`` the block (b"" without). ``rights`` are those
    of a client of this node, which are looked at before anything is done (api_rights); None: it may do everything, or
    its own node has looked."""

    subject: str
    payload: bytes
    headers: bytes
    reply: bytes
    requester: Requester  # gets answers that are messages, and what it pulls
    rights: Rights | None
    now: float
    refuse: Callable[[], None]  # tell a client of this node that the rules do not allow this

    def __init__(
        self,
        subject: str,
        payload: bytes,
        headers: bytes,
        reply: bytes,
        requester: Requester,
        rights: Rights | None,
        now: float,
    ) -> None:
        self.subject = subject
        self.payload = payload
        self.headers = headers
        self.reply = reply
        self.requester = requester
        self.rights = rights
        self.now = now
        self.refuse = lambda: None

    def send(self, headers: bytes, payload: bytes) -> None:
        """A message to the reply subject."""
        self.requester.send(self.reply, headers, payload)

    def no_responders(self) -> None:
        """Nothing listens to this subject: the status 503."""
        self.requester.has_no_responders(self.reply)


def consumers_of(stream: SequencedStream) -> dict[str, Consumer]:
    return cast("dict[str, Consumer]", stream.consumers)


class RequestTaker(Protocol):
    """Takes requests of clients of this node in place of the API."""

    def take(self, asked: ApiRequest) -> None: ...


class Hub(Protocol):
    @property
    def streams(self) -> dict[str, SequencedStream]: ...
    def create(self, name: str, policy: StreamPolicy, config: bytes) -> SequencedStream: ...
    def change(self, stream: SequencedStream, policy: StreamPolicy, config: bytes) -> None: ...
    def delete(self, stream: SequencedStream) -> None: ...
    def add_consumer(self, stream: SequencedStream, name: str, policy: ConsumerPolicy, config: bytes) -> Consumer: ...
    def change_consumer(
        self, stream: SequencedStream, name: str, policy: ConsumerPolicy, config: bytes
    ) -> Consumer: ...
    def delete_consumer(self, stream: SequencedStream, name: str) -> None: ...
    def pull(
        self, stream: SequencedStream, consumer: Consumer, reply: bytes, payload: bytes, requester: Requester
    ) -> None: ...


class Api:
    """The parts that the handlers share. ``unique`` returns names for consumers without one, and ids of advisories."""

    def __init__(self, hub: Hub, version: str, unique: Callable[[], str], advisories: Advisories) -> None:
        self.hub = hub
        self.version = version
        self.unique = unique
        self.advisories = advisories
        self.replicas_max = 1
        self.place: dict[str, object] = {}  # in infos, of a stream or consumer of a cluster: where it is
        self.total = 0  # requests
        self.errors = 0

    # The streams there are: in a cluster, also those of other nodes (cluster_requests)

    def exists(self, name: str) -> bool:
        return self.config_of(name) is not None

    def config_of(self, name: str) -> bytes | None:
        """None: there is no such stream."""
        stream = self.hub.streams.get(name)
        return None if stream is None else stream.config

    def stream_names(self) -> Iterable[str]:
        return self.hub.streams

    def count_streams(self) -> int:
        return len(self.hub.streams)

    def subjects_of(self, name: str) -> list[bytes]:
        return self.hub.streams[name].policy.subjects

    def subjects_besides(self, name: str) -> Iterable[list[bytes]]:
        """Those of each other stream."""
        return [self.subjects_of(each) for each in self.stream_names() if each != name]

    # Those of this node

    def stream(self, name: str) -> SequencedStream:
        stream = self.hub.streams.get(name)
        if stream is None:
            raise ApiError(STREAM_NOT_FOUND)
        return stream

    def consumer(self, stream: SequencedStream, name: str) -> Consumer:
        consumer = consumers_of(stream).get(name)
        if consumer is None:
            raise ApiError(CONSUMER_NOT_FOUND)
        return consumer
