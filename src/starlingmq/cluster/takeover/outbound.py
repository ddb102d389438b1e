"""One session on its way from this node to its new owner: what of it has been said, and whose marks are here."""

from __future__ import annotations

from collections.abc import Iterable

from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.core.session.migration_state import MigrationState
from starlingmq.core.session.session import MOVED_PREFIX, Session


def departed(name: str) -> tuple[int, int, str] | None:
    """New owner, its epoch, and client id of a session that left; None for any other."""
    if not name.startswith(MOVED_PREFIX):
        return None
    epoch, node, client_id = name[len(MOVED_PREFIX) :].split("/", 2)
    return int(node), int(epoch), client_id


class OutboundSession:
    session: Session  # under its other name
    target: int
    epoch: int
    client_id: str
    whole: bool  # its window has been given away
    changed: bool  # since it was stored
    later: dict[int, None]  # nodes whose mark for a still later owner, at another node, is here: of ``marks``
    _passed: dict[int, None]

    def __init__(self, session: Session, target: int, epoch: int, client_id: str) -> None:
        self.session = session
        self.target = target
        self.epoch = epoch
        self.client_id = client_id
        self.whole = False
        self.changed = False
        self.later = {}
        self._passed = {}
        if session.moving is None:  # of an earlier life
            session.moving = MigrationState(client_id)
            session.moving.target, session.moving.epoch = target, epoch
            session.moving.parted = True

    def is_earlier(self, epoch: int) -> bool:
        """Whether it is of an earlier owner than that one; it may be on its way to a later one still."""
        return self.session.epoch < epoch

    def mark(self, node: int, later: bool) -> None:
        """What comes from that node from now on is the new owner's, or a still later one's (``later``)."""
        moving = self.session.moving
        assert moving is not None
        if node not in moving.marked:
            moving.marked[node] = None
            self.changed = True
        if later and node not in self.later:
            self.later[node] = None
            self.changed = True

    def marks(self) -> list[int]:
        moving = self.session.moving
        assert moving is not None
        return list(moving.marked)

    def stored(self) -> list[int]:
        """Its marks, and behind 0 those of them that are for a later owner."""
        return [*self.marks(), 0, *self.later] if self.later else self.marks()

    def restore(self, stored: list[int]) -> None:
        end = stored.index(0) if 0 in stored else len(stored)
        for node in stored[:end]:
            self.mark(node, node in stored[end:])
        self.changed = False

    def unpassed(self, arrivals: Iterable[InboundSession]) -> list[int]:
        """Nodes of which nothing is here any more nor comes by way of here, and the new owner does not know that yet.
        ``arrivals`` are those of this session: what an earlier owner still has of a node comes before what the new
        owner gets from that node itself."""
        sources = [arrival for arrival in arrivals if arrival.session is self.session]
        nodes = [
            node
            for node in self.marks()
            if node not in self._passed and all(arrival.ordered(node) for arrival in sources)
        ]
        self._passed.update(dict.fromkeys(nodes))
        return nodes
