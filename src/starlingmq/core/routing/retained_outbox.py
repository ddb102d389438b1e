"""Retained messages of a cluster, as the core sees them: what was published here and has to be known everywhere.

The core goes on by itself: its tree has what was published here at once, and what others published as soon as
``cluster.retained.retained_sync`` puts it there. What the core has for the cluster is collected here. Who subscribes
gets what is retained when all of it is here that other nodes had accepted before they knew of the subscription
(``HeldReplay``).
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.message import Message
from starlingmq.core.routing.replay_waits import ReplayWaits
from starlingmq.core.session.session import Session, Subscription

REPLICA: Final = -1
"""``Message.origin`` of what another node retains: it is not stored here."""

DELETED_FACT: Final = b"rd"
"""And a topic: a fact, the sequence in which what was retained was taken away, until the cluster knows."""


class Change:
    """What a topic retains from ``sequence`` on; ``message`` None: nothing."""

    sequence: int
    message: Message | None

    def __init__(self, sequence: int, message: Message | None) -> None:
        self.sequence = sequence
        self.message = message


class HeldReplay:
    """What is retained for a new subscription, once ``needs`` is here: node -> sequence. ``deadline``: or then."""

    session: Session
    subscription: Subscription
    needs: dict[int, int]
    deadline: float

    def __init__(self, session: Session, subscription: Subscription, needs: dict[int, int], deadline: float) -> None:
        self.session = session
        self.subscription = subscription
        self.needs = needs
        self.deadline = deadline


class WantedPayload:
    """The payload of a topic that is kept elsewhere, for one replay."""

    topic: bytes
    session: Session
    subscription: Subscription

    def __init__(self, topic: bytes, session: Session, subscription: Subscription) -> None:
        self.topic = topic
        self.session = session
        self.subscription = subscription


class RetainedOutbox:
    seconds: float  # that a replay waits
    changed: dict[bytes, Change]  # by topic, in the order of their sequences; not taken yet
    deleted: dict[bytes, int]  # topic -> sequence, of those whose last change is a DELETED_FACT
    last: int  # sequence of the last retained message that was published here
    full: bool  # nothing more is taken for now
    crowded: bool  # only for topics that have one
    complete: bool  # all that is retained in the cluster is here
    told: dict[int, int]  # node -> the last sequence that it is known to have accepted ...
    reached: dict[int, int]  # ... and up to which its messages are here
    connected: dict[int, None]
    expired: list[bytes]  # topics
    wanted: list[WantedPayload]
    waits: ReplayWaits
    waiting: int  # messages that are not in etcd yet ...
    written: int  # ... and that are, of those published here
    coalesced: int  # that later ones took the place of
    fetched: int  # payloads that came from other nodes

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.changed = {}
        self.deleted = {}
        self.last = 0
        self.full = False
        self.crowded = False
        self.complete = False
        self.told = {}
        self.reached = {}
        self.connected = {}
        self.expired = []
        self.wanted = []
        self.waits = ReplayWaits()
        self.waiting = 0
        self.written = 0
        self.coalesced = 0
        self.fetched = 0

    def change(self, topic: bytes, sequence: int, message: Message | None) -> None:
        self.changed.pop(topic, None)  # at the end: they are in order
        self.changed[topic] = Change(sequence, message)

    def take(self) -> dict[bytes, Change]:
        changed = self.changed
        self.changed = {}
        return changed

    def tell(self, node: int, sequence: int) -> None:
        """That node has accepted a retained message of this sequence, and all that it did before."""
        if sequence > self.told.get(node, 0):
            self.told[node] = sequence

    def needs(self) -> dict[int, int]:
        """What is on its way here, as far as we know."""
        return {node: sequence for node, sequence in self.told.items() if sequence > self.reached.get(node, 0)}

    def missing(self, needs: dict[int, int]) -> list[int]:
        """The connected nodes from which a part of it is still to come."""
        return [node for node in needs if node in self.connected and needs[node] > self.reached.get(node, 0)]

    def here(self, needs: dict[int, int]) -> bool:
        """Whether nothing of it is still to come from nodes that are connected."""
        return self.complete and not self.missing(needs)
