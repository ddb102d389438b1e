"""Keys of owners that an earlier life of this node has left in etcd, and that say nothing any more.

A node that dies leaves the keys of clients whose sessions end with their connection, and those of claims that were
answered and of which it stored nothing. In its next life it reads all keys of owners once, some at a time, and releases
those of its earlier lives of which it has nothing.

Pure: requests out, answers in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlingmq.cluster.etcd.etcd_requests import Get, KeyValue, Txn, TxnAnswer
from starlingmq.cluster.takeover.ownership import Ownership

PAGE: Final = 500  # keys
PAUSE_SECONDS: Final = 0.1  # between two pages: nobody waits for it
RETRY_SECONDS: Final = 2.0
TAG: Final = "owner-sweep"


class OwnerKeyGc:
    released: int

    def __init__(self, ownership: Ownership, has: Callable[[str], bool]) -> None:
        """``has`` tells whether anything of a client id is here."""
        self.released = 0
        self._ownership = ownership
        self._has = has
        self._me = 0
        self._incarnation = 0
        self._after = b""
        self._next = 0.0  # when the next page is to be asked for; 0.0: none is
        self._asked = False

    def enter(self, me: int, incarnation: int, now: float) -> None:
        """Our number is known. In its first life a node has left nothing."""
        self._me, self._incarnation = me, incarnation
        self._next = now if incarnation > 1 else 0.0

    def take_requests(self, now: float) -> list[Txn]:
        if self._asked or self._next == 0.0 or now < self._next:
            return []
        self._asked = True
        return [Txn(TAG, (), (Get(self._ownership.prefix, prefix=True, limit=PAGE, after=self._after),))]

    def answered(self, answer: TxnAnswer, now: float) -> None:
        """An answer; those to others are not looked at."""
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
        """When ``take_requests`` has something though nothing happens; 0.0: never."""
        return 0.0 if self._asked else self._next
