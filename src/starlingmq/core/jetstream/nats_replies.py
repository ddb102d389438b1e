"""Messages of JetStream to a NATS client: answers, statuses, and messages of a stream under their own subjects.

A reply goes to the subscriptions of the connection that asked, as those of the broker do (core.nats.system_requests):
the requester chooses the subject, so it must not reach where the requester could not publish.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.context.context import Context
from starlingmq.core.messages.message import Message
from starlingmq.core.nats.nats_client import SHAPE_HEADERS, NatsClient, NatsSubscription
from starlingmq.core.nats.subject_cache import SubjectCache
from starlingmq.core.router.router import Router
from starlingmq.core.session.connection import CLOSED
from starlingmq.core.session.session import Client
from starlingmq.wire.nats_frames import message_head, message_tail
from starlingmq.wire.nats_headers import carried
from starlingmq.wire.nats_subjects import subject_of
from starlingmq.wire.reasons import MqttError

LOOKED_THROUGH: Final = 64  # subscriptions of a client that are compared one by one
WILD: Final = b"/+"


class NatsReplies:
    ctx: Context
    router: Router
    spellings: SubjectCache

    def __init__(self, ctx: Context, router: Router, spellings: SubjectCache) -> None:
        self.ctx = ctx
        self.router = router
        self.spellings = spellings

    def listener(self, client: Client, nats: NatsClient, topic: bytes) -> NatsSubscription | None:
        """The client's subscription for a reply topic. Clients have one with a wildcard for all their replies, which is
        remembered."""
        if client.state == CLOSED:
            return None
        inbox = nats.inbox
        if inbox is not None and _is_of(inbox, topic) and nats.subscriptions.get(inbox.sid) is inbox:
            return inbox
        if len(nats.subscriptions) <= LOOKED_THROUGH:
            for sub in nats.subscriptions.values():
                if sub.filter == topic or _is_of(sub, topic):
                    if sub.limit == 0:
                        nats.inbox = sub
                    return sub
        if len(nats.subscriptions) == 0:
            return None
        try:
            route = self.router.resolve(topic)
        except MqttError:
            return None
        for subscription in route.subscriptions:
            if subscription.session is client.session and isinstance(subscription, NatsSubscription):
                return subscription
        return None

    def answer(self, client: Client, nats: NatsClient, topic: bytes, payload: bytes, stored: bool) -> bool:
        """``stored``: after the writes of this turn are. Returns whether the client listens."""
        sub = self.listener(client, nats, topic)
        if sub is None:
            return False
        if sub.limit == 0 and not sub.checked:
            frame = b"MSG %b %b%b" % (subject_of(topic), sub.sid, message_tail(b"", b"", payload))
            sub.count += 1
            self.ctx.counters.publish_sent += 1
            if stored:
                self.ctx.send_stored(client, frame)
            else:
                self.ctx.send(client, frame)
            return True
        if stored:
            self.ctx.hold(client)
        nats.deliver(client, Message(topic, payload, 0, False, b"", 0.0, "", self.ctx.now), sub, None)
        return True

    def send(self, client: Client, nats: NatsClient, topic: bytes, headers: bytes, payload: bytes) -> None:
        """``headers``: the whole block; b"" without."""
        sub = self.listener(client, nats, topic)
        if sub is not None:
            shown = Message(topic, payload, 0, False, b"", 0.0, "", self.ctx.now)
            shown.shape = SHAPE_HEADERS
            head = message_head(subject_of(topic))
            shown.head = b"H" + head if headers else head
            shown.tail = message_tail(b"", headers, payload)
            nats.deliver(client, shown, sub, None)

    def give(self, client: Client, nats: NatsClient, sub: NatsSubscription, message: Message, reply: bytes) -> None:
        """A message of a stream, under its own subject."""
        nats.deliver(client, self.shaped(sub.filter, message, reply), sub, None)

    def shaped(self, topic: bytes, message: Message, reply: bytes) -> Message:
        """A message of a stream as it goes to receivers of another topic: NATS clients see its own subject."""
        headers = carried(message.properties).headers if message.properties else b""
        payload = message.payload
        shown = Message(topic, payload, 0, False, message.properties, 0.0, message.publisher, message.published_at)
        shown.shape = SHAPE_HEADERS
        head = self.spellings.head_of(message.topic) or message_head(subject_of(message.topic))
        shown.head = b"H" + head if headers else head
        shown.tail = message_tail(reply, headers, payload)
        return shown

    def shaped_status(self, topic: bytes, block: bytes, reply: bytes) -> Message:
        """A message without payload; ``block``: its headers, with a status."""
        shown = Message(topic, b"", 0, False, b"", 0.0, "", self.ctx.now)
        shown.shape = SHAPE_HEADERS
        shown.head = b"H" + message_head(subject_of(topic))
        shown.tail = message_tail(reply, block, b"")
        return shown


def _is_of(sub: NatsSubscription, topic: bytes) -> bool:
    """Whether it is a subscription like ``_INBOX/x/+``, and the topic is one of its."""
    filter = sub.filter
    length = len(filter) - 1
    return (
        filter.endswith(WILD)
        and len(topic) > length
        and topic.startswith(filter[:length])
        and topic.find(b"/", length) < 0
        and sub.name == b""
    )
