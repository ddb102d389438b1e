"""The route table as facts for a store: opaque keys and values, kept in the order in which they were given.

    h                     own: u8 format, u32 node; for each epoch: u64 epoch, u64 its first version
    l u64 version         own log: records, of which the first one has this version
    o key                 own table: u32 value, or 16 bytes
    v u32 node            another node's: u64 epoch, u64 version of its table, then the records that led to it
    t u32 node, key       table of another node: u32 value, or 16 bytes

A record is u32 value, u32 length, key. A larger value (of up to 16 bytes, see core.router.filter_summary) follows the
key, and the highest bit of the length is set.

A crash may keep any prefix of the facts. So the records of a change are written before the entries of the table, in one
fact with the resulting version, and recovery applies them again: the table is never behind its version, and has nothing
that the version does not include. Entries that recovery finds missing have to be stored before anything else, because
the fact with their records will be replaced.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from starlingmq.cluster.links.record_bytes import RouteRecord

State = tuple[int, int]  # (epoch, version)
Fact = tuple[bytes, bytes | None]  # None: deleted
Change = tuple[int, bytes, int]  # node, key, its new value

UNKNOWN: Final = (0, 0)  # older than every real state; only a snapshot leads out of it
FORMAT: Final = 1
HISTORY: Final = b"h"
_STATE: Final = struct.Struct(">QQ")
_HEAD: Final = struct.Struct(">BI")
_RECORD: Final = struct.Struct(">II")
_WIDE: Final = 1 << 31  # in a length: the value has WIDE_BYTES and follows the key
_WIDE_BYTES: Final = 16
_VALUE_MAX: Final = 0xFFFFFFFF


class FactError(Exception):
    """The facts are unusable: another format, another node, or a later incarnation."""


def own_key(key: bytes) -> bytes:
    return b"o" + key


def log_key(version: int) -> bytes:
    return b"l" + version.to_bytes(8, "big")


def vector_key(node: int) -> bytes:
    return b"v" + node.to_bytes(4, "big")


def table_prefix(node: int) -> bytes:
    return b"t" + node.to_bytes(4, "big")


def encode_value(value: int) -> bytes:
    return value.to_bytes(4 if value <= _VALUE_MAX else _WIDE_BYTES, "big")


def record_bytes(value: int) -> int:
    """Bytes of a record around its key."""
    return _RECORD.size if value <= _VALUE_MAX else _RECORD.size + _WIDE_BYTES


def encode_records(records: Sequence[RouteRecord]) -> bytes:
    parts: list[bytes] = []
    pack = _RECORD.pack
    for record in records:
        value, key = record.value, record.key
        if value <= _VALUE_MAX:
            parts.append(pack(value, len(key)))
            parts.append(key)
        else:
            parts.append(pack(0, len(key) | _WIDE))
            parts.append(key)
            parts.append(value.to_bytes(_WIDE_BYTES, "big"))
    return b"".join(parts)


def decode_records(data: bytes, at: int = 0) -> list[RouteRecord]:
    """Raises FactError."""
    records: list[RouteRecord] = []
    while at + _RECORD.size <= len(data):
        value, length = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        wide = length >= _WIDE
        length &= _WIDE - 1
        key = data[at : at + length]
        at += length
        if wide:
            value = int.from_bytes(data[at : at + _WIDE_BYTES], "big")
            at += _WIDE_BYTES
        records.append(RouteRecord(key, value))
    if at != len(data):
        raise FactError("the route records are truncated")
    return records


def encode_state(state: State, records: list[RouteRecord]) -> bytes:
    return _STATE.pack(state[0], state[1]) + encode_records(records)


def encode_history(node: int, history: list[State]) -> bytes:
    return _HEAD.pack(FORMAT, node) + b"".join([_STATE.pack(epoch, first) for epoch, first in history])


class RecoveredRoutes:
    """The routes that a node had stored when it ended."""

    history: list[State]
    log: list[RouteRecord]
    log_first: int  # version of the first record in ``log``
    chunks: list[int]  # first versions of the facts that hold the log
    own: dict[bytes, int]
    tables: dict[int, dict[bytes, int]]
    vector: dict[int, State]
    repaired: list[Fact]  # entries that a crash had cut off

    def __init__(self) -> None:
        self.history = []
        self.log = []
        self.log_first = 1
        self.chunks = []
        self.own = {}
        self.tables = {}
        self.vector = {}
        self.repaired = []


def last_epoch(facts: dict[bytes, bytes]) -> int:
    """The incarnation that wrote the facts, under whatever node number; 0: none."""
    head = facts.get(HISTORY, b"")
    epochs = head[_HEAD.size :]
    return _STATE.unpack(epochs[-_STATE.size :])[0] if len(epochs) >= _STATE.size and head[0] == FORMAT else 0


def read_facts(facts: dict[bytes, bytes], me: int, incarnation: int) -> RecoveredRoutes:
    """Tables from facts, in any order. Raises FactError: the caller then starts with nothing, and deletes the facts."""
    found = RecoveredRoutes()
    if not facts:
        return found
    head = facts.get(HISTORY, b"")
    if len(head) < 5 or _HEAD.unpack_from(head) != (FORMAT, me):
        raise FactError("the routes belong to another node, or were written by another version")
    found.history = [(epoch, first) for epoch, first in _STATE.iter_unpack(head[5:])]
    if not found.history or found.history[-1][0] >= incarnation:
        raise FactError("the routes belong to a later incarnation of this node")
    changes: dict[int, list[RouteRecord]] = {}
    chunks: dict[int, list[RouteRecord]] = {}
    for key in sorted(facts):
        value = facts[key]
        kind = key[:1]
        if kind == b"o":
            found.own[key[1:]] = int.from_bytes(value, "big")
        elif kind == b"t":
            table = found.tables.setdefault(int.from_bytes(key[1:5], "big"), {})
            table[key[5:]] = int.from_bytes(value, "big")
        elif kind == b"l":
            chunks[int.from_bytes(key[1:], "big")] = decode_records(value)
        elif kind == b"v":
            node = int.from_bytes(key[1:], "big")
            epoch, version = _STATE.unpack_from(value)
            found.vector[node] = (epoch, version)
            changes[node] = decode_records(value, 16)
    _read_log(found, chunks)
    for node, records in changes.items():
        _apply(found.tables.setdefault(node, {}), records, table_prefix(node), found.repaired)
    return found


def _read_log(found: RecoveredRoutes, chunks: dict[int, list[RouteRecord]]) -> None:
    found.chunks = sorted(chunks)
    found.log_first = found.chunks[0] if found.chunks else found.history[-1][1]
    for first in found.chunks:
        if first != found.log_first + len(found.log):
            raise FactError("the log of routes has a gap")
        found.log.extend(chunks[first])
    _apply(found.own, found.log, b"o", found.repaired)


def in_history(history: Sequence[State], state: State) -> bool:
    """Whether a node with this history was ever in that state. (Whether it has reached the version yet is for its
    log to say.) An epoch starts with the routes of the previous one: its first version less one is the same routes
    in both."""
    follower = -1
    for epoch, first in reversed(history):
        if epoch == state[0]:
            return first - 1 <= state[1] and (follower < 0 or state[1] < follower)
        follower = first
    return False


def _apply(table: dict[bytes, int], records: list[RouteRecord], prefix: bytes, repaired: list[Fact]) -> None:
    stored = {record.key: table.get(record.key, 0) for record in records}
    for record in records:
        if record.value:
            table[record.key] = record.value
        else:
            table.pop(record.key, None)
    for key, before in stored.items():
        value = table.get(key, 0)
        if value != before:
            repaired.append((prefix + key, encode_value(value) if value else None))
