"""Clients as JetStream knows them: they send requests and acknowledgements, and get answers and messages.

A consumer keeps them with the requests that wait for messages. Answers reach only the connection that asked (see
nats_replies), wherever it is.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from starlingmq.core.context.context import Context
from starlingmq.core.jetstream.nats_replies import NatsReplies
from starlingmq.core.messages.message import Message
from starlingmq.core.nats.nats_client import NatsClient
from starlingmq.core.nats.no_responders import send_no_responders
from starlingmq.core.session.connection import CLOSED
from starlingmq.core.session.session import Client
from starlingmq.core.streams.consumer import JetStreamConsumer

PULLS_LOOKED_AT: Final = 64  # consumers, when those without requests are removed: also at each power of two


@mypyc_attr(allow_interpreted_subclasses=True)
class Requester:
    """``pulls``: consumers that it has asked for messages; ``homes``: the other nodes that have such consumers.
    ``client_id``: of its session."""

    client_id: str
    pulls: dict[JetStreamConsumer, None]
    homes: dict[int, None]

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.pulls = {}
        self.homes = {}

    def is_gone(self) -> bool:
        """Its connection has ended."""
        raise NotImplementedError

    def listens(self, topic: bytes) -> bool:
        """Whether it is subscribed to a reply topic, as far as this node knows."""
        raise NotImplementedError

    def answer(self, topic: bytes, payload: bytes, stored: bool) -> None:
        """``stored``: after the writes of this turn are."""
        raise NotImplementedError

    def send(self, topic: bytes, headers: bytes, payload: bytes) -> None:
        """An answer with headers: the whole block; b"" without."""
        raise NotImplementedError

    def give(self, topic: bytes, message: Message, reply: bytes) -> None:
        """A message of a stream, under its own subject."""
        raise NotImplementedError

    def tell(self, topic: bytes, block: bytes, reply: bytes) -> None:
        """A status. ``block``: its headers."""
        raise NotImplementedError

    def has_no_responders(self, topic: bytes) -> None:
        """Nothing listens to the subject of its request."""
        raise NotImplementedError

    def waits_for(self, consumer: JetStreamConsumer) -> None:
        """It has asked this consumer for messages."""
        pulls = self.pulls
        if len(pulls) >= PULLS_LOOKED_AT and consumer not in pulls and len(pulls) & (len(pulls) - 1) == 0:
            for each in [each for each in pulls if each.requests.count == 0]:
                del pulls[each]
        pulls[consumer] = None

    def leave(self) -> None:
        """Its connection has ended, and its requests with it."""
        for consumer in self.pulls:
            consumer.gone(self)
        self.pulls = {}


class NatsRequester(Requester):
    """A connection of this node."""

    ctx: Context
    replies: NatsReplies
    client: Client
    nats: NatsClient

    def __init__(self, ctx: Context, replies: NatsReplies, client: Client, nats: NatsClient) -> None:
        super().__init__(client.client_id)
        self.ctx = ctx
        self.replies = replies
        self.client = client
        self.nats = nats

    def is_gone(self) -> bool:
        return self.client.state == CLOSED

    def listens(self, topic: bytes) -> bool:
        return self.replies.listener(self.client, self.nats, topic) is not None

    def answer(self, topic: bytes, payload: bytes, stored: bool) -> None:
        self.replies.answer(self.client, self.nats, topic, payload, stored)

    def send(self, topic: bytes, headers: bytes, payload: bytes) -> None:
        if topic:
            self.replies.send(self.client, self.nats, topic, headers, payload)

    def give(self, topic: bytes, message: Message, reply: bytes) -> None:
        sub = self.replies.listener(self.client, self.nats, topic)
        if sub is not None:
            self.replies.give(self.client, self.nats, sub, message, reply)

    def tell(self, topic: bytes, block: bytes, reply: bytes) -> None:
        sub = self.replies.listener(self.client, self.nats, topic)
        if sub is not None:
            self.nats.deliver(self.client, self.replies.shaped_status(topic, block, reply), sub, None)

    def has_no_responders(self, topic: bytes) -> None:
        if self.client.state != CLOSED and self.nats.no_responders:
            send_no_responders(self.ctx, self.replies.router, self.client, topic)
