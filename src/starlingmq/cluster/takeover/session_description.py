"""Describes a session to its new owner: ``Head``, made from the session as its source has it."""

from __future__ import annotations

from starlingmq.cluster.takeover.migrations import Migrations
from starlingmq.cluster.takeover.outbound import OutboundSession
from starlingmq.cluster.takeover.transfer_frames import CANCELLED, Head, SubscriptionFrame


def description(migrations: Migrations, outbound: OutboundSession, held: int, expiry: int, left: float) -> Head:
    """``held``, ``expiry`` and ``left`` are the fields of Head of these names. No will is reported."""
    migrating = outbound.session
    granted = [
        SubscriptionFrame(g.whole, g.qos, g.no_local, g.retain_as_published, g.ids, g.position)
        for g in migrations.broker.mover.granted(migrating)
    ]
    last_id = 0 if migrating.window is None else migrating.window.last_id
    trail = None if migrating.trail is None else (migrating.trail.node, migrating.trail.epoch, migrating.trail.sure)
    epoch, needs_reset = outbound.epoch, migrating.needs_reset
    head = Head(outbound.client_id, epoch, held, expiry, left, last_id, granted, migrating.floor, trail, needs_reset)
    head.will = CANCELLED
    head.owner = migrating.owner
    head.reset_confirmed = needs_reset and migrating.reset_confirmed
    former, head.unknown = migrations.former_filters(outbound.client_id, migrating)
    head.former_filters = list(former)
    holders = migrations.holders(outbound.client_id)
    head.holders = None if holders is None else list(holders)
    return head
