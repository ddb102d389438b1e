"""The routes of one other node, as it has published them.

Invariant: the table always corresponds to its state. Records are applied only if they start at or before the table's
state, and the sender has been in that state too. A snapshot is applied only as a whole, and only if it is newer. So
frames may be lost, duplicated, late or reordered: the same frames give the same table.

A snapshot of many routes is put in place step by step. Until that is done the table keeps its old state, the stored
state is "unknown", and new entries take effect before old ones are removed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from starlingmq.cluster.links.control_frames import RouteSnapshot
from starlingmq.cluster.links.peer_frames import RouteRecords
from starlingmq.cluster.links.record_bytes import RouteRecord
from starlingmq.cluster.routes.route_facts import (
    UNKNOWN,
    Change,
    Fact,
    State,
    encode_state,
    encode_value,
    in_history,
    table_prefix,
    vector_key,
)

INBOX_RECORDS: Final = 1 << 18  # received and not applied; more are dropped and requested again
NEVER: Final = -1e18


class PeerRoutes:
    number: int
    table: dict[bytes, int]
    state: State
    newest_known: State  # the newest state that the node is known to have
    vector: dict[int, State]  # the states of other nodes' routes that it has, by its last heartbeat
    named: State  # the newest state in its heartbeats, since this node started
    incarnation: int  # of its last heartbeat
    applied: State  # the state of this node's routes that it has applied
    asked: bool  # it was asked, and has not answered completely
    moved_at: float  # when it was last asked, or delivered something new
    gap: bool  # records arrived that start after the current state
    changed: bool  # since the last check
    to_confirm: State  # the newest state that the node has asked to be told of, once it is applied here; UNKNOWN: none
    lacking_since: float  # since when other nodes have newer routes of it and nothing has arrived; NEVER: they have not
    borrowed_at: float  # when one of those nodes was last asked

    def __init__(self, number: int, table: dict[bytes, int], state: State) -> None:
        self.number = number
        self.table = table
        self.state = state
        self.newest_known = UNKNOWN
        self.vector = {}
        self.named = UNKNOWN
        self.incarnation = 0
        self.applied = UNKNOWN
        self.asked = False
        self.moved_at = NEVER
        self.gap = False
        self.changed = False
        self.to_confirm = UNKNOWN
        self.lacking_since = NEVER
        self.borrowed_at = NEVER
        self._prefix = table_prefix(number)
        self._inbox: deque[RouteRecords] = deque()
        self._inbox_records = 0
        self._loading: Iterator[tuple[bytes, int]] | None = iter(table.items()) if table else None
        # An incomplete snapshot:
        self._incoming: State = UNKNOWN
        self._giver = 0  # the node that sends it; pieces of two senders cannot be mixed
        self._pieces: set[int] = set()
        self._count = 0  # number of pieces; 0: not known yet
        self._collected: dict[bytes, int] = {}
        # A complete snapshot that waits until the previous one is in place:
        self._ready: dict[bytes, int] | None = None
        self._ready_state: State = UNKNOWN
        # The snapshot that is being put in place: first its entries are added, then old ones removed.
        self._target: dict[bytes, int] | None = None
        self._target_state: State = UNKNOWN
        self._adding: Iterator[tuple[bytes, int]] | None = None
        self._removing: Iterator[bytes] | None = None

    def loaded(self) -> bool:
        """Whether all entries of the table have been reported as changes."""
        return self._loading is None

    def busy(self) -> bool:
        return bool(self._inbox) or self._loading is not None or self._target is not None or self._ready is not None

    def received_records(self, body: RouteRecords) -> None:
        count = len(body.records)
        end = (body.epoch, body.first + count - 1)
        self.newest_known = max(self.newest_known, end)
        if not body.quiet:
            self.to_confirm = max(self.to_confirm, end)
        if end > self.state and self._inbox_records + count <= INBOX_RECORDS:
            self._inbox.append(body)
            self._inbox_records += count

    def received_piece(self, body: RouteSnapshot, giver: int = 0) -> bool:
        """Returns whether the piece was wanted. ``giver``: the node that sends it, 0: the owner of the routes."""
        state = (body.epoch, body.version)
        if state <= max(self.state, self._ready_state, self._target_state) or state < self._incoming:
            return False
        if state == self._incoming and giver != self._giver and body.chunk != 0:
            return False
        if state > self._incoming or giver != self._giver:
            self._forget_pieces()
            self._incoming = state
            self._giver = giver
        if body.chunk in self._pieces:
            return False
        self._pieces.add(body.chunk)
        collected = self._collected
        for record in body.records:
            collected[record.key] = record.value
        if body.last:
            self._count = body.chunk + 1
        if len(self._pieces) == self._count:
            self._ready = collected
            self._ready_state = state
            self.to_confirm = max(self.to_confirm, state)
            self._forget_pieces()
        self.newest_known = max(self.newest_known, state)
        return True

    def _forget_pieces(self) -> None:
        self._incoming = UNKNOWN
        self._pieces = set()
        self._count = 0
        self._collected = {}

    def dismiss(self, facts: list[Fact]) -> None:
        """The node is no longer a member: ends everything that is under way, and removes its routes step by step."""
        old = self.table if self._target is None else {**self.table, **self._target}
        facts.append((vector_key(self.number), encode_state(UNKNOWN, [])))
        self._inbox.clear()
        self._loading = None
        self._forget_pieces()
        self._ready = None
        self.table = old
        self._target = {}
        self._target_state = UNKNOWN
        self._adding = None
        self._removing = iter(old)

    def step(self, limit: int, changes: list[Change], facts: list[Fact]) -> int:
        """Processes about ``limit`` entries. Returns how many it were."""
        if self._loading is not None:
            return self._load(self._loading, limit, changes)
        if self._ready is not None and self._target is None:
            self._begin_to_replace(self._ready, facts)
        if self._target is not None:
            return self._replace(self._target, limit, changes, facts)
        done = 0
        while self._inbox and done < limit:
            body = self._inbox.popleft()
            self._inbox_records -= len(body.records)
            done += 1 + len(body.records)
            self._apply(body, changes, facts)
        return done

    def _load(self, entries: Iterator[tuple[bytes, int]], limit: int, changes: list[Change]) -> int:
        done = 0
        for key, value in entries:
            changes.append((self.number, key, value))
            done += 1
            if done == limit:
                return done
        self._loading = None
        return done + 1

    def _apply(self, body: RouteRecords, changes: list[Change], facts: list[Fact]) -> None:
        state = self.state
        end = (body.epoch, body.first + len(body.records) - 1)
        if end <= state:
            return
        known = state[0] == body.epoch or (state[0] != 0 and in_history(body.history, state))
        if not known or body.first > state[1] + 1 or end[1] < state[1]:
            self.gap = True
            return
        records = list(body.records.all[state[1] + 1 - body.first :])
        facts.append((vector_key(self.number), encode_state(end, records)))
        for record in records:
            self._set(record, changes, facts)
        self._reached(end)

    def _set(self, record: RouteRecord, changes: list[Change], facts: list[Fact]) -> None:
        key = record.key
        value = record.value
        if self.table.get(key, 0) == value:
            return
        if value:
            self.table[key] = value
            facts.append((self._prefix + key, encode_value(value)))
        else:
            del self.table[key]
            facts.append((self._prefix + key, None))
        changes.append((self.number, key, value))

    def _reached(self, state: State) -> None:
        self.state = state
        self.changed = True
        if self._incoming <= state:
            self._forget_pieces()

    def _begin_to_replace(self, target: dict[bytes, int], facts: list[Fact]) -> None:
        self._ready = None
        if self._ready_state <= self.state:
            return
        self._target = target
        self._target_state = self._ready_state
        self._adding = iter(target.items())
        self._removing = iter(self.table)
        facts.append((vector_key(self.number), encode_state(UNKNOWN, [])))

    def _replace(self, target: dict[bytes, int], limit: int, changes: list[Change], facts: list[Fact]) -> int:
        done = 1
        number = self.number
        if self._adding is not None:
            for key, value in self._adding:
                done += 1
                if self.table.get(key, 0) != value:
                    facts.append((self._prefix + key, encode_value(value)))
                    changes.append((number, key, value))
                if done >= limit:
                    return done
            self._adding = None
        if self._removing is not None:
            for key in self._removing:
                done += 1
                if key not in target:
                    facts.append((self._prefix + key, None))
                    changes.append((number, key, 0))
                if done >= limit:
                    return done
            self._removing = None
        self.table = target
        self._target = None
        if self._target_state == UNKNOWN:
            facts.append((vector_key(number), None))
        else:
            facts.append((vector_key(number), encode_state(self._target_state, [])))
        self._reached(self._target_state)
        self.asked = False
        self.gap = True  # check at once whether it is behind
        return done
