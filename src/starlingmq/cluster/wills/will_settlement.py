"""Settles wills that a client left at other nodes, or at this one before: none may follow the client's new messages.

A CONNECT that finds other nodes' keys of its client id waits until their wills of earlier epochs are settled. For each
of them, the record of that node (``will_records``) is read, and changed only if it is unchanged since:

    ======================================  ========================================================================
    the record                              this node
    ======================================  ========================================================================
    nothing, and the node is connected      reads again, if the node has reported a due will (it registers it as
                                            soon as it can), or for a while if it has not answered yet
    nothing, and the will was taken here,   is done
    or was FIRING before
    nothing                                 writes SETTLED with its own epoch: the other node may have a will that
                                            is not registered yet
    REGISTERED, of a later epoch            does nothing: the client has been there since
    REGISTERED, not reported yet            reads again: DISCONNECT may have cancelled it a moment ago
    REGISTERED, reported as cancelled       writes SETTLED
    REGISTERED, and the client is in time   cancels it: writes SETTLED
    REGISTERED, due, or reported as due     takes it: writes SETTLED and a copy of its own, and publishes it
    FIRING, or a copy of a taken will       reads again until it is gone, so published. If its node is not connected,
                                            and the key has not changed for ``fire_seconds``: writes SETTLED, the
                                            will is lost
    SETTLED, taken by a node                handles the copy in that node's name in the same way. If this node has
                                            taken it: reads again until the copy is published or gone
    SETTLED, of an earlier epoch, and       as if there was nothing: the node has not written the will yet
    another will is reported
    SETTLED                                 is done
    ======================================  ========================================================================

A settlement is done only once the copy that this node took, if any, is published: the other node deletes its key, and
with it the pointer to that copy, as soon as it has seen SETTLED. This node may find in the key that it has taken the
will before it hears of its copy: the answer to its change was lost, and the copy comes with the next reading of its
keys. So "taken by this node" alone does not say that anything is published.

A client may also come back to the node of its will after another node has taken the will. Then the node of the will
follows the copy in the same way (``is_published``).

Invariant: a will is published only by the node whose change of the key allows it, and within ``fire_seconds`` after
that node requested the change. So a will that is FIRING for longer is not published without another change of its key.

After a crash at any step, the key has its old or its new value, and the client has no CONNACK: the next CONNECT starts
at the first row again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from starlingmq.cluster.takeover.transfer_frames import CANCELLED, UNREPORTED
from starlingmq.cluster.wills.will_records import (
    REGISTERED,
    SETTLED,
    RegisteredWill,
    taken_key,
    taken_name,
    taken_prefix,
    wills_of,
)
from starlingmq.cluster.wills.will_store import WillChanged, WillRecord, WillStore, WillUpdate
from starlingmq.core.session.session_user import BY_USER, is_anothers
from starlingmq.core.session.will_rule import is_cancelled

AGAIN_SECONDS: Final = 0.03  # between two reads of a will that another node is publishing
PATIENCE: Final = 1.1  # clocks of two nodes differ slightly in speed
KEPT_SECONDS: Final = 60.0  # how long the result is kept for the CONNECT that asks for it


class Settlement:
    """``key`` is the one that is read: first that of the node where the client was, then perhaps the copy at its
    ``holder``, to which that key, as in ``pointer``, has led. ``will``: the id that the client's former node has
    reported as due; CANCELLED: it has none; UNREPORTED: it was asked and has not answered; 0: it could not be
    asked, or is of an earlier version."""

    __slots__ = (
        "again_at",
        "clean",
        "client_id",
        "copies",
        "done",
        "epoch",
        "final",
        "forget_at",
        "holder",
        "key",
        "node",
        "pointer",
        "revision",
        "seen",
        "seen_at",
        "since",
        "user",
        "will",
    )

    def __init__(self, key: bytes, copies: bytes, node: int, client_id: str, epoch: int) -> None:
        self.key = key
        self.copies = copies
        self.node = self.holder = node
        self.client_id = client_id
        self.epoch = epoch
        self.user: str | None = None
        self.clean = False
        self.since = 0.0  # the time of the CONNECT
        self.will = 0
        self.done = False
        self.final = False  # this node has taken the will, or the other one publishes it: then the key is deleted
        self.again_at = 0.0
        self.revision = -1  # of the key, as first read ...
        self.seen_at = 0.0  # ... and when
        self.seen = 0  # id of the will that the key had
        # value, revision and ``seen_at``; None: ``key`` is a copy of a will that this node has left
        self.pointer: tuple[RegisteredWill, int, float] | None = None
        self.forget_at = inf

    def cancels(self, value: RegisteredWill) -> bool:
        """Whether the client is back before that will is due. Its node, if it could be asked, knows best."""
        if self.will == value.id:
            return False
        continues = not (self.clean or is_anothers(BY_USER, value.username, self.user))
        return is_cancelled(value.seconds, value.due_at, continues, self.since)


class WillSettlements:
    settled: int  # wills at other nodes that were cancelled ...
    published: int  # ... taken and published here ...
    lost: int  # ... and given up, because no node can know whether they were published

    def __init__(
        self,
        store: WillStore,
        fire_seconds: float,
        connected: Callable[[int], bool],
        unpublished: Callable[[str], bool],
        published: Callable[[str, int], bool],
        took: Callable[[WillChanged], None],
    ) -> None:
        """``took``: to be called when this node has settled a will, and perhaps taken it. Of the wills that this node
        has taken, by name (``taken_name``): ``unpublished``, whether this node still has to publish one; ``published``,
        whether it has published the one with that id. Neither holds for a copy of which this node has not heard yet.
        """
        self.settled = self.published = self.lost = 0
        self._store = store
        self._fire_seconds = fire_seconds
        self._connected = connected
        self._unpublished = unpublished
        self._published = published
        self._took = took
        self._me = 0
        self._settlements: dict[bytes, Settlement] = {}  # by the key of the node where the client was
        self._looked_at: dict[bytes, Settlement] = {}  # by ``Settlement.key``
        self._concluded: deque[Settlement] = deque()  # in the order in which they are forgotten
        self._again: deque[Settlement] = deque()  # to be read again later, in order of time
        self._now = 0.0

    def enter(self, me: int) -> None:
        self._me = me

    def settle(
        self, client_id: str, node: int, epoch: int, user: str | None, clean: bool, will: int, since: float
    ) -> bool:
        """Whether nothing that the client left at ``node`` before ``epoch`` will be published from now on. To be called
        until it returns True. ``user``: the user who connected (None: users share sessions), at the time ``since``.
        ``clean``: the client continues without a session."""
        key = wills_of(node) + client_id.encode()
        found = self._settlements.get(key)
        if found is not None and found.epoch >= epoch:
            found.will = will
            if found.final and not found.done and self._published(taken_name(node, client_id), found.seen):
                self._conclude(found)  # taken by this node
            if found.done:
                self._forget(found)
            return found.done
        if found is not None:
            self._forget(found)
        found = self._settlements[key] = Settlement(key, taken_prefix(node, client_id), node, client_id, epoch)
        found.user, found.clean, found.will, found.since = user, clean, will, since
        self._looked_at[key] = found
        self._read(found)
        return False

    def is_published(self, client_id: str, taker: int, will: int) -> bool:
        """Whether ``taker`` has published the will with that id, which it has taken from this node, or does not do so
        any more: the client's claim is here, so it gives up a copy that it has not published in time. To be called
        until it returns True."""
        own = wills_of(self._me) + client_id.encode()
        found = self._settlements.get(own)
        if found is not None and (found.holder, found.seen) == (taker, will):
            if found.done:
                self._forget(found)
            return found.done
        if found is not None:
            self._forget(found)
        key = taken_key(taker, self._me, client_id)
        copies = taken_prefix(self._me, client_id)
        found = self._settlements[own] = self._looked_at[key] = Settlement(key, copies, self._me, client_id, 0)
        found.holder, found.seen = taker, will
        self._read(found)
        return False

    def is_settling(self, client_id: str, nodes: Iterable[int]) -> bool:
        """Whether a will of the client that was left at one of the nodes, but this one, is not settled yet."""
        if not self._settlements:
            return False
        keys = [wills_of(node) + client_id.encode() for node in nodes if node != self._me]
        return any(key in self._settlements and not self._settlements[key].done for key in keys)

    def pending(self) -> int:
        """Settlements under way, or done and not forgotten yet."""
        return len(self._settlements)

    def turn(self, now: float) -> None:
        self._now = now
        while self._concluded and now >= self._concluded[0].forget_at:
            self._forget(self._concluded.popleft())
        while self._again and now >= self._again[0].again_at:
            self._read(self._again.popleft())

    def _forget(self, settlement: Settlement) -> None:
        settlement.done = True
        key = wills_of(settlement.node) + settlement.client_id.encode()
        if self._settlements.get(key) is settlement:
            del self._settlements[key]
        if self._looked_at.get(settlement.key) is settlement:
            del self._looked_at[settlement.key]

    def _conclude(self, settlement: Settlement) -> None:
        if self._unpublished(taken_name(settlement.node, settlement.client_id)):
            self._look_again(settlement)  # a copy that this node took; the other node may have deleted its key since
            return
        if not settlement.done:
            settlement.done = True
            settlement.forget_at = self._now + KEPT_SECONDS
            self._concluded.append(settlement)
        if self._looked_at.get(settlement.key) is settlement:
            del self._looked_at[settlement.key]

    def _look_again(self, settlement: Settlement) -> None:
        settlement.again_at = self._now + AGAIN_SECONDS
        self._again.append(settlement)

    # Records

    def _read(self, settlement: Settlement) -> None:
        if not settlement.done:
            self._store.read(settlement.client_id, lambda records: self._found(settlement, records))

    def _found(self, settlement: Settlement, records: list[WillRecord]) -> None:
        if settlement.holder == settlement.node:
            place = len(settlement.copies)
            copies = [each for each in records if each.key.startswith(settlement.copies) and each.key[place:].isdigit()]
            if copies and not settlement.done:
                self._look_at_copies(settlement, copies)
                return
        found = [each for each in records if each.key == settlement.key]
        self._know(settlement, found[0] if found else WillRecord(settlement.key, 0, None))

    def _look_at_copies(self, settlement: Settlement, copies: list[WillRecord]) -> None:
        """The other node has taken a will that the client had left at yet another node before."""
        newest = max([each.revision for each in copies])
        if settlement.revision != newest:
            settlement.revision, settlement.seen_at = newest, self._now
        if not self._connected(settlement.node) and not self._is_patient(settlement):
            for each in copies:
                self.lost += 1
                self._change(each.key, each.revision, None)
        self._look_again(settlement)

    def _know(self, settlement: Settlement, record: WillRecord) -> None:
        if settlement.done:
            return
        value, revision = record.value, record.revision
        if settlement.revision != revision:
            settlement.revision, settlement.seen_at = revision, self._now
        if value is not None and settlement.holder == settlement.node:
            settlement.seen = value.id
        if settlement.holder != settlement.node:
            self._look_at_copy(settlement, value, revision)
        elif value is None:
            self._look_at_nothing(settlement, revision)
        elif value.state == REGISTERED:
            self._look_at_registered(settlement, value, revision)
        elif value.state == SETTLED:
            self._look_at_settled(settlement, value, revision)
        elif value.epoch > settlement.epoch:
            self._conclude(settlement)
        else:
            settlement.final = True
            self._wait_for_publication(settlement, value, revision)

    def _look_at_nothing(self, settlement: Settlement, revision: int) -> None:
        told = settlement.will and settlement.will == settlement.seen
        if settlement.will == CANCELLED or settlement.final or told:
            self._conclude(settlement)  # its node has published or cancelled it, or deletes the key of a taken one
        elif self._is_expected(settlement):
            self._look_again(settlement)
        else:
            self._change(settlement.key, revision, RegisteredWill(SETTLED, 0, epoch=settlement.epoch))

    def _is_expected(self, settlement: Settlement) -> bool:
        """Whether the other node writes the key, or answers. A due will is waited for as long as the node is connected;
        a clean start does not wait for longer than ``fire_seconds`` for an answer."""
        if not settlement.will or not self._connected(settlement.node):
            return False
        return settlement.will != UNREPORTED or self._is_patient(settlement)

    def _is_patient(self, settlement: Settlement) -> bool:
        return self._now < settlement.seen_at + PATIENCE * self._fire_seconds

    def _look_at_registered(self, settlement: Settlement, value: RegisteredWill, revision: int) -> None:
        mine = RegisteredWill(SETTLED, value.id, epoch=settlement.epoch)
        other = settlement.will not in (CANCELLED, 0, value.id) and self._connected(settlement.node)
        if value.epoch > settlement.epoch:
            self._conclude(settlement)
        elif other and self._is_patient(settlement):
            self._look_again(settlement)  # an earlier will, which the due one replaces
        elif settlement.will == CANCELLED or settlement.cancels(value):
            self._change(settlement.key, revision, mine)
        else:
            mine.taker = self._me
            copy = taken_key(self._me, settlement.node, settlement.client_id)
            self._change(settlement.key, revision, mine, (copy, value))

    def _look_at_settled(self, settlement: Settlement, value: RegisteredWill, revision: int) -> None:
        if value.taker and not (value.taker == self._me and self._is_published_here(settlement, value)):
            settlement.pointer = value, revision, settlement.seen_at
            self._turn_to(settlement, value.taker)
            settlement.revision = -1
            self._read(settlement)
        else:
            self._look_at_published(settlement, value, revision)

    def _turn_to(self, settlement: Settlement, holder: int) -> None:
        """Looks at the node's key, or at the copy of another ``holder``, from now on."""
        if self._looked_at.get(settlement.key) is settlement:
            del self._looked_at[settlement.key]
        node, client_id = settlement.node, settlement.client_id
        settlement.holder = holder
        settlement.key = wills_of(node) + client_id.encode()
        if holder != node:
            settlement.key = taken_key(holder, node, client_id)
        self._looked_at[settlement.key] = settlement

    def _is_published_here(self, settlement: Settlement, value: RegisteredWill) -> bool:
        return self._published(taken_name(settlement.node, settlement.client_id), value.id)

    def _look_at_published(self, settlement: Settlement, value: RegisteredWill, revision: int) -> None:
        """The settled will is published, cancelled or lost. The node may have left a later one."""
        if value.epoch < settlement.epoch and self._is_outdated(settlement, value):
            if self._is_expected(settlement):
                self._look_again(settlement)
            else:
                self._change(settlement.key, revision, RegisteredWill(SETTLED, value.id, epoch=settlement.epoch))
        else:
            self._conclude(settlement)

    def _is_outdated(self, settlement: Settlement, value: RegisteredWill) -> bool:
        """Whether the other node may have a will that is not settled by this earlier record, and not written yet."""
        return not self._connected(settlement.node) or settlement.will not in (0, CANCELLED, value.id)

    def _look_at_copy(self, settlement: Settlement, value: RegisteredWill | None, revision: int) -> None:
        here = settlement.holder == self._me
        connected = here or self._connected(settlement.holder)
        if value is None or (here and self._is_published_here(settlement, value)):
            self._copy_is_gone(settlement)
        elif self._is_patient(settlement) or (connected and settlement.pointer is not None):
            self._look_again(settlement)
        elif connected:  # the will of this node is published, or not any more: its client is back
            self._conclude(settlement)
        else:
            self.lost += 1
            self._change(settlement.key, revision, None)

    def _copy_is_gone(self, settlement: Settlement) -> None:
        if settlement.pointer is None:
            self._conclude(settlement)
            return
        value, revision, seen_at = settlement.pointer
        self._turn_to(settlement, settlement.node)
        settlement.revision, settlement.seen_at = revision, seen_at
        self._look_at_published(settlement, value, revision)

    def _wait_for_publication(self, settlement: Settlement, value: RegisteredWill, revision: int) -> None:
        if self._connected(settlement.node) or self._is_patient(settlement):
            self._look_again(settlement)
        else:
            self.lost += 1
            self._change(settlement.key, revision, RegisteredWill(SETTLED, value.id, epoch=settlement.epoch))

    # Changes

    def _change(
        self, key: bytes, revision: int, value: RegisteredWill | None, copy: tuple[bytes, RegisteredWill] | None = None
    ) -> None:
        self._store.change(WillUpdate(key, revision, value, copy), self._changed)

    def _changed(self, changed: WillChanged) -> None:
        settlement = self._looked_at.get(changed.update.key)
        if not changed.done:
            if settlement is not None:
                self._know(settlement, changed.record)
            return
        if changed.update.copy is not None:
            self.published += 1
            if settlement is not None:
                settlement.final = True
                self._look_again(settlement)  # until it is published
        else:
            self.settled += changed.record.value is not None and changed.record.value.id != 0
            if settlement is not None and settlement.holder != settlement.node:
                self._copy_is_gone(settlement)
            elif settlement is not None:
                self._conclude(settlement)
        self._took(changed)

    def wake_at(self) -> float:
        """When ``turn`` has to be called without an event; 0.0: never."""
        return self._again[0].again_at if self._again else 0.0
