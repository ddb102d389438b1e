"""Whether a message is taken in: decided here, once, for MQTT, NATS and the HTTP API, which put it into their words.

How fast a client publishes is not decided here: it is not read for a while instead (``core.limits.quotas``).
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.context import Context
from starlingmq.core.routing.router import Route

ADMITTED: Final = 0
ISOLATED: Final = 1  # the node is cut off from the majority of its cluster
POSTPONED: Final = 2  # not all routes are here yet: it is taken in when they are
NOT_STORED: Final = 3  # nothing can be stored, or as much waits for another node as may
MEMORY: Final = 4  # the process has more than ``limits.memory``
RESERVED: Final = 5  # only the broker itself publishes to this topic
STREAM_FULL: Final = 6

COUNTED: Final = ("", "isolated", "", "storage_failing", "memory", "not_authorized", "stream_full")
"""By which reason a message that is not taken in is counted as dropped."""


def admit(ctx: Context, route: Route, kept: bool) -> int:
    """``kept``: somebody is told that it was taken in, or has it stored. What is not kept may get lost anyway."""
    if kept and ctx.isolated:
        return ISOLATED
    if ctx.catching_up:
        return POSTPONED
    if kept and ctx.refusing:
        return NOT_STORED
    if ctx.quotas.short_of_memory:
        return MEMORY
    if route.reserved:
        return RESERVED
    if kept and ctx.full_peers != 0 and too_much_waits(ctx, route):
        return NOT_STORED
    if kept and ctx.full_streams != 0 and stream_is_full(route):
        return STREAM_FULL
    return ADMITTED


def stream_is_full(route: Route) -> bool:
    """Whether one of the streams on the way refuses what it is offered."""
    for stream in route.streams:  # noqa: SIM110  a generator would be made
        if stream.full:
            return True
    return False


def too_much_waits(ctx: Context, route: Route) -> bool:
    """Whether the message would go to a node for which as much waits as may."""
    bound = ctx.cluster.forward_bytes
    for subscription in route.subscriptions:
        session = subscription.session
        if session.node != 0 and session.queue is not None and session.queue.bytes >= bound:
            return True
    return False
