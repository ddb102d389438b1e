"""Writes this node's retained messages to etcd: in batches, in order, each exactly once.

::

    add --> gathering --window--> going --batch--> outstanding --answer--> done
              |                     |  ^
              |                     '--' look, if it is late
              '-- replaced by a later one of the same topic --'

Invariants:

- One batch is outstanding at a time. Each writes this node's mark and compares its previous value. So after a lost
  answer, the next attempt finds out whether the batch was done, and no batch is done twice: a message that another node
  has replaced in the meantime does not come back.
- Messages go in the order of their sequences, so the mark, the sequence of the last message of a batch, says that all
  before it are done.
- Messages that are going are not replaced, they are written as they are: so topics that change all the time are written
  as often as others. At most two messages of a topic are here.
- Nothing is written before it is stored here (``durable``).
- A message that has waited (``LATE_SECONDS`` beyond the window: etcd was away or slow) does not replace one that
  another node has accepted after it. The writer looks at the topic's record first, and compares its revision when it
  writes. A record that was known here when the message was accepted is earlier, and so is one that this node has
  written from an earlier message; of others, the clocks of the nodes decide.

Pure: requests out, answers in.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from starlingmq.cluster.etcd.etcd_requests import Compare, Delete, Get, KeyValue, Operation, Put, Txn, TxnAnswer
from starlingmq.cluster.etcd.etcd_retry import EtcdRetry

BATCH_OPERATIONS: Final = 100  # etcd's default limit is 128 in a transaction
BATCH_BYTES: Final = 512 * 1024  # etcd's default limit is 1.5 MiB
ENTRY_BYTES: Final = 200  # etcd's overhead for each change, beside key and value
RETRY_SECONDS: Final = 0.1  # after an error of etcd
RETRY_SECONDS_MAX: Final = 2.0
LATE_SECONDS: Final = 0.25
TAG: Final = "retained write "
LOOK_TAG: Final = "retained look "
UNKNOWN: Final = -1


class RetainedEntry:
    """``value`` None: the topic retains nothing from ``sequence`` on. ``at``: when it was accepted, ``known``: the
    revision up to which this node knew etcd's records then. ``found``: the revision of the record at the last look."""

    __slots__ = ("at", "found", "key", "known", "sequence", "superseded", "value")

    def __init__(self, key: bytes, sequence: int, value: bytes | None, at: float, known: int) -> None:
        self.key = key
        self.sequence = sequence
        self.value = value
        self.at = at
        self.known = known
        self.found = UNKNOWN
        self.superseded = False


class Written:
    """Writes that are done: their highest ``revision``, and their sequences by topic. ``last``: this was the last
    request, so no earlier one can be done any more, not even one of an earlier incarnation."""

    def __init__(self, revision: int, done: dict[bytes, int], last: bool) -> None:
        self.revision = revision
        self.done = done
        self.last = last


class RetainedWriter:
    mark: int  # sequence up to which all messages are done
    durable: int  # sequence up to which all messages are stored here
    last: int  # sequence of the last message, retained or not
    batches: int
    written: int  # messages
    superseded: int  # messages that were not written, because another node had accepted a later one

    def __init__(
        self,
        keys: bytes,
        window: float,
        budget: float,
        seconds: float,
        published_at: Callable[[bytes], float] = lambda value: 0.0,
    ) -> None:
        """``keys``: prefix of the keys of topics. At most ``budget`` bytes are written within ``seconds``.
        ``published_at``: of a record; 0.0: unknown."""
        self.mark = 0
        self.durable = 0
        self.last = 0
        self.batches = 0
        self.written = 0
        self.superseded = 0
        self.coalesced = 0
        self._published_at = published_at
        self._keys = keys
        self._mark_key = b""
        self._mark_revision = UNKNOWN
        self._revision = 0  # of the last write that is done, which is before all that is accepted from now on
        self._window = window
        self._budget = budget
        self._rate = budget / seconds
        self._left = budget
        self._left_at = 0.0
        self._gathering: dict[bytes, RetainedEntry] = {}
        self._going: dict[bytes, RetainedEntry] = {}
        self._went_at = -1e9  # when the last group began to go
        self._asked = False  # a batch is wanted even without messages
        self._tag = ""
        self._tags = 0
        self._looking: list[RetainedEntry] = []  # entries of the outstanding request, if that is a look
        self._batch_mark = 0
        self._retry = EtcdRetry(RETRY_SECONDS, RETRY_SECONDS_MAX)

    def __len__(self) -> int:
        """The number of messages that are not written yet."""
        return len(self._gathering) + len(self._going)

    def be(self, mark_key: bytes) -> None:
        """Sets the key of this node's mark."""
        self._mark_key = mark_key

    def begin(self, mark: int, revision: int) -> None:
        """Takes this node's mark in etcd and its revision (0: none). Sequences up to it are done."""
        self._mark_revision = revision
        self.mark = max(self.mark, mark)

    def add(self, topic: bytes, sequence: int, value: bytes | None, at: float = inf, known: int = 0) -> None:
        """Sequences have to rise from call to call. ``at`` inf: it replaces whatever etcd has. ``known`` 0: an earlier
        incarnation has accepted it."""
        self.last = max(self.last, sequence)
        if self._gathering.pop(topic, None) is not None:
            self.coalesced += 1
        known = max(known, self._revision) if known else 0
        self._gathering[topic] = RetainedEntry(self._keys + topic, sequence, value, at, known)

    def ask(self) -> None:
        """Writes the mark even without messages: a watcher that sees it has seen everything before."""
        self._asked = True

    def sequence_of(self, topic: bytes) -> int:
        """The sequence of the topic's last message that is not written yet; 0: none."""
        entry = self._gathering.get(topic) or self._going.get(topic)
        return 0 if entry is None else entry.sequence

    def take_requests(self, now: float) -> list[Txn]:
        if self._tag or now < self._retry.at or self._mark_revision == UNKNOWN:
            return []
        if not self._going and self._gathering and now >= self._went_at + self._window:
            self._going, self._gathering = self._gathering, {}
            self._went_at = now
        skipped = not self._going and not self._gathering and self.mark < self.last <= self.durable
        if not self._going and not self._asked and not skipped:
            return []
        self._earn(now)
        if self._left < 0.0:
            return []
        entries = self._next_entries()
        since = now - LATE_SECONDS - self._window
        late = [entry for entry in entries if entry.found == UNKNOWN and entry.at < since]
        return self._look(late) if late else self._batch(entries)

    def _next_entries(self) -> list[RetainedEntry]:
        """Those of the next batch."""
        entries: list[RetainedEntry] = []
        size = 0
        for entry in self._going.values():
            if entry.sequence > self.durable or len(entries) >= BATCH_OPERATIONS or size >= BATCH_BYTES:
                break
            entries.append(entry)
            size += _size_of(entry)
        return entries

    def _look(self, late: list[RetainedEntry]) -> list[Txn]:
        self._looking = late
        self._tags += 1
        self._tag = f"{LOOK_TAG}{self._tags}"
        return [Txn(self._tag, (), tuple([Get(entry.key) for entry in late]))]

    def _looked(self, answer: TxnAnswer) -> None:
        for entry, found in zip(self._looking, answer.found, strict=True):
            entry.found = found[0].mod_revision if found else 0
            later = entry.found > entry.known and self._published_at(found[0].value) > entry.at
            entry.superseded = later

    def _batch(self, entries: list[RetainedEntry]) -> list[Txn]:
        operations: list[Operation] = []
        compares = [Compare(self._mark_key, "mod_revision", "=", self._mark_revision)]
        size = 0
        for entry in entries:
            if entry.superseded:
                continue
            if entry.found != UNKNOWN:
                compares.append(Compare(entry.key, "mod_revision", "=", entry.found))
            operations.append(Delete(entry.key) if entry.value is None else Put(entry.key, entry.value))
            size += _size_of(entry)
        mark = entries[-1].sequence if entries else self.mark
        if len(entries) == len(self._going) and not self._gathering and self.last <= self.durable:
            mark = max(mark, self.last)
        if not entries and not self._asked and mark == self.mark:
            return []
        self._asked = False
        self._left -= size + ENTRY_BYTES
        self._batch_mark = mark
        self._tags += 1
        self._tag = f"{TAG}{self._tags}"
        self.batches += 1
        operations.append(Put(self._mark_key, b"%d" % mark))
        return [Txn(self._tag, tuple(compares), tuple(operations), (Get(self._mark_key),))]

    def _earn(self, now: float) -> None:
        """Limits the bytes written within etcd's compaction period: etcd keeps overwritten values until it compacts."""
        if self._left_at:
            self._left = min(self._budget, self._left + self._rate * (now - self._left_at))
        self._left_at = now

    def answered(self, answer: TxnAnswer, now: float) -> Written | None:
        """The writes that are done by this answer. None: none, or the answer is for another module."""
        if not self._tag or answer.tag != self._tag:
            return None
        self._tag = ""
        if self._looking:
            if answer.error:
                self._retry.failed(now)
            else:
                self._retry.succeeded()
                self._looked(answer)
            self._looking = []
            return None
        if answer.error:
            self._asked = True  # at least the mark, to find out whether this batch was done
            self._retry.failed(now)
            return None
        self._retry.succeeded()
        if answer.succeeded:
            self._mark_revision = answer.revision
            return self._done(self._batch_mark, answer.revision, True)
        self._asked = True
        for entry in self._going.values():  # another node has written one of these topics since, or the batch was done
            entry.found = UNKNOWN
            entry.superseded = False
        found: tuple[KeyValue, ...] = answer.found[-1]
        if not found:
            self._mark_revision = 0
            return None
        self._mark_revision = found[0].mod_revision  # an earlier attempt was done, or one of an earlier incarnation
        return self._done(int(found[0].value), found[0].mod_revision, False)

    def _done(self, mark: int, revision: int, last: bool) -> Written:
        self.mark = max(self.mark, mark)
        done: dict[bytes, int] = {}
        for topic, entry in self._going.items():
            if entry.sequence > self.mark:
                break
            done[topic] = entry.sequence
        for topic in done:
            superseded = self._going.pop(topic).superseded
            self.superseded += superseded
            self.written += not superseded
            following = self._gathering.get(topic)
            if following is not None and not superseded:
                following.known = max(following.known, revision)
        self._revision = max(self._revision, revision)
        return Written(revision, done, last)

    def wake_at(self) -> float:
        """When ``take_requests`` has to be called without an event; 0.0: never."""
        if self._tag or self._mark_revision == UNKNOWN:
            return 0.0
        if not (self._going or self._gathering or self._asked):
            return 0.0
        when = self._retry.at
        if not self._going and not self._asked:
            when = max(when, self._went_at + self._window)
        if self._left < 0.0:
            when = max(when, self._left_at - self._left / self._rate)
        return when


def _size_of(entry: RetainedEntry) -> int:
    return len(entry.key) + ENTRY_BYTES + (0 if entry.value is None else len(entry.value))
