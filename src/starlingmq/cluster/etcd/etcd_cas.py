"""Compare-and-set updates of keys in etcd: many in one transaction, each of them done at most once.

If one comparison of a transaction fails, none of its updates is done. The same request then reads the current keys, and
the updates that still match go again. A transaction without an answer may or may not have been done: it is repeated,
and changes nothing if it was. No second update of a key is requested before the first one is answered.

Pure: requests out, answers in.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from starlingmq.cluster.etcd.etcd_requests import Compare, Delete, Get, Operation, Put, Txn, TxnAnswer
from starlingmq.cluster.etcd.etcd_retry import EtcdRetry

PER_TXN: Final = 60  # updates, each with one operation in ``also`` at most; etcd's default limit is 128
BYTES_PER_TXN: Final = 512 * 1024
RETRY_SECONDS: Final = 0.1  # after an error of etcd
RETRY_SECONDS_MAX: Final = 2.0


class CasUpdate:
    """Sets ``key`` to ``value`` (None: deletes it) if its last revision is ``revision`` (0: if it does not exist), and
    does ``also`` with it."""

    __slots__ = ("also", "key", "revision", "value")

    def __init__(self, key: bytes, revision: int, value: bytes | None, also: tuple[Put, ...] = ()) -> None:
        self.key = key
        self.revision = revision
        self.value = value
        self.also = also


class CasResult:
    """``done``: updates that were done, with their new revision. ``void``: updates that do not match, with the key's
    current revision and value (0 and b"": none)."""

    def __init__(self) -> None:
        self.revision = 0
        self.done: list[CasUpdate] = []
        self.void: list[tuple[CasUpdate, int, bytes]] = []


class EtcdCas:
    def __init__(self, tag: str) -> None:
        self._prefix = tag
        self._waiting: dict[bytes, CasUpdate] = {}
        self._batch: dict[bytes, CasUpdate] = {}  # of the outstanding transaction
        self._tag = ""  # of the outstanding transaction
        self._tags = 0
        self._retry = EtcdRetry(RETRY_SECONDS, RETRY_SECONDS_MAX)

    def __contains__(self, key: bytes) -> bool:
        return key in self._waiting or key in self._batch

    def add(self, amendment: CasUpdate) -> None:
        """Replaces an earlier update of the same key, unless that one is outstanding."""
        self._waiting[amendment.key] = amendment

    def take_requests(self, now: float) -> list[Txn]:
        if now < self._retry.at or self._batch or not self._waiting:
            return []
        size = 0
        for key in list(islice(self._waiting, PER_TXN)):
            if size >= BYTES_PER_TXN:
                break
            each = self._batch[key] = self._waiting.pop(key)
            size += len(key) + len(each.value or b"") + sum([len(put.value) for put in each.also])
        return [self._request(list(self._batch.values()))]

    def _request(self, batch: list[CasUpdate]) -> Txn:
        self._tags += 1
        self._tag = f"{self._prefix} {self._tags}"
        compares = tuple([Compare(each.key, "mod_revision", "=", each.revision) for each in batch])
        writes: list[Operation] = []
        for each in batch:
            writes.append(Delete(each.key) if each.value is None else Put(each.key, each.value))
            writes += each.also
        return Txn(self._tag, compares, tuple(writes), tuple([Get(each.key) for each in batch]))

    def answered(self, answer: TxnAnswer, now: float) -> CasResult | None:
        """The result of the outstanding transaction; None for an answer to another module."""
        if not self._batch or answer.tag != self._tag:
            return None
        batch, self._batch = list(self._batch.values()), {}
        amended = CasResult()
        amended.revision = answer.revision
        if answer.error:
            self._retry.failed(now)
            for each in batch:
                self._waiting.setdefault(each.key, each)
            return amended
        self._retry.succeeded()
        if answer.succeeded:
            amended.done = batch
            return amended
        for each, found in zip(batch, answer.found, strict=True):
            revision = found[0].mod_revision if found else 0
            if revision == each.revision:
                self._waiting.setdefault(each.key, each)
            else:
                amended.void.append((each, revision, found[0].value if found else b""))
        return amended

    def wake_at(self) -> float:
        """When ``take_requests`` has to be called without an event; 0.0: never."""
        return self._retry.at if self._waiting and not self._batch else 0.0
