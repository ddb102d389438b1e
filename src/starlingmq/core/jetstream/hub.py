"""JetStream at a broker: its streams and consumers, what NATS clients ask of them, and what they are sent.

::

    PUB to a subject of a stream --SequencedStream.take, in fan_out--> published: PubAck, when it is stored
    $JS.API.>                    --request--> Ready.requests --> jetstream.jetstream_service --> answer, or pull
    $JS.ACK.>                    --acknowledge--> Consumer
    turn: new messages --> consumers that want them --> Deliver, StatusMessage, Advisory --> connections, or subscribers

Invariants:

- A consumer is sent only what is stored, so a crash takes nothing back that a client has seen.
- The state of a consumer is stored within ``STORE_SECONDS``, one with many pending messages later; an acknowledgement
  that asks for an answer gets it when it is stored. After a crash a message may be sent again whose acknowledgement had
  not asked.
- Work is bounded in each turn: consumers with more to do come again in the next one, in order.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, cast

from msgspec import json
from mypy_extensions import mypyc_attr

from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import SystemRequest
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.jetstream.bound_consumer import BoundConsumer, is_group
from starlingmq.core.jetstream.copying import Copying
from starlingmq.core.jetstream.far_streams import FarStreams, is_wanted_elsewhere
from starlingmq.core.jetstream.nats_replies import NatsReplies
from starlingmq.core.jetstream.requesters import NatsRequester, Requester
from starlingmq.core.jetstream.stream_readers import MqttReaders
from starlingmq.core.jetstream.stream_source import StreamSource
from starlingmq.core.jetstream.work_queues import QueueMaker, QueueMember
from starlingmq.core.limits.access import Rights
from starlingmq.core.messages.message import Message
from starlingmq.core.nats.jetstream_port import JetStreamPort
from starlingmq.core.nats.nats_client import NatsClient
from starlingmq.core.nats.nats_publishing import REPLY_PROPERTY
from starlingmq.core.nats.subject_cache import SubjectCache
from starlingmq.core.router.router import Router
from starlingmq.core.router.stream import Stream
from starlingmq.core.session.connection import CLOSED
from starlingmq.core.session.session import NATS_PREFIX, Client, Session, Subscription
from starlingmq.core.streams.acknowledgements import NEXT, AckSubject, ack_subject, kind_of
from starlingmq.core.streams.consumer import JetStreamConsumer
from starlingmq.core.streams.consumer_policy import ConsumerPolicy
from starlingmq.core.streams.effects import DELETED, MAX_DELIVERIES, Advisory, Deliver, StatusMessage
from starlingmq.core.streams.far_read import ReadTold
from starlingmq.core.streams.policies import INTEREST, LIMITS, StreamPolicy
from starlingmq.core.streams.sequenced_stream import (
    DUPLICATE,
    REFUSED,
    SequencedStream,
    StreamRefusal,
    drop_fact,
    put_fact,
)
from starlingmq.core.topics.topics import of_the_broker
from starlingmq.core.turn.timers import sooner
from starlingmq.wire.nats_headers import response_topic
from starlingmq.wire.properties import RESPONSE_TOPIC
from starlingmq.wire.reasons import MqttError

REQUEST: Final = "JETSTREAM"  # the kind of a SystemRequest
FLOW: Final = b"$JS.FC."
FACTS: Final = b"js/"
CONSUMER_FACT: Final = b"js/c/"  # number of the stream, and name: settings and state
STORE_SECONDS: Final = 0.2
RESTS_SHIFT: Final = 13  # a state with 8,192 pending messages rests for another ``STORE_SECONDS``
AGAIN_SECONDS: Final = 1.0  # between two attempts to read messages from a log that fails
WATCHERS_SHIFT: Final = 4  # consumers and readers that are woken for the work of one message
STALE_MIN: Final = 64  # entries of a heap that are tolerated without a use
FILL_BUDGET: Final = 256  # messages that a consumer delivers before others have their turn
TURN_BUDGET: Final = 4096
REQUEST_WORK: Final = 32  # for a request to the API, as messages


@mypyc_attr(allow_interpreted_subclasses=True)
class Adviser(QueueMaker):
    """The maker of the JSON of advisories, and of consumers for work queues of MQTT."""

    def advise(self, reader: BoundConsumer, advisory: Advisory) -> None:
        raise NotImplementedError

    def timestamp(self, time: float) -> bytes:
        """For a header."""
        raise NotImplementedError

    def deleted(self, reader: BoundConsumer) -> None:
        """It has ended by itself."""
        raise NotImplementedError


class JetStream(JetStreamPort):
    """``enabled``: a service answers requests, and the settings of all streams are known."""

    ctx: Context
    router: Router
    delivery: Delivery
    replies: NatsReplies
    reads: MqttReaders  # MQTT clients that read streams; set after construction
    streams: dict[str, SequencedStream]
    _by_name: dict[bytes, BoundConsumer]  # by the names of stream and consumer, with a dot between them
    due_at: float  # of the next turn; 0.0: none
    stored_consumers: dict[bytes, bytes]  # facts that a store had, until the service makes consumers of them
    lost_facts: list[bytes]
    adviser: Adviser | None
    far: FarStreams | None  # those of other nodes; None: there are no other nodes
    _aside: dict[SequencedStream, bool]  # streams that get no messages; whether they may get some again
    _noticed: list[SequencedStream]  # streams with news
    _active: dict[BoundConsumer, None]  # consumers that may have something to do
    _timers: list[tuple[float, int, BoundConsumer]]  # a heap
    _unsaved: dict[BoundConsumer, None]
    _awaited: dict[BoundConsumer, None]  # those whose acknowledgements are answered when they are stored in this turn
    _save_at: float  # 0.0: all is stored
    _again: dict[BoundConsumer, None]  # their messages could not be read ...
    _again_at: float  # ... and are tried again at this time; 0.0: there are none
    _ends: list[tuple[float, int, SequencedStream]]  # a heap: when messages of streams end
    _pushed: dict[bytes, list[BoundConsumer]]  # push consumers by the topic that they deliver to
    _version: int  # of the router, when their subscribers were looked for last
    _count: int  # for the order in heaps
    copying: Copying

    def __init__(self, ctx: Context, router: Router, delivery: Delivery, spellings: SubjectCache) -> None:
        super().__init__()
        self.ctx = ctx
        self.router = router
        self.delivery = delivery
        self.replies = NatsReplies(ctx, router, spellings)
        self.streams = {}
        self._by_name = {}
        self.due_at = 0.0
        self.stored_consumers = {}
        self.lost_facts = []
        self.adviser = None
        self.far = None
        self._aside = {}
        self._noticed = []
        self._active = {}
        self._timers = []
        self._unsaved = {}
        self._awaited = {}
        self._save_at = 0.0
        self._again = {}
        self._again_at = 0.0
        self._ends = []
        self._pushed = {}
        self._version = -1
        self._count = 0
        self.copying = Copying(ctx, self.streams, self._aside)

    # Streams

    def restore(self, stream: SequencedStream, facts: dict[bytes, bytes]) -> None:
        """A stream of the store, at a start. Its facts are taken out of ``facts``."""
        stream.restored(facts)
        self._know(stream)
        head = CONSUMER_FACT + b"%d/" % stream.number
        for fact in [fact for fact in facts if fact.startswith(head)]:
            self.stored_consumers[fact] = facts.pop(fact)

    def restored(self, facts: dict[bytes, bytes]) -> None:
        """All streams of the store are. Facts that are left are of streams whose deletion a crash has cut short."""
        self.lost_facts = [fact for fact in facts if fact.startswith(FACTS)]
        for fact in self.lost_facts:
            del facts[fact]

    def forget_lost(self) -> None:
        for fact in self.lost_facts:
            drop_fact(self.ctx, fact)
        self.lost_facts = []

    def add(self, stream: SequencedStream) -> None:
        """A new stream: from now on it gets messages."""
        self._know(stream)
        self._subscribe(stream)
        self.copying.begin(stream, self.far)

    def _know(self, stream: SequencedStream) -> None:
        self.streams[stream.name] = stream
        stream.noticed = self._noticed
        stream.seen = stream.index.last

    def begin(self, stream: SequencedStream, policy: StreamPolicy) -> None:
        """A restored stream gets messages from now on."""
        stream.apply(policy, stream.config)
        self._subscribe(stream)
        self._look_at_end(stream)
        self.copying.begin(stream, self.far)

    def change(self, stream: SequencedStream, policy: StreamPolicy, config: bytes) -> None:
        self._unsubscribe(stream)
        stream.apply(policy, config)
        self._subscribe(stream)
        for reader in stream.consumers.values():
            consumer = cast(BoundConsumer, reader).consumer
            consumer.reports_done = policy.retention != LIMITS and not is_group(consumer.name)
        self._look_at_end(stream)
        stream.notice()
        self.reads.stream_changed(stream)
        self.copying.end(stream, self.far)
        self.copying.begin(stream, self.far)

    def remove(self, stream: SequencedStream) -> None:
        """The stream is deleted, and its consumers and readers with it. ``SequencedStream.forget`` follows when its
        files are gone: whatever is left of it then, a start removes (``forget_lost``)."""
        stream.removed = True
        self.reads.stream_removed(stream)
        for reader in list(stream.consumers.values()):
            self.remove_consumer(cast(BoundConsumer, reader))
        self._unsubscribe(stream)
        del self.streams[stream.name]
        self.copying.gone(stream, self.far)

    def told(self, told: ReadTold) -> bool:
        """By the home of a stream of another node. Returns False if there is no request any more."""
        if told.reader in self.copying.far_sources.by_number:
            return self.copying.far_sources.told(told)
        return self.reads.far_readers.told(told)

    def _subscribe(self, stream: SequencedStream) -> None:
        """To the messages of this node, and of other nodes, which keep them while this one is away."""
        self.router.add_stream(stream)
        interest = self.ctx.cluster.interest
        if interest is not None and self.far is not None:
            for subscription in _wanted_elsewhere(stream):
                interest.add(subscription.filter, stream, subscription)

    def set_aside(self, stream: SequencedStream) -> None:
        """It gets no messages: its subjects, or its name, are those of a stream of another node."""
        self._unsubscribe(stream)
        self._aside[stream] = True
        self.copying.gone(stream, self.far)

    def is_aside(self, stream: SequencedStream) -> bool:
        return stream in self._aside

    def take_back(self, stream: SequencedStream) -> None:
        """It gets messages again."""
        if self._aside.get(stream, False):
            del self._aside[stream]
            self._subscribe(stream)
            self.copying.begin(stream, self.far)

    def leave_aside(self, stream: SequencedStream) -> None:
        """A restored stream gets no messages until it is changed."""
        self._aside[stream] = False

    def _unsubscribe(self, stream: SequencedStream) -> None:
        if stream in self._aside:
            del self._aside[stream]
            return
        self.router.remove_stream(stream)
        interest = self.ctx.cluster.interest
        if interest is not None and self.far is not None:
            for subscription in _wanted_elsewhere(stream):
                interest.remove(subscription.filter, stream, subscription)

    # Consumers

    def add_consumer(
        self, stream: SequencedStream, name: str, policy: ConsumerPolicy, config: bytes, created: float, state: bytes
    ) -> BoundConsumer:
        """``state``: of a consumer that a store had; b"": it is new. Raises ValueError for a state that makes no
        sense."""
        source = StreamSource(stream, self.router)
        consumer = JetStreamConsumer(stream.name, name, policy, source)
        consumer.reports_done = stream.policy.retention != LIMITS and not is_group(name)
        if state:
            source.last = stream.index.last  # also what other nodes do not have yet, which keep copies of this one
            consumer.restore(state, self.ctx.now)
        else:
            consumer.begin(self.ctx.now)
        reader = BoundConsumer(stream, consumer, source, config, created, self._active)
        reader.stored = state != b""
        stream.consumers[name] = self._by_name[reader.full_name()] = reader
        stream.watch(reader, policy.filters)
        self._listen(reader)
        self.reads.queues.consumer_added(reader)
        if state:
            self._changed(reader)
        else:
            self._save(reader)  # before its creation is answered
        self._active[reader] = None
        return reader

    def change_consumer(self, reader: BoundConsumer, policy: ConsumerPolicy, config: bytes) -> None:
        consumer, stream = reader.consumer, reader.stream
        stream.unwatch(reader, consumer.policy.filters)
        self._mute(reader)
        reader.config = config
        consumer.change(policy, self.ctx.now)
        stream.watch(reader, policy.filters)
        self._listen(reader)
        self._save(reader)
        self._active[reader] = None
        self.reads.queues.consumer_changed(reader)

    def remove_consumer(self, reader: BoundConsumer) -> None:
        consumer, stream = reader.consumer, reader.stream
        consumer.release(DELETED)
        self._perform(reader)
        reader.gone = True
        self.reads.queues.consumer_removed(reader)
        del stream.consumers[consumer.name], self._by_name[reader.full_name()]
        stream.unwatch(reader, consumer.policy.filters)
        self._mute(reader)
        self._active.pop(reader, None)
        self._unsaved.pop(reader, None)
        if stream.removed:
            stream.left.append(reader.fact())
        elif reader.stored:
            drop_fact(self.ctx, reader.fact())
        if stream.policy.retention == INTEREST and not stream.removed:
            stream.notice()
            self._remove_unwanted(stream)

    def _listen(self, reader: BoundConsumer) -> None:
        to = reader.consumer.policy.deliver_to
        if to:
            self._pushed.setdefault(to, []).append(reader)
            self.router.awaited[to] = None
            self.router.awaited_changes += 1

    def _mute(self, reader: BoundConsumer) -> None:
        """Its policy is still that of ``_listen``."""
        to = reader.consumer.policy.deliver_to
        readers = self._pushed.get(to)
        if readers is not None:
            readers.remove(reader)
            if not readers:
                del self._pushed[to]
                self.router.awaited.pop(to, None)

    # Clients of NATS

    def at(self, now: float) -> None:
        """Set the time of the next actions of the service."""
        self.ctx.now = now

    def spend(self, work: int) -> None:
        """Take work from the turn, for requests of other nodes."""
        self.ctx.work -= work

    def request(
        self, client: Client, nats: NatsClient, subject: bytes, headers: bytes, payload: bytes, reply: bytes
    ) -> bool:
        self.ctx.work -= REQUEST_WORK
        request = SystemRequest(client, REQUEST, subject.decode(errors="replace"), reply, payload)
        request.headers = headers
        self.ctx.ready.requests.append(request)
        return True

    def answer(self, requester: Requester, reply: bytes, payload: bytes, stored: bool) -> None:
        """The answer of the service, which comes after the turn: it is sent with the next one's; ``stored``: once that
        is stored."""
        if reply and not requester.is_gone():
            requester.answer(reply, payload, stored)

    def requester(self, client: Client, nats: NatsClient) -> Requester:
        """The connection of a client of this node."""
        if nats.requester is not None:
            return cast(Requester, nats.requester)
        requester = NatsRequester(self.ctx, self.replies, client, nats)
        if client.state != CLOSED:
            nats.requester = requester
        return requester

    def published(self, client: Client, nats: NatsClient, stream: Stream, reply: bytes) -> None:
        sequenced = cast(SequencedStream, stream)
        if not sequenced.policy.no_ack:
            self.replies.answer(client, nats, reply, _outcome(sequenced), _is_stored(sequenced))

    def arrived(self, message: Message, stream: Stream, source: Session, alone: bool) -> None:
        """A message from another node, for a stream of this one. ``alone``: it has no other receiver here."""
        sequenced = cast(SequencedStream, stream)
        if not self.enabled:
            return
        reply = b""
        if message.publisher.startswith(NATS_PREFIX) and message.properties:
            reply = response_topic(message.properties)
        if reply and alone and message.properties[0] == RESPONSE_TOPIC:  # a hook may have changed the order
            message.properties = message.properties[REPLY_PROPERTY + len(reply) :]
            message.octets -= REPLY_PROPERTY + len(reply)
        # of the clock of another node
        message.published_at = max(min(message.published_at, self.ctx.now), sequenced.last_time)
        sequenced.take(self.ctx, message)
        if reply and self.far is not None and not sequenced.policy.no_ack:
            self.far.answer(source.node, message.publisher, reply, _outcome(sequenced))

    def turned_down(self, client: Client, nats: NatsClient, stream: Stream, reply: bytes, why: str) -> None:
        self.replies.answer(
            client, nats, reply, _refused(stream.name, StreamRefusal(503, 10077, why or "not accepted")), False
        )

    def acknowledge(self, client: Client, nats: NatsClient, subject: bytes, payload: bytes, reply: bytes) -> bool:
        if client.rights is not None and kind_of(payload) == NEXT and not _may_ask(client.rights, subject):
            payload = b""
        requester, far = self.requester(client, nats), self.far
        if far is None:
            return self.acknowledge_for(requester, subject, payload, reply)
        if len(self._aside) != 0 and far.acknowledge(requester, subject, payload, reply):
            return True  # a stream that is aside may have the name of that one
        return self.acknowledge_for(requester, subject, payload, reply) or far.acknowledge(
            requester, subject, payload, reply
        )

    def acknowledge_for(self, requester: Requester, subject: bytes, payload: bytes, reply: bytes) -> bool:
        """Whether it is for a stream here."""
        if subject.startswith(FLOW):
            return self._flow(subject)
        found = ack_subject(subject)
        if found is None:
            return False
        reader = self._by_name.get(found.name)
        if reader is None:
            return found.name.partition(b".")[0].decode(errors="replace") in self.streams
        self._acknowledged(reader, found, payload, reply, requester)
        return True

    def _acknowledged(
        self, reader: BoundConsumer, found: AckSubject, payload: bytes, reply: bytes, requester: Requester
    ) -> None:
        consumer = reader.consumer
        answered = consumer.acknowledge(
            found.sequence, found.number, found.deliveries, payload, reply, requester, self.ctx.now
        )
        self._active[reader] = None
        if consumer.requests.count != 0:
            requester.waits_for(consumer)
        if answered and reply:
            if consumer.changed or reader in self._unsaved:
                self._awaited[reader] = None
            requester.answer(reply, b"", True)

    def _flow(self, subject: bytes) -> bool:
        """The answer to a flow control request: $JS.FC.STREAM.CONSUMER.token."""
        parts = subject.split(b".")
        reader = self._by_name.get(b".".join(parts[2:4]))
        if reader is not None:
            reader.consumer.flow(subject)
            self._active[reader] = None
        return reader is not None

    def pull(self, reader: BoundConsumer, reply: bytes, payload: bytes, requester: Requester) -> None:
        """The payload is that of the request. It is served in the turn that follows."""
        if requester.is_gone():
            return
        reader.source.look()
        reader.consumer.request(reply, payload, requester, self.ctx.now)
        if reader.consumer.requests.count != 0:
            requester.waits_for(reader.consumer)
        self._active[reader] = None

    def gone(self, client: Client) -> None:
        nats = cast(NatsClient, client.protocol_handler)
        if nats.requester is not None:
            requester = cast(Requester, nats.requester)
            requester.leave()
            nats.requester = None
            if self.far is not None and len(requester.homes) != 0:
                self.far.gone(requester)

    # Turns

    def pending(self) -> bool:
        """Whether another turn has something to do now."""
        if not self.enabled:
            return False  # ``turn`` is not called
        if ((self._active or self.copying.active) and not self.ctx.isolated) or self.reads.pending():
            return True
        for stream in self._noticed:  # noqa: SIM110  a generator would be made
            if stream.seen < stream.end():
                return True
        return False

    def turn(self) -> None:
        ctx = self.ctx
        now = ctx.now
        while self._ends and self._ends[0][0] <= now:
            when, _, stream = heappop(self._ends)
            if stream.ends_at == when and not stream.removed:
                stream.ends_at = 0.0
                stream.expire(now)
                self._look_at_end(stream)
        while self._timers and self._timers[0][0] <= now:
            when, _, reader = heappop(self._timers)
            if reader.timer == when and not reader.gone:
                reader.timer = 0.0
                reader.consumer.tick(now)
                self._active[reader] = None
        if self._again and now >= self._again_at:
            self._active.update(self._again)
            self._again = {}
        if self._noticed:
            self._show_news()
        if (self.copying.active or self.copying.blocked) and not ctx.isolated:
            self.copying.turn(now, self.far)
        if self._pushed and self._version != self.router.version + self.router.awaited_changes:
            self._look_for_subscribers()
        if self._active and not ctx.isolated:  # else another node may deliver its messages
            self._fill()
        if self._awaited:
            self.save_awaited()
        self.reads.turn()
        if self._save_at != 0.0 and now >= self._save_at:
            self._store_all(now)
        if not self._again:
            self._again_at = 0.0
        elif self._again_at <= now:
            self._again_at = now + AGAIN_SECONDS
        due = sooner(self._save_at, self._timers[0][0] if self._timers else 0.0)
        due = sooner(due, self._again_at)
        due = sooner(due, sooner(self.reads.due_at, self.reads.far_readers.due_at))
        due = sooner(due, self.reads.queues.due_at)
        due = sooner(due, 0.0 if ctx.isolated else self.copying.blocked_until)
        self.due_at = sooner(due, self._ends[0][0] if self._ends else 0.0)

    def _show_news(self) -> None:
        """Wake the consumers that want the new messages of streams."""
        waiting: list[SequencedStream] = []
        for stream in self._noticed:
            if stream.removed:
                continue
            self._look_at_end(stream)
            stream.flush()
            end = stream.end()
            if stream.to_republish:
                self._republish(stream, end)
            if len(stream.watchers) != 0 or len(stream.watch_all) != 0:
                for seq in range(max(stream.seen + 1, stream.index.first), end + 1):
                    topic = stream.index.topic_of(seq)
                    if topic is not None:
                        watchers = stream.watchers_of(topic)
                        self.ctx.work -= len(watchers) >> WATCHERS_SHIFT
                        for watcher in watchers:
                            watcher.wake()
            stream.seen = end
            if stream.index.last > end:
                waiting.append(stream)
            else:
                stream.news = False
                for each in stream.sourcings:  # a mirror makes gaps where its log ends
                    each.wake()
        self._noticed.clear()
        self._noticed.extend(waiting)

    def _republish(self, stream: SequencedStream, end: int) -> None:
        """Send stored messages again. The client that made the stream may publish to where they go."""
        waiting = stream.to_republish
        stream.to_republish = []
        for at, (seq, before, message) in enumerate(waiting):
            if seq > end:
                stream.to_republish = waiting[at:]
                break
            settings = stream.policy.republishing
            if settings is None or self.adviser is None or self.ctx.isolated:
                break
            shown = settings.again(message, seq, before, self.adviser.timestamp(message.published_at))
            if shown is not None:
                self._publish(shown.topic, shown, not self.ctx.refusing)

    def _look_at_end(self, stream: SequencedStream) -> None:
        due = stream.due_at()
        if due != 0.0 and (stream.ends_at == 0.0 or due < stream.ends_at):
            stream.ends_at = due
            self._count += 1
            heappush(self._ends, (due, self._count, stream))
            if len(self._ends) > 2 * len(self.streams) + STALE_MIN:
                streams = [each for each in self.streams.values() if each.ends_at != 0.0]
                self._ends = [(each.ends_at, number, each) for number, each in enumerate(streams)]
                heapify(self._ends)

    def _look_for_subscribers(self) -> None:
        """Push consumers deliver while they have a subscriber."""
        self._version = self.router.version + self.router.awaited_changes  # both only rise
        for topic, readers in self._pushed.items():
            for reader in readers:
                present = reader.source.listens(topic, None)
                if present != reader.consumer.active:
                    reader.consumer.interest(present, self.ctx.now)
                    self._active[reader] = None

    def _fill(self) -> None:
        """Let consumers deliver, each some messages; those with more come again."""
        left = TURN_BUDGET
        active = list(self._active)
        self._active.clear()
        for reader in active:
            if reader.gone:
                continue
            if left <= 0:
                self._active[reader] = None
                continue
            consumer = reader.consumer
            reader.source.look()
            number = consumer.number
            asked = [] if reader.queue is None else self.reads.queues.ask(reader)
            try:
                if consumer.fill(FILL_BUDGET, self.ctx.now):
                    self._active[reader] = None
            except OSError:  # the log has said so; others go on
                consumer.changed = True
                self._again[reader] = None
            if asked:
                self.reads.queues.withdraw(reader, asked)
            left -= 1 + consumer.number - number
            self._perform(reader)
            if consumer.done:
                self._done(reader)
            if consumer.changed:
                self._changed(reader)
            if consumer.ended and not self.reads.queues.keeps(reader):
                self._end(reader)
                continue
            wake = consumer.wake_at()
            if wake != 0.0 and (reader.timer == 0.0 or wake < reader.timer):
                reader.timer = wake
                self._count += 1
                heappush(self._timers, (wake, self._count, reader))
        if len(self._timers) > 2 * len(self._by_name) + STALE_MIN:
            readers = [each for each in self._by_name.values() if each.timer != 0.0]
            self._timers = [(each.timer, number, each) for number, each in enumerate(readers)]
            heapify(self._timers)
        self.ctx.work -= TURN_BUDGET - left

    def _end(self, reader: BoundConsumer) -> None:
        self.remove_consumer(reader)
        if self.adviser is not None:
            self.adviser.deleted(reader)

    def _perform(self, reader: BoundConsumer) -> None:
        effects = reader.consumer.effects
        if not effects:
            return
        reader.consumer.effects = []
        for effect in effects:
            if isinstance(effect, Deliver):
                if reader.queue is not None and not isinstance(effect.requester, QueueMember):
                    self.reads.queues.given_elsewhere(reader, effect.sequence)
                self._deliver(effect)
            elif isinstance(effect, StatusMessage):
                self._tell(effect)
            elif isinstance(effect, Advisory):
                if reader.queue is not None and effect.kind == MAX_DELIVERIES:
                    self.reads.queues.dead(reader, effect.sequence)
                if self.adviser is not None:
                    self.adviser.advise(reader, effect)

    def _deliver(self, effect: Deliver) -> None:
        requester = effect.requester
        if isinstance(requester, Requester):
            requester.give(effect.to, effect.message, effect.reply)
            return
        if isinstance(requester, QueueMember):
            self.reads.queues.deliver(requester, effect)
            return
        self._show(effect.to, self.replies.shaped(effect.to, effect.message, effect.reply))

    def _tell(self, effect: StatusMessage) -> None:
        requester = effect.requester
        if isinstance(requester, Requester):
            requester.tell(effect.to, effect.block, effect.reply)
            return
        if isinstance(requester, QueueMember):
            return
        self._show(effect.to, self.replies.shaped_status(effect.to, effect.block, effect.reply))

    def _show(self, topic: bytes, message: Message) -> None:
        """To the subscribers of a push consumer. NATS clients see another subject than the topic."""
        if of_the_broker(topic):
            return
        try:
            route = self.router.resolve(topic)
        except MqttError:
            return
        if self.far is not None and is_wanted_elsewhere(route):
            self.far.show(message, route)
        else:
            self.delivery.fan_out(message, route, None)

    def _publish(self, topic: bytes, message: Message, stored: bool = False) -> None:
        """``stored``: for receivers that are stored it is."""
        if of_the_broker(topic):
            return  # groups that read a stream would take it for a message of the stream
        try:
            route = self.router.resolve(topic)
        except MqttError:
            return
        if stored and route.kept:
            message.qos = 1
        self.delivery.fan_out(message, route, None)

    def publish(self, topic: bytes, payload: bytes) -> None:
        """A message of JetStream's own, such as an advisory."""
        self._publish(topic, Message(topic, payload, 0, False, b"", 0.0, "", self.ctx.now))

    def _done(self, reader: BoundConsumer) -> None:
        """Messages that this consumer needs no more go, if no other one does."""
        consumer, stream = reader.consumer, reader.stream
        done = consumer.done
        consumer.done = []
        for seq in done:
            topic = stream.index.topic_of(seq)
            if topic is not None and not self._wanted(stream, topic, seq, reader):
                stream.remove(seq)

    @staticmethod
    def _wanted(stream: SequencedStream, topic: bytes, seq: int, but: BoundConsumer | None) -> bool:
        for watcher in stream.watchers_of(topic):  # noqa: SIM110  a generator would be made
            if watcher is not but and watcher.needs(seq):
                return True
        return False

    def _remove_unwanted(self, stream: SequencedStream) -> None:
        """A consumer of a stream with interest has gone: so do the messages that only it wanted."""
        index = stream.index
        seq = index.next(index.first)
        while seq != 0:
            topic = index.topic_of(seq)
            if topic is not None and not self._wanted(stream, topic, seq, None):
                stream.remove(seq)
            seq = index.next(seq + 1)

    def remove_done(self) -> None:
        """At a start: remove what consumers were done with when a crash came before it was removed."""
        for stream in self.streams.values():
            if stream.policy.retention == LIMITS or len(stream.consumers) == 0:
                continue
            index = stream.index
            seq = index.next(index.first)
            while seq != 0:
                topic = index.topic_of(seq)
                if topic is not None and stream.has_consumer(topic) and not self._wanted(stream, topic, seq, None):
                    stream.remove(seq)
                seq = index.next(seq + 1)

    # The store

    def _changed(self, reader: BoundConsumer) -> None:
        reader.consumer.changed = False
        self._unsaved[reader] = None
        if self._save_at == 0.0:
            self._save_at = self.ctx.now + STORE_SECONDS

    def save_awaited(self) -> None:
        """Acknowledgements are answered in this turn."""
        for reader in self._awaited:
            if not reader.gone:
                self._save(reader)
        self._awaited = {}

    def save_removed(self) -> None:
        """Removals are answered in this turn."""
        for stream in self._noticed:
            if not stream.removed:
                stream.flush()

    def _store_all(self, now: float) -> None:
        """All changes. A large state, which is stored whole, rests for longer before it is stored again."""
        rest: dict[BoundConsumer, None] = {}
        for reader in self._unsaved:
            if reader.rests_until > now:
                rest[reader] = None
            else:
                reader.rests_until = now + STORE_SECONDS * (len(reader.consumer.pending) >> RESTS_SHIFT)
                self._store(reader)
        self._unsaved = rest
        self._save_at = now + STORE_SECONDS if rest else 0.0

    def _save(self, reader: BoundConsumer) -> None:
        """In this turn: answers wait for it."""
        reader.consumer.changed = False
        self._unsaved.pop(reader, None)
        self._store(reader)
        if reader.stream.news:
            reader.stream.flush()

    def _store(self, reader: BoundConsumer) -> None:
        stream = reader.stream
        if stream.log is None or reader.consumer.policy.memory:
            return
        reader.stored = True
        put_fact(self.ctx, reader.fact(), reader.encode())


def _wanted_elsewhere(stream: SequencedStream) -> list[Subscription]:
    """Other nodes would take a filter that begins like that of a shared group for one."""
    filters = [filter for filter in stream.filters if not filter.startswith(b"$share/")]
    return [Subscription(stream, filter, 1, False, True, b"") for filter in filters]


def _may_ask(rights: Rights, subject: bytes) -> bool:
    """Whether an acknowledgement may ask for a message, too."""
    found = ack_subject(subject)
    return found is None or rights.may_read(found.name.partition(b".")[0])


def _is_stored(stream: SequencedStream) -> bool:
    """Whether the answer to its last message tells of something that is stored."""
    return stream.outcome != REFUSED and stream.log is not None


def _outcome(stream: SequencedStream) -> bytes:
    """The answer to the publisher of its last message."""
    if stream.outcome == REFUSED:
        refusal = stream.refusal
        assert refusal is not None
        return _refused(stream.name, refusal)
    text = b'{"stream":%b,"seq":%d' % (json.encode(stream.name), stream.answer)
    return text + (b',"duplicate":true}' if stream.outcome == DUPLICATE else b"}")


def _refused(stream: str, refusal: StreamRefusal) -> bytes:
    return b'{"error":{"code":%d,"err_code":%d,"description":%b},"stream":%b,"seq":0}' % (
        refusal.code,
        refusal.error,
        json.encode(refusal.description),
        json.encode(stream),
    )
