"""Runs of PUBs: messages of one connection to one subject that were read together, without reply, are routed together.

Invariant: a run has the effect of its messages one by one. So it is used only where no message needs a closer look:
all receivers are NATS clients of this node, at most one queue group among them, and nothing is asked, stored, confirmed
or reported per message. ``publish`` returns False for all others, which core.nats.nats_publishing publishes one by one.

A run ends where one of its messages could change what happens to the next one: when the work of the turn is used up,
when a receiver has more unsent bytes than ``limits.write_buffer``, or when no member of the group can take a message.

A connection gets the messages of a run in their order: one that receives them for two subscriptions, or two members of
the group, gets them one by one.

A receiver gets a run as one frame. ``MSG subject sid`` is put before each message; the rest is copied as it was read.
"""

from __future__ import annotations

from typing import Final, cast

from starlingmq.core.context.context import Context
from starlingmq.core.groups.group import Group
from starlingmq.core.messages.message import Message
from starlingmq.core.nats.nats_client import NatsClient, NatsSubscription
from starlingmq.core.nats.subject_cache import SubjectCache
from starlingmq.core.publish.publish_admission import ADMITTED, admit
from starlingmq.core.router.router import Route, Router
from starlingmq.core.session.connection import CLOSED
from starlingmq.core.session.session import Client, Session, Subscription
from starlingmq.wire.nats import NatsReader
from starlingmq.wire.reasons import MqttError

FOR_JETSTREAM: Final = b"$JS."  # acknowledgements, most of them: each has its own subject
UNFIT: Final = -1  # in place of the bytes that a run may have: there are receivers that need a closer look


class PublishRuns:
    ctx: Context
    router: Router
    spellings: SubjectCache
    number: int  # of the last run

    def __init__(self, ctx: Context, router: Router, spellings: SubjectCache) -> None:
        self.ctx = ctx
        self.router = router
        self.spellings = spellings
        self.number = 0

    def publish(self, client: Client, nats: NatsClient, reader: NatsReader, data: bytes, pos: int) -> bool:
        """Publish the PUB at ``pos``, which ``reader`` has just read, and those with its subject behind it. False: it
        cannot be published in this way, and nothing was done."""
        ctx = self.ctx
        session = client.session
        if nats.verbose or ctx.ask_publish or ctx.audit is not None or session is None:
            return False
        if reader.subject.startswith(FOR_JETSTREAM):
            return False
        topic = self.spellings.topic_of(reader.subject)
        if not topic or (client.rights is not None and not client.rights.may_publish(topic, 0, False)):
            return False
        try:
            route = self.router.resolve(topic)
        except MqttError:
            return False
        room = self._room(route)
        if room == UNFIT or admit(ctx, route, route.kept) != ADMITTED:
            return False
        head = self.spellings.head_of(topic)
        if not head:
            return False
        cost = 1 + len(route.subscriptions) + len(route.groups)
        first_end = reader.end
        tails = [b""]
        reader.read_on(data, pos, tails, (ctx.work + cost - 1) // cost, room)
        other: Subscription | None = None
        if route.groups:
            before = len(tails)
            other = self._share_out(route.groups[0], topic, head, tails, session)
            if len(tails) == 1:
                reader.end = first_end
                return False
            if len(tails) != before:
                width = reader.lead - pos - 1
                reader.end = pos + sum([width + len(tail) for tail in tails[1:]])
            nats.keeps = True  # see NatsPublishing: a message for a group is published as QoS 1
        count = len(tails) - 1
        ctx.counters.publish_received += count
        client.published += count
        ctx.work -= count * cost
        if route.subscriptions:
            self._deliver(route, client, head, tails, reader.end - pos - count * (reader.lead - pos - 1), session)
        if other is not None:
            self._hand(route.groups[0], other, topic, tails[count], session)
        return True

    def _room(self, route: Route) -> int:
        """The bytes after which a receiver may be slow; or UNFIT."""
        ctx = self.ctx
        self.number += 1
        if route.streams or len(route.groups) > 1 or route.given_up:
            return UNFIT
        for group in route.groups:
            if not self.router.sharing.passes_through(group):
                return UNFIT
        room = ctx.write_buffer
        for subscription in route.subscriptions:
            if not isinstance(subscription, NatsSubscription) or subscription.checked or subscription.limit != 0:
                return UNFIT
            receiver = subscription.session.client
            if receiver is None or not self._first(receiver):
                return UNFIT
            left = 0 if receiver.blocked else ctx.write_buffer - receiver.size
            if left < room:
                room = max(left, 0)
        return room

    def _first(self, receiver: Client) -> bool:
        """Whether a connection, of a NATS client, has no other part in this run."""
        nats = cast(NatsClient, receiver.protocol_handler)
        if nats.run == self.number:
            return False
        nats.run = self.number
        return True

    def _deliver(
        self, route: Route, client: Client, head: bytes, tails: list[bytes], size: int, publisher: Session
    ) -> None:
        for subscription in route.subscriptions:
            receiver = subscription.session.client
            if receiver is None or receiver.state == CLOSED:
                continue
            nats = cast(NatsClient, receiver.protocol_handler)
            if receiver is not client or nats.echo:
                nats.deliver_run(receiver, cast(NatsSubscription, subscription), head, tails, size, publisher)

    def _share_out(
        self, group: Group, topic: bytes, head: bytes, tails: list[bytes], publisher: Session
    ) -> Subscription | None:
        """Select a member for each message, and deliver. ``tails`` keeps the messages for which there is one. Returns
        the member for the last of them if it needs a closer look: it has not got the message yet."""
        ctx = self.ctx
        message = Message(topic, b"", 1, False, b"", 0.0, publisher.client_id, ctx.now)  # stands for all of them
        chosen: list[NatsSubscription] = []
        other: Subscription | None = None
        given = 0
        for tail in tails:
            if not tail:
                continue
            member = group.choose_here(message, ctx.write_buffer)
            if member is None:
                break
            given += 1
            receiver = member.session.client
            if (
                receiver is None
                or not isinstance(member, NatsSubscription)
                or member.checked
                or member.limit != 0
                or (member.run is None and not self._first(receiver))
            ):
                other = member
                break
            run = member.run
            if run is None:
                member.run = [b"", tail]
                chosen.append(member)
            else:
                run.append(tail)
            receiver.size += len(tail)  # the next selection takes it into account
        del tails[given + 1 :]
        group.received += given
        group.given += given if other is None else given - 1  # ``_hand`` counts it
        for member in chosen:
            self._deliver_to_member(member, head, publisher)
        return other

    def _hand(self, group: Group, member: Subscription, topic: bytes, tail: bytes, publisher: Session) -> None:
        payload = tail[tail.index(b"\n") + 1 : -2]
        message = Message(topic, payload, 1, False, b"", 0.0, publisher.client_id, self.ctx.now)
        self.router.sharing.hand(group, member, message, publisher)

    def _deliver_to_member(self, member: NatsSubscription, head: bytes, publisher: Session) -> None:
        run = member.run
        receiver = member.session.client
        member.run = None
        if run is None or receiver is None:
            return
        size = 0
        for tail in run:
            size += len(tail)
        receiver.size -= size
        if receiver.state != CLOSED:
            cast(NatsClient, receiver.protocol_handler).deliver_run(receiver, member, head, run, size, publisher)
