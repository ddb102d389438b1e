"""Describes a session to its new owner: ``Head``, made from the session as its source has it."""

from __future__ import annotations

from starlingmq.cluster.takeover.migrations import Migrations
from starlingmq.cluster.takeover.outbound import OutboundSession
from starlingmq.cluster.takeover.transfer_frames import CANCELLED, Head, SubscriptionFrame


def description(migrations: Migrations, outbound: OutboundSession, held: int, expiry: int, left: float) -> Head:
    """``held``, ``expiry`` and ``left`` are the fields of Head of these names. No will is reported."""
    ghost = outbound.session
    granted = [
        SubscriptionFrame(g.whole, g.qos, g.no_local, g.retain_as_published, g.ids)
        for g in migrations.broker.mover.granted(ghost)
    ]
    last_id = 0 if ghost.window is None else ghost.window.last_id
    trail = None if ghost.trail is None else (ghost.trail.node, ghost.trail.epoch, ghost.trail.sure)
    epoch, needs_reset = outbound.epoch, ghost.needs_reset
    head = Head(outbound.client_id, epoch, held, expiry, left, last_id, granted, ghost.floor, trail, needs_reset)
    head.will = CANCELLED
    head.owner = ghost.owner
    head.reset_confirmed = needs_reset and ghost.reset_confirmed
    former, head.unknown = migrations.former(outbound.client_id, ghost)
    head.former = list(former)
    return head
