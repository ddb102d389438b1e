"""Deletes owner keys of earlier incarnations of this node that have no state behind them.

A node that crashes leaves two kinds of such keys: those of clients whose sessions ended with their connection, and
those of claims that were answered and stored nothing. After its restart the node reads all owner keys once, page by
page, and deletes those of its earlier incarnations for which it has no state.

Pure: requests out, answers in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlingmq.cluster.etcd.etcd_requests import Get, KeyValue, Txn, TxnAnswer
from starlingmq.cluster.takeover.ownership import Ownership

PAGE: Final = 500  # keys
PAUSE_SECONDS: Final = 0.1  # between two pages, to keep the load on etcd low
RETRY_SECONDS: Final = 2.0
TAG: Final = "owner-sweep"


class OwnerKeyGc:
    released: int

    def __init__(self, ownership: Ownership, has: Callable[[str], bool]) -> None:
        """``has``: whether this node has any state of a client id."""
        self.released = 0
        self._ownership = ownership
        self._has = has
        self._me = 0
        self._incarnation = 0
        self._after = b""
        self._next = 0.0  # when to request the next page; 0.0: there is none
        self._asked = False

    def enter(self, me: int, incarnation: int, now: float) -> None:
        """This node's number is known. A first incarnation has left no keys."""
        self._me, self._incarnation = me, incarnation
        self._next = now if incarnation > 1 else 0.0

    def take_requests(self, now: float) -> list[Txn]:
        if self._asked or self._next == 0.0 or now < self._next:
            return []
        self._asked = True
        return [Txn(TAG, (), (Get(self._ownership.prefix, prefix=True, limit=PAGE, after=self._after),))]

    def answered(self, answer: TxnAnswer, now: float) -> None:
        """Takes the answer to this module's request; ignores others."""
        if answer.tag != TAG or not self._asked:
            return
        self._asked = False
        if answer.error:
            self._next = now + RETRY_SECONDS
            return
        page = answer.found[0] if answer.found else ()
        for entry in page:
            self._look_at(entry)
        self._next = now + PAUSE_SECONDS if len(page) == PAGE else 0.0
        self._after = page[-1].key if page else b""

    def _look_at(self, entry: KeyValue) -> None:
        found = self._ownership.names(entry.key)
        incarnation = entry.value.partition(b" ")[0]
        if found is None or found[1] != self._me or not incarnation.isdigit():
            return
        if int(incarnation) < self._incarnation and not self._has(found[0]):
            self.released += 1
            self._ownership.release(found[0], self._me, entry.mod_revision)

    def wake_at(self) -> float:
        """When ``take_requests`` has to be called without an event; 0.0: never."""
        return 0.0 if self._asked else self._next
