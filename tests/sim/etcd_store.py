"""The content of etcd, and the effect of a transaction on it: revisions, history, compaction, keys that hang on leases.

One change of the store is one revision, whatever the number of keys in it. A transaction that changes nothing has
none. An empty etcd is at revision 1. Compared with a real etcd by ``tests/net/test_etcd_twins.py``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, Final

from starlingmq.cluster.etcd.etcd_requests import (
    Compare,
    Delete,
    Get,
    KeyChange,
    KeyValue,
    Operation,
    Put,
    Txn,
    TxnAnswer,
)

OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


class LeaseNotFound(Exception):
    """The transaction would write with a lease that there is none of; nothing is done."""


class Store:
    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        self.leases: dict[int, set[bytes]] = {}  # id -> keys
        self.written: dict[bytes, int] = {}  # all values that there ever were, and how often they were put
        self._keys: dict[bytes, KeyValue] = {}
        self._history: list[tuple[int, tuple[KeyChange, ...]]] = []

    def transact(self, txn: Txn, lease: int) -> TxnAnswer:
        """Raises LeaseNotFound, and ValueError for what etcd refuses whatever it holds."""
        succeeded = all(self._holds(compare) for compare in txn.compares)
        operations = txn.success if succeeded else txn.failure
        _check(txn.success)
        _check(txn.failure)
        if lease not in self.leases and any(isinstance(each, Put) and each.leased for each in operations):
            raise LeaseNotFound
        changes: list[KeyChange] = []
        found = tuple(self._apply(each, lease, changes) for each in operations)
        self._commit(changes)
        return TxnAnswer(txn.tag, succeeded, self.revision, found)

    def end_lease(self, lease: int) -> None:
        """All keys that were written with the lease are deleted, in one revision."""
        changes: list[KeyChange] = []
        for key in sorted(self.leases.get(lease, ())):
            self._delete(key, changes)
        self.leases.pop(lease, None)
        self._commit(changes)

    def changes_since(self, prefix: bytes, revision: int) -> list[tuple[int, tuple[KeyChange, ...]]]:
        """By revision, from ``revision`` on; only those with a change below ``prefix``."""
        told = []
        for at, changes in self._history:
            below = tuple(change for change in changes if change.key.startswith(prefix))
            if at >= revision and below:
                told.append((at, below))
        return told

    def compact(self, revision: int) -> None:
        """Forget what came before ``revision``; the present keys stay."""
        self.compacted = max(self.compacted, min(revision, self.revision))
        self._history = [entry for entry in self._history if entry[0] >= self.compacted]

    def get(self, key: bytes, prefix: bool = False) -> tuple[KeyValue, ...]:
        if not prefix:
            return (self._keys[key],) if key in self._keys else ()
        return tuple(self._keys[each] for each in sorted(self._keys) if each.startswith(key))

    def _holds(self, compare: Compare) -> bool:
        entry = self._keys.get(compare.key)
        if entry is None and compare.target == "value":
            return False
        return OPERATORS[compare.operator](0 if entry is None else getattr(entry, compare.target), compare.operand)

    def _apply(self, operation: Operation, lease: int, changes: list[KeyChange]) -> tuple[KeyValue, ...]:
        if isinstance(operation, Get):
            found = self.get(operation.key, operation.prefix)
            if operation.limit:
                found = tuple(entry for entry in found if entry.key > operation.after)[: operation.limit]
            return found
        if isinstance(operation, Put):
            self._put(operation, lease, changes)
        else:
            for entry in self.get(operation.key, operation.prefix):
                self._delete(entry.key, changes)
        return ()

    def _put(self, put: Put, lease: int, changes: list[KeyChange]) -> None:
        revision = self.revision + 1
        before = self._keys.get(put.key)
        if before is not None and before.lease:
            self.leases[before.lease].discard(put.key)
        if put.leased:
            self.leases[lease].add(put.key)
        created = revision if before is None else before.create_revision
        self.written[put.value] = self.written.get(put.value, 0) + 1
        self._keys[put.key] = KeyValue(put.key, put.value, created, revision, lease if put.leased else 0)
        changes.append(KeyChange(put.key, put.value, revision, created))

    def _delete(self, key: bytes, changes: list[KeyChange]) -> None:
        entry = self._keys.pop(key)
        if entry.lease:
            self.leases[entry.lease].discard(key)
        changes.append(KeyChange(key, None, self.revision + 1))

    def _commit(self, changes: list[KeyChange]) -> None:
        if changes:
            self.revision += 1
            self._history.append((self.revision, tuple(changes)))


def _check(operations: Iterable[Operation]) -> None:
    """etcd writes a key once in a transaction: no two puts of it, no put of what is deleted as well."""
    puts = [each.key for each in operations if isinstance(each, Put)]
    deletes = [each for each in operations if isinstance(each, Delete)]
    for key in puts:
        if puts.count(key) > 1 or any(key.startswith(d.key) if d.prefix else key == d.key for d in deletes):
            raise ValueError(f"a transaction that writes {key!r} twice")
