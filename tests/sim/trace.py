"""The events of a world, line by line, for replaying a seed.

A trace begins with the plan: the settings, and for each client its node, version and actions as ``second:what:QoS``
(-1: UNSUBSCRIBE). Then one line per event, with the virtual second: ``world`` starts or ends a fault; a node (``n1``)
starts, crashes, serves, receives a frame (``from n2: 1/1 to 2/1: RouteRecords ...``: number and incarnation of source
and target; etcd assigns the numbers) or asks etcd; a client sends and receives packets. Start at the message that the
failure names, and follow it: its publisher, the frame that carried it, whether its route was known.
"""

from __future__ import annotations

import sys

from msgspec.structs import fields
from tests.sim.schedule import Schedule

from starlingmq.cluster.links.control_frames import Heartbeat
from starlingmq.cluster.links.peer_frames import Data, DataAck, Envelope, RouteApplied, RouteRecords, ShareFrame


class Trace:
    """Silent unless ``on``: then a line each, with the virtual time in seconds. Who makes a line that costs something
    looks at ``on`` first."""

    def __init__(self, schedule: Schedule, on: bool) -> None:
        self.schedule = schedule
        self.on = on

    def note(self, who: str, what: str) -> None:
        if self.on:
            sys.stdout.write(f"{self.schedule.now - self.schedule.start:9.4f}  {who:<10} {what}\n")

    def envelope(self, who: str, what: str, envelope: Envelope) -> None:
        if self.on:
            relayed = ", relayed" if envelope.relayed else ""
            to = f"{envelope.target}/{envelope.target_incarnation}"
            self.note(who, f"{what} {envelope.source}/{envelope.incarnation} to {to}{relayed}: {told(envelope)}")


def told(envelope: Envelope) -> str:
    """The body in a few words; of a heartbeat what changes."""
    body = envelope.body
    if isinstance(body, Heartbeat):
        vector = " ".join(f"{node}:{epoch}.{version}" for node, (epoch, version) in sorted(body.vector.items()))
        state = "serving" if body.serving else "isolated"
        return (
            f"Heartbeat {body.epoch}.{body.version} [{vector}] hears {sorted(body.heard)}, "
            f"connected {sorted(body.connected)}, {state}, membership {body.membership.revision}"
        )
    if isinstance(body, Data):
        return f"Data {body.sequence} of {body.count}: {body.blob!r}"
    if isinstance(body, (DataAck, RouteApplied)):
        return repr(body)
    if isinstance(body, RouteRecords):
        return f"{body!r} history={body.history} quiet={body.quiet}"
    if isinstance(body, ShareFrame):
        return f"{body!r} messages={body.messages!r} table={body.table!r}"
    values = " ".join(f"{field.name}={getattr(body, field.name)!r}" for field in fields(body))
    return f"{type(body).__name__} {values}"
