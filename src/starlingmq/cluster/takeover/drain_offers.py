"""Sessions that draining nodes offer to this one (``cluster.balance.drain``).

An offer is for one epoch. Before the resulting claim is answered, another node may have claimed the client id because
its client has connected there. Then the offer is void, and this node's key is deleted again.
"""

from __future__ import annotations

from starlingmq.cluster.takeover.ownership import Owned, Ownership
from starlingmq.cluster.takeover.transfer_frames import Offer
from starlingmq.core.context.context import Context
from starlingmq.core.session.session import GROUP_PREFIX, MOVED_PREFIX, NATS_PREFIX, NODE_PREFIX


class DrainOffers:
    accepted: int

    def __init__(self, ctx: Context, ownership: Ownership) -> None:
        self.accepted = 0
        self._ctx = ctx
        self._ownership = ownership
        self._invited: dict[str, tuple[int, int]] = {}  # client id -> (node that has it, its epoch there)

    def offered(self, node: int, frame: Offer) -> list[str]:
        """Claims the offered client ids. Returns those that are declined."""
        ctx = self._ctx
        if ctx.isolated or ctx.connect_admission.shut or ctx.refusing or ctx.catching_up:
            return [client_id for client_id, _ in frame.entries]
        for client_id, epoch in frame.entries:
            session = ctx.sessions.get(client_id)
            if client_id.startswith((NODE_PREFIX, NATS_PREFIX, MOVED_PREFIX, GROUP_PREFIX)):
                continue
            if session is not None and session.epoch > epoch:
                continue  # the session here is newer: that node has been told, or will be
            self._invited[client_id] = (node, epoch)
            self._ownership.claim(client_id)
        return []

    def offer(self, client_id: str) -> tuple[int, int] | None:
        """(node, epoch) of the offer for which this node claims the client id."""
        return self._invited.get(client_id)

    def forget(self, client_id: str) -> None:
        self._invited.pop(client_id, None)

    def holds(self, owned: Owned, node: int, epoch: int) -> bool:
        """Whether the offer still holds: no other node has claimed the client id since."""
        if self._has_newer(owned.client_id, epoch):
            return True
        if epoch != 0 and owned.others.get(node) != epoch:
            return False
        return not any(held > epoch for other, held in owned.others.items() if other != node)

    def take(self, owned: Owned, node: int, epoch: int) -> bool:
        """Counts the offer, if it holds. Returns whether it does."""
        holds = self.holds(owned, node, epoch)
        if holds and not self._has_newer(owned.client_id, epoch):
            self.accepted += 1
        return holds

    def _has_newer(self, client_id: str, epoch: int) -> bool:
        """Whether the session has arrived here since."""
        session = self._ctx.sessions.get(client_id)
        return session is not None and session.epoch > epoch
