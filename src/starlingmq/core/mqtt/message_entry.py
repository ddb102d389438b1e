"""Entry of messages: from a client that published one here, from the broker itself, or from another node."""

from __future__ import annotations

from typing import Final

from starlingmq.core.context import Context
from starlingmq.core.groups.group_engine import GroupEngine
from starlingmq.core.message import Message
from starlingmq.core.routing.delivery import Delivery
from starlingmq.core.routing.retained_messages import RetainedMessages
from starlingmq.core.routing.retained_store import RetainedTree
from starlingmq.core.routing.router import Route, Router
from starlingmq.core.session.session import GROUP_PREFIX, Session, Subscription
from starlingmq.wire.reasons import MqttError

RETURNED: Final = "returned_qos2"  # why messages of a node that was removed were dropped


class MessageEntry:
    ctx: Context
    router: Router
    delivery: Delivery
    groups: GroupEngine
    retained: RetainedMessages

    def __init__(
        self, ctx: Context, router: Router, delivery: Delivery, groups: GroupEngine, retained: RetainedTree
    ) -> None:
        self.ctx = ctx
        self.router = router
        self.delivery = delivery
        self.groups = groups
        self.retained = RetainedMessages(ctx, retained)

    def route(self, message: Message, publisher: Session | None) -> int:
        """Route a message with a valid topic. Returns the number of receivers."""
        if message.expired(self.ctx.now):
            self.ctx.drop("expired", message.publisher)
            if self.ctx.audit is not None:
                self.ctx.audit.refused(message.publisher, message.topic, message.id, message.qos, "expired")
            return 0
        route = self.router.resolve(message.topic)
        if route.reserved and publisher is not None:
            self.ctx.drop("not_authorized", publisher.client_id)
            return 0
        if message.retain:
            message = self.retained.stamp(message)
            if self.retained.keep(message) != 0:
                self.retained.count_refused(message)
        return self.delivery.fan_out(message, route, publisher)

    def deliver(self, message: Message, group: bytes, source: Session) -> None:
        """A message that entered at the node of ``source``: for the subscribers here, or for one member of
        ``group``."""
        ctx = self.ctx
        if message.expired(ctx.now):
            ctx.drop("expired", message.publisher)
            return
        try:
            route = self.router.resolve(message.topic)
        except MqttError:
            ctx.drop("beyond_limits_here", source.client_id)
            return
        if not group:
            if message.retain and ctx.cluster.retained is not None:
                ctx.cluster.retained.note_accepted(source.node, message.sequence)
            if ctx.cluster.interest is not None and ctx.cluster.interest.summarises and not route.wanted_here():
                ctx.counters.forwards_unwanted += 1
                ctx.cluster.interest.note_unwanted(message.topic)
            self.delivery.fan_out(message, route, source)
            return
        found = self.router.group(group)
        if found is None:
            ctx.drop("no_group_member", source.client_id)
            if ctx.audit is not None:
                ctx.audit.dropped(GROUP_PREFIX + group[7:].decode(), message, message.qos, "no_group_member")
        else:
            self.groups.arrived(found, message)

    def deliver_returned(self, message: Message, group: bytes, source: Session, settled: int) -> None:
        """The node of ``source`` accepted the message, was removed from the cluster, and has joined again. A session of
        an epoch after ``settled`` may have been at another node when that one was given the same message. At QoS 2 such
        a session does not get it: it could be a duplicate."""
        ctx = self.ctx
        if group or message.qos != 2 or message.expired(ctx.now):
            self.deliver(message, group, source)
            return
        try:
            route = self.router.resolve(message.topic)
        except MqttError:
            ctx.drop("beyond_limits_here", source.client_id)
            return
        if message.retain and ctx.cluster.retained is not None:
            ctx.cluster.retained.note_accepted(source.node, message.sequence)
        kept: list[Subscription] = []
        for subscription in route.subscriptions:
            session = subscription.session
            moved = session.epoch > settled or session.moving is not None
            if subscription.qos == 2 and session.node == 0 and moved and not session.ended:
                self._give_up_returned(session, message)
            else:
                kept.append(subscription)
        others = Route(kept, route.groups, route.streams, route.version, route.reserved)
        others.given_up = route.given_up
        self.delivery.fan_out(message, others, source)

    def _give_up_returned(self, session: Session, message: Message) -> None:
        client_id = session.client_id if session.moving is None else session.moving.client_id
        self.ctx.drop(RETURNED, client_id)
        session.dropped += 1
        if self.ctx.audit is not None:
            self.ctx.audit.dropped(client_id, message, 2, RETURNED)
