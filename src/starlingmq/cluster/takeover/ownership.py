"""Owners of client ids: one key for each node that has, or may have, a session of the client id (docs/SESSIONS.md).

A claim writes this node's key and reads those of all nodes in one step (``owner_store``). It has an *epoch*; the node
with the highest epoch of a client id owns it. A node deletes its key when it has no state of the client id left. No
node's key is ever overwritten by another node, so a claim that is not answered is simply repeated.

Pure: requests out, answers in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from starlingmq.cluster.takeover.owner_store import CLEAN, Claimed, OwnerStore


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
    """A claim. ``clean``: written as a clean start. ``newest``: the newest epoch that was known when it was requested:
    the claim gets a later one."""

    clean: bool
    newest: int


@dataclass(frozen=True, slots=True)
class OwnershipPorts:
    """The queries that claims make to other parts of the node, about a client id."""

    # the epoch below which everything was discarded, as far as this node knows; CLEAN: that of the next claim
    floor: Callable[[str], int]
    wanted: Callable[[str], bool]  # whether a CONNECT waits for it
    needed: Callable[[str], bool]  # whether this node must keep its key even without a session of it
    arm: Callable[[str], bytes]  # the record of the will that the next claim registers; empty: none
    claimed: Callable[[str, Claimed], None]  # a claim is answered


class Ownership:
    claims: int  # requested so far
    newest: int  # the newest epoch of all answers: no epoch of this node is newer
    # (client id, node, epoch) of keys that were to be deleted and have been claimed since
    rewritten: list[tuple[str, int, int]]

    def __init__(self, store: OwnerStore, ports: OwnershipPorts) -> None:
        self._store = store
        self._ports = ports
        self.claims = 0
        self.newest = 0
        self.rewritten = []
        # client id -> epoch of this node's key, to be deleted once it is not needed any more
        self._needed: dict[str, int] = {}
        self._node = 0
        self._claims: dict[str, None] = {}
        self._claiming: dict[str, UnderWay] = {}  # requested, not answered
        self._again: dict[str, None] = {}  # of ``_claiming``: claimed again in the meantime
        self._written: dict[str, None] = {}  # to be claimed again: the key is, or may be, written already
        self._unconditional: dict[str, None] = {}  # those of all these that are claimed even if no CONNECT waits
        self._releases: deque[tuple[str, int, int]] = deque()
        self._releasing = 0  # releases that are not answered
        self._owned: dict[str, Owned] = {}  # answers that were not taken yet

    @property
    def answered_at(self) -> float:
        """When a request of this module was last answered, or is sure to be."""
        return self._store.answered_at

    def enter(self, node: int) -> None:
        """This node's number is known."""
        self._node = node

    def claim(self, client_id: str, unconditional: bool = True) -> None:
        """Claims the client id with the next request. The answer to an outstanding request does not count for this
        claim. ``unconditional``: claims it even if no CONNECT waits for it by then."""
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
        return not (self._claims or self._releases or self._claiming or self._releasing)

    def ask(self) -> None:
        """Makes the requests of this turn."""
        if not self._node:
            return
        claims, self._claims = self._claims, {}
        for client_id in claims:
            if client_id in self._unconditional or client_id in self._written or self._ports.wanted(client_id):
                self.claims += 1
                floor = self._ports.floor(client_id)
                self._claiming[client_id] = UnderWay(floor == CLEAN, self.newest)
                self._store.claim(client_id, floor, self._ports.arm(client_id), self._claimed)
        while self._releases:
            self._releasing += 1
            self._store.release(*self._releases.popleft(), self._released)

    def _claimed(self, client_id: str, claimed: Claimed) -> None:
        under_way = self._claiming.pop(client_id)
        self.newest = max(self.newest, claimed.epoch)
        self._ports.claimed(client_id, claimed)
        if client_id in self._again:
            del self._again[client_id]
            self._claims[client_id] = self._written[client_id] = None
            return
        unconditional = client_id in self._unconditional
        self._unconditional.pop(client_id, None)
        self._written.pop(client_id, None)
        self._owned[client_id] = Owned(
            client_id, claimed.epoch, claimed.others, claimed.floor, under_way.clean, unconditional
        )

    def _released(self, client_id: str, node: int, newest: int, later: int) -> None:
        self._releasing -= 1
        self.newest = max(self.newest, newest)
        if later:
            self.rewritten.append((client_id, node, later))

    def take_rewritten(self) -> list[tuple[str, int, int]]:
        """Keys that were to be deleted and that a later claim has written. If the node of that claim has died, or never
        got the answer, no node uses the key."""
        rewritten, self.rewritten = self.rewritten, []
        return rewritten

    def settled_epoch(self) -> int:
        """No epoch above it was answered, and none below it will be."""
        return min([self.newest, *[each.newest for each in self._claiming.values()]])

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
