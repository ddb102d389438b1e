"""Compare-and-set updates of keys in etcd: many in one transaction, each of them done at most once.

If one comparison of a transaction fails, none of its updates is done. The same request then reads the current keys, and
the updates that still match go again. A transaction without an answer may or may not have been done: it is repeated,
and changes nothing if it was. No second update of a key is requested before the first one is answered.

Pure: requests out, answers in.
"""

from __future__ import annotations

from typing import Final

from starlingmq.cluster.etcd.etcd_requests import Compare, Delete, Get, Operation, Put, Txn, TxnAnswer
from starlingmq.cluster.etcd.etcd_retry import EtcdRetry

PER_TXN: Final = 60  # updates, or up to as many operations in ``also`` instead; etcd's default limit is 128
BYTES_PER_TXN: Final = 512 * 1024
RETRY_SECONDS: Final = 0.1  # after an error of etcd
RETRY_SECONDS_MAX: Final = 2.0


class CasUpdate:
    """Sets ``key`` to ``value`` (None: deletes it) if its last revision is ``revision`` (0: if it does not exist), and
    does ``also`` with it. ``sent_at``: when it was last requested."""

    __slots__ = ("also", "key", "revision", "sent_at", "value")

    def __init__(self, key: bytes, revision: int, value: bytes | None, also: tuple[Put, ...] = ()) -> None:
        self.key = key
        self.revision = revision
        self.value = value
        self.also = also
        self.sent_at = 0.0


class CasResult:
    """``done``: updates that were done, with their new revision. ``void``: updates that do not match, with the key's
    current revision and value (0 and b"": none)."""

    def __init__(self) -> None:
        self.revision = 0
        self.done: list[CasUpdate] = []
        self.void: list[tuple[CasUpdate, int, bytes]] = []


class EtcdCas:
    def __init__(self, tag: str, per_txn: int = PER_TXN, under_way_max: int = 1) -> None:
        """``under_way_max``: transactions that are outstanding at a time."""
        self._prefix = tag
        self._per_txn = per_txn
        self._under_way_max = under_way_max
        self._waiting: dict[bytes, CasUpdate] = {}
        self._batches: dict[str, list[CasUpdate]] = {}  # by the tag of their transaction
        self._under_way: dict[bytes, None] = {}  # the keys of the batches
        self._tags = 0
        self._retry = EtcdRetry(RETRY_SECONDS, RETRY_SECONDS_MAX)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._under_way)

    def __contains__(self, key: bytes) -> bool:
        return key in self._waiting or key in self._under_way

    def add(self, amendment: CasUpdate) -> None:
        """Replaces an earlier update of the same key, unless that one is outstanding."""
        self._waiting[amendment.key] = amendment

    def take_requests(self, now: float) -> list[Txn]:
        requests: list[Txn] = []
        if now < self._retry.at:
            return requests
        room = self._under_way_max - len(self._batches)
        keys = self._free_keys(room * self._per_txn)
        place = 0
        while place < len(keys) and len(requests) < room:
            batch = self._begin(keys[place : place + self._per_txn], now)
            requests.append(self._request(batch))
            place += len(batch)
        return requests

    def _free_keys(self, count: int) -> list[bytes]:
        """The next keys, in one pass: there may be many more."""
        free: list[bytes] = []
        for key in self._waiting:
            if len(free) == count:
                break
            if key not in self._under_way:
                free.append(key)
        return free

    def _begin(self, keys: list[bytes], now: float) -> list[CasUpdate]:
        """The updates of the next transaction: of as many of the keys as it has room for."""
        batch: list[CasUpdate] = []
        size = 0
        for key in keys:
            if size >= BYTES_PER_TXN:
                break
            amendment = self._waiting.pop(key)
            batch.append(amendment)
            self._under_way[key] = None
            amendment.sent_at = now
            size += len(key) + len(amendment.value or b"") + sum([len(put.value) for put in amendment.also])
        return batch

    def _request(self, batch: list[CasUpdate]) -> Txn:
        self._tags += 1
        tag = f"{self._prefix} {self._tags}"
        self._batches[tag] = batch
        compares = tuple([Compare(each.key, "mod_revision", "=", each.revision) for each in batch])
        writes: list[Operation] = []
        for each in batch:
            writes.append(Delete(each.key) if each.value is None else Put(each.key, each.value))
            writes += each.also
        return Txn(tag, compares, tuple(writes), tuple([Get(each.key) for each in batch]))

    def answered(self, answer: TxnAnswer, now: float) -> CasResult | None:
        """The result of an outstanding transaction; None for an answer to another module."""
        batch = self._batches.pop(answer.tag, None)
        if batch is None:
            return None
        for each in batch:
            del self._under_way[each.key]
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
        return self._retry.at if self._waiting and len(self._batches) < self._under_way_max else 0.0
