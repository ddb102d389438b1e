"""QoS 2 handshakes that may be at other nodes: where to look, what is to be asked, what was left here.

Handshakes do not move with their session. The node that has one keeps it, and a PUBREL that finds nothing at its own
node is asked about (``cluster.qos2.qos2_lookup``). What costs nothing while a client stays where it is: a session has
no ``Trail``, or a PUBREL is known here and the trail is not looked at.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.session.qos import Inbound
from starlingmq.core.session.session import Client, Session
from starlingmq.core.session.trail import Trail

# What became of a question.
COMPLETED: Final = 1  # the message went its way, once
UNKNOWN: Final = 2  # no node has it
CANCELLED: Final = 3  # what other nodes had of it is gone
TIMED_OUT: Final = 4  # a node that may have it could not be asked in time


class Asked:
    """A PUBREL that is not known here; ``again``: a PUBLISH that is sent again, which other nodes are to forget."""

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
    """What a session that went to another node leaves here."""

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
    """In a cluster; what ``cluster.qos2.qos2_adapter`` takes in the same turn, and what it counts."""

    asked: list[Asked]
    left: list[Left]
    questions: int  # PUBRELs and repeated PUBLISHes of which others were asked
    windows: int  # in which some were collected
    calls: int  # one for each node and window
    entries: int  # questions in them: so many calls it would have been one by one
    hits: int  # answered by the node that the hint names, or by ourselves, and by nobody else
    broadcasts: int  # questions to all
    held: int  # answers of other nodes, by kind
    completed: int
    unknown: int
    later: int
    told_completed: int  # what clients were told
    told_unknown: int
    timed_out: int  # of those: because some node was not to be reached

    def __init__(self) -> None:
        self.asked = []
        self.left = []
        self.questions = self.windows = self.calls = self.entries = 0
        self.hits = self.broadcasts = 0
        self.held = self.completed = self.unknown = self.later = 0
        self.told_completed = self.told_unknown = self.timed_out = 0

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
            "clients/completed": self.told_completed,
            "clients/unknown": self.told_unknown,
            "clients/timed_out": self.timed_out,
        }

    def ask(self, client: Client, session: Session, trail: Trail, packet_id: int) -> None:
        trail.waits().asked[packet_id] = None
        self.asked.append(Asked(client, session, packet_id, False))

    def defer(self, client: Client, session: Session, trail: Trail, packet_id: int) -> bool:
        """A PUBLISH that is held now: whether its PUBREC waits, for what others have of it or for an earlier one."""
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
        """A session leaves this ``node``: its handshakes stay, and it is known from now on where they are."""
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
