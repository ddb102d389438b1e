"""A request without responders: the requester gets the status 503 at once, if it has asked for that."""

from __future__ import annotations

from typing import Final

from starlingmq.core.context.context import Context
from starlingmq.core.nats.nats_client import NatsSubscription
from starlingmq.core.router.router import Route, Router
from starlingmq.core.session.session import Client, Session
from starlingmq.wire.nats_frames import NO_RESPONDERS, message_head, message_tail
from starlingmq.wire.nats_subjects import subject_of
from starlingmq.wire.reasons import MqttError

SEARCH_SHIFT: Final = 5  # to look through 32 subscriptions counts as one message


def has_no_receivers(route: Route, publisher: Session | None) -> bool:
    """Whether no receiver can answer: there are at most groups whose members were lost, and which may return too late,
    and subscriptions of ``publisher``, which gets none of its own messages (None: it gets them)."""
    if route.streams:
        return False
    for subscription in route.subscriptions:
        if subscription.session is not publisher:
            return False
    return not any(group.has_members() for group in route.groups)


def send_no_responders(ctx: Context, router: Router, client: Client, reply: bytes) -> None:
    """Send the status to this client's subscription for its reply topic, if there can be one."""
    try:
        route = router.resolve(reply)
    except MqttError:  # too many levels: nothing is ever published there
        return
    ctx.work -= len(route.subscriptions) >> SEARCH_SHIFT
    for subscription in route.subscriptions:
        if subscription.session is client.session and isinstance(subscription, NatsSubscription):
            head = b"H" + message_head(subject_of(reply))
            tail = message_tail(b"", NO_RESPONDERS, b"")
            ctx.send(client, b"%b%b%b" % (head, subscription.sid, tail))
            return
