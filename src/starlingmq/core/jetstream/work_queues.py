"""Work queues of MQTT: the subscribers of ``$queue/NAME[/FILTER]`` compete for the messages of a stream; in a cluster,
so do the members of a shared group that reads one.

A queue is a consumer of the stream (core.streams.consumer), which NATS clients see, change and may share, too. A
member asks it for as many messages as the member's window has room for, in each turn.

::

    PUBLISH --PUBACK, PUBCOMP--> acknowledged      QoS 0: when it is written
            --PUBACK, PUBREC >= 0x80--> due again, NAK_SECONDS later
            --ack_wait is over, or the session ends--> due again, for any member
            --max_deliver times in vain--> $dead/STREAM/TOPIC, if that has a receiver or a stream

Invariants:

- ``holders`` has the last delivery of each message. An older one that its client still works on stays in that client's
  window, where its acknowledgement counts, but its refusal does not.
- At QoS 1 a window's messages of a queue are not stored: after a restart they are due again, and packet ids go on
  elsewhere, so that a late PUBACK does not acknowledge another message. At QoS 2 they are stored.

The law of a group, where it is another than that of a queue:

- Its position is that of its consumer, so it is stored and copied with the stream. Its first member says where it
  begins.
- A message stays with a member as long as the member is connected: what is in such windows is renewed (``PROGRESS``)
  every ``RENEW_SECONDS``, by the node of the member. What is not renewed for ``ack_wait`` is for another member,
  whichever frame, session, node or home was lost. A connection that ends gives its messages at QoS 1 back.
- No message is given up: a member that refuses one is done with it [MQTT-4.8.2-6], and so is a session that ends
  with one at QoS 2 [MQTT-4.8.2-5].
- It has no say in what the stream keeps.
- It ends when its last member unsubscribes, at any node, if the home can know that: all nodes are reached, and have had
  ``KNOWN_SECONDS`` to say what members they have, since the home or the way to them is new. Otherwise, and if the last
  member was lost, it is kept for some days.
"""

from __future__ import annotations

from typing import Final, cast
from zlib import crc32

from mypy_extensions import mypyc_attr

from starlingmq.core.context.context import Context
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.groups.member_selection import accepts
from starlingmq.core.jetstream.bound_consumer import GROUP_NAME, BoundConsumer, is_group
from starlingmq.core.jetstream.far_streams import FarStreams
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.router.router import Router
from starlingmq.core.session.qos import MAX_PACKET_ID
from starlingmq.core.session.session import Session, Subscription
from starlingmq.core.streams.acknowledgements import ACK, NAK, PROGRESS
from starlingmq.core.streams.consumer_policy import ACK_EXPLICIT
from starlingmq.core.streams.effects import Deliver
from starlingmq.core.streams.feeder import Reading, numbered
from starlingmq.core.streams.pull_requests import PullRequest
from starlingmq.core.streams.sequenced_stream import SequencedStream
from starlingmq.core.streams.stream_filters import NEW, Start, StreamFilter, parse_subscription
from starlingmq.core.subscribe.subscribing import Subscribing
from starlingmq.core.topics.topics import DEAD
from starlingmq.wire.primitives import encode_two
from starlingmq.wire.reasons import MqttError

NAME: Final = "mqtt-queue"  # of the consumer; with a filter, more follows
QUEUES_MAX: Final = 100  # of one stream
GROUPS_MAX: Final = 1000
RENEW_SECONDS: Final = 10.0
KNOWN_SECONDS: Final = 60.0
NAK_SECONDS: Final = 1.0
ASKED_MAX: Final = 256  # messages that all members together ask for at once
UNACKNOWLEDGED_MAX: Final = 32  # messages at QoS 0 that a member is given at once
PLAIN: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
DELIVERIES: Final = b"\x26\x00\x0adeliveries"  # a User Property


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueMaker:
    """The maker of consumers with the settings of the API."""

    def make_queue(self, stream: SequencedStream, name: str, filters: list[bytes]) -> None:
        """Raises ValueError if there cannot be such a consumer."""
        raise NotImplementedError

    def make_group(self, stream: SequencedStream, name: str, filters: list[bytes], start: Start) -> None:
        """The same."""
        raise NotImplementedError

    def delete_consumer(self, stream: SequencedStream, name: str) -> None:
        raise NotImplementedError


class Holding:
    session: Session
    outgoing: Outgoing

    def __init__(self, session: Session, outgoing: Outgoing) -> None:
        self.session = session
        self.outgoing = outgoing


class WorkQueue:
    """``ready``: members that may have room."""

    stream: str
    name: str
    is_group: bool
    start: Start  # of a group that was another broker's
    elsewhere: dict[tuple[int, int], None]  # members of a group at other nodes: number of the node, and of the reading
    known_at: float  # when nodes have said what members they have
    reader: BoundConsumer | None  # None: it is not restored yet, or was deleted
    members: dict[Session, QueueMember]
    ready: dict[QueueMember, None]
    holders: dict[int, Holding]  # by sequence

    def __init__(self, stream: str, name: str) -> None:
        self.stream = stream
        self.name = name
        self.is_group = is_group(name)
        self.start = Start(NEW)
        self.elsewhere = {}
        self.known_at = 0.0
        self.reader = None
        self.members = {}
        self.ready = {}
        self.holders = {}

    def wake(self) -> None:
        reader = self.reader
        if reader is not None and not reader.gone:
            reader.active[reader] = None


class QueueMember(Reading):
    queue: WorkQueue
    session: Session
    subscription: Subscription  # the last one of ...
    filters: dict[bytes, Subscription]  # by filter as subscribed: several may be the same queue

    def __init__(self, queue: WorkQueue, session: Session, whole: bytes, subscription: Subscription) -> None:
        self.waits = False
        self.queue = queue
        self.session = session
        self.subscription = subscription
        self.filters = {whole: subscription}

    def wake(self) -> None:
        self.queue.ready[self] = None
        self.queue.wake()


class WorkQueues:
    ctx: Context
    router: Router
    delivery: Delivery
    subscribing: Subscribing
    maker: QueueMaker | None
    far: FarStreams | None
    due_at: float  # when what members of groups have is renewed; 0.0: never
    _restored: dict[Session, None]  # sessions of a store that have not connected since
    _queues: dict[str, WorkQueue]  # by stream and name of the consumer

    def __init__(self, ctx: Context, router: Router, delivery: Delivery, subscribing: Subscribing) -> None:
        self.ctx = ctx
        self.router = router
        self.delivery = delivery
        self.subscribing = subscribing
        self.maker = None
        self.far = None
        self.due_at = 0.0
        self._restored = {}
        self._queues = {}

    # Members

    def join(
        self,
        session: Session,
        whole: bytes,
        subscription: Subscription,
        parsed: StreamFilter,
        stream: SequencedStream,
        start: Start,
    ) -> str:
        """Returns the reason why it cannot, or ""."""
        why = self.provide(parsed, stream, start)
        if not why:
            self._add(session, whole, subscription, parsed)
        return why

    def provide(self, parsed: StreamFilter, stream: SequencedStream, start: Start) -> str:
        """Make the consumer that is the queue or group, unless there is one. Returns the reason why it cannot, or
        ""."""
        name = consumer_name(parsed)
        filters = queue_filters(parsed.filter)
        if name not in stream.consumers:
            if self.maker is None:
                return "there are no queues here"
            head, most = (GROUP_NAME, GROUPS_MAX) if parsed.group else (NAME, QUEUES_MAX)
            if len([each for each in stream.consumers if each.startswith(head)]) >= most:
                return f"this stream has too many: delete consumers whose names begin with {head}"
            try:
                if parsed.group:
                    self.maker.make_group(stream, name, filters, start)
                else:
                    self.maker.make_queue(stream, name, filters)
            except ValueError as error:
                return str(error)
        if not is_queue(cast(BoundConsumer, stream.consumers[name]), filters):
            return f"consumer {name} of this stream is no queue for this filter"
        return ""

    def restore(self, session: Session, whole: bytes, subscription: Subscription, parsed: StreamFilter) -> None:
        """At a start, before the consumers are restored."""
        self.renumber(session)
        self._add(session, whole, subscription, parsed)

    def begin(self, streams: dict[str, SequencedStream]) -> None:
        """All consumers are restored. Groups of a broker that was alone have none yet."""
        for queue in list(self._queues.values()):
            stream = streams.get(queue.stream)
            if queue.is_group and queue.reader is None and stream is not None:
                for member in list(queue.members.values()):
                    for whole in member.filters:
                        self.provide(parse_subscription(whole), stream, queue.start)

    def renumber(self, session: Session) -> None:
        """A session of a store has had messages of a queue, which are not in its window any more."""
        self._restored[session] = None

    def forget(self, session: Session) -> None:
        self._restored.pop(session, None)

    def _add(self, session: Session, whole: bytes, subscription: Subscription, parsed: StreamFilter) -> None:
        queue = self.queue_of(parsed)
        earlier = queue.members.get(session)
        if earlier is not None:
            earlier.subscription = earlier.filters[whole] = subscription
            assert session.reads is not None
            session.reads[whole] = earlier
            earlier.wake()
            return
        member = queue.members[session] = QueueMember(queue, session, whole, subscription)
        if session.reads is None:
            session.reads = {}
        session.reads[whole] = member
        member.wake()

    def queue_of(self, parsed: StreamFilter) -> WorkQueue:
        return self._queue(parsed.name, consumer_name(parsed))

    def _queue(self, stream: str, name: str) -> WorkQueue:
        key = f"{stream}/{name}"
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = WorkQueue(stream, name)
        return queue

    def leave(self, session: Session, reading: object, whole: bytes) -> None:
        """Messages that it has stay with it, until it acknowledges them or ``ack_wait`` is over."""
        member = cast(QueueMember, reading)
        queue = member.queue
        member.filters.pop(whole, None)
        for subscription in member.filters.values():
            member.subscription = subscription
        if member.filters:
            return
        self._restored.pop(session, None)
        queue.members.pop(session, None)
        queue.ready.pop(member, None)
        self.end_if_left(queue, is_unsubscribed(session))
        if not queue.members and queue.reader is None:
            self._queues.pop(f"{queue.stream}/{queue.name}", None)

    def end_if_left(self, queue: WorkQueue, unsubscribed: bool) -> None:
        """A member has left. ``unsubscribed``: it was not lost."""
        reader, maker = queue.reader, self.maker
        if not queue.is_group or reader is None or maker is None or queue.members or queue.elsewhere:
            return
        knows = queue.known_at <= self.ctx.now and (self.far is None or self.far.reaches_all())
        if unsubscribed and knows:
            maker.delete_consumer(reader.stream, reader.consumer.name)
        else:
            reader.consumer.stay(self.ctx.now)
            queue.wake()

    def look(self) -> None:
        """The way to a node is new, or it has restarted: it has not said yet which members it has."""
        for queue in self._queues.values():
            if queue.is_group:
                queue.known_at = self.ctx.now + KNOWN_SECONDS

    def keeps(self, reader: BoundConsumer) -> bool:
        """Whether a group that nothing was asked of has members, who may be away."""
        queue = cast("WorkQueue | None", reader.queue)
        if queue is None or not queue.is_group or (not queue.members and not queue.elsewhere):
            return False
        reader.consumer.stay(self.ctx.now)
        queue.wake()
        return True

    def consumer_added(self, reader: BoundConsumer) -> None:
        if reader.consumer.name.startswith(NAME) or is_group(reader.consumer.name):
            queue = self._queue(reader.stream.name, reader.consumer.name)
            queue.reader = reader
            queue.known_at = self.ctx.now + KNOWN_SECONDS if reader.stored else 0.0
            reader.queue = queue

    def add_members(self, stream: SequencedStream, sessions: dict[Session, None]) -> None:
        for queue in self._queues.values():
            if queue.stream == stream.name:
                sessions.update(dict.fromkeys(queue.members))

    def consumer_changed(self, reader: BoundConsumer) -> None:
        """Members of a consumer that is no queue for their filter any more are unsubscribed."""
        queue = cast("WorkQueue | None", reader.queue)
        if queue is not None:
            for member in list(queue.members.values()):
                for whole in list(member.filters):
                    if not is_queue(reader, queue_filters(parse_subscription(whole).filter)):
                        self.subscribing.unsubscribe(member.session, whole)

    def consumer_removed(self, reader: BoundConsumer) -> None:
        queue = cast("WorkQueue | None", reader.queue)
        if queue is None:
            return
        queue.reader = reader.queue = None
        for member in list(queue.members.values()):
            for whole in list(member.filters):
                self.subscribing.unsubscribe(member.session, whole)
        self._queues.pop(f"{queue.stream}/{queue.name}", None)

    def session_connected(self, session: Session) -> None:
        """Messages at QoS 1 that others have got meanwhile are not sent again."""
        client = session.client
        if session in self._restored and client is not None:
            del self._restored[session]
            self.delivery.window(session, client).last_id = int(self.ctx.now * 1000.0) % MAX_PACKET_ID
        window = session.window
        if window is not None:
            for packet_id, outgoing in list(window.entries.items()):
                queue = outgoing.source
                if isinstance(queue, WorkQueue) and outgoing.qos == 1:
                    holding = queue.holders.get(outgoing.ticket)
                    if holding is None or holding.outgoing is not outgoing:
                        window.discard(packet_id)

    # Turns

    def ask(self, reader: BoundConsumer) -> list[QueueMember]:
        """Requests of the members for messages, for the filling that follows."""
        queue = cast(WorkQueue, reader.queue)
        asked: list[QueueMember] = []
        wanted = 0
        requests = reader.consumer.requests
        others, here = requests.count, len(queue.ready)
        share = max(1, ASKED_MAX // max(1, len(queue.ready)))  # a burst is for all of them
        for member in list(queue.ready):
            qos = member.subscription.qos
            count = min(share, room(self.ctx, self.delivery, member.session, qos, False))
            if count == 0:
                del queue.ready[member]
                member.waits = True
                continue
            space = octets(self.ctx, member.session, qos)
            requests.add(PullRequest(b"", count, space, 0.0, False, 0.0, member, self.ctx.now))
            asked.append(member)
            wanted += count
            if wanted >= ASKED_MAX:
                break
        turn = reader.consumer.number % max(1, others + here)
        if turn < here:  # the requests of other nodes stay, and would always be the first ones
            requests.rotate(others)
        return asked

    def withdraw(self, reader: BoundConsumer, asked: list[QueueMember]) -> None:
        """After the filling. Members that got all they had asked for may have room again soon."""
        for member in asked:
            member.waits = True
        served = len(asked)
        for requester in reader.consumer.requests.withdraw():
            if isinstance(requester, QueueMember):
                requester.waits = False
                served -= 1
        if served != 0:
            cast(WorkQueue, reader.queue).wake()

    def deliver(self, member: QueueMember, effect: Deliver) -> None:
        queue, session, subscription, seq = member.queue, member.session, member.subscription, effect.sequence
        client, reader = session.client, queue.reader
        if client is None or reader is None:
            return
        if member in queue.ready:  # others come before it now
            del queue.ready[member]
            queue.ready[member] = None
        earlier = queue.holders.pop(seq, None)
        if earlier is not None:
            self._take_back(earlier)
        more = b""
        again = reader.consumer.pending.redelivered.get(seq, 0)
        if again != 0:
            digits = b"%d" % (again + 1)
            more = DELIVERIES + encode_two(len(digits)) + digits
        message = numbered(effect.message, seq, self.ctx.now, more)
        message.qos = subscription.qos
        if queue.is_group and message.expired(self.ctx.now):
            self.ctx.drop("expired", session.client_id, 1, message.topic)
            self._answer(queue, seq, ACK)
            return
        if client.max_packet != 0 and not accepts(client, subscription, message):
            self._answer(queue, seq, NAK)
            return
        outgoing = Outgoing(message, subscription.qos, False, subscription.ids, queue)
        if subscription.qos == 0:
            self.delivery.transmit(client, outgoing, 0, False)
            self._answer(queue, seq, ACK)
            return
        outgoing.ticket = seq
        queue.holders[seq] = Holding(session, outgoing)
        if queue.is_group and self.due_at == 0.0:
            self.due_at = self.ctx.now + RENEW_SECONDS
        self.delivery.transmit_acknowledged(session, client, self.delivery.window(session, client), outgoing)

    def given_elsewhere(self, reader: BoundConsumer, seq: int) -> None:
        """A client of NATS, or a member at another node, has got the message."""
        earlier = cast(WorkQueue, reader.queue).holders.pop(seq, None)
        if earlier is not None:
            self._take_back(earlier)

    def turn(self) -> None:
        """Renew what members of groups have."""
        if self.due_at == 0.0 or self.ctx.now < self.due_at:
            return
        self.due_at = 0.0
        for queue in self._queues.values():
            if queue.is_group and queue.holders:
                self.due_at = self.ctx.now + RENEW_SECONDS
                self.ctx.spend(len(queue.holders))
                for seq, holding in queue.holders.items():
                    if holding.session in queue.members and is_held(holding.session, holding.outgoing):
                        self._answer(queue, seq, PROGRESS)

    @staticmethod
    def _take_back(holding: Holding) -> None:
        """Another member gets the message."""
        window, outgoing = holding.session.window, holding.outgoing
        if holding.session.client is not None or window is None or outgoing.qos != 1:
            return
        if window.entries.get(outgoing.packet_id) is outgoing:
            window.discard(outgoing.packet_id)

    # Acknowledgements

    def settle(self, outgoing: Outgoing, refused: bool) -> None:
        queue = outgoing.source
        if not isinstance(queue, WorkQueue):
            return
        seq = outgoing.ticket
        holding = queue.holders.get(seq)
        current = holding is not None and holding.outgoing is outgoing
        if current:
            del queue.holders[seq]
        if current or not refused:
            self._answer(queue, seq, NAK if refused else ACK)

    def _answer(self, queue: WorkQueue, seq: int, kind: int) -> None:
        reader = queue.reader
        if reader is not None:
            reader.source.look()
            pending = reader.consumer.pending.get(seq)
            number = 0 if pending is None else pending.number
            deliveries = reader.consumer.pending.redelivered.get(seq, 0) + 1
            reader.consumer.answer(seq, number, deliveries, kind, NAK_SECONDS, "", self.ctx.now)
            queue.wake()

    def dead(self, reader: BoundConsumer, seq: int) -> None:
        """A message was delivered as often as it may be. If its dead letter has no receiver the stream keeps it."""
        queue = cast(WorkQueue, reader.queue)
        queue.holders.pop(seq, None)
        try:
            message = reader.stream.message(seq)
            if message is None:
                return
            again = message.topic.startswith(DEAD)  # a stream may have its own dead letters
            deliveries = b"%d" % (reader.consumer.pending.redelivered.get(seq, 0) + 1)
            letter = numbered(message, seq, self.ctx.now, DELIVERIES + encode_two(len(deliveries)) + deliveries)
            taken = 0 if again else self._publish(letter, reader.stream.name)
        except OSError:
            taken = 0
        if taken != 0:
            self._answer(queue, seq, ACK)
        else:
            self.ctx.drop("max_deliveries", reader.stream.client_id, 1)

    def _publish(self, letter: Message, stream: str) -> int:
        """Returns the number of receivers."""
        letter.topic = b"%b%b/%b" % (DEAD, stream.encode(), letter.topic)
        letter.qos = 2
        letter.octets = len(letter.topic) + len(letter.payload) + len(letter.properties)
        try:
            route = self.router.resolve(letter.topic)
        except MqttError:
            return 0
        return self.delivery.fan_out(letter, route, None)


def room(ctx: Context, delivery: Delivery, session: Session, qos: int, stored: bool) -> int:
    """The messages of a stream that its client can take now. ``stored``: also those at QoS 1."""
    client = session.client
    if client is None or session.ended or session.moving is not None:
        return 0
    queue = session.queue
    if client.blocked or client.size > ctx.write_buffer or (queue is not None and len(queue) != 0):
        return 0
    if qos == 0:
        return UNACKNOWLEDGED_MAX
    if (qos == 2 or stored) and ctx.refusing and session.expiry != 0:
        delivery.wait(session)
        return 0
    window = delivery.window(session, client)
    return 0 if window.full() else min(window.limit - len(window.entries), ASKED_MAX)


def octets(ctx: Context, session: Session, qos: int) -> int:
    """The bytes for which its client has room; one message may have more."""
    client, window = session.client, session.window
    left = ctx.write_buffer - (0 if client is None else client.size)
    if window is not None and window.max_bytes != 0 and qos != 0:
        left = min(left, window.max_bytes - window.bytes)
    return max(1, left)


def is_queue(reader: BoundConsumer, filters: list[bytes]) -> bool:
    policy = reader.consumer.policy
    return sorted(policy.filters) == filters and policy.ack == ACK_EXPLICIT and not policy.deliver_to


def queue_filters(filter: bytes) -> list[bytes]:
    """The filters of the consumer, sorted. One of NATS does not match the parent level."""
    if filter in (b"", b"#"):
        return []
    if filter.endswith(b"/#"):
        return sorted([filter[:-2], filter[:-1] + b"+/#"])
    return [filter]


def is_held(session: Session, outgoing: Outgoing) -> bool:
    """Whether a member still has a message: it is connected, or (QoS 2) will be."""
    window = session.window
    if window is None or session.ended or window.entries.get(outgoing.packet_id) is not outgoing:
        return False
    return session.client is not None or outgoing.qos == 2


def is_unsubscribed(session: Session) -> bool:
    """Whether a subscription that ends is so by the will of its client: not with its session, which is at an end, or
    at another node."""
    return session.client is not None and not session.ended and session.moving is None


def consumer_name(parsed: StreamFilter) -> str:
    """The name of the consumer that is the queue or group. Those of two groups differ."""
    filter = parsed.filter
    if parsed.group:
        group = GROUP_NAME + "".join([chr(each) if each in PLAIN else f"_{each:02x}" for each in parsed.group])
        return group if filter in (b"", b"#") else f"{group}-{crc32(filter):08x}"
    if filter in (b"", b"#"):
        return NAME
    text = filter.decode()
    plain = "".join([each if each.isascii() and (each.isalnum() or each in "-_") else "_" for each in text[:40]])
    return f"{NAME}-{plain}-{crc32(filter):08x}"
