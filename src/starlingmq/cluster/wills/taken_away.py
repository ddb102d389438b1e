"""Clients of which other nodes have taken wills, to publish them: the leader of the share, which took their node for
gone, or a node where the client was before it came here.

Law: a CONNECT is not answered while such a will may still be published. The node of the will deletes its key as soon as
it has seen that the will is taken, so no key leads to the copy. Therefore the leader says with each claim whether there
are copies, and the node of the will remembers that it is taken, for a claim that was granted before, as long as that
may wait. It ends when no copy is left (``WillSettlements.are_copies_gone``).
"""

from __future__ import annotations

from starlingmq.cluster.wills.will_settlement import KEPT_SECONDS, WillSettlements


class TakenAway:
    def __init__(self, settling: WillSettlements, limit: float) -> None:
        """``limit``: for how many seconds a CONNECT waits at most, here or elsewhere."""
        self._settling = settling
        self._kept = limit + KEPT_SECONDS
        self._until: dict[str, float] = {}  # client id -> when it is forgotten, in that order

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._until

    def note(self, client_id: str, now: float) -> None:
        """Another node has taken a will of the client, and may publish it."""
        self._settling.copies_again(client_id)
        self._keep(client_id, now)

    def _keep(self, client_id: str, now: float) -> None:
        self._until.pop(client_id, None)
        self._until[client_id] = now + self._kept

    def is_unpublished(self, client_id: str, now: float) -> bool:
        """Whether a will of the client that another node has taken may still be published. To be called until it
        returns False."""
        if client_id not in self._until:
            return False
        if self._settling.are_copies_gone(client_id):
            del self._until[client_id]
            return False
        self._keep(client_id, now)
        return True

    def turn(self, now: float) -> None:
        while self._until:
            client_id, until = next(iter(self._until.items()))
            if now < until:
                break
            del self._until[client_id]
            self._settling.forget_copies(client_id)
