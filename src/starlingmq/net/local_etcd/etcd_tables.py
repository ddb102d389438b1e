"""Keys, leases and their history in one SQLite file, with the meaning that etcd gives them.

Tables:

- ``kv``: the present keys. ``history``: every change by revision, kept for ``HISTORY`` revisions.
- ``lease``: leases and their time to live. ``fact``: the revision, and the one up to which history is gone.

Invariants:

- A transaction that changes something is one revision, whatever the number of its keys. One that fails changes nothing.
- What is answered is committed, and on the disk (``synchronous=FULL``). Many requests are one commit (``run``).
- A key that was written with a lease is deleted with it.
"""

from __future__ import annotations

import operator
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from starlingmq.net.proto import etcd_pb2 as pb

HISTORY: Final = 10_000  # revisions that are kept for watches that resume
TRIM_EACH: Final = 1_000  # revisions between two cuts of the history
LEASE_NOT_FOUND: Final = "requested lease not found"
TABLES: Final = """
CREATE TABLE IF NOT EXISTS kv (key BLOB PRIMARY KEY, value BLOB, created INT, modified INT, lease INT) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS kv_lease ON kv (lease) WHERE lease != 0;
CREATE TABLE IF NOT EXISTS history
    (revision INT, position INT, key BLOB, value BLOB, created INT, PRIMARY KEY (revision, position)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS lease (id INTEGER PRIMARY KEY, ttl INT);
CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, number INT) WITHOUT ROWID;
INSERT OR IGNORE INTO fact VALUES ('revision', 1), ('trimmed', 0);
"""
COMPARE: Final[dict[int, Callable[[Any, Any], bool]]] = {
    pb.Compare.EQUAL: operator.eq,
    pb.Compare.NOT_EQUAL: operator.ne,
    pb.Compare.LESS: operator.lt,
    pb.Compare.GREATER: operator.gt,
}


class LeaseNotFound(Exception):
    """There is no such lease; nothing was done."""


class InvalidRequest(Exception):
    """A request that no etcd would accept; one line."""


class GrantLease(NamedTuple):
    ttl: int  # seconds


class EndLease(NamedTuple):
    """Answered by LeaseNotFound if there is none."""

    lease: int


class Compact(NamedTuple):
    """Forget the history before ``revision``."""

    revision: int


class ReadHistory(NamedTuple):
    """The changes of keys from ``key`` to ``end`` (as in etcd's requests) since ``revision``."""

    key: bytes
    end: bytes
    revision: int


Request = pb.TxnRequest | GrantLease | EndLease | Compact | ReadHistory


class Done(NamedTuple):
    """``answer``: of a transaction; the lease of a ``GrantLease``; None: the history begins after what was asked for.
    ``events``: what a request has changed, or the history that was asked for. ``revision``: after it."""

    answer: pb.TxnResponse | int | None
    events: list[pb.Event]
    revision: int


class EtcdTables:
    """Used by one thread at a time. ``trimmed``: history up to this revision is gone. Raises sqlite3.Error."""

    def __init__(self, path: Path) -> None:
        self._sql = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._sql.execute("PRAGMA journal_mode=WAL")
        self._sql.execute("PRAGMA synchronous=FULL")
        self._sql.executescript(TABLES)
        self.revision = 0
        self.trimmed = 0
        self._read_facts()

    def close(self) -> None:
        self._sql.close()

    def leases(self) -> dict[int, int]:
        """Seconds to live, by lease."""
        return dict(self._sql.execute("SELECT id, ttl FROM lease"))

    def run(self, requests: Sequence[Request]) -> list[Done | Exception]:
        """Carry them out one after the other, and commit once. An exception is LeaseNotFound or InvalidRequest, of that
        request alone."""
        self._sql.execute("BEGIN IMMEDIATE")
        try:
            done = [self._one(request) for request in requests]
            if self.revision - self.trimmed >= HISTORY + TRIM_EACH:
                self._compact(self.revision - HISTORY)
            self._sql.execute("UPDATE fact SET number = ? WHERE name = 'revision'", (self.revision,))
            self._sql.execute("COMMIT")
        except BaseException:
            if self._sql.in_transaction:
                self._sql.execute("ROLLBACK")
            self._read_facts()
            raise
        return done

    def _read_facts(self) -> None:
        facts = dict(self._sql.execute("SELECT name, number FROM fact"))
        self.revision, self.trimmed = facts["revision"], facts["trimmed"]

    def _one(self, request: Request) -> Done | Exception:
        try:
            if isinstance(request, pb.TxnRequest):
                return self._transact(request)
            if isinstance(request, GrantLease):
                return self._grant(request)
            if isinstance(request, EndLease):
                return self._end(request)
            if isinstance(request, Compact):
                return self._compact(request.revision)
            return self._since(request)
        except (LeaseNotFound, InvalidRequest) as error:
            return error

    # Leases

    def _grant(self, grant: GrantLease) -> Done:
        lease = secrets.randbits(62) + 1
        self._sql.execute("INSERT INTO lease VALUES (?, ?)", (lease, grant.ttl))
        return Done(lease, [], self.revision)

    def _end(self, ended: EndLease) -> Done:
        if not self._sql.execute("DELETE FROM lease WHERE id = ?", (ended.lease,)).rowcount:
            raise LeaseNotFound
        events: list[pb.Event] = []
        for (key,) in self._sql.execute("SELECT key FROM kv WHERE lease = ? ORDER BY key", (ended.lease,)).fetchall():
            self._delete(key, events)
        return self._changed(None, events)

    # Transactions

    def _transact(self, txn: pb.TxnRequest) -> Done:
        succeeded = all(self._holds(compare) for compare in txn.compare)
        operations = txn.success if succeeded else txn.failure
        self._check(operations)
        events: list[pb.Event] = []
        responses = [self._apply(operation, events) for operation in operations]
        response = pb.TxnResponse(succeeded=succeeded, responses=responses)
        done = self._changed(response, events)
        response.header.revision = done.revision
        return done

    def _check(self, operations: Iterable[pb.RequestOp]) -> None:
        """Raises LeaseNotFound, and InvalidRequest for a key that is written twice."""
        written: set[bytes] = set()
        for operation in operations:
            kind = operation.WhichOneof("request")
            if kind != "request_put":
                continue
            put = operation.request_put
            if put.key in written:
                raise InvalidRequest("duplicate key given in txn request")
            written.add(put.key)
            if put.lease and not self._sql.execute("SELECT 1 FROM lease WHERE id = ?", (put.lease,)).fetchone():
                raise LeaseNotFound

    def _holds(self, compare: pb.Compare) -> bool:
        row = self._sql.execute("SELECT value, created, modified FROM kv WHERE key = ?", (compare.key,)).fetchone()
        holds = COMPARE[compare.result]
        if compare.target == pb.Compare.VALUE:
            return row is not None and holds(row[0], compare.value)
        if compare.target == pb.Compare.CREATE:
            return holds(0 if row is None else row[1], compare.create_revision)
        if compare.target == pb.Compare.MOD:
            return holds(0 if row is None else row[2], compare.mod_revision)
        raise InvalidRequest("this comparison is not supported here")

    def _apply(self, operation: pb.RequestOp, events: list[pb.Event]) -> pb.ResponseOp:
        kind = operation.WhichOneof("request")
        if kind == "request_range":
            asked = operation.request_range
            found = self._range(asked.key, asked.range_end, asked.limit)
            return pb.ResponseOp(response_range=pb.RangeResponse(kvs=found))
        if kind == "request_put":
            self._put(operation.request_put, events)
            return pb.ResponseOp(response_put=pb.PutResponse())
        deleted = self._range(operation.request_delete_range.key, operation.request_delete_range.range_end, 0)
        for each in deleted:
            self._delete(each.key, events)
        return pb.ResponseOp(response_delete_range=pb.DeleteRangeResponse(deleted=len(deleted)))

    def _range(self, key: bytes, end: bytes, limit: int) -> list[pb.KeyValue]:
        where, values = between(key, end)
        rows = self._sql.execute(
            f"SELECT key, value, created, modified, lease FROM kv WHERE {where} ORDER BY key LIMIT ?",  # noqa: S608
            (*values, limit or -1),
        )
        return [
            pb.KeyValue(key=name, value=value, create_revision=created, mod_revision=modified, lease=lease)
            for name, value, created, modified, lease in rows
        ]

    def _put(self, put: pb.PutRequest, events: list[pb.Event]) -> None:
        revision = self.revision + 1
        row = self._sql.execute("SELECT created FROM kv WHERE key = ?", (put.key,)).fetchone()
        created = revision if row is None else row[0]
        self._sql.execute(
            "INSERT OR REPLACE INTO kv VALUES (?, ?, ?, ?, ?)", (put.key, put.value, created, revision, put.lease)
        )
        kv = pb.KeyValue(key=put.key, value=put.value, create_revision=created, mod_revision=revision, lease=put.lease)
        events.append(pb.Event(type=pb.Event.PUT, kv=kv))

    def _delete(self, key: bytes, events: list[pb.Event]) -> None:
        self._sql.execute("DELETE FROM kv WHERE key = ?", (key,))
        events.append(pb.Event(type=pb.Event.DELETE, kv=pb.KeyValue(key=key, mod_revision=self.revision + 1)))

    def _changed(self, answer: pb.TxnResponse | None, events: list[pb.Event]) -> Done:
        if events:
            self.revision += 1
            rows = [
                (self.revision, at, e.kv.key, e.kv.value if e.type == pb.Event.PUT else None, e.kv.create_revision)
                for at, e in enumerate(events)
            ]
            self._sql.executemany("INSERT INTO history VALUES (?, ?, ?, ?, ?)", rows)
        return Done(answer, events, self.revision)

    # History

    def _since(self, asked: ReadHistory) -> Done:
        if asked.revision <= self.trimmed:
            return Done(None, [], self.revision)
        where, values = between(asked.key, asked.end)
        rows = self._sql.execute(
            f"SELECT revision, key, value, created FROM history WHERE revision >= ? AND {where} "  # noqa: S608
            "ORDER BY revision, position",
            (asked.revision, *values),
        )
        return Done(0, [_event(*row) for row in rows], self.revision)

    def _compact(self, revision: int) -> Done:
        if revision > self.revision:
            raise InvalidRequest("required revision is a future revision")
        self.trimmed = max(self.trimmed, revision - 1)
        self._sql.execute("DELETE FROM history WHERE revision <= ?", (self.trimmed,))
        self._sql.execute("UPDATE fact SET number = ? WHERE name = 'trimmed'", (self.trimmed,))
        return Done(0, [], self.revision)


def _event(revision: int, key: bytes, value: bytes | None, created: int) -> pb.Event:
    if value is None:
        return pb.Event(type=pb.Event.DELETE, kv=pb.KeyValue(key=key, mod_revision=revision))
    kv = pb.KeyValue(key=key, value=value, create_revision=created, mod_revision=revision)
    return pb.Event(type=pb.Event.PUT, kv=kv)


def between(key: bytes, end: bytes) -> tuple[str, tuple[bytes, ...]]:
    """A condition in SQL for keys of one of etcd's requests: one key, all from ``key`` on (``end`` is a zero byte), or
    those before ``end``."""
    if not end:
        return "key = ?", (key,)
    return ("key >= ?", (key,)) if end == b"\0" else ("key >= ? AND key < ?", (key, end))


def is_between(name: bytes, key: bytes, end: bytes) -> bool:
    """Whether ``name`` is one of the keys of ``between``."""
    if not end:
        return name == key
    return name >= key and (end == b"\0" or name < end)
