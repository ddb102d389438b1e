"""A request to the API, and what the API needs of the streams and consumers of the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, cast

from starlingmq.core.jetstream.bound_consumer import BoundConsumer as Consumer
from starlingmq.core.limits.access import WHOLE
from starlingmq.core.session.session import Client
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
    "SequencedStream",
    "consumers_of",
    "require_reading",
    "require_sending",
    "require_subjects",
]


INBOX: Final = b"_INBOX"


class NotAllowedError(Exception):
    """The rules do not allow this request: it gets no answer but the refusal of its PUB."""


class ApiRequest:
    """``subject`` is whole, ``reply`` a topic (b"" without), ``headers`` the block (b"" without). Answers that are
    messages go through ``send``."""

    subject: str
    payload: bytes
    headers: bytes
    reply: bytes
    client: Client  # to whose connection pull requests belong
    now: float

    def __init__(self, subject: str, payload: bytes, headers: bytes, reply: bytes, client: Client, now: float) -> None:
        self.subject = subject
        self.payload = payload
        self.headers = headers
        self.reply = reply
        self.client = client
        self.now = now

    def send(self, headers: bytes, payload: bytes) -> None:
        """A message to the reply subject."""
        raise NotImplementedError

    def no_responders(self) -> None:
        """Nothing listens to this subject: the status 503."""
        raise NotImplementedError


def require_reading(request: ApiRequest, stream: str) -> None:
    """Raise NotAllowedError if the rules do not let the client read this stream (``allow: stream``)."""
    rights = request.client.rights
    if rights is not None and not rights.may_read(stream.encode()):
        raise NotAllowedError


def require_subjects(request: ApiRequest, filters: list[bytes]) -> None:
    """Raise NotAllowedError if the client may not subscribe to all that a stream is to keep: else it would read there
    what it may not receive."""
    rights = request.client.rights
    if rights is not None and not all(rights.extent(filter, b"") == WHOLE for filter in filters):
        raise NotAllowedError


def require_sending(request: ApiRequest, topic: bytes) -> None:
    """Raise NotAllowedError if a consumer would send where the client may not publish. Inboxes are its own if it may
    subscribe to them."""
    rights = request.client.rights
    if rights is None or rights.may_publish(topic, 0, False):
        return
    if not topic.startswith(INBOX) or rights.extent(topic, b"") != WHOLE:
        raise NotAllowedError


def consumers_of(stream: SequencedStream) -> dict[str, Consumer]:
    return cast("dict[str, Consumer]", stream.consumers)


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
        self, stream: SequencedStream, consumer: Consumer, reply: bytes, payload: bytes, client: Client
    ) -> None: ...


class Api:
    """The parts that the handlers share. ``unique`` returns names for consumers without one, and ids of advisories."""

    def __init__(self, hub: Hub, version: str, unique: Callable[[], str], advisories: Advisories) -> None:
        self.hub = hub
        self.version = version
        self.unique = unique
        self.advisories = advisories
        self.replicas_max = 1
        self.total = 0  # requests
        self.errors = 0

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
