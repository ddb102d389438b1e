"""One session on its way from this node to its new owner: what of it has been said, and whose marks are here."""

from __future__ import annotations

from collections.abc import Iterable

from starlingmq.cluster.arrivals import Arrival
from starlingmq.core.moving import Moving
from starlingmq.core.session import MOVED_PREFIX, Session


def departed(name: str) -> tuple[int, int, str] | None:
    """New owner, its epoch, and client id of a session that left; None for any other."""
    if not name.startswith(MOVED_PREFIX):
        return None
    epoch, node, client_id = name[len(MOVED_PREFIX) :].split("/", 2)
    return int(node), int(epoch), client_id


class Departure:
    session: Session  # under its other name
    target: int
    epoch: int
    client_id: str
    whole: bool  # its window has been given away
    changed: bool  # since it was stored
    _passed: dict[int, None]

    def __init__(self, session: Session, target: int, epoch: int, client_id: str) -> None:
        self.session = session
        self.target = target
        self.epoch = epoch
        self.client_id = client_id
        self.whole = False
        self.changed = False
        self._passed = {}
        if session.moving is None:  # of an earlier life
            session.moving = Moving(client_id)
            session.moving.target, session.moving.epoch = target, epoch
            session.moving.parted = True

    def is_earlier(self, epoch: int) -> bool:
        """Whether it is of an earlier owner than that one; it may be on its way to a later one still."""
        return self.session.epoch < epoch

    def mark(self, node: int) -> None:
        """What comes from that node from now on is the new owner's."""
        moving = self.session.moving
        assert moving is not None
        if node not in moving.marked:
            moving.marked[node] = None
            self.changed = True

    def marks(self) -> list[int]:
        moving = self.session.moving
        assert moving is not None
        return list(moving.marked)

    def restore(self, marks: list[int]) -> None:
        for node in marks:
            self.mark(node)
        self.changed = False

    def unpassed(self, arrivals: Iterable[Arrival]) -> list[int]:
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
