"""Owners of client ids: one key in etcd for each node that has, or may have, a session of the client id
(docs/SESSIONS.md).

A claim writes this node's key and reads those of all nodes in one transaction, for many client ids at once. The
revision of the transaction is the *epoch*; the node with the highest epoch of a client id owns it. A node deletes its
key when it has no state of the client id left. No node's key is ever overwritten by another node, so a claim with an
unknown outcome is simply repeated.

Pure: requests out, answers in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from starlingmq.cluster.etcd.etcd_requests import Compare, Delete, Get, KeyValue, Operation, Put, Txn, TxnAnswer
from starlingmq.cluster.etcd.etcd_retry import EtcdRetry

CLAIMS_PER_TXN: Final = 60  # and releases; two operations each; etcd's default limit is 128
# full transactions. While two are outstanding, new claims are collected: to etcd, one transaction costs as much as many
# claims in one
TXNS_UNDER_WAY: Final = 8
SMALL_UNDER_WAY: Final = 2
IN_SHARES_UNDER_WAY: Final = 512  # of a storm of claims, no turn takes so many that heartbeats wait
RETRY_SECONDS: Final = 0.1  # after an error of etcd
RETRY_SECONDS_MAX: Final = 2.0
TAG: Final = "owners-"
CLEAN: Final = -1


@dataclass(frozen=True, slots=True)
class Owned:
    """This node owns a client id. ``others``: nodes that have a key of it too, with their epochs. A clean start has
    discarded everything of epochs below ``floor``; nodes that still have it may not know that yet."""

    client_id: str
    epoch: int
    others: dict[int, int]
    floor: int = 0
    clean: bool = False  # the claim was written as a clean start: everything older is to be discarded
    unconditional: bool = True  # it was claimed for more than a waiting CONNECT


@dataclass(slots=True)
class UnderWay:
    claims: list[str]
    releases: list[tuple[str, int, int]]  # client id, node, epoch
    clean: list[str]  # those of ``claims`` that were written as clean starts
    newest: int  # the newest epoch that was known when it was requested: these claims get later ones


class OwnershipPorts:
    """The queries that claims make to other parts of the node, about a client id."""

    # the epoch below which everything was discarded, as far as this node knows; CLEAN: that of the next claim
    floor: Callable[[str], int]
    wanted: Callable[[str], bool]  # whether a CONNECT waits for it
    needed: Callable[[str], bool]  # whether this node must keep its key even without a session of it

    def __init__(
        self, floor: Callable[[str], int], wanted: Callable[[str], bool], needed: Callable[[str], bool]
    ) -> None:
        self.floor = floor
        self.wanted = wanted
        self.needed = needed


class Ownership:
    transactions: int  # requested so far
    claims: int
    prefix: bytes  # of all owner keys
    answered_at: float  # when etcd last answered a request of this module
    in_shares: bool  # settled by ``divide``
    newest: int  # the newest revision that etcd has answered with: no epoch of this node is newer
    # (client id, node, epoch) of keys that were to be deleted and have been claimed since
    rewritten: list[tuple[str, int, int]]

    def __init__(self, cluster: str, ports: OwnershipPorts) -> None:
        self._ports = ports
        self.in_shares = False
        self._per_txn = CLAIMS_PER_TXN
        self._under_way_max = TXNS_UNDER_WAY
        self.transactions = 0
        self.claims = 0
        self.prefix = f"/starlingmq/{cluster}/owners/".encode()
        self.answered_at = 0.0
        self.newest = 0
        self.rewritten = []
        # client id -> epoch of this node's key, to be deleted once it is not needed any more
        self._needed: dict[str, int] = {}
        self._node = 0
        self._incarnation = 0
        self._claims: dict[str, None] = {}
        self._claiming: dict[str, None] = {}  # requested, not answered
        self._again: dict[str, None] = {}  # of ``_claiming``: claimed again in the meantime
        self._written: dict[str, None] = {}  # to be claimed again: the key is, or may be, written already
        self._unconditional: dict[str, None] = {}  # those of all these that are claimed even if no CONNECT waits
        self._releases: deque[tuple[str, int, int]] = deque()
        self._under_way: dict[str, UnderWay] = {}
        self._owned: dict[str, Owned] = {}  # answers that were not taken yet
        self._tags = 0
        self._retry = EtcdRetry(RETRY_SECONDS, RETRY_SECONDS_MAX)

    def divide(self) -> None:
        """Before ``enter``: the transactions are answered by the leaders of shares (cluster.shares), so each concerns
        one client id."""
        self.in_shares = True
        self._per_txn = 1
        self._under_way_max = IN_SHARES_UNDER_WAY

    def enter(self, node: int, incarnation: int) -> None:
        """This node's number is known."""
        self._node, self._incarnation = node, incarnation

    def claim(self, client_id: str, unconditional: bool = True) -> None:
        """Claims the client id with the next transaction. The answer to an outstanding transaction does not count for
        this claim. ``unconditional``: claims it even if no CONNECT waits for it by then."""
        if unconditional:
            self._unconditional[client_id] = None
        if client_id in self._claiming:
            self._again[client_id] = None
        else:
            self._claims[client_id] = None

    def claim_again(self, client_id: str, unconditional: bool) -> None:
        """Claims the client id even if no CONNECT waits for it: the content of this node's key has to be changed."""
        self._written[client_id] = None
        self.claim(client_id, unconditional)

    def claiming(self, client_id: str) -> bool:
        """Whether a claim is outstanding, or its answer was not taken yet."""
        return client_id in self._claiming or client_id in self._claims or client_id in self._owned

    def claiming_anyway(self, client_id: str) -> bool:
        """Whether it is being claimed even if no CONNECT waits."""
        owned = self._owned.get(client_id)
        return client_id in self._unconditional or (owned is not None and owned.unconditional)

    def release(self, client_id: str, node: int, epoch: int) -> None:
        """Deletes the key of a node that has no state of the client id left: this node, or one that is no longer a
        member."""
        if node == self._node and self._ports.needed(client_id):
            self._needed[client_id] = max(epoch, self._needed.get(client_id, 0))
        else:
            self._releases.append((client_id, node, epoch))

    def release_needed(self, client_id: str) -> None:
        """This node's key is not ``OwnershipPorts.needed`` any more: it is deleted if its deletion was held back."""
        epoch = self._needed.pop(client_id, 0)
        if epoch:
            self._releases.append((client_id, self._node, epoch))

    def idle(self) -> bool:
        """Whether no request is outstanding or pending."""
        return not (self._claims or self._releases or self._under_way)

    def key(self, client_id: str, node: int | None = None) -> bytes:
        """The owner key of one node; without ``node``, the prefix of all owner keys of this client id."""
        name = client_id.replace("%", "%25").replace("/", "%2F")
        return self.prefix + f"{name}/{'' if node is None else node}".encode()

    def names(self, key: bytes) -> tuple[str, int] | None:
        """Client id and node of an owner key; None for any other key."""
        name, _, node = key[len(self.prefix) :].rpartition(b"/")
        if not (key.startswith(self.prefix) and name and node.isdigit()):
            return None
        return name.decode().replace("%2F", "/").replace("%25", "%"), int(node)

    def take_requests(self, now: float) -> list[Txn]:
        if self._node == 0 or now < self._retry.at:
            return []
        requests: list[Txn] = []
        while self._may_ask():
            if self._claims and not self._drop_unwanted():
                continue
            requests.append(self._next_claims() if self._claims else self._next_releases())
        self.transactions += len(requests)
        return requests

    def _may_ask(self) -> bool:
        full = len(self._claims) >= self._per_txn or len(self._releases) >= self._per_txn
        most = self._under_way_max if full else SMALL_UNDER_WAY
        return bool(self._claims or self._releases) and len(self._under_way) < most

    def _tag(self, under_way: UnderWay) -> str:
        self._tags += 1
        tag = f"{TAG}{self._tags}"
        self._under_way[tag] = under_way
        return tag

    def _drop_unwanted(self) -> bool:
        """Drops the next claims whose clients have gone. Returns whether any claims are left."""
        for client_id in list(islice(self._claims, self._per_txn)):
            if not (client_id in self._unconditional or client_id in self._written or self._ports.wanted(client_id)):
                del self._claims[client_id]
        return len(self._claims) != 0

    def _next_claims(self) -> Txn:
        client_ids = list(islice(self._claims, self._per_txn))
        for client_id in client_ids:
            del self._claims[client_id]
            self._claiming[client_id] = None
        self.claims += len(client_ids)
        reads: list[Operation] = [Get(self.key(client_id), prefix=True) for client_id in client_ids]
        floors = {client_id: self._ports.floor(client_id) for client_id in client_ids}
        writes: list[Operation] = [Put(self.key(name, self._node), self.value(floors[name])) for name in client_ids]
        clean = [client_id for client_id in client_ids if floors[client_id] == CLEAN]
        return Txn(self._tag(UnderWay(client_ids, [], clean, self.newest)), (), (*reads, *writes))

    def value(self, floor: int) -> bytes:
        """The content of this node's key."""
        return b"%d" % self._incarnation if floor == 0 else b"%d %d" % (self._incarnation, floor)

    def _next_releases(self) -> Txn:
        """Deletes all of them if they are unchanged. Otherwise etcd returns the current keys, and the unchanged ones
        are deleted next."""
        releases: dict[bytes, tuple[str, int, int]] = {}
        while self._releases and len(releases) < self._per_txn:
            key = self.key(self._releases[0][0], self._releases[0][1])
            if key in releases:
                break  # of another epoch: one of the two is the current one
            releases[key] = self._releases.popleft()
        compares = tuple(Compare(key, "mod_revision", "=", release[2]) for key, release in releases.items())
        deletes = tuple(Delete(key) for key in releases)
        gets = tuple(Get(key) for key in releases)
        return Txn(self._tag(UnderWay([], list(releases.values()), [], self.newest)), compares, deletes, gets)

    def answered(self, answer: TxnAnswer, now: float) -> None:
        """Takes the answer to one of this module's requests; ignores others."""
        under_way = self._under_way.pop(answer.tag, None)
        if under_way is None:
            return
        for client_id in under_way.claims:
            self._claiming.pop(client_id, None)
        if answer.error:
            for client_id in under_way.claims:
                self._again.pop(client_id, None)
                self._claims[client_id] = self._written[client_id] = None
            self._releases.extend(under_way.releases)
            self._retry.failed(now)
            return
        self._retry.succeeded()
        self.answered_at = now
        self.newest = max(self.newest, answer.revision)
        for client_id, found in zip(under_way.claims, answer.found, strict=False):
            if client_id in self._again:
                del self._again[client_id]
                self._claims[client_id] = self._written[client_id] = None
                continue
            others, floor = self._others(client_id, found)
            clean, unconditional = client_id in under_way.clean, client_id in self._unconditional
            self._unconditional.pop(client_id, None)
            self._written.pop(client_id, None)
            self._owned[client_id] = Owned(client_id, answer.revision, others, floor, clean, unconditional)
        if under_way.releases and not answer.succeeded:
            there = {entry.key: entry.mod_revision for found in answer.found for entry in found}
            for client_id, node, epoch in under_way.releases:
                found_epoch = there.get(self.key(client_id, node), 0)
                if found_epoch == epoch:
                    self._releases.append((client_id, node, epoch))
                elif found_epoch > epoch:
                    self.rewritten.append((client_id, node, found_epoch))

    def _others(self, client_id: str, found: tuple[KeyValue, ...]) -> tuple[dict[int, int], int]:
        others: dict[int, int] = {}
        highest = 0
        for entry in found:
            node = entry.key[len(self.key(client_id)) :]
            if node.isdigit() and int(node) != self._node:
                others[int(node)] = entry.mod_revision
                said = entry.value.partition(b" ")[2]
                floor = int(said) if said.lstrip(b"-").isdigit() else 0
                highest = max(highest, entry.mod_revision if floor == CLEAN else floor)
        return others, highest

    def take_rewritten(self) -> list[tuple[str, int, int]]:
        """Keys that were to be deleted and that a later claim has written. If the node of that claim has died, or never
        got etcd's answer, no node uses the key."""
        rewritten, self.rewritten = self.rewritten, []
        return rewritten

    def settled_epoch(self) -> int:
        """No epoch above it was answered, and none below it will be."""
        return min([self.newest, *[each.newest for each in self._under_way.values() if each.claims]])

    def answered_ids(self) -> list[str]:
        """Client ids whose claims were answered, and not taken yet."""
        return list(self._owned)

    def answered_epoch(self, client_id: str) -> int:
        owned = self._owned.get(client_id)
        return 0 if owned is None else owned.epoch

    def take_owned(self) -> list[Owned]:
        owned = list(self._owned.values())
        self._owned.clear()
        return owned

    def wake_at(self) -> float:
        """When ``take_requests`` has to be called without an event; 0.0: never."""
        return self._retry.at if self._claims or self._releases else 0.0
