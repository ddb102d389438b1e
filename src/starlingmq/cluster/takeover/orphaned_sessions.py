"""Orphaned sessions: this node had them before it was removed from the cluster and joined again under another number.

The other nodes did not know of these sessions in the meantime. The owner keys tell whether their clients have continued
without them: a claim of a client id deletes the keys of nodes that are no longer members. So an orphaned session is its
client's session if the key of the old number still exists and no member has a newer key; then this node claims it. Any
other orphaned session is ended.

Pure: requests out, answers in.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from starlingmq.cluster.etcd.etcd_requests import Get, KeyValue, Txn, TxnAnswer
from starlingmq.cluster.takeover.ownership import Ownership

READS_PER_TXN: Final = 60
RETRY_SECONDS: Final = 0.5
TAG: Final = "strays "


class OrphanedSessions:
    """``decided``: (client id, whether the session is the client's)."""

    decided: list[tuple[str, bool]]

    def __init__(self, ownership: Ownership) -> None:
        self.decided = []
        self._ownership = ownership
        self._numbers: tuple[int, ...] = ()
        self._epochs: dict[str, int] = {}
        self._asked: list[str] = []  # the client ids that the outstanding request is about
        self._tag = ""
        self._tags = 0
        self._retry_at = 0.0

    def enter(self, numbers: tuple[int, ...], epochs: dict[str, int]) -> None:
        """``numbers``: all that this node has had since it last had no orphaned sessions. ``epochs``: those of all
        orphaned sessions."""
        self._numbers = numbers
        self._epochs = epochs

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._epochs

    def __len__(self) -> int:
        return len(self._epochs)

    def take_requests(self, now: float) -> list[Txn]:
        """To be called once this node is registered."""
        if self._tag or not self._epochs or now < self._retry_at:
            return []
        self._asked = list(islice(self._epochs, READS_PER_TXN))
        self._tags += 1
        self._tag = f"{TAG}{self._tags}"
        reads = tuple([Get(self._ownership.key(client_id), prefix=True) for client_id in self._asked])
        return [Txn(self._tag, (), reads)]

    def answered(self, answer: TxnAnswer, members: Mapping[int, None], now: float) -> None:
        """Takes the answer to this module's request; ignores others. ``members``: the numbers of all members."""
        if not self._tag or answer.tag != self._tag:
            return
        self._tag = ""
        if answer.error:
            self._retry_at = now + RETRY_SECONDS
            return
        for client_id, found in zip(self._asked, answer.found, strict=True):
            epoch = self._epochs.pop(client_id)
            # etcd was replaced by a new one since, which knows nothing about this session
            younger = answer.revision < epoch
            self.decided.append((client_id, younger or self._is_ours(client_id, epoch, found, members)))

    def _is_ours(self, client_id: str, epoch: int, found: tuple[KeyValue, ...], members: Mapping[int, None]) -> bool:
        ours = False
        for entry in found:
            name = entry.key[len(self._ownership.key(client_id)) :]
            node = int(name) if name.isdigit() else 0
            if node == 0:  # of a share (cluster.shares) whose leader does not know earlier keys
                ours = ours or epoch < entry.mod_revision
            elif node in self._numbers:
                ours = ours or entry.mod_revision >= epoch
            elif node in members and entry.mod_revision > epoch:
                return False
        return ours

    def take_decided(self) -> list[tuple[str, bool]]:
        decided, self.decided = self.decided, []
        return decided

    def wake_at(self) -> float:
        """When ``take_requests`` has to be called without an event; 0.0: never."""
        return 0.0 if self._tag or not self._epochs else self._retry_at
