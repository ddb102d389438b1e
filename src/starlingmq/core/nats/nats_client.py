"""One NATS connection as pure state: its CONNECT options, its subscriptions, and its output.

::

    NEW --CONNECT, or a first command where no login is required--> AUTHENTICATING --accepted--> OPEN --> CLOSED

A NATS client has a session like any other. It ends with its connection, has neither queue nor window, and represents
the connection: as a publisher, as a receiver, at shutdown. Its subscriptions are not the session's: each ``sid`` gets
its own copy of a message, so they are not merged. A member of a queue group has a session of its own, so that each
``sid`` is one member.
"""

from __future__ import annotations

from typing import Final, cast

from starlingmq.config.nats_section import NatsConfig
from starlingmq.core.context.context import Context
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.delivery.stale_requests import REASON as STALE
from starlingmq.core.delivery.stale_requests import stale
from starlingmq.core.limits.response_rights import Replies, longest
from starlingmq.core.messages.message import Message
from starlingmq.core.nats.subject_cache import SubjectCache
from starlingmq.core.session.connection import CLOSED, WORKING
from starlingmq.core.session.overlaps import OVERLAPS_MAX, Overlaps
from starlingmq.core.session.session import Client, ProtocolHandler, Session, Subscription
from starlingmq.core.topics.topics import LONG
from starlingmq.wire.nats_frames import OK_FRAME, message_tail
from starlingmq.wire.nats_headers import carried, response_topic
from starlingmq.wire.nats_subjects import subject_of

# of a message's cached head and tail: for NATS; those of MQTT are lower (see core.delivery.delivery)
SHAPE: Final = 64
SHAPE_HEADERS: Final = 65  # and for NATS clients that accept headers


class NatsSubscription(Subscription):
    """A ``sid``. ``count`` messages were delivered; at ``limit`` it ends (0: no limit)."""

    sid: bytes
    subject: bytes
    name: bytes  # of its queue group; b"" without
    limit: int
    count: int
    head: bytes  # of the last message, and with the sid added if it came twice in a row
    head_sid: bytes
    narrowed: bool  # a part of what it matches is denied, and is not delivered
    checked: bool  # each message is checked: it is narrowed, or the client may reply to what it receives
    run: list[bytes] | None  # of a group's member: the messages that it gets of a run (core.nats.publish_runs)

    def __init__(self, session: Session, filter: bytes, subject: bytes, name: bytes, sid: bytes) -> None:
        super().__init__(session, filter, 0, True, False, b"")  # no_local: see core.session.session.ProtocolHandler
        self.sid = sid
        self.subject = subject
        self.name = name
        self.limit = 0
        self.count = 0
        self.head = b""
        self.head_sid = b""
        self.narrowed = False
        self.checked = False
        self.run = None

    def key(self) -> object:
        return self

    def whole(self) -> bytes:
        """The filter that an MQTT client would subscribe to."""
        return b"$share/%b/%b" % (self.name, self.filter) if self.name else self.filter


class NatsPort:
    """The broker as a NATS connection uses it: its commands, its subscriptions, and the state that all connections
    share."""

    ctx: Context
    delivery: Delivery
    config: NatsConfig
    spellings: SubjectCache

    def handle(self, client: Client, nats: NatsClient, data: bytes) -> None:
        """Handle the commands in ``data``, and keep the rest."""
        raise NotImplementedError

    def settled(self, client: Client, nats: NatsClient, known: bool) -> None:
        """All nodes know its subscriptions; or, not ``known``: they could not be told in time."""
        raise NotImplementedError

    def unsubscribe(self, nats: NatsClient, sub: NatsSubscription) -> None:
        raise NotImplementedError

    def revoke(self, client: Client, nats: NatsClient) -> None:
        """End the subscriptions that exceed its rights."""
        raise NotImplementedError

    def ping(self, client: Client, nats: NatsClient) -> None:
        raise NotImplementedError

    def slow(self, client: Client, nats: NatsClient, size: int, publisher: Session | None) -> None:
        """The client reads more slowly than it is sent messages."""
        raise NotImplementedError

    def last_words(self, client: Client, nats: NatsClient, reason: int) -> None:
        raise NotImplementedError

    def shut(self, nats: NatsClient) -> None:
        """The connection has ended."""
        raise NotImplementedError


class NatsClient(ProtocolHandler):
    owner: NatsPort
    number: int  # of the connection
    tls: bool
    verbose: bool
    pedantic: bool
    echo: bool
    headers: bool
    no_responders: bool
    protocol: int  # from 1 on INFO may be sent at any time
    name: str  # these three are for operators, at most TOLD_MAX characters each
    lang: str
    library_version: str
    subscriptions: dict[bytes, NatsSubscription]  # by sid
    overlaps: Overlaps | None  # of them, once they are many
    pings_out: int  # PINGs of the broker without an answer
    pending: int  # bytes passed to the transport since it reported that its buffer is full
    keeps: bool  # a stored message was published, and the client has not been told yet
    unsettled: bool  # subscriptions that other nodes may not know yet ...
    owed: bytes  # ... and the bytes to send to the client when they do
    reply: bytes  # reply topic of the message that a hook decides about
    waiting: NatsSubscription | None  # the subscription that a hook decides about
    requests: int  # open requests to the broker itself (core.nats.system_requests)
    replies: Replies | None  # topics to which it may reply; None: no rule allows replies
    run: int  # number of the last run in which it had a part (core.nats.publish_runs)
    requester: object | None  # it, as JetStream knows it (core.jetstream.requesters); None: it has asked nothing yet
    inbox: NatsSubscription | None  # the one by which it has got the last reply of JetStream

    def __init__(self, owner: NatsPort, number: int, tls: bool) -> None:
        self.owner = owner
        self.number = number
        self.tls = tls
        self.verbose = True  # the defaults for a client that never sends CONNECT
        self.pedantic = True
        self.echo = True
        self.headers = False
        self.no_responders = False
        self.protocol = 0
        self.name = ""
        self.lang = ""
        self.library_version = ""
        self.subscriptions = {}
        self.overlaps = None
        self.pings_out = 0
        self.pending = 0
        self.keeps = False
        self.unsettled = False
        self.owed = b""
        self.reply = b""
        self.waiting = None
        self.requests = 0
        self.replies = None
        self.run = 0
        self.requester = None
        self.inbox = None

    # ProtocolHandler

    def handle(self, client: Client, data: bytes) -> None:
        self.owner.handle(client, self, data)

    def echoes(self) -> bool:
        return self.echo

    def settled(self, client: Client, known: bool) -> None:
        self.owner.settled(client, self, known)

    def last_words(self, client: Client, reason: int) -> None:
        self.owner.last_words(client, self, reason)

    def revoke(self, client: Client) -> None:
        self.owner.revoke(client, self)

    def shut(self, client: Client) -> None:
        self.owner.shut(self)

    def silent(self, client: Client) -> bool:
        if self.pings_out >= self.owner.config.max_pings_out:
            return True
        self.owner.ping(client, self)
        return False

    def input_received(self, client: Client) -> None:
        """Input arrived: no PING is open any more."""
        if self.pings_out != 0:
            self.pings_out = 0
            client.keep_alive = self.owner.config.ping_interval

    def drained(self, client: Client) -> None:
        self.pending = 0
        session = client.session
        if session is not None and (session.stalled or session.waiters is not None):
            session.stalled = False
            self.owner.delivery.let_go(session)

    def ok(self, client: Client) -> None:
        if self.verbose:
            self.owner.ctx.send(client, OK_FRAME)

    # Messages

    def deliver(self, client: Client, message: Message, subscription: Subscription, publisher: Session | None) -> None:
        """Send at most once: a client that reads too slowly for too long is closed, and nothing is queued for it."""
        owner = self.owner
        ctx = owner.ctx
        sub = cast(NatsSubscription, subscription)
        if client.state == CLOSED or (not self.echo and publisher is not None and publisher.client is client):
            return
        # groups check the age of queued messages themselves
        if message.origin != 0 and message.origin != ctx.node and not sub.name:
            wait = ctx.groups.nats_wait
            if wait != 0.0 and stale(message, ctx.now, wait):
                ctx.drop(STALE, client.client_id)
                return
        if sub.checked and not self._look_at(client, sub, message):
            return
        audit = ctx.audit
        if audit is not None and not sub.name:  # else its events were reported with the group
            audit.due(sub.session, message, 0)
        shape = SHAPE_HEADERS if self.headers else SHAPE
        if message.shape != shape:
            self._shape(message, shape)
        if not message.head:
            ctx.drop("no_subject", client.client_id)
            if audit is not None:
                audit.dropped(sub.session.client_id, message, 0, "no_subject")
            return
        frames = client.frames
        if client.waiting != 0 and client.stored_from < 0:
            client.stored_from = 0
        head = message.head
        if head is not sub.head:
            sub.head = head
            sub.head_sid = b""
            frames.append(head)
            frames.append(sub.sid)
        elif len(sub.head_sid) != 0:
            frames.append(sub.head_sid)
        elif len(head) <= LONG:
            sub.head_sid = head + sub.sid
            frames.append(sub.head_sid)
        else:  # not kept for each subscription
            frames.append(head)
            frames.append(sub.sid)
        frames.append(message.tail)
        size = len(head) + len(sub.sid) + len(message.tail)
        client.size += size
        if not client.dirty:
            client.dirty = True
            ctx.ready.dirty.append(client)
        ctx.counters.publish_sent += 1
        if audit is not None:
            audit.delivered(sub.session.client_id, message, 0, False)
        if client.blocked or client.size > ctx.write_buffer:
            owner.slow(client, self, size, publisher)
        if sub.limit != 0:
            sub.count += 1
            if sub.count >= sub.limit:
                owner.unsubscribe(self, sub)
        else:
            sub.count += 1

    def deliver_run(
        self, client: Client, sub: NatsSubscription, head: bytes, tails: list[bytes], size: int, publisher: Session
    ) -> None:
        """Send the messages of a run (core.nats.publish_runs), which needs no check. ``tails`` begins with an empty
        one; ``size``: their bytes without heads and sids."""
        ctx = self.owner.ctx
        count = len(tails) - 1
        if head is not sub.head or len(sub.head_sid) == 0:
            sub.head = head
            sub.head_sid = head + sub.sid
        if client.waiting != 0 and client.stored_from < 0:
            client.stored_from = 0
        frames = client.frames
        if count == 1:
            frames.append(sub.head_sid)
            frames.append(tails[1])
        else:
            frames.append(sub.head_sid.join(tails))
        size += count * len(sub.head_sid)
        if len(head) > LONG:
            sub.head_sid = b""
        client.size += size
        if not client.dirty:
            client.dirty = True
            ctx.ready.dirty.append(client)
        ctx.counters.publish_sent += count
        sub.count += count
        if client.blocked or client.size > ctx.write_buffer:
            self.owner.slow(client, self, size, publisher)

    def _look_at(self, client: Client, sub: NatsSubscription, message: Message) -> bool:
        """Whether a message may be delivered. If so, and it asks for a reply, a reply is allowed from now on."""
        if sub.narrowed and client.rights is not None and not client.rights.may_receive(message.topic):
            return False
        if self.replies is not None and message.properties:
            reply = response_topic(message.properties)
            if reply:
                self.replies.note(reply, self.owner.ctx.now, self.owner.config.max_pending_replies)
        return True

    def overlaps_too_often(self, filter: bytes) -> bool:
        """Whether a new subscription would be one too many that match one topic (``core.session.overlaps``)."""
        if len(self.subscriptions) < OVERLAPS_MAX:
            return False
        if self.overlaps is None:
            self.overlaps = Overlaps()
            for subscription in self.subscriptions.values():
                self.overlaps.add(subscription.filter, True)
        return self.overlaps.full_for(filter, True)

    def entitle(self, client: Client) -> None:
        """The client has new rights: update the replies that it may publish."""
        rights = client.rights
        if rights is None or not rights.replies:
            self.replies = None
        elif self.replies is None:
            self.replies = Replies(longest(rights))
        else:
            self.replies.seconds = longest(rights)

    def may_reply(self, client: Client, topic: bytes) -> bool:
        """Whether it may publish this as a reply, although no rule allows the topic."""
        rights = client.rights
        replies = self.replies
        return rights is not None and replies is not None and replies.use(topic, rights, self.owner.ctx.now)

    def _shape(self, message: Message, shape: int) -> None:
        """Encode the parts that are the same for all NATS subscribers of a message, except for the sid."""
        message.shape = shape
        head = message.head = self.owner.spellings.head_of(message.topic)
        if not message.properties:
            message.tail = message_tail(b"", b"", message.payload)
            return
        told = carried(message.properties)
        headers = told.headers if shape == SHAPE_HEADERS else b""
        reply = subject_of(told.response_topic) if told.response_topic else b""
        if headers and head:
            message.head = b"H" + head
        message.tail = message_tail(reply, headers, message.payload)

    def wait(self, client: Client, frame: bytes) -> None:
        """Stop reading until all nodes know the subscriptions; then send ``frame``."""
        self.unsettled = False
        self.owed = frame
        self.owner.ctx.halt(client, WORKING)
