"""Publishes this node's own routes: the table, an update log, the history of epochs, and answers to nodes that ask.

Invariant: a state ``(epoch, version)`` always stands for the same routes. So a version is used once in an epoch, and an
epoch is never used by two incarnations. A new incarnation that recovers less than the previous one had published
continues from what it recovered: its history then shows that the lost versions are not part of it, and a node that has
them gets a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from starlingmq.cluster.links.control_frames import RouteSnapshot
from starlingmq.cluster.links.peer_frames import Body, RouteRecords
from starlingmq.cluster.links.record_bytes import PackedRecords, RouteRecord
from starlingmq.cluster.routes.route_facts import (
    HISTORY,
    Fact,
    RecoveredRoutes,
    State,
    encode_history,
    encode_records,
    encode_value,
    in_history,
    log_key,
    own_key,
    record_bytes,
)

FRAME_RECORDS: Final = 1024
FRAME_BYTES: Final = 65536
"""Bounds on the records in one frame. A single record of 64 KiB still fits."""
CHUNK_RECORDS: Final = 1024  # records of the log in one fact
HISTORY_LENGTH: Final = 64  # epochs; a node with an older state gets a snapshot


class RouteAnswer:
    """The rest of an answer to a node: the log from a version on, or all routes as of a state."""

    target: int
    asked: State
    sent_version: int  # version up to which the log was sent, of an answer from the log
    state: State  # of a snapshot
    table: dict[bytes, int] | None  # a copy as of ``state``, shared by nodes that ask at the same time
    entries: Iterator[tuple[bytes, int]]
    left: int  # entries not sent yet
    chunk: int

    def __init__(self, target: int, asked: State) -> None:
        self.target = target
        self.asked = asked
        self.sent_version = asked[1]
        self.table = None

    def snapshot(self, state: State, table: dict[bytes, int]) -> None:
        self.state = state
        self.table = table
        self.entries = iter(table.items())
        self.left = len(table)
        self.chunk = 0


class OwnRoutes:
    """This node's own routes as published to other nodes. ``facts`` collects what has to be stored."""

    epoch: int
    version: int
    table: dict[bytes, int]
    history: list[State]
    sent_version: int  # version up to which the records were sent to all
    awaited_version: int  # something here waits until other nodes have applied the routes up to this version
    _asked_version: int  # version up to which all nodes were asked to confirm

    def __init__(self, me: int, incarnation: int, found: RecoveredRoutes, log_length: int, facts: list[Fact]) -> None:
        self.epoch = incarnation
        self.table = found.own
        self._log = found.log
        self._log_first = found.log_first
        self._chunks = found.chunks
        self._log_length = log_length
        self.version = found.log_first + len(found.log) - 1
        self.sent_version = self.awaited_version = self._asked_version = self.version
        self.history = [*found.history, (incarnation, self.version + 1)][-HISTORY_LENGTH:]
        self._facts = facts
        self._answers: dict[int, RouteAnswer] = {}
        facts.append((HISTORY, encode_history(me, self.history)))

    def state(self) -> State:
        return self.epoch, self.version

    def restart(self, current: dict[bytes, int]) -> None:
        """After recovery: publishes the difference between the recovered routes and the current ones."""
        table = self.table
        # Additions first: they may replace entries that are removed (cluster.routes.filter_summaries).
        records = [(key, value) for key, value in current.items() if table.get(key, 0) != value]
        records += [(key, 0) for key in table if current.get(key, 0) == 0]
        self.originate(records)
        self.awaited_version = self.version
        if len(self.history) == 1:  # no node has a state of this epoch: all will ask for a snapshot
            self.sent_version = self._asked_version = self.version

    def originate(self, records: list[tuple[bytes, int]]) -> int:
        """Assigns versions to the records that differ from the table. Takes 2 us per record: pass many records in
        several calls."""
        table = self.table
        new: list[RouteRecord] = []
        for key, value in records:
            if table.get(key, 0) == value:
                continue
            if value:
                table[key] = value
            else:
                del table[key]
            new.append(RouteRecord(key, value))
        for start in range(0, len(new), CHUNK_RECORDS):
            self._store(new[start : start + CHUNK_RECORDS])
        self._trim()
        return self.version

    def _store(self, records: list[RouteRecord]) -> None:
        first = self.version + 1
        self.version += len(records)
        self._log.extend(records)
        self._chunks.append(first)
        facts = self._facts
        facts.append((log_key(first), encode_records(records)))
        for record in records:
            facts.append((own_key(record.key), encode_value(record.value) if record.value else None))

    def _trim(self) -> None:
        """Shortens the log by about a quarter, in whole facts; records that were not sent to all nodes yet are kept."""
        if len(self._log) * 4 <= self._log_length * 5:
            return
        chunks = self._chunks
        last = min(self.version - self._log_length, self.sent_version)  # the last version that may be dropped
        dropped = 0
        while dropped + 1 < len(chunks) and chunks[dropped + 1] - 1 <= last:
            self._facts.append((log_key(chunks[dropped]), None))
            dropped += 1
        del self._log[: chunks[dropped] - self._log_first]
        self._log_first = chunks[dropped]
        del chunks[:dropped]

    def asked(self, target: int, held: State) -> None:
        """A node reports which of these routes it has. A repeated question does not restart the answer."""
        answer = self._answers.get(target)
        if held == self.state() or (answer is not None and answer.asked == held):
            return
        answer = self._answers[target] = RouteAnswer(target, held)
        if not in_history(self.history, held) or not self._reaches(held[1]):
            self._answer_by_snapshot(answer)

    def _reaches(self, version: int) -> bool:
        return self._log_first - 1 <= version <= self.version

    def _answer_by_snapshot(self, answer: RouteAnswer) -> None:
        state = self.state()
        table: dict[bytes, int] | None = None
        for other in self._answers.values():
            if other.table is not None and other.state == state:
                table = other.table
        answer.snapshot(state, self.table.copy() if table is None else table)

    def member_gone(self, number: int) -> None:
        self._answers.pop(number, None)

    def confirm(self, version: int) -> None:
        """Nodes that have applied the routes up to this version have to say so at once."""
        self.awaited_version = max(self.awaited_version, version)

    def _is_unasked(self) -> bool:
        return self._asked_version < self.awaited_version <= self.sent_version

    def pending(self) -> bool:
        return self.sent_version < self.version or len(self._answers) != 0 or self._is_unasked()

    def take_out(self, limit: int, out: list[tuple[int | None, Body]]) -> None:
        """Frames of about ``limit`` records together: first new records, then one frame for each asking node in
        turn. What was sent when nothing waited for it is confirmed after a frame without records."""
        while self.sent_version < self.version and limit > 0:
            body = self._records(self.sent_version + 1)
            quiet = body.first > self.awaited_version
            self.sent_version += len(body.records)
            limit -= len(body.records)
            if quiet:
                body = RouteRecords(body.epoch, body.first, body.records, body.history, True)
            else:
                self._asked_version = self.sent_version
            out.append((None, body))
        if self._is_unasked():
            self._asked_version = self.sent_version
            out.append((None, self._records(self.sent_version + 1)))
        while self._answers and limit > 0:
            target = next(iter(self._answers))
            answer = self._answers.pop(target)
            if answer.table is None and not self._reaches(answer.sent_version):
                self._answer_by_snapshot(answer)
            limit -= self._answer(answer, out)
        self._trim()

    def _answer(self, answer: RouteAnswer, out: list[tuple[int | None, Body]]) -> int:
        """Adds one frame. An incomplete answer is queued again behind the others."""
        if answer.table is not None:
            piece = next_piece(answer)
            out.append((answer.target, piece))
            if not piece.last:
                self._answers[answer.target] = answer
            return len(piece.records) + 1
        body = self._records(answer.sent_version + 1)
        answer.sent_version += len(body.records)
        out.append((answer.target, body))
        if answer.sent_version < self.sent_version:
            self._answers[answer.target] = answer
        return len(body.records) + 1

    def _records(self, first: int) -> RouteRecords:
        """Records from this version on, up to one full frame. Without records, only a newer epoch."""
        begin = first - self._log_first
        records = self._log[begin : begin + FRAME_RECORDS]
        size = 0
        for count, record in enumerate(records):
            size += len(record.key) + record_bytes(record.value)
            if size > FRAME_BYTES and count:
                del records[count:]
                break
        end = first + len(records) - 1
        epoch, began = next((entry for entry in reversed(self.history) if entry[1] - 1 <= end), self.history[0])
        return RouteRecords(epoch, first, PackedRecords(records), tuple(self.history) if first <= began else ())


def next_piece(answer: RouteAnswer, of: int = 0) -> RouteSnapshot:
    """The next piece of an answer by snapshot. ``of``: the owner of the routes, if it is not the sender."""
    records: list[RouteRecord] = []
    size = 0
    while answer.left and len(records) < FRAME_RECORDS and size < FRAME_BYTES:
        key, value = next(answer.entries)
        answer.left -= 1
        records.append(RouteRecord(key, value))
        size += len(key) + record_bytes(value)
    epoch, version = answer.state
    piece = RouteSnapshot(epoch, version, answer.chunk, answer.left == 0, PackedRecords(records), of)
    answer.chunk += 1
    return piece
