"""Sessions that clients lost: counted and logged by reason when CONNACK says session present 0.

Invariant: a loss is reported once. It is reported again only to a client that has sent nothing since the CONNACK that
reported it (``core.connect.session_reset``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.core.connect.session_reset import LOST, sends_session_lost
from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import Notice
from starlingmq.core.session.session import Session

UNREACHABLE: Final = "unreachable"  # a node that may have it is not connected
REMOVED: Final = "removed"  # a node that had it is no longer a member of the cluster
TOLD_AGAIN: Final = "told_again"  # it was lost before, and its client has sent nothing since


class LostSessions:
    counts: dict[str, int]  # by reason

    def __init__(self, ctx: Context, name_of: Callable[[int], str]) -> None:
        self.counts = {}
        self._name_of = name_of
        self._ctx = ctx

    def note(self, session: Session, unheard: list[int], removed: list[int]) -> None:
        """After the CONNACK of the session. ``unheard``, ``removed``: the results of ``unheard_of`` and ``removed_of``
        before it."""
        client = session.client
        if client is None or not sends_session_lost(session):
            return
        if unheard:
            why, detail = UNREACHABLE, self._unreachable(unheard)
        elif removed:
            numbers = " or ".join([str(node) for node in removed])
            why, detail = REMOVED, f"node {numbers} had its session and is no longer a member of the cluster"
        else:
            why, detail = TOLD_AGAIN, "its session was lost before, and it has sent nothing since it was told"
        self.counts[why] = self.counts.get(why, 0) + 1
        self._ctx.notice(LOST, client, detail, closing=False)

    def note_absent(self, client_id: str, unheard: list[int]) -> None:
        """The same without a client: its next CONNACK may tell it."""
        self._ctx.ready.notices.append(Notice(LOST, client_id, "no connection", self._unreachable(unheard), False))

    def _unreachable(self, unheard: list[int]) -> str:
        names = " or ".join([self._name_of(node) for node in unheard])
        return f"node {names} may have its session and is not connected; bring it back"


def unheard_of(inbound_sessions: Iterable[InboundSession], held: int) -> list[int]:
    """Nodes that nothing waits for and that may have a later session than the one here. ``held``: the epoch of the
    session here if it never left."""
    wanted = [inbound for inbound in inbound_sessions if not inbound.discarded]
    held = max([held, *[inbound.best_held for inbound in inbound_sessions]])
    nodes: dict[int, None] = {}
    for inbound in wanted:
        nodes.update(dict.fromkeys([node for node, epoch in inbound.asked().items() if epoch > held]))
    return list(nodes)


def removed_of(inbound_sessions: Iterable[InboundSession], held: int) -> list[int]:
    """Nodes that are no longer members and had a later session than the one here. ``held``: as in ``unheard_of``."""
    held = max([held, *[inbound.best_held for inbound in inbound_sessions]])
    removed = [inbound.removed for inbound in inbound_sessions if not inbound.discarded]
    return list(dict.fromkeys([node for nodes in removed for node, epoch in nodes.items() if epoch > held]))
