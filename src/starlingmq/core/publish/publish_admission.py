"""The decision whether a message is accepted, made here once for MQTT, NATS and the HTTP API, which encode it in their
protocols.

The publish rate is not decided here: a client that exceeds it is not read for a while (``core.context.quotas``).
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.context.context import Context
from starlingmq.core.router.router import Route

ADMITTED: Final = 0
ISOLATED: Final = 1  # the node is cut off from the majority of its cluster
POSTPONED: Final = 2  # routes are incomplete: the message is accepted when they are complete
NOT_STORED: Final = 3  # nothing can be stored, or the buffer for another node is full
MEMORY: Final = 4  # the process uses more than ``limits.memory``
RESERVED: Final = 5  # only the broker itself publishes to this topic
STREAM_FULL: Final = 6
UNCHECKED: Final = 7  # admitted if the payload keeps the contract of the topic

COUNTED: Final = ("", "isolated", "", "storage_failing", "memory", "not_authorized", "stream_full", "contract")
"""The reasons under which refused messages are counted as dropped."""


def admit(ctx: Context, route: Route, kept: bool) -> int:
    """``kept``: the publisher gets an acknowledgement, or a receiver stores it. Other messages may be lost anyway."""
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
    return ADMITTED if route.contract is None else UNCHECKED


def stream_is_full(route: Route) -> bool:
    """Whether one of the streams of the route refuses messages."""
    for stream in route.streams:  # noqa: SIM110  a generator would be made
        if stream.full:
            return True
    return False


def too_much_waits(ctx: Context, route: Route) -> bool:
    """Whether the message would go to a node whose buffer is full."""
    bound = ctx.cluster.forward_bytes
    for subscription in route.subscriptions:
        session = subscription.session
        if session.node != 0 and session.queue is not None and session.queue.bytes >= bound:
            return True
    return False
