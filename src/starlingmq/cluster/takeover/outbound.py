"""One session that moves from this node to its new owner: the parts that were sent, and the cut markers that have
arrived.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.cluster.takeover.outbound_states import OUTBOUND_TABLE, OutboundAction, OutboundEvent, OutboundState
from starlingmq.core.session.migration_state import MigrationState
from starlingmq.core.session.session import MOVED_PREFIX, Session


def moved_session(name: str) -> tuple[int, int, str] | None:
    """(new owner, its epoch, client id) by the name of a session that has left; None for any other session."""
    if not name.startswith(MOVED_PREFIX):
        return None
    epoch, node, client_id = name[len(MOVED_PREFIX) :].split("/", 2)
    return int(node), int(epoch), client_id


class OutboundSession:
    session: Session  # stored under the name of a moved session
    target: int
    epoch: int
    client_id: str
    state: OutboundState
    changed: bool  # since it was last stored
    later: dict[int, None]  # nodes in ``marks`` whose marker is for a still later owner at another node
    _passed: dict[int, None]

    def __init__(self, session: Session, target: int, epoch: int, client_id: str) -> None:
        self.session = session
        self.target = target
        self.epoch = epoch
        self.client_id = client_id
        self.state = OutboundState.WINDOW
        self.changed = False
        self.later = {}
        self._passed = {}
        if session.moving is None:  # restored from an earlier incarnation
            session.moving = MigrationState(client_id)
            session.moving.target, session.moving.epoch = target, epoch
            session.moving.parted = True

    def step(self, event: OutboundEvent) -> tuple[OutboundAction, ...]:
        row = OUTBOUND_TABLE.step(self.state, event)
        self.state = row.next
        return row.actions

    def is_earlier(self, epoch: int) -> bool:
        """Whether the session here is older than that epoch. The target may hand it on to a still later owner."""
        return self.session.epoch < epoch

    def mark(self, node: int, later: bool) -> None:
        """From now on the new owner delivers the messages of that node, or a still later owner does (``later``)."""
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
        """Its markers, then 0 and the markers that are for a later owner, if there are any."""
        return [*self.marks(), 0, *self.later] if self.later else self.marks()

    def restore(self, stored: list[int]) -> None:
        end = stored.index(0) if 0 in stored else len(stored)
        for node in stored[:end]:
            self.mark(node, node in stored[end:])
        self.changed = False

    def newly_passed(self, inbound_sessions: Iterable[InboundSession]) -> list[int]:
        """Nodes whose earlier messages are complete, as the new owner does not know yet: none of them is at this node
        or still reaches the target through it. ``inbound_sessions``: those of this client id. Messages that an
        earlier owner still has of a node come before those that the new owner gets from that node directly."""
        sources = [inbound for inbound in inbound_sessions if inbound.session is self.session]
        nodes = [
            node
            for node in self.marks()
            if node not in self._passed and all(inbound.ordered(node) for inbound in sources)
        ]
        self._passed.update(dict.fromkeys(nodes))
        return nodes
