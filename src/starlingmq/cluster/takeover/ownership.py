"""Owners of client ids: one key for each node that has, or may have, a session of the client id (docs/SESSIONS.md).

A claim writes this node's key and reads those of all nodes in one step, at the leader of the client id's share
(``cluster.shares``). It has an *epoch*; the node with the highest epoch of a client id owns it. A node deletes its key
when it has no state of the client id left. No node's key is ever overwritten by another node, so a claim that is not
answered is simply repeated.

Pure: requests out, answers in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from starlingmq.cluster.etcd.etcd_requests import Compare, Delete, Get, KeyValue, Put, Txn, TxnAnswer

UNDER_WAY_MAX: Final = 512  # of a storm of claims, no turn takes so many that heartbeats wait
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


class UnderWay(NamedTuple):
    """A claim, or the release of the key of ``node`` (0: it is a claim) with that epoch. ``clean``: written as a clean
    start. ``newest``: the newest epoch that was known when it was requested: a claim gets a later one."""

    client_id: str
    node: int
    epoch: int
    clean: bool
    newest: int


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
    answered_at: float  # when the leader of a share last answered a request of this module
    newest: int  # the newest epoch of all answers: no epoch of this node is newer
    # (client id, node, epoch) of keys that were to be deleted and have been claimed since
    rewritten: list[tuple[str, int, int]]

    def __init__(self, cluster: str, ports: OwnershipPorts) -> None:
        self._ports = ports
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
        if self._node == 0:
            return []
        requests: list[Txn] = []
        while self._may_ask():
            if not self._claims:
                requests.append(self._next_release())
                continue
            client_id = next(iter(self._claims))
            del self._claims[client_id]
            if client_id in self._unconditional or client_id in self._written or self._ports.wanted(client_id):
                requests.append(self._next_claim(client_id))
        self.transactions += len(requests)
        return requests

    def _may_ask(self) -> bool:
        return bool(self._claims or self._releases) and len(self._under_way) < UNDER_WAY_MAX

    def _tag(self, under_way: UnderWay) -> str:
        self._tags += 1
        tag = f"{TAG}{self._tags}"
        self._under_way[tag] = under_way
        return tag

    def _next_claim(self, client_id: str) -> Txn:
        self._claiming[client_id] = None
        self.claims += 1
        floor = self._ports.floor(client_id)
        write = Put(self.key(client_id, self._node), self.value(floor))
        tag = self._tag(UnderWay(client_id, 0, 0, floor == CLEAN, self.newest))
        return Txn(tag, (), (Get(self.key(client_id), prefix=True), write))

    def value(self, floor: int) -> bytes:
        """The content of this node's key."""
        return b"%d" % self._incarnation if floor == 0 else b"%d %d" % (self._incarnation, floor)

    def _next_release(self) -> Txn:
        """Deletes the key if it is unchanged. Otherwise the answer has the present key."""
        client_id, node, epoch = self._releases.popleft()
        key = self.key(client_id, node)
        compare = Compare(key, "mod_revision", "=", epoch)
        return Txn(
            self._tag(UnderWay(client_id, node, epoch, False, self.newest)), (compare,), (Delete(key),), (Get(key),)
        )

    def answered(self, answer: TxnAnswer, now: float) -> None:
        """Takes the answer to one of this module's requests; ignores others."""
        under_way = self._under_way.pop(answer.tag, None)
        if under_way is None:
            return
        self.answered_at = now
        self.newest = max(self.newest, answer.revision)
        client_id = under_way.client_id
        if under_way.node:
            self._released(under_way, answer)
            return
        del self._claiming[client_id]
        if client_id in self._again:
            del self._again[client_id]
            self._claims[client_id] = self._written[client_id] = None
            return
        others, floor = self._others(client_id, answer.found[0])
        unconditional = client_id in self._unconditional
        self._unconditional.pop(client_id, None)
        self._written.pop(client_id, None)
        self._owned[client_id] = Owned(client_id, answer.revision, others, floor, under_way.clean, unconditional)

    def _released(self, under_way: UnderWay, answer: TxnAnswer) -> None:
        for later in () if answer.succeeded else answer.found[0]:
            self.rewritten.append((under_way.client_id, under_way.node, later.mod_revision))

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
        return min([self.newest, *[each.newest for each in self._under_way.values() if not each.node]])

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
