"""QoS 2 handshakes that other nodes may have: the hints, the lookups, and the handshakes that sessions left here.

Handshakes do not move with their session: the node that has one keeps it, and a PUBREL without a handshake here is
looked up on other nodes (``cluster.qos2.qos2_lookup``). For a client that stays on one node this costs nothing: its
session has no ``Trail``, or its PUBRELs are known here, so that the trail is not used.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.session.qos import Inbound
from starlingmq.core.session.session import Client, Session
from starlingmq.core.session.trail import Trail

# Outcomes of a lookup.
COMPLETED: Final = 1  # the message was routed, once
UNKNOWN: Final = 2  # no node has the handshake
CANCELLED: Final = 3  # other nodes have removed their handshakes
TIMED_OUT: Final = 4  # a node that may have the handshake could not be asked in time


class Asked:
    """A PUBREL that is unknown here. ``again``: a PUBLISH that is sent again, so that other nodes must remove their
    handshake."""

    client: Client
    session: Session
    packet_id: int
    again: bool

    def __init__(self, client: Client, session: Session, packet_id: int, again: bool) -> None:
        self.client = client
        self.session = session
        self.packet_id = packet_id
        self.again = again


class Left:
    """The handshakes of a session that migrated to another node."""

    client_id: str
    epoch: int
    inbound: Inbound
    owner: str | None  # of the session

    def __init__(self, client_id: str, epoch: int, inbound: Inbound, owner: str | None) -> None:
        self.client_id = client_id
        self.epoch = epoch
        self.inbound = inbound
        self.owner = owner


class RemoteQos2:
    """Exists in a cluster. ``cluster.qos2.qos2_adapter`` takes its content in the same turn, and updates its
    counters."""

    asked: list[Asked]
    left: list[Left]
    questions: int  # PUBRELs and repeated PUBLISHes that were looked up on other nodes
    windows: int  # time windows in which lookups were collected
    calls: int  # one per node and window
    entries: int  # lookups in them: the number of calls without collecting
    hits: int  # answered by the node of the hint, or by this node, alone
    broadcasts: int  # lookups on all nodes
    held: int  # answers of other nodes, by kind
    completed: int
    unknown: int
    later: int
    answered_completed: int  # answers to clients
    answered_unknown: int
    timed_out: int  # of those: because a node was unreachable

    def __init__(self) -> None:
        self.asked = []
        self.left = []
        self.questions = self.windows = self.calls = self.entries = 0
        self.hits = self.broadcasts = 0
        self.held = self.completed = self.unknown = self.later = 0
        self.answered_completed = self.answered_unknown = self.timed_out = 0

    def figures(self) -> dict[str, int]:
        return {
            "questions": self.questions,
            "windows": self.windows,
            "calls": self.calls,
            "calls_one_by_one": self.entries,
            "hint_hits": self.hits,
            "broadcasts": self.broadcasts,
            "answers/held": self.held,
            "answers/completed": self.completed,
            "answers/unknown": self.unknown,
            "answers/later": self.later,
            "clients/completed": self.answered_completed,
            "clients/unknown": self.answered_unknown,
            "clients/timed_out": self.timed_out,
        }

    def ask(self, client: Client, session: Session, trail: Trail, packet_id: int) -> None:
        trail.waits().asked[packet_id] = None
        self.asked.append(Asked(client, session, packet_id, False))

    def defer(self, client: Client, session: Session, trail: Trail, packet_id: int) -> bool:
        """A PUBLISH that is held now. Returns whether its PUBREC waits, for the lookup or for an earlier PUBREC."""
        backlog = trail.backlog
        if backlog is None:
            return False
        if packet_id in backlog.repeated:
            del backlog.repeated[packet_id]
            backlog.deferred[packet_id] = False
            self.asked.append(Asked(client, session, packet_id, True))
            return True
        if backlog.deferred:
            backlog.deferred[packet_id] = True
            return True
        return False

    def leave(self, session: Session, client_id: str, node: int) -> None:
        """A session migrates away from this ``node``: its handshakes stay, and the session has a hint to them."""
        inbound = session.inbound
        session.inbound = None
        if inbound is not None and inbound.entries:
            epoch = max(session.epoch, 1)
            self.left.append(Left(client_id, epoch, inbound, session.owner))
            session.trail = Trail(node, epoch, True)

    def take_asked(self) -> list[Asked]:
        asked = self.asked
        self.asked = []
        return asked

    def take_left(self) -> list[Left]:
        left = self.left
        self.left = []
        return left
