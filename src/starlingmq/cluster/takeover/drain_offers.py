"""Sessions that other nodes want this one to have, because they drain (``cluster.balance.drain``).

An offer is about one epoch. When the claim that it led to is answered, somebody else may have claimed the client id in
between, because its client has come back there: then the offer is over, and our key goes again.
"""

from __future__ import annotations

from starlingmq.cluster.takeover.ownership import Owned, Ownership
from starlingmq.cluster.takeover.transfer_frames import Offer
from starlingmq.core.context import Context
from starlingmq.core.session.session import GROUP_PREFIX, MOVED_PREFIX, NATS_PREFIX, NODE_PREFIX


class DrainOffers:
    accepted: int

    def __init__(self, ctx: Context, ownership: Ownership) -> None:
        self.accepted = 0
        self._ctx = ctx
        self._ownership = ownership
        self._invited: dict[str, tuple[int, int]] = {}  # client id -> who has it, and in which epoch

    def offered(self, node: int, said: Offer) -> list[str]:
        """Client ids are claimed; those that are not wanted here."""
        ctx = self._ctx
        if ctx.isolated or ctx.doors.shut or ctx.refusing or ctx.catching_up:
            return [client_id for client_id, _ in said.entries]
        for client_id, epoch in said.entries:
            session = ctx.sessions.get(client_id)
            if client_id.startswith((NODE_PREFIX, NATS_PREFIX, MOVED_PREFIX, GROUP_PREFIX)):
                continue
            if session is not None and session.epoch > epoch:
                continue  # ours is newer: that node has been told, or will be
            self._invited[client_id] = (node, epoch)
            self._ownership.claim(client_id)
        return []

    def invited(self, client_id: str) -> tuple[int, int] | None:
        """Whose session that is which we have claimed; it is claimed no more."""
        return self._invited.pop(client_id, None)

    def holds(self, owned: Owned, node: int, epoch: int) -> bool:
        """Whether it is still as it was when it was offered: nobody else has claimed it since."""
        session = self._ctx.sessions.get(owned.client_id)
        if session is not None and session.epoch > epoch:
            return True  # ours in any case: it has come meanwhile
        if epoch != 0 and owned.others.get(node) != epoch:
            return False
        if any(held > epoch for other, held in owned.others.items() if other != node):
            return False
        self.accepted += 1
        return True
