"""The simulator's etcd for many keys: the same answers, from an index, and watches receive only their own events."""

from __future__ import annotations

from bisect import bisect_left, insort
from functools import partial
from random import Random

from tests.sim.etcd_model import EtcdModel, Session
from tests.sim.etcd_store import Store

from starlingmq.cluster.etcd.etcd_requests import Get, KeyChange, KeyValue, Operation, Put, Txn


class QuickStore(Store):
    def __init__(self) -> None:
        super().__init__()
        self._sorted: list[bytes] = []
        self._revisions: list[int] = []

    def get(self, key: bytes, prefix: bool = False) -> tuple[KeyValue, ...]:
        return self._page(Get(key, prefix=True)) if prefix else super().get(key)

    def last_changes(self) -> tuple[KeyChange, ...]:
        return self._history[-1][1] if self._history else ()

    def changes_since(self, prefix: bytes, revision: int) -> list[tuple[int, tuple[KeyChange, ...]]]:
        told = []
        for at, changes in self._history[bisect_left(self._revisions, revision) :]:
            below = tuple(change for change in changes if change.key.startswith(prefix))
            if below:
                told.append((at, below))
        return told

    def _page(self, operation: Get) -> tuple[KeyValue, ...]:
        first = bisect_left(self._sorted, max(operation.key, operation.after + b"\0" if operation.after else b""))
        found: list[KeyValue] = []
        for place in range(first, len(self._sorted)):
            if not self._sorted[place].startswith(operation.key) or len(found) == operation.limit > 0:
                break
            found.append(self._keys[self._sorted[place]])
        return tuple(found)

    def _apply(self, operation: Operation, lease: int, changes: list[KeyChange]) -> tuple[KeyValue, ...]:
        if isinstance(operation, Get) and operation.prefix:
            return self._page(operation)
        return super()._apply(operation, lease, changes)

    def _put(self, put: Put, lease: int, changes: list[KeyChange]) -> None:
        if put.key not in self._keys:
            insort(self._sorted, put.key)
        super()._put(put, lease, changes)

    def _delete(self, key: bytes, changes: list[KeyChange]) -> None:
        del self._sorted[bisect_left(self._sorted, key)]
        super()._delete(key, changes)

    def _commit(self, changes: list[KeyChange]) -> None:
        if changes:
            self._revisions.append(self.revision + 1)
        super()._commit(changes)


class QuickEtcd(EtcdModel):
    store: QuickStore

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.store = QuickStore()
        self.requests = 0  # transactions
        self.puts = 0  # that these may do

    def submit(self, session: Session, txn: Txn, now: float) -> None:
        self.requests += 1
        self.puts += sum(isinstance(each, Put) for each in txn.success)
        super().submit(session, txn, now)

    def _changed(self, before: int, now: float) -> None:
        if self.store.revision == before:
            return
        keys = [change.key for change in self.store.last_changes()]
        for session in self._sessions.values():
            for prefix, stream in session.streams.items():
                if any(key.startswith(prefix) for key in keys):
                    self._later(now, partial(self._tell, session, stream))
