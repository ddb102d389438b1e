"""Answers this node's transactions about owner keys, instead of etcd, by asking the leaders of their shares.

``Ownership``, ``OrphanedSessions`` and ``TakenWills`` make the same transactions as for etcd, one client id each where
they write. So an answer's revision is the epoch of its share.

Law: each transaction is answered once. It is sent to the leader of its share in each version of the table until then;
an answer in an earlier version does not count, as the channels do not deliver it.
"""

from __future__ import annotations

from collections.abc import Callable

from starlingmq.cluster.etcd.etcd_requests import Compare, Get, KeyValue, Put, Request, Txn, TxnAnswer
from starlingmq.cluster.shares.share_messages import Claim, Key, OwnerAnswer, Read, Release
from starlingmq.cluster.shares.share_table import NO_TABLE, ShareTable
from starlingmq.cluster.takeover.ownership import Ownership


class Reading:
    """A transaction that reads the keys of several client ids."""

    def __init__(self, tag: str, client_ids: list[str]) -> None:
        self.tag = tag
        self.client_ids = client_ids
        self.found: dict[str, tuple[KeyValue, ...]] = {}
        self.revision = 0


class OwnerGateway:
    newest: int  # the newest epoch that this node knows

    def __init__(self, ownership: Ownership, send: Callable[[int, Claim | Release | Read], int]) -> None:
        """``send``: to the leader of a share."""
        self.newest = 0
        self._ownership = ownership
        self._send = send
        self._table = NO_TABLE
        self._taking_part = False
        self._tickets = 0
        self._asked: dict[int, tuple[str, Claim | Release | Read]] = {}  # ticket -> (tag, message)
        self._readings: dict[int, Reading] = {}  # by ticket
        self._answers: list[TxnAnswer] = []

    def idle(self) -> bool:
        return not self._asked

    def has_answers(self) -> bool:
        return bool(self._answers)

    def take_answers(self) -> list[TxnAnswer]:
        answers, self._answers = self._answers, []
        return answers

    def leaders(self) -> dict[int, None]:
        """The nodes from which answers are missing; 0: a share has no leader."""
        return {self._table.of(message.client_id).leader: None for _, message in self._asked.values()}

    def set_table(self, table: ShareTable, taking_part: bool) -> None:
        self._table, self._taking_part = table, taking_part
        if taking_part:
            for _, message in list(self._asked.values()):
                self._ask_leader(message)

    def divert(self, requests: list[Request]) -> list[Request]:
        """Takes the transactions about owner keys; returns the other requests."""
        return [request for request in requests if not self._take(request)]

    def _take(self, request: Request) -> bool:
        if not isinstance(request, Txn) or not request.success:
            return False
        if not request.success[0].key.startswith(self._ownership.prefix):
            return False
        last = request.success[-1]
        if request.compares:
            self._release(request.tag, request.compares[0])
        elif isinstance(last, Put):
            names = self._ownership.names(last.key)
            assert names is not None
            self._ask(request.tag, Claim(self._ticket(), names[0], last.value, self.newest))
        else:
            self._read(request)
        return True

    def _release(self, tag: str, compare: Compare) -> None:
        names = self._ownership.names(compare.key)
        assert names is not None and isinstance(compare.operand, int)
        self._ask(tag, Release(self._ticket(), names[0], names[1], compare.operand))

    def _read(self, request: Txn) -> None:
        client_ids: list[str] = []
        for get in request.success:
            names = self._ownership.names(get.key + b"0")
            assert names is not None and isinstance(get, Get)
            client_ids.append(names[0])
        reading = Reading(request.tag, client_ids)
        for client_id in dict.fromkeys(client_ids):
            ticket = self._ticket()
            self._readings[ticket] = reading
            self._ask(request.tag, Read(ticket, client_id))

    def _ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def _ask(self, tag: str, message: Claim | Release | Read) -> None:
        self._asked[message.ticket] = tag, message
        if self._taking_part:
            self._ask_leader(message)

    def _ask_leader(self, message: Claim | Release | Read) -> None:
        self._send(self._table.of(message.client_id).leader, message)

    def answered(self, answer: OwnerAnswer) -> None:
        asked = self._asked.pop(answer.ticket, None)
        if asked is None:
            return
        tag, message = asked
        self.newest = max(self.newest, answer.epoch)
        found = tuple([self._key_value(message.client_id, key) for key in answer.keys])
        if isinstance(message, Claim):
            self._answers.append(TxnAnswer(tag, True, answer.epoch, (found, ())))
        elif isinstance(message, Release):
            self._answers.append(TxnAnswer(tag, not found, answer.epoch, (found,)))
        else:
            self._read_part(self._readings.pop(answer.ticket), message.client_id, found, answer.epoch)

    def _read_part(self, reading: Reading, client_id: str, found: tuple[KeyValue, ...], epoch: int) -> None:
        reading.revision = min(reading.revision, epoch) if reading.found else epoch
        reading.found[client_id] = found
        if all(name in reading.found for name in reading.client_ids):
            parts = tuple([reading.found[name] for name in reading.client_ids])
            self._answers.append(TxnAnswer(reading.tag, True, reading.revision, parts))

    def _key_value(self, client_id: str, key: Key) -> KeyValue:
        node, created, epoch, value = key
        return KeyValue(self._ownership.key(client_id, node), value, created, epoch)
