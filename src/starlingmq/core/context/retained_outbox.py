"""The core's interface to retained messages in a cluster: those published here, which all nodes must know.

The core works independently: its tree has messages published here at once, and messages of other nodes as soon as
``cluster.retained.retained_sync`` adds them. Changes for the cluster are collected here. A new subscription gets its
retained messages when all of them are here that other nodes accepted before they knew of the subscription
(``HeldReplay``).
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.context.replay_waits import ReplayWaits
from starlingmq.core.messages.message import Message
from starlingmq.core.session.session import Session, Subscription

REPLICA: Final = -1
"""``Message.origin`` of another node's retained message, which is not stored here."""

DELETED_FACT: Final = b"rd"
"""With a topic: the name of a fact, the sequence of the removal of its retained message, until the cluster knows."""


class Change:
    """The retained message of a topic from ``sequence`` on; ``message`` None: none."""

    sequence: int
    message: Message | None

    def __init__(self, sequence: int, message: Message | None) -> None:
        self.sequence = sequence
        self.message = message


class HeldReplay:
    """A replay for a new subscription, which waits for ``needs``: node -> sequence, or until ``deadline``."""

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
    """The payload of a topic that another node keeps, for one replay."""

    topic: bytes
    session: Session
    subscription: Subscription

    def __init__(self, topic: bytes, session: Session, subscription: Subscription) -> None:
        self.topic = topic
        self.session = session
        self.subscription = subscription


class RetainedOutbox:
    seconds: float  # maximum time that a replay waits
    changed: dict[bytes, Change]  # by topic, in the order of their sequences; not taken yet
    deleted: dict[bytes, int]  # topic -> sequence, of those whose last change is a DELETED_FACT
    last: int  # sequence of the last retained message published here
    full: bool  # no more is accepted for now
    crowded: bool  # only topics that have a retained message are accepted
    complete: bool  # all retained messages of the cluster are here
    accepted_by: dict[int, int]  # node -> the last sequence that it is known to have accepted ...
    reached: dict[int, int]  # ... and up to which its messages are here
    connected: dict[int, None]
    expired: list[bytes]  # topics
    wanted: list[WantedPayload]
    waits: ReplayWaits
    waiting: int  # messages that are not in etcd yet ...
    written: int  # ... and that are, of those published here
    coalesced: int  # messages that later ones replaced
    fetched: int  # payloads from other nodes

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.changed = {}
        self.deleted = {}
        self.last = 0
        self.full = False
        self.crowded = False
        self.complete = False
        self.accepted_by = {}
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
        self.changed.pop(topic, None)  # moved to the end, to keep the order
        self.changed[topic] = Change(sequence, message)

    def take(self) -> dict[bytes, Change]:
        changed = self.changed
        self.changed = {}
        return changed

    def note_accepted(self, node: int, sequence: int) -> None:
        """That node has accepted the retained message of this sequence, and all earlier ones of its own."""
        if sequence > self.accepted_by.get(node, 0):
            self.accepted_by[node] = sequence

    def needs(self) -> dict[int, int]:
        """The sequences up to which messages are on their way here, as far as this node knows."""
        return {node: sequence for node, sequence in self.accepted_by.items() if sequence > self.reached.get(node, 0)}

    def missing(self, needs: dict[int, int]) -> list[int]:
        """The connected nodes from which a part of it is still to come."""
        return [node for node in needs if node in self.connected and needs[node] > self.reached.get(node, 0)]

    def here(self, needs: dict[int, int]) -> bool:
        """Whether none of them is missing from connected nodes."""
        return self.complete and not self.missing(needs)
