"""Who does something for the whole cluster: one key in etcd, written with its holder's lease.

::

    IDLE --campaign--> READING --nobody--> TRYING --it was free--> LEADING
                          |                  '--somebody was faster--> FOLLOWING
                          '--somebody--> FOLLOWING --the key is gone--> TRYING
    LEADING --the key is gone, or another's--> READING

The law: of the lives of one key at most one node leads in each, and its *term*, the revision that began that life, is
higher than all before. Who leads may not know yet that it does not any more: so what a leader does it does by
transactions that compare what they rest on (``held`` is such a condition), and a late one changes nothing.

Pure: requests out, answers in. Its tags and its watch begin with the key.
"""

from __future__ import annotations

from typing import Final, Literal

from starlingmq.cluster.etcd.etcd_requests import (
    Answer,
    Compare,
    EtcdState,
    Get,
    KeyValue,
    LeaseLost,
    Put,
    Request,
    Txn,
    TxnAnswer,
    Watch,
    WatchEvent,
    WatchLost,
)

RETRY_SECONDS: Final = 0.25  # after an error of etcd; twice as long after each further one
RETRY_SECONDS_MAX: Final = 4.0

State = Literal["idle", "reading", "trying", "following", "leading"]


class Election:
    """``key`` is one that no other begins with."""

    state: State
    leader: bytes  # the name of who leads; b"": nobody, or not known yet
    term: int  # the revision in which it began; 0: nobody leads

    def __init__(self, key: bytes) -> None:
        self.state = "idle"
        self.leader = b""
        self.term = 0
        self._key = key
        self._name = b""
        self._tags = 0
        self._tag = ""  # of the transaction under way
        self._watching = False
        self._available = True
        self._retry = RETRY_SECONDS
        self._retry_at = 0.0
        self._seen = 0  # revision up to which the key is known
        self._requests: list[Request] = []

    @property
    def leading(self) -> bool:
        return self.state == "leading"

    def held(self) -> Compare:
        """Holds as long as this term lasts."""
        return Compare(self._key, "create_revision", "=", self.term)

    def campaign(self, name: bytes, now: float) -> None:
        """Take part from now on; ``name`` is of one life of one node. May be called again."""
        if self.state == "idle":
            self._name = name
            self.state = "reading"
            self._step(now)

    def answered(self, answer: Answer, now: float) -> None:
        """Answers to others are not looked at."""
        if isinstance(answer, TxnAnswer):
            if not self._tag or answer.tag != self._tag:
                return
            self._tag = ""
            self._take(answer, now)
        elif isinstance(answer, WatchEvent):
            if answer.prefix != self._key:
                return
            for change in answer.changes:
                if change.key == self._key and change.mod_revision > self._seen:
                    self._set(change.value or b"", change.create_revision, change.mod_revision)
        elif isinstance(answer, WatchLost):
            if answer.prefix != self._key:
                return
            self._watching = False
            self._read_again()
        elif isinstance(answer, LeaseLost):
            self._read_again()  # what we had is gone, or another's
        else:
            assert isinstance(answer, EtcdState)
            self._available = answer.available
        self._step(now)

    def tick(self, now: float) -> None:
        """To be called at ``wake_at``."""
        self._step(now)

    def wake_at(self) -> float:
        """When to call ``tick``; 0.0: there is nothing to wait for."""
        waits = self.state in ("reading", "trying") and not self._tag and self._available
        return self._retry_at if waits else 0.0

    def take_requests(self) -> list[Request]:
        requests, self._requests = self._requests, []
        return requests

    def _read_again(self) -> None:
        if self.state != "idle":
            self.state = "reading"

    def _take(self, answer: TxnAnswer, now: float) -> None:
        if answer.error:
            self._retry_at = now + self._retry
            self._retry = min(2 * self._retry, RETRY_SECONDS_MAX)
            self._read_again()
            return
        self._retry, self._retry_at = RETRY_SECONDS, 0.0
        if answer.revision < self._seen:
            return  # the watch has told more meanwhile
        found: tuple[KeyValue, ...] = answer.found[-1]
        if found:
            self._set(found[0].value, found[0].create_revision, answer.revision)
        else:
            self._set(b"", 0, answer.revision)
        if not self._watching:
            self._watching = True
            self._requests.append(Watch(self._key, answer.revision + 1))

    def _set(self, value: bytes, created: int, seen: int) -> None:
        self._seen = seen
        self.leader = value
        self.term = created if value else 0
        if self.state != "idle":
            self.state = "leading" if value == self._name else "following" if value else "trying"

    def _step(self, now: float) -> None:
        if self._tag or not self._available or now < self._retry_at or self.state not in ("reading", "trying"):
            return
        get = Get(self._key)
        if self.state == "reading":
            self._send((), (get,), ())
        else:
            free = Compare(self._key, "create_revision", "=", 0)
            self._send((free,), (Put(self._key, self._name, leased=True), get), (get,))

    def _send(self, compares: tuple[Compare, ...], success: tuple[Put | Get, ...], failure: tuple[Get, ...]) -> None:
        self._tags += 1
        self._tag = f"{self._key.decode()} {self._tags}"
        self._requests.append(Txn(self._tag, compares, success, failure))
