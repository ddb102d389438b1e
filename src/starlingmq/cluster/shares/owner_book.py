"""The book of one share: for each client id the nodes that have, or may have, a session of it, and its wills.

Laws, the same that the keys in etcd had (``takeover.ownership``):

- A claim writes the key of its node, and reads those of all nodes in the same step. Its epoch is above all epochs of
  the share, and above all that the claiming node knows. It registers the will of its CONNECT in that step, too, and its
  answer has all other wills of the client id: those that nodes have taken are waited for, the others settled.
- A key is deleted by a release of its epoch, or of a later one.
- ``unknown`` nodes have not said what they have, and the book may miss their keys from before it was collected: a claim
  names each of them with the highest epoch that was granted then. So a session from before is assumed there to be the
  latest, and one that was claimed since is later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from starlingmq.cluster.shares.served_clients import ServedClients
from starlingmq.cluster.shares.share_messages import Claim, Disarm, Stated, WillChange, WillKey, WillWrite
from starlingmq.cluster.shares.share_table import VERSION_SHIFT
from starlingmq.cluster.shares.will_book import WillBook, node_of
from starlingmq.cluster.takeover.owner_store import OwnerKey
from starlingmq.cluster.wills.will_records import (
    SETTLED,
    RegisteredWill,
    client_of_key,
    decode_will,
    encode_will,
    is_taken,
    will_key,
)
from starlingmq.cluster.wills.will_states import WILL_TABLE, WillEvent, state_of


class OwnerBook:
    """``whole``: it has all keys and wills of its share that were written while the pair of ``since`` led it, and
    before."""

    since: int
    before: int
    whole: bool
    counter: int  # the highest epoch, or revision of a will, so far
    collected: int  # version of the table in which its nodes were asked: earlier keys of others may be missing
    keys: dict[str, tuple[OwnerKey, ...]]
    unknown: dict[int, None]
    wills: WillBook
    served: ServedClients

    def __init__(self, since: int, before: int, whole: bool = False) -> None:
        self.since = since
        self.before = before
        self.whole = whole
        self.counter = 0
        self.collected = 0
        self.keys = {}
        self.unknown = {}
        self.wills = WillBook()
        self.served = ServedClients()

    def claim(self, node: int, claim: Claim, version: int) -> tuple[OwnerKey, tuple[OwnerKey, ...]]:
        """The new key, and the keys before. ``version``: of the table."""
        self.counter = epoch = max(self.counter, version << VERSION_SHIFT, claim.newest) + 1
        found = self.keys.get(claim.client_id, ())
        created = epoch
        others: list[OwnerKey] = []
        for key in found:
            if key.node == node:
                created = key.created
            else:
                others.append(key)
        key = OwnerKey(node, created, epoch, claim.incarnation, claim.floor)
        self.keys[claim.client_id] = (*others, key)
        if self.unknown:
            found = self._with_suspected(found, node)
        return key, found

    def arm(self, owner: OwnerKey, claim: Claim) -> bytes:
        """Registers the will of the CONNECT that has made the claim, unless there is a record of another will of that
        node, or this will was settled. Returns the record; empty: it is not registered."""
        if not claim.will:
            return b""
        key = will_key(owner.node, claim.client_id)
        will = decode_will(claim.will)
        before = self.wills.record(claim.client_id, key)
        if WILL_TABLE.step(state_of(before), WillEvent.CLAIMED).ignored or (before and before.id != will.id):
            return b""
        will.epoch = owner.epoch
        value = encode_will(will)
        self.wills.write(owner.epoch, ((key, value),))
        return value

    def disarm(self, node: int, message: Disarm) -> WillChange | None:
        """The change that deletes the will of a CONNECT that was given up, if it is registered."""
        key = will_key(node, message.client_id)
        before = self.wills.record(message.client_id, key)
        if before is None or WILL_TABLE.step(state_of(before), WillEvent.GIVEN_UP).ignored or before.id != message.will:
            return None
        return WillChange(0, message.client_id, key, self.wills.revision(message.client_id, key), ((key, None),))

    def _with_suspected(self, found: tuple[OwnerKey, ...], node: int) -> tuple[OwnerKey, ...]:
        """These keys, and those that unknown nodes may have, apart from the claiming ``node``."""
        latest = (self.collected << VERSION_SHIFT) - 1
        known = {key.node: key for key in found if key.epoch > latest}
        suspected = [OwnerKey(each, latest, latest) for each in self.unknown if each != node and each not in known]
        nodes = {key.node for key in suspected}
        return (*[key for key in found if key.node not in nodes], *suspected)

    def change_wills(self, change: WillChange, version: int) -> int:
        """The revision of the change; 0: the key has another revision."""
        if self.wills.revision(change.client_id, change.key) != change.revision:
            return 0
        self.counter = max(self.counter, version << VERSION_SHIFT) + 1
        self.wills.write(self.counter, change.writes)
        return self.counter

    def settled_elsewhere(self, change: WillChange) -> WillChange | None:
        """The change to make instead, if a node registers a will that has been settled since: the client was served at
        another node, and this book, which was collected after its records were lost, has none of this will."""
        key = change.key
        if change.revision or self.wills.revision(change.client_id, key) or is_taken(key):
            return None
        below = self.served.settled_below(change.client_id, node_of(key))
        for written, value in change.writes:
            will = decode_will(value) if written == key and value is not None and below else None
            if will is not None and will.state != SETTLED and will.epoch < below:
                settled = encode_will(RegisteredWill(SETTLED, will.id, epoch=below))
                return WillChange(change.ticket, change.client_id, key, 0, ((key, settled),))
        return None

    def put_wills(self, revision: int, writes: Iterable[WillWrite]) -> None:
        self.wills.write(revision, writes)
        self.counter = max(self.counter, revision)

    def state_wills(self, node: int, stated: tuple[WillKey, ...]) -> None:
        """The node has said which wills it has. One that it has taken does not count if this book has not known of it,
        and the client id was granted to another node since: that claim was told of no copies."""
        counted = tuple([each for each in stated if not (is_taken(each[0]) and self._is_overtaken(node, each[0]))])
        self.wills.replace_node(node, counted, self.collected << VERSION_SHIFT)
        self.counter = max([self.counter, *[revision for _, revision, _ in stated]])

    def _is_overtaken(self, node: int, taken: bytes) -> bool:
        client_id, collected = client_of_key(taken), self.collected << VERSION_SHIFT
        if self.wills.revision(client_id, taken):
            return False
        return any(key.node != node and key.epoch > collected for key in self.read(client_id))

    def read(self, client_id: str) -> tuple[OwnerKey, ...]:
        return self.keys.get(client_id, ())

    def missing_below(self) -> OwnerKey:
        """A key of node 0: keys of lower epochs, of nodes that are not members any more, may be missing."""
        epoch = self.collected << VERSION_SHIFT
        return OwnerKey(0, epoch, epoch)

    def release(self, client_id: str, node: int, epoch: int) -> OwnerKey | None:
        """Deletes the key of the node unless it is of a later epoch: then returns it."""
        for key in self.keys.get(client_id, ()):
            if key.node == node:
                if key.epoch > epoch:
                    return key
                self.drop(client_id, node)
        return None

    def put(self, client_id: str, key: OwnerKey) -> None:
        self.keys[client_id] = (*[each for each in self.keys.get(client_id, ()) if each.node != key.node], key)
        self.counter = max(self.counter, key.epoch)

    def drop(self, client_id: str, node: int) -> None:
        left = tuple([each for each in self.keys.get(client_id, ()) if each.node != node])
        if left:
            self.keys[client_id] = left
        else:
            self.keys.pop(client_id, None)
            self.served.drop(client_id)

    def add_older(self, entries: Iterable[tuple[str, OwnerKey]]) -> None:
        """Adds keys of another book; of two keys of one node the later one stays."""
        for client_id, key in entries:
            if not any(each.node == key.node and each.epoch >= key.epoch for each in self.read(client_id)):
                self.put(client_id, key)

    def replace_node(self, node: int, incarnation: int, stated: Iterable[Stated], version: int) -> None:
        """This incarnation of the node has said, in this version of the table, what it has: nothing else of it counts,
        but for what it was granted in this version."""
        granted = version << VERSION_SHIFT
        for client_id, key in [(name, key) for name, key in self.entries() if key.node == node]:
            if key.epoch <= granted:
                self.drop(client_id, node)
        self.add_older([(name, OwnerKey(node, epoch, epoch, incarnation, floor)) for name, epoch, floor in stated])
        self.unknown.pop(node, None)

    def forget_served(self) -> None:
        """Once all nodes have said what they have: only another node that has something can register an older will."""
        if not self.unknown:
            self.served.keep(lambda client_id: len(self.read(client_id)) > 1)

    def entries(self) -> Iterator[tuple[str, OwnerKey]]:
        for client_id, keys in self.keys.items():
            for key in keys:
                yield client_id, key

    def earlier(self, nodes: dict[int, int]) -> Iterator[tuple[str, OwnerKey]]:
        """Keys that an earlier incarnation of a node has written. ``nodes``: number -> incarnation."""
        for client_id, key in self.entries():
            if 0 < key.incarnation < nodes.get(key.node, 0):
                yield client_id, key
