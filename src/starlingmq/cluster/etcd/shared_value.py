"""One small document that all nodes have alike: a key in etcd, read, watched, and replaced by compare-and-set.

::

    UNKNOWN --read--> KNOWN --the watch lost changes, or an error--> read again; the last state is kept meanwhile

Invariants: the value only moves to later revisions of the key, in whatever order answers and changes arrive. A write is
done only if the key is still what this node knows; it is refused while etcd is away. After an error of etcd the outcome
of a write is unknown, and the proposer is told so: the value follows if it was done.

Pure: requests out, answers in. Its tags and its watch begin with the key.
"""

from __future__ import annotations

from typing import Final

from starlingmq.cluster.etcd.etcd_requests import (
    Answer,
    Compare,
    EtcdState,
    Get,
    KeyValue,
    Put,
    Request,
    Txn,
    TxnAnswer,
    Watch,
    WatchEvent,
    WatchLost,
)
from starlingmq.cluster.etcd.etcd_retry import EtcdRetry

RETRY_SECONDS: Final = 0.25  # after an error of etcd
RETRY_SECONDS_MAX: Final = 2.0
READ_SECONDS: Final = 0.1  # between two reads at least, as clients may cause them

DONE: Final = ""
OVERTAKEN: Final = "another node was faster"
UNKNOWN: Final = "etcd has not confirmed the change, which may still take effect; look before you repeat it"
AWAY: Final = "etcd is away, so nothing can be changed"
PENDING: Final = "etcd has not answered the change before this one yet; look at what it did, then try again"


class SharedValue:
    value: bytes  # the document; b"": there is none
    known: bool  # it has been read
    reads: int  # that were answered, or failed

    def __init__(self, key: bytes) -> None:
        """``key`` must not be a prefix of another key."""
        self.value = b""
        self.known = False
        self.reads = 0
        self._begun = 0  # reads that were sent
        self._key = key
        self._revision = 0  # of the last change of the key; 0: it does not exist
        self._seen = 0  # revision up to which the key is known
        self._stale = False  # it has to be read
        self._watching = False
        self._available = True
        self._tags = 0
        self._reading = ""  # tag of the outstanding read
        self._writing = ""  # tag of the outstanding write
        self._outcome: str | None = None
        self._retry = EtcdRetry(RETRY_SECONDS, RETRY_SECONDS_MAX)
        self._rests_until = 0.0
        self._requests: list[Request] = []

    def start(self, now: float) -> None:
        self._stale = True
        self.tick(now)

    def read(self, now: float) -> int:
        """Read it once more. Returns the number of ``reads`` when that is done; 0: etcd is away."""
        if not self._available:
            return 0
        self._stale = True
        if self._reading:
            return self._begun + 1  # the one under way may be of before
        self.tick(now)
        return self._begun if self._reading else self._begun + 1  # it is sent later

    def propose(self, value: bytes) -> str:
        """Write a value that was made from the present one. Returns why that is refused, or "": then
        ``take_outcome`` has its outcome later."""
        if not self.known or not self._available:
            return AWAY
        if self._writing:
            return PENDING
        get = Get(self._key)
        same = Compare(self._key, "mod_revision", "=", self._revision)
        self._writing = self._send((same,), (Put(self._key, value), get), (get,))
        return ""

    def answered(self, answer: Answer, now: float) -> None:
        """Takes the answer to one of its requests; ignores others."""
        if isinstance(answer, TxnAnswer):
            if answer.tag and answer.tag in (self._reading, self._writing):
                self._take(answer, now)
        elif isinstance(answer, WatchEvent):
            for change in answer.changes if answer.prefix == self._key else ():
                if change.key == self._key and change.mod_revision > self._seen:
                    self._set(change.value, change.mod_revision, change.mod_revision)
        elif isinstance(answer, WatchLost):
            if answer.prefix == self._key:
                self._watching, self._stale = False, True
        elif isinstance(answer, EtcdState):
            self._available = answer.available
        self.tick(now)

    def tick(self, now: float) -> None:
        """To be called at ``wake_at``."""
        if self._stale and not self._reading and self._available and now >= self._due_at():
            self._stale = False
            self._rests_until = now + READ_SECONDS
            self._begun += 1
            self._reading = self._send((), (Get(self._key),), ())

    def wake_at(self) -> float:
        """When to call ``tick``; 0.0: nothing waits for a time."""
        return self._due_at() if self._stale and not self._reading and self._available else 0.0

    def _due_at(self) -> float:
        return max(self._retry.at, self._rests_until)

    def take_requests(self) -> list[Request]:
        requests, self._requests = self._requests, []
        return requests

    def take_outcome(self) -> str | None:
        """Of the last write: ``DONE``, ``OVERTAKEN`` or ``UNKNOWN``; None: there is none yet."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def _send(self, compares: tuple[Compare, ...], success: tuple[Put | Get, ...], failure: tuple[Get, ...]) -> str:
        self._tags += 1
        tag = f"{self._key.decode()} {self._tags}"
        self._requests.append(Txn(tag, compares, success, failure))
        return tag

    def _take(self, answer: TxnAnswer, now: float) -> None:
        if answer.tag == self._writing:
            self._writing = ""
            self._outcome = UNKNOWN if answer.error else DONE if answer.succeeded else OVERTAKEN
        else:
            self._reading = ""
            self.reads += 1
        if answer.error:
            self._retry.failed(now)
            self._stale = True
            return
        self._retry.succeeded()
        found: tuple[KeyValue, ...] = answer.found[-1]
        if answer.revision >= self._seen:
            self._set(found[0].value if found else None, found[0].mod_revision if found else 0, answer.revision)
        if not self._watching:
            self._watching = True
            self._requests.append(Watch(self._key, answer.revision + 1))

    def _set(self, value: bytes | None, revision: int, seen: int) -> None:
        self.value, self._revision = (b"", 0) if value is None else (value, revision)
        self._seen = seen
        self.known = True
