"""Answers this node's transactions about keys of wills, instead of etcd, by asking the leaders of their shares.

The parts of ``cluster.wills`` make the same transactions as for etcd, but each of them that writes, and each read of
single keys, is about one client id.

Laws:

- Each transaction is answered once. It is sent to the leader of its share in each version of the table until then.
- A change of this node's key that the leader does not answer at once is told to the deputy, which makes it if it is
  the next leader.
- In place of a watch, leaders tell what other nodes write into keys of this node. As that gets lost with a leader, each
  new table counts as the loss of the watch: the keys of this node are read again.
- Pages of a prefix come from a reading, which begins with the first page, and again with each table. What changes
  meanwhile is told in another way, and is not in later pages.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from starlingmq.cluster.etcd.etcd_requests import (
    Answer,
    Get,
    KeyChange,
    KeyValue,
    Put,
    Request,
    Txn,
    TxnAnswer,
    Watch,
    WatchEvent,
    WatchLost,
)
from starlingmq.cluster.shares.share_messages import (
    WillAnswer,
    WillChange,
    WillHint,
    WillNews,
    WillRead,
    WillsOf,
    share_asked,
)
from starlingmq.cluster.shares.share_table import NO_TABLE, SHARES, ShareTable
from starlingmq.cluster.shares.will_book import node_of
from starlingmq.cluster.wills.will_records import REGISTERED, client_of_key, decode_will

ALL: Final = 0  # in place of a node: all nodes


class WillReading:
    """All keys below a prefix, share by share."""

    missing: dict[int, None]  # tickets
    found: dict[bytes, KeyValue]
    page: Txn | None  # it waits

    def __init__(self, node: int) -> None:
        self.node = node
        self.missing = {}
        self.found = {}
        self.page = None


class WillGateway:
    def __init__(self, prefix: bytes, send: Callable[[int, WillChange | WillRead | WillsOf | WillHint], int]) -> None:
        """``prefix``: of all wills. ``send``: to the leader of a share, or its deputy."""
        self._prefix = prefix
        self._send = send
        self._table = NO_TABLE
        self._taking_part = False
        self._tickets = 0
        self._asked: dict[int, tuple[Txn, WillChange | WillRead]] = {}  # by ticket
        self._looked_until = 0  # the last ticket at the last look
        self._hinted: dict[int, None] = {}  # tickets of changes of which the deputy was told, in this table
        self._parts: dict[int, tuple[bytes, WillsOf]] = {}  # ticket -> (prefix of the reading, message)
        self._readings: dict[bytes, WillReading] = {}  # by prefix
        self._watched = b""  # the prefix of this node's keys, once it was watched
        self._answers: list[Answer] = []

    def idle(self) -> bool:
        return not self._asked and not self._parts

    def has_answers(self) -> bool:
        return bool(self._answers)

    def take_answers(self) -> list[Answer]:
        answers, self._answers = self._answers, []
        return answers

    def set_table(self, table: ShareTable, taking_part: bool) -> None:
        self._table, self._taking_part = table, taking_part
        self._hinted = {}
        if not taking_part:
            return
        if self._watched:
            self._answers.append(WatchLost(self._watched, 0))
        for _, message in self._asked.values():
            self._ask_leader(message)
        self._parts = {}
        for prefix, reading in self._readings.items():
            self._read_all(prefix, reading)

    def look(self) -> None:
        """Now and then: tells deputies of changes of this node's wills that their leaders have not answered since the
        last look. A leader that is gone is replaced by its deputy, perhaps once this node has died as well: a will that
        its client has cancelled must not be published then."""
        looked_until, self._looked_until = self._looked_until, self._tickets
        if not self._taking_part:
            return
        for ticket, (_, message) in self._asked.items():
            if ticket > looked_until or ticket in self._hinted or not isinstance(message, WillChange):
                continue
            if self._watched == self._own(message.key) and _replaces(message):
                self._hinted[ticket] = None
                deputy = self._table.of(message.client_id).deputy
                if deputy:
                    self._send(deputy, WillHint(message))

    def _own(self, key: bytes) -> bytes:
        """The prefix of the keys of the node of this key."""
        return self._prefix + b"%d/" % node_of(key)

    # Requests

    def divert(self, requests: list[Request]) -> list[Request]:
        """Takes the requests about wills; returns the others."""
        return [request for request in requests if not self._take(request)]

    def _take(self, request: Request) -> bool:
        if isinstance(request, Watch):
            if not request.prefix.startswith(self._prefix):
                return False
            self._watched = request.prefix
            return True
        if not isinstance(request, Txn) or not request.success or not request.success[0].key.startswith(self._prefix):
            return False
        first = request.success[0]
        if request.compares:
            self._change(request)
        elif isinstance(first, Get) and first.limit:
            self._page(request, first)
        else:
            self._ask(request, WillRead(self._ticket(), client_of_key(self._name(first.key))))
        return True

    def _change(self, request: Txn) -> None:
        (compare,) = request.compares
        assert isinstance(compare.operand, int)
        name = self._name(compare.key)
        writes = [(self._name(each.key), each.value if isinstance(each, Put) else None) for each in request.success]
        message = WillChange(self._ticket(), client_of_key(name), name, compare.operand, tuple(writes))
        self._ask(request, message)

    def _page(self, request: Txn, get: Get) -> None:
        reading = self._readings.get(get.key)
        if reading is None or not get.after:
            for ticket in () if reading is None else reading.missing:
                del self._parts[ticket]
            node = self._name(get.key).rstrip(b"/")
            reading = self._readings[get.key] = WillReading(int(node) if node else ALL)
            self._read_all(get.key, reading)
        reading.page = request
        self._give_page(get.key, reading)

    def _read_all(self, prefix: bytes, reading: WillReading) -> None:
        for ticket in reading.missing:
            self._parts.pop(ticket, None)
        reading.missing, reading.found = {}, {}
        for share in range(SHARES):
            message = WillsOf(self._ticket(), share, reading.node)
            reading.missing[message.ticket] = None
            self._parts[message.ticket] = prefix, message
            if self._taking_part:
                self._ask_leader(message)

    def _name(self, key: bytes) -> bytes:
        return key[len(self._prefix) :]

    def _ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def _ask(self, request: Txn, message: WillChange | WillRead) -> None:
        self._asked[message.ticket] = request, message
        if self._taking_part:
            self._ask_leader(message)

    def _ask_leader(self, message: WillChange | WillRead | WillsOf) -> None:
        self._send(self._table.pairs[share_asked(message)].leader, message)

    # Answers

    def answered(self, answer: WillAnswer) -> None:
        found = [KeyValue(self._prefix + key, value, revision, revision) for key, revision, value in answer.wills]
        part = self._parts.pop(answer.ticket, None)
        if part is not None:
            prefix = part[0]
            reading = self._readings[prefix]
            del reading.missing[answer.ticket]
            reading.found.update({each.key: each for each in found})
            self._give_page(prefix, reading)
            return
        asked = self._asked.pop(answer.ticket, None)
        self._hinted.pop(answer.ticket, None)
        if asked is None:
            return
        request, message = asked
        if isinstance(message, WillRead):
            self._answer(request, answer, [_found(get, found) for get in request.success])
        elif answer.done:
            self._drop_read([self._prefix + key for key, _ in message.writes])
            self._answer(request, answer, [() for _ in request.success])
        else:
            self._answer(request, answer, [_found(get, found) for get in request.failure])

    def _answer(self, request: Txn, answer: WillAnswer, found: list[tuple[KeyValue, ...]]) -> None:
        done = answer.done or not request.compares
        self._answers.append(TxnAnswer(request.tag, done, answer.revision, tuple(found)))

    def news(self, news: WillNews) -> None:
        """Another node has written keys of this node."""
        keys = [self._prefix + key for key, _ in news.writes]
        self._drop_read(keys)
        values = [value for _, value in news.writes]
        changes = [KeyChange(key, value, news.revision) for key, value in zip(keys, values, strict=True)]
        own = self._own(news.writes[0][0])  # perhaps before the watch: the reading missed it
        self._answers.append(WatchEvent(own, news.revision, tuple(changes)))

    def _drop_read(self, keys: list[bytes]) -> None:
        for reading in self._readings.values():
            for key in keys:
                reading.found.pop(key, None)

    def _give_page(self, prefix: bytes, reading: WillReading) -> None:
        request = reading.page
        if request is None:
            return
        (get,) = request.success
        assert isinstance(get, Get)
        if len(reading.found) < get.limit and reading.missing:
            return
        reading.page = None
        keys = list(islice(reading.found, get.limit))
        found = tuple([reading.found.pop(key) for key in keys])
        if len(found) < get.limit:
            del self._readings[prefix]
        self._answers.append(TxnAnswer(request.tag, True, 0, (found,)))


def _found(operation: object, keys: list[KeyValue]) -> tuple[KeyValue, ...]:
    assert isinstance(operation, Get)
    if operation.prefix:
        return tuple([each for each in keys if each.key.startswith(operation.key)])
    return tuple([each for each in keys if each.key == operation.key])


def _replaces(change: WillChange) -> bool:
    """Whether the change deletes a record, or replaces it by that of another will. It counts only as long as the record
    has that revision, however late the deputy makes the change. Not FIRING: that is for a node that lives."""
    values = [value for _, value in change.writes if value is not None]
    return change.revision != 0 and all(decode_will(value).state == REGISTERED for value in values)
