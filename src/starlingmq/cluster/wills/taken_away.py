"""Wills of this node that other nodes have taken, to publish them: the leader of the share, which took this node for
gone, or a node to which the client had gone before it came back here.

Law: a client that is back here is not answered while such a will may still be published. This node deletes its key as
soon as it has seen that the will is taken; so this is remembered here. It ends with the other node's copy, or with its
word that it has nothing to publish, or after the time in which it may publish the copy (``WillSettlements``).
"""

from __future__ import annotations

from typing import Final

from starlingmq.cluster.wills.will_settlement import WillSettlements

KEPT_SECONDS: Final = 60.0  # many times as long as a taken will may be published


class TakenAway:
    def __init__(self, settling: WillSettlements) -> None:
        self._settling = settling
        self._by_client: dict[str, tuple[int, int, float]] = {}  # client id -> (taker, id of the will, until); by time

    def __len__(self) -> int:
        return len(self._by_client)

    def note(self, client_id: str, taker: int, will: int, now: float) -> None:
        """``taker`` has taken the client's will with that id."""
        self._by_client.pop(client_id, None)
        self._by_client[client_id] = taker, will, now + KEPT_SECONDS

    def has_nothing(self, client_id: str, node: int) -> None:
        """That node says that it has no will of the client to publish."""
        if client_id in self._by_client and self._by_client[client_id][0] == node:
            del self._by_client[client_id]

    def is_unpublished(self, client_id: str) -> bool:
        """Whether a will of the client that another node has taken may still be published. To be called until it
        returns False."""
        found = self._by_client.get(client_id)
        if found is None:
            return False
        if self._settling.is_published(client_id, found[0], found[1]):
            del self._by_client[client_id]
            return False
        return True

    def turn(self, now: float) -> None:
        while self._by_client:
            client_id, (_, _, until) = next(iter(self._by_client.items()))
            if now < until:
                break
            del self._by_client[client_id]
