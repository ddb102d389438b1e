"""Elects the node that does something for the whole cluster: one key in etcd, written with its holder's lease.

::

    IDLE --campaign--> READING --no leader--> TRYING --key was free--> LEADING
                          |                     '--another node was faster--> FOLLOWING
                          '--a leader--> FOLLOWING --the key is gone--> TRYING

    LEADING --the key is gone, or another node's--> READING

Invariant: from one creation of the key to its deletion, at most one node leads. Its *term*, the revision of that
creation, is higher than all before. A leader may not know yet that it does not lead any more. So it acts through
transactions that compare the keys that they depend on (``held`` is such a condition), and a late one changes nothing.

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
from starlingmq.cluster.etcd.etcd_retry import EtcdRetry

RETRY_SECONDS: Final = 0.25  # after an error of etcd
RETRY_SECONDS_MAX: Final = 4.0

State = Literal["idle", "reading", "trying", "following", "leading"]


class Election:
    """``key`` must not be a prefix of another key."""

    state: State
    leader: bytes  # the name of the leader; b"": none, or not known yet
    term: int  # the revision in which its term began; 0: no leader

    def __init__(self, key: bytes) -> None:
        self.state = "idle"
        self.leader = b""
        self.term = 0
        self._key = key
        self._name = b""
        self._tags = 0
        self._tag = ""  # of the outstanding transaction
        self._watching = False
        self._available = True
        self._retry = EtcdRetry(RETRY_SECONDS, RETRY_SECONDS_MAX)
        self._seen = 0  # revision up to which the key is known
        self._requests: list[Request] = []

    @property
    def leading(self) -> bool:
        return self.state == "leading"

    def held(self) -> Compare:
        """A condition that holds as long as this term lasts."""
        return Compare(self._key, "create_revision", "=", self.term)

    def campaign(self, name: bytes, now: float) -> None:
        """Takes part in elections from now on. ``name`` stands for one incarnation of one node. May be called again."""
        if self.state == "idle":
            self._name = name
            self.state = "reading"
            self._step(now)

    def answered(self, answer: Answer, now: float) -> None:
        """Takes the answer to one of this election's requests; ignores others."""
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
            self._read_again()  # the key is gone, or another node's
        else:
            assert isinstance(answer, EtcdState)
            self._available = answer.available
        self._step(now)

    def tick(self, now: float) -> None:
        """To be called at ``wake_at``."""
        self._step(now)

    def wake_at(self) -> float:
        """When to call ``tick``; 0.0: nothing waits for a time."""
        waits = self.state in ("reading", "trying") and not self._tag and self._available
        return self._retry.at if waits else 0.0

    def take_requests(self) -> list[Request]:
        requests, self._requests = self._requests, []
        return requests

    def _read_again(self) -> None:
        if self.state != "idle":
            self.state = "reading"

    def _take(self, answer: TxnAnswer, now: float) -> None:
        if answer.error:
            self._retry.failed(now)
            self._read_again()
            return
        self._retry.succeeded()
        self._retry.at = 0.0
        if answer.revision < self._seen:
            return  # the watch has reported newer state
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
        if self._tag or not self._available or now < self._retry.at or self.state not in ("reading", "trying"):
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
