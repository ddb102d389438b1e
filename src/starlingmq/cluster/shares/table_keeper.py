"""The table of shares in etcd: read, watched, and replaced by the leader of the cluster.

Laws:

- A table is replaced if the key is unchanged and the writer still leads. Its version is above all that are known.
- The table is replaced when the nodes that can take part are others than those it lists. If it would leave shares
  without leader and deputy while registered members are missing, these get ``patience`` to come: they may know what was
  lost.

Pure: requests out, answers in.
"""

from __future__ import annotations

from math import inf
from typing import Final

from starlingmq.cluster.etcd.election import Election
from starlingmq.cluster.etcd.etcd_requests import (
    Answer,
    Compare,
    Get,
    Put,
    Request,
    Txn,
    TxnAnswer,
    Watch,
    WatchEvent,
    WatchLost,
)
from starlingmq.cluster.etcd.etcd_retry import EtcdRetry
from starlingmq.cluster.shares.share_table import (
    NO_TABLE,
    VERSION_SHIFT,
    Reassignment,
    ShareTable,
    decode_table,
    encode_table,
)

RETRY_SECONDS: Final = 0.1
RETRY_SECONDS_MAX: Final = 2.0


class TableKeeper:
    table: ShareTable  # the newest that is known
    written: int  # tables written here

    def __init__(self, cluster: str, election: Election, patience: float) -> None:
        self.table = NO_TABLE
        self.written = 0
        self._key = f"/starlingmq/{cluster}/shares".encode()
        self._election = election
        self._patience = patience
        self._tags = 0
        self._tag = ""  # of the outstanding transaction
        self._writing = False
        self._stale = True  # the key has to be read
        self._watching = False
        self._revision = 0  # of the key; 0: there is none
        self._store_revision = 0
        self._wanted: dict[int, int] = {}  # nodes that can take part
        self._missing = False  # registered members are not among them
        self._planned: Reassignment | None = None  # the next table ...
        self._planned_for: tuple[int, dict[int, int]] = (-1, {})  # ... after that version, for these nodes
        self._lost_since = -1.0  # when shares were first without leader and deputy
        self._retry = EtcdRetry(RETRY_SECONDS, RETRY_SECONDS_MAX)

    def learn(self, table: ShareTable) -> None:
        """Another node knows this table."""
        if table.version > self.table.version:
            self.table = table

    def want(self, nodes: dict[int, int], missing: bool) -> None:
        """``nodes``: those that can take part; ``missing``: other members are registered."""
        self._wanted = nodes
        self._missing = missing

    def answered(self, answer: Answer, now: float) -> None:
        if isinstance(answer, TxnAnswer):
            if self._tag and answer.tag == self._tag:
                self._take(answer, now)
        elif isinstance(answer, WatchEvent):
            if answer.prefix == self._key:
                for change in answer.changes:
                    if change.key == self._key:
                        self._read(change.value or b"", change.mod_revision if change.value else 0)
        elif isinstance(answer, WatchLost) and answer.prefix == self._key:
            self._watching = False
            self._stale = True

    def _take(self, answer: TxnAnswer, now: float) -> None:
        self._tag = ""
        if answer.error:
            self._stale = True
            self._retry.failed(now)
            return
        self._retry.succeeded()
        self._stale = False
        self._store_revision = max(self._store_revision, answer.revision)
        if self._writing and answer.succeeded:
            self.written += 1
        found = answer.found[-1]
        self._read(found[0].value if found else b"", found[0].mod_revision if found else 0)

    def _read(self, value: bytes, revision: int) -> None:
        self._revision = revision
        table = decode_table(value) if value else None
        if table is not None:
            self.learn(table)

    def take_requests(self, now: float) -> list[Request]:
        if self._tag or now < self._retry.at:
            return []
        self._writing = False
        if self._stale:
            return [self._send((), (Get(self._key),), ())]
        if not self._watching:
            self._watching = True
            return [Watch(self._key, self._store_revision + 1)]
        table = self._next(now)
        if table is None:
            return []
        self._writing = True
        same = Compare(self._key, "mod_revision", "=", self._revision)
        write = Put(self._key, encode_table(table))
        return [self._send((same, self._election.held()), (write, Get(self._key)), (Get(self._key),))]

    def _next(self, now: float) -> ShareTable | None:
        if not self._election.leading or not self._wanted or self._wanted == self.table.nodes:
            self._lost_since = -1.0
            return None
        reassignment = self._reassign()
        if reassignment.lost and self._missing:
            self._lost_since = now if self._lost_since < 0.0 else self._lost_since
            if now < self._lost_since + self._patience:
                return None
        self._lost_since = -1.0
        return reassignment.table

    def _reassign(self) -> Reassignment:
        if self._planned is None or self._planned_for != (self.table.version, self._wanted):
            version = max(self.table.version, self._store_revision >> VERSION_SHIFT)
            self._planned = Reassignment(self.table._replace(version=version), self._wanted)
            self._planned_for = self.table.version, self._wanted
        return self._planned

    def _send(self, compares: tuple[Compare, ...], success: tuple[Put | Get, ...], failure: tuple[Get, ...]) -> Txn:
        self._tags += 1
        self._tag = f"{self._key.decode()} {self._tags}"
        return Txn(self._tag, compares, success, failure)

    def wake_at(self) -> float:
        """When ``take_requests`` has to be called without an event; ``inf``: never."""
        if self._tag:
            return inf
        if self._lost_since >= 0.0:
            return self._lost_since + self._patience
        return self._retry.at if self._stale else inf
