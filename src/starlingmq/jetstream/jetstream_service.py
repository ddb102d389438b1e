"""JetStream of a broker: requests to its API, and the streams and consumers that they make, in its store.

A broker without a data directory has streams in memory only.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import string
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Literal, cast

from starlingmq.core.context.ready import SystemRequest
from starlingmq.core.delivery.group_engine import KEPT_SECONDS
from starlingmq.core.jetstream.bound_consumer import BoundConsumer, StoredConsumer
from starlingmq.core.jetstream.hub import Adviser
from starlingmq.core.jetstream.requesters import Requester
from starlingmq.core.nats.nats_client import NatsClient
from starlingmq.core.streams.consumer_policy import ConsumerPolicy
from starlingmq.core.streams.effects import Advisory
from starlingmq.core.streams.policies import StreamPolicy
from starlingmq.core.streams.sequenced_stream import SequencedStream
from starlingmq.core.streams.stream_filters import EARLIEST, LATEST, NEW, OFFSET, TIMESTAMP, Start
from starlingmq.jetstream.advisories import Advisories
from starlingmq.jetstream.api import answer, changes
from starlingmq.jetstream.api_errors import INSUFFICIENT_RESOURCES, STREAM_UPDATE, ApiError
from starlingmq.jetstream.api_requests import Api, ApiRequest, NotAllowedError, RequestTaker
from starlingmq.jetstream.consumer_api import create_consumer
from starlingmq.jetstream.consumer_config import ConsumerConfig, consumer_config_of, consumer_policy
from starlingmq.jetstream.stream_config import stream_config_of, stream_policy
from starlingmq.jetstream.subjects import filter_subject
from starlingmq.jetstream.timestamps import SECOND, time_text
from starlingmq.wire.nats_subjects import topic_of
from starlingmq.wire.reasons import MqttError

if TYPE_CHECKING:
    from starlingmq.net.driver import Driver
    from starlingmq.storage.streams.stream_admin import StreamAdmin

log = logging.getLogger("starlingmq.jetstream")

QUEUE_DELIVERIES: Final = 5  # of a message in a work queue of MQTT, unless its consumer is changed
STARTS: Final[dict[int, Literal["all", "last", "new", "by_start_sequence", "by_start_time"]]] = {
    NEW: "new",
    EARLIEST: "all",
    LATEST: "last",
    OFFSET: "by_start_sequence",
    TIMESTAMP: "by_start_time",
}
LETTERS: Final = string.ascii_letters + string.digits
NEEDS_RIGHTS: Final = "the client may not read this stream (allow: stream), or not subscribe to all that it would keep"
ID_LENGTH: Final = 22  # as those of nats-server


def unique_id() -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(ID_LENGTH))


class JetStreamService(Adviser):
    """``streams`` is None without a data directory. The methods of ``api_requests.Hub`` raise ApiError."""

    def __init__(self, driver: Driver, streams: StreamAdmin | None, version: str, kind: type[Api] = Api) -> None:
        self._driver = driver
        self._store = streams
        self.hub = driver.state.jetstream
        self.advisories = Advisories(self._publish, self._has_interest, unique_id)
        self.api = kind(self, version, unique_id, self.advisories)
        self.cluster: RequestTaker | None = None  # where requests go first; None: the broker is alone
        self._numbers = 0  # of streams in memory
        self._tasks: set[asyncio.Task[None]] = set()
        self._deleting: asyncio.Future[None] | None = None  # that the present request has begun

    def start(self) -> None:
        """Make the streams and consumers of the store work, and begin to answer requests."""
        for stream in list(self.hub.streams.values()):
            try:
                settings = stream_policy(stream_config_of(stream.config))
            except ValueError as error:
                log.error("stream %s takes no messages: its settings cannot be read: %s", stream.name, error)
                self.hub.leave_aside(stream)
                continue
            self.hub.begin(stream, settings)
        numbers = {stream.number: stream for stream in self.hub.streams.values()}
        for fact, value in self.hub.stored_consumers.items():
            try:
                stored = StoredConsumer(fact, value)
                policy = consumer_policy(consumer_config_of(stored.config))
                self.hub.add_consumer(
                    numbers[stored.number], stored.name, policy, stored.config, stored.created, stored.state
                )
            except (ValueError, KeyError) as error:
                log.error("a consumer in the store cannot be read, and does not exist any more: %r: %s", fact, error)
        self.hub.stored_consumers = {}
        self.hub.forget_lost()
        self.hub.remove_done()
        self.hub.adviser = self.hub.reads.queues.maker = self
        self.hub.enabled = True
        self.hub.reads.queues.begin(self.hub.streams)

    def take(self, request: SystemRequest) -> None:
        """A request that the core has passed on."""
        now = self._driver.clock()
        self.hub.at(now)
        client = request.client
        requester = self.hub.requester(client, cast(NatsClient, client.protocol_handler))
        asked = ApiRequest(
            request.server, request.options, request.headers, request.reply, requester, client.rights, now
        )
        asked.refuse = lambda: self._refuse(request)
        if self.cluster is None:
            self.answer_here(asked)
        else:
            self.cluster.take(asked)

    def answer_here(self, asked: ApiRequest, first: Callable[[Callable[[], None]], None] | None = None) -> None:
        """``first``: is to be done before it is answered, after a deletion of files, and calls its argument then."""
        try:
            reply = answer(self.api, asked)
        except NotAllowedError:
            asked.refuse()
            self._driver.request_turn()
            return
        deleting, self._deleting = self._deleting, None
        if reply is not None:

            def finish(_: object = None) -> None:
                if first is None:
                    self.reply(asked, reply)
                else:
                    first(lambda: self.reply(asked, reply))

            if deleting is None:
                finish()
            else:
                deleting.add_done_callback(finish)
        self._driver.request_turn()

    def now(self) -> float:
        return self._driver.clock()

    def turn(self) -> None:
        """Let a turn send what was done."""
        self._driver.request_turn()

    def _refuse(self, request: SystemRequest) -> None:
        errors = self._driver.state.nats.errors
        errors.may_not_publish(request.client, request.server.encode(), "not_authorized", detail=NEEDS_RIGHTS)

    def reply(self, request: ApiRequest, reply: bytes) -> None:
        self.hub.at(self._driver.clock())
        self.hub.answer(request.requester, request.reply, reply, changes(request.subject))
        self._driver.request_turn()

    # For the API (api_requests.Hub)

    @property
    def streams(self) -> dict[str, SequencedStream]:
        return self.hub.streams

    def create(self, name: str, policy: StreamPolicy, config: bytes) -> SequencedStream:
        first = max(policy.first_seq, 1)
        if policy.memory:
            self._numbers -= 1
            now = self._driver.clock()
            stream = SequencedStream(self.hub.ctx, name, self._numbers, policy, config, now, None, first)
        elif self._store is None:
            raise ApiError(INSUFFICIENT_RESOURCES)
        else:
            stream = self._create_stored(self._store, name, policy, config, first)
        self.hub.add(stream)
        return stream

    @staticmethod
    def _create_stored(
        store: StreamAdmin, name: str, policy: StreamPolicy, config: bytes, first: int
    ) -> SequencedStream:
        from starlingmq.storage.streams.stream_files import StreamActionError

        try:
            stream = store.create_sequenced(name, policy.subjects, config, max(policy.max_bytes, 0), first)
        except (StreamActionError, OSError) as error:
            raise ApiError(STREAM_UPDATE, error) from None
        stream.policy = policy
        return stream

    def change(self, stream: SequencedStream, policy: StreamPolicy, config: bytes) -> None:
        if stream.log is not None and self._store is not None:
            try:
                self._store.change_sequenced(stream, policy.subjects, config, max(policy.max_bytes, 0))
            except OSError as error:
                raise ApiError(STREAM_UPDATE, error) from None
        self.hub.change(stream, policy, config)

    def delete(self, stream: SequencedStream) -> None:
        """The answer follows when its files are deleted, so that its name is free."""
        self._deleting = self.remove(stream)

    def on_deletion(self, delete: Callable[[SequencedStream], Awaitable[None]]) -> None:
        """``delete``: to be called when an operator deletes a stream."""
        if self._store is not None:
            self._store.delete_sequenced = delete

    def when_copied(self, then: Callable[[bool], None]) -> None:
        """Call ``then`` once the nodes that keep copies have all that was done; with False if they may not have it."""
        if self._store is None or self._store.store.copies is None:
            then(True)
            return
        task = asyncio.ensure_future(self._copied(self._store, then))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _copied(store: StreamAdmin, then: Callable[[bool], None]) -> None:
        try:
            await store.store.copied()
        except OSError:
            then(False)
        else:
            then(True)

    def remove(self, stream: SequencedStream) -> asyncio.Future[None] | None:
        """Done when its files are deleted. None: it has none."""
        self.hub.remove(stream)
        if stream.log is None or self._store is None:
            return None
        task = asyncio.ensure_future(self._delete_files(self._store, stream.name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @staticmethod
    async def _delete_files(store: StreamAdmin, name: str) -> None:
        from starlingmq.storage.streams.stream_files import StreamActionError

        try:
            await store.delete(name)
        except (OSError, StreamActionError) as error:
            log.error("the files of stream %s cannot be deleted: %s", name, error)

    def add_consumer(self, stream: SequencedStream, name: str, policy: ConsumerPolicy, config: bytes) -> BoundConsumer:
        return self.hub.add_consumer(stream, name, policy, config, self._driver.clock(), b"")

    def make_queue(self, stream: SequencedStream, name: str, filters: list[bytes]) -> None:
        """A consumer that is a work queue of MQTT. Raises ValueError."""
        config = ConsumerConfig(durable_name=name, name=name, ack_policy="explicit", max_deliver=QUEUE_DELIVERIES)
        config.description = "a work queue of MQTT"
        self._make(stream, name, config, filters)

    def _make(self, stream: SequencedStream, name: str, config: ConsumerConfig, filters: list[bytes]) -> None:
        config.filter_subjects = [filter_subject(each) for each in filters]
        if len(filters) == 1:
            config.filter_subject = config.filter_subjects.pop()
        try:
            create_consumer(self.api, stream, name, config, self._driver.clock())
        except ApiError as error:
            raise ValueError(error.description) from None

    def make_group(self, stream: SequencedStream, name: str, filters: list[bytes], start: Start) -> None:
        """A consumer that is a shared group of MQTT. Raises ValueError."""
        config = ConsumerConfig(durable_name=name, name=name, ack_policy="explicit", max_ack_pending=-1)
        config.description = "a shared group of MQTT"
        config.inactive_threshold = int(KEPT_SECONDS) * SECOND
        config.deliver_policy = STARTS[start.kind]
        if start.kind == OFFSET:
            config.opt_start_seq = max(1, start.offset)
        elif start.kind == TIMESTAMP:
            config.opt_start_time = time_text(max(start.time, 1.0))
        self._make(stream, name, config, filters)

    def change_consumer(
        self, stream: SequencedStream, name: str, policy: ConsumerPolicy, config: bytes
    ) -> BoundConsumer:
        reader = stream.consumers[name]
        assert isinstance(reader, BoundConsumer)
        self.hub.change_consumer(reader, policy, config)
        return reader

    def delete_consumer(self, stream: SequencedStream, name: str) -> None:
        reader = stream.consumers[name]
        assert isinstance(reader, BoundConsumer)
        self.hub.remove_consumer(reader)

    def pull(
        self, stream: SequencedStream, consumer: BoundConsumer, reply: bytes, payload: bytes, requester: Requester
    ) -> None:
        self.hub.pull(consumer, reply, payload, requester)

    # Advisories

    def _publish(self, subject: str, payload: bytes) -> None:
        self.hub.publish(topic_of(subject.encode()), payload)

    def _has_interest(self, subject: str) -> bool:
        try:
            route = self.hub.router.resolve(topic_of(subject.encode()))
        except MqttError:
            return False
        return len(route.subscriptions) + len(route.groups) + len(route.streams) != 0

    def advise(self, reader: BoundConsumer, advisory: Advisory) -> None:
        fields: dict[str, object] = {"stream_seq": advisory.sequence, "deliveries": advisory.deliveries}
        if advisory.kind != "MAX_DELIVERIES":
            fields = {"consumer_seq": advisory.number, **fields}
        if advisory.reason:
            fields["reason"] = advisory.reason
        now = self._driver.clock()
        self.advisories.tell(f"CONSUMER.{advisory.kind}", now, reader.stream.name, reader.name, **fields)

    def timestamp(self, time: float) -> bytes:
        return time_text(time).encode()

    def deleted(self, reader: BoundConsumer) -> None:
        self.advisories.tell("CONSUMER.DELETED", self._driver.clock(), reader.stream.name, reader.name)
