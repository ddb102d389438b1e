"""Orphaned sessions: this node had them before it was removed from the cluster and joined again under another number.

The other nodes did not know of these sessions in the meantime. The owner keys tell whether their clients have continued
without them: a claim of a client id deletes the keys of nodes that are no longer members. So an orphaned session is its
client's session if the key of the old number still exists and no member has a newer key; then this node claims it. Any
other orphaned session is ended. If the epochs of the share are below that of the session, etcd was set up again from
nothing: no node can tell, so the session is claimed.

Pure: requests out, answers in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from starlingmq.cluster.takeover.owner_store import OwnerKey, OwnerStore

UNDER_WAY_MAX: Final = 60


class OrphanedSessions:
    """``decided``: (client id, whether the session is the client's)."""

    decided: list[tuple[str, bool]]

    def __init__(self, store: OwnerStore, members: Callable[[], Mapping[int, None]]) -> None:
        """``members``: the numbers of all members, when an answer comes."""
        self.decided = []
        self._store = store
        self._members = members
        self._numbers: tuple[int, ...] = ()
        self._epochs: dict[str, int] = {}
        self._asked: dict[str, None] = {}  # client ids whose owners are being read

    def enter(self, numbers: tuple[int, ...], epochs: dict[str, int]) -> None:
        """``numbers``: all that this node has had since it last had no orphaned sessions. ``epochs``: those of all
        orphaned sessions."""
        self._numbers = numbers
        self._epochs = epochs

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._epochs

    def __len__(self) -> int:
        return len(self._epochs)

    def ask(self) -> None:
        """To be called in each turn once this node is registered."""
        if not self._epochs or len(self._asked) == len(self._epochs):
            return
        for client_id in self._epochs:
            if len(self._asked) >= UNDER_WAY_MAX:
                break
            if client_id not in self._asked:
                self._asked[client_id] = None
                self._store.read(client_id, self._decide)

    def _decide(self, client_id: str, newest: int, keys: tuple[OwnerKey, ...]) -> None:
        del self._asked[client_id]
        epoch = self._epochs.pop(client_id)
        # the store was replaced by a new one since, which knows nothing about this session
        younger = newest < epoch
        self.decided.append((client_id, younger or self._is_ours(epoch, keys)))

    def _is_ours(self, epoch: int, keys: tuple[OwnerKey, ...]) -> bool:
        ours, members = False, self._members()
        if any(key.node in self._numbers and key.node in members and key.epoch >= epoch for key in keys):
            return True  # an earlier incarnation has claimed it: later claims have found that key
        for key in keys:
            if key.node == 0:  # the leader of the share does not know earlier keys
                ours = ours or epoch < key.epoch
            elif key.node in self._numbers:
                ours = ours or key.epoch >= epoch
            elif key.node in members and key.epoch > epoch:
                return False
        return ours

    def take_decided(self) -> list[tuple[str, bool]]:
        decided, self.decided = self.decided, []
        return decided
