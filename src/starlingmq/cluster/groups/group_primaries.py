"""The primary of each queue group: one key in etcd per group, written with the lease of its node (docs/GROUPS.md).

Invariant: only the watch changes what is known of a key. The answer to a campaign only says that the watch will report
a change, or that the campaign has to be repeated; so no two sources have to be ordered. The *epoch* of a primary is the
revision in which its key was created: it rises from one primary to the next, and a lower one is refused.

Pure: requests out, answers in.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from starlingmq.cluster.etcd.etcd_requests import (
    Answer,
    Compare,
    Delete,
    Get,
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

TAG: Final = "groups-"
CAMPAIGNS_PER_TXN: Final = 40
RETRY_SECONDS: Final = 0.1  # after an error of etcd
RETRY_SECONDS_MAX: Final = 2.0
SHARE: Final = b"$share/"


class Primary:
    """The primary of a group; ``epoch`` 0: none."""

    node: int
    incarnation: int
    epoch: int

    def __init__(self, node: int, incarnation: int, epoch: int) -> None:
        self.node = node
        self.incarnation = incarnation
        self.epoch = epoch


NOBODY: Final = Primary(0, 0, 0)


class GroupPrimaries:
    transactions: int  # requested so far

    def __init__(self, cluster: str) -> None:
        self.transactions = 0
        self._prefix = f"/starlingmq/{cluster}/groups/".encode()
        self._node = 0
        self._incarnation = 0
        self._primaries: dict[bytes, Primary] = {}  # by $share/name/filter
        self._wanted: dict[bytes, None] = {}
        self._pending: dict[bytes, None] = {}  # wanted and free, or held by this node and not wanted
        self._asked: dict[bytes, int] = {}  # groups that wait for the watch to reach this revision
        self._changed: dict[bytes, None] = {}
        self._begun = False  # a group exists; etcd is not asked before
        self._seen = 0  # revision that the watch has reached
        self._watching = False
        self._tag = ""  # of the outstanding transaction
        self._names: list[bytes] = []  # the groups that it is about; none: it reads all groups
        self._tags = 0
        self._batch = CAMPAIGNS_PER_TXN
        self._retry = EtcdRetry(RETRY_SECONDS, RETRY_SECONDS_MAX)
        self._requests: list[Request] = []

    def enter(self, node: int, incarnation: int) -> None:
        """This node's number is known."""
        self._node, self._incarnation = node, incarnation

    def begin(self) -> None:
        """A group exists somewhere."""
        self._begun = True

    def primary(self, share: bytes) -> Primary:
        return self._primaries.get(share, NOBODY)

    def is_ours(self, primary: Primary) -> bool:
        return primary.epoch != 0 and primary.node == self._node and primary.incarnation == self._incarnation

    def want(self, share: bytes, wanted: bool) -> None:
        """Whether this node wants to be the primary if there is none."""
        if wanted == (share in self._wanted):
            return
        if wanted:
            self._wanted[share] = None
        else:
            del self._wanted[share]
        self._look(share)

    def _look(self, share: bytes) -> None:
        primary = self.primary(share)
        vacant = share in self._wanted and primary.epoch == 0
        stale = primary.node == self._node and primary.epoch != 0 and primary.incarnation != self._incarnation
        given_up = self.is_ours(primary) and share not in self._wanted
        if vacant or stale or given_up:
            self._pending[share] = None
        else:
            self._pending.pop(share, None)

    # etcd

    def answered(self, answer: Answer, now: float) -> None:
        if isinstance(answer, TxnAnswer):
            if self._tag and answer.tag == self._tag:
                self._tag = ""
                self._take(answer, now)
        elif isinstance(answer, WatchEvent):
            if answer.prefix == self._prefix:
                for change in answer.changes:
                    self._apply(change.key, change.value, change.create_revision)
                self._tell_up_to(answer.revision)
        elif isinstance(answer, WatchLost):
            if answer.prefix == self._prefix:
                self._watching = False
        elif isinstance(answer, LeaseLost):
            # the watch reports the keys that the lease has taken with it
            for share, primary in self._primaries.items():
                if primary.node == self._node:
                    self._look(share)

    def _take(self, answer: TxnAnswer, now: float) -> None:
        names, self._names = self._names, []
        if answer.error:
            self._retry.failed(now)
            return
        self._retry.succeeded()
        self._retry.at = 0.0
        if not names:
            self._watching = True
            there = {entry.key: entry for entry in answer.found[0]}
            for share in list(self._primaries):
                if self._prefix + share[len(SHARE) :] not in there:
                    self._apply(self._prefix + share[len(SHARE) :], None, 0)
            for key, entry in there.items():
                self._apply(key, entry.value, entry.create_revision)
            self._tell_up_to(answer.revision)
            self._requests.append(Watch(self._prefix, answer.revision + 1))
            return
        if not self._watching:
            # the watch was lost in the meantime: everything is read again, including the result of this campaign
            return
        if answer.succeeded:
            self._batch = CAMPAIGNS_PER_TXN
            for share in names:
                if answer.revision > self._seen:
                    self._asked[share] = answer.revision
        else:  # another node was faster for one of them
            self._batch = 1
            self._retry.at = now + RETRY_SECONDS

    def _apply(self, key: bytes, value: bytes | None, created: int) -> None:
        share = SHARE + key[len(self._prefix) :]
        node, _, incarnation = (value or b"").partition(b"/")
        if node.isdigit() and incarnation.isdigit():
            self._primaries[share] = Primary(int(node), int(incarnation), created)
        else:
            self._primaries.pop(share, None)
        self._changed[share] = None
        self._look(share)

    def _tell_up_to(self, revision: int) -> None:
        self._seen = max(self._seen, revision)
        for share in [share for share, until in self._asked.items() if until <= self._seen]:
            del self._asked[share]

    def take_changes(self) -> Iterable[bytes]:
        changed = self._changed
        self._changed = {}
        return changed

    def take_requests(self, now: float) -> list[Request]:
        requests, self._requests = self._requests, []
        if self._node == 0 or not self._begun or self._tag or now < self._retry.at:
            return requests
        if not self._watching:
            self._asked.clear()
            requests.append(self._txn([], (), (Get(self._prefix, prefix=True),)))
            return requests
        names = list(islice([share for share in self._pending if share not in self._asked], self._batch))
        if names:
            compares: list[Compare] = []
            writes: list[Put | Delete] = []
            for share in names:
                key = self._prefix + share[len(SHARE) :]
                epoch = self.primary(share).epoch
                compares.append(Compare(key, "create_revision", "=", epoch))
                if epoch != 0:
                    writes.append(Delete(key))
                else:
                    writes.append(Put(key, b"%d/%d" % (self._node, self._incarnation), leased=True))
            requests.append(self._txn(names, tuple(compares), tuple(writes)))
        return requests

    def _txn(self, names: list[bytes], compares: tuple[Compare, ...], success: tuple[Get | Put | Delete, ...]) -> Txn:
        self._tags += 1
        self._tag = f"{TAG}{self._tags}"
        self._names = names
        self.transactions += 1
        return Txn(self._tag, compares, success)

    def wake_at(self) -> float:
        """When ``take_requests`` has to be called without an event; 0.0: never."""
        if self._tag or self._node == 0 or not self._begun:
            return 0.0
        return self._retry.at if self._pending or not self._watching else 0.0
