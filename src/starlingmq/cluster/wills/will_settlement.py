"""Settles wills that a client left at other nodes, or at this one before: none may follow the client's new messages.

A CONNECT that finds other nodes' keys of its client id waits until their wills of earlier epochs are settled. For each
of them, the records of the client id (``will_records``) are read. Wills that nodes have taken from others come first:
each is waited for until it is published, and its copy gone. If the copy has not changed for ``fire_seconds`` and its
node is not connected, or for ``STUCK`` times as long and its node is connected (its disk may be full, or it reaches no
leader), the copy is deleted: that will is lost. Then the record of the other node is changed, if it is unchanged since:

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
    FIRING                                  reads again until it is gone, so published. If its node is not connected,
                                            and the key has not changed for ``fire_seconds``: writes SETTLED, the
                                            will is lost
    SETTLED, of an earlier epoch, and       as if there was nothing: the node has not written the will yet
    another will is reported
    SETTLED                                 is done
    ======================================  ========================================================================

The copy that this node has taken itself counts until this node has published it, also before this node hears of it: the
answer to its change may be lost, and the copy comes with the next reading of its keys. The other node deletes its key
as soon as it has seen SETTLED; so a CONNECT that finds no key is told by the leader that there are copies, and waits
for these alone (``are_copies_gone``).

Invariant: a will is published only by the node whose change of the key allows it, and within ``fire_seconds`` after
that node requested the change. So a will that is FIRING for longer is not published without another change of its key.

After a crash at any step, the key has its old or its new value, and the client has no CONNACK: the next CONNECT starts
at the first row again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Final

from starlingmq.cluster.takeover.transfer_frames import CANCELLED, UNREPORTED
from starlingmq.cluster.wills.will_records import (
    FIRING,
    REGISTERED,
    SETTLED,
    RegisteredWill,
    is_taken,
    owner_of,
    taken_key,
    taken_name,
    will_key,
)
from starlingmq.cluster.wills.will_store import WillChanged, WillRecord, WillStore, WillUpdate
from starlingmq.core.session.session_user import BY_USER, is_anothers
from starlingmq.core.session.will_rule import is_cancelled

AGAIN_SECONDS: Final = 0.03  # between two reads of a will that another node is publishing ...
AGAIN_MAX: Final = 1.0  # ... at most, once it has been unchanged for long
AGAIN_SHARE: Final = 0.1  # of the time for which it is unchanged
PATIENCE: Final = 1.1  # clocks of two nodes differ slightly in speed
STUCK: Final = (
    10.0  # times ``fire_seconds``: a connected node that has not published a copy by then is waited for no more
)
KEPT_SECONDS: Final = 60.0  # how long the result is kept for the CONNECT that asks for it


class Settlement:
    """``key``: the record of the node where the client was; if that is this node, only copies are looked at. ``will``:
    the id that the client's former node has reported as due; CANCELLED: it has none; UNREPORTED: it was asked and has
    not answered; 0: it could not be asked, or is of an earlier version."""

    __slots__ = (
        "clean",
        "client_id",
        "done",
        "epoch",
        "final",
        "forget_at",
        "key",
        "node",
        "revision",
        "seen",
        "seen_at",
        "since",
        "user",
        "will",
    )

    def __init__(self, node: int, client_id: str, epoch: int) -> None:
        self.key = will_key(node, client_id)
        self.node = node
        self.client_id = client_id
        self.epoch = epoch
        self.user: str | None = None
        self.clean = False
        self.since = 0.0  # the time of the CONNECT
        self.will = 0
        self.done = False
        self.final = False  # this node has taken the will, or the other one publishes it: then the key is deleted
        self.revision = -1  # of the key, or of the newest copy, as first read ...
        self.seen_at = 0.0  # ... and when
        self.seen = 0  # id of the will that the key had
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
        self._settlements: dict[bytes, Settlement] = {}  # by ``Settlement.key``
        self._concluded: deque[Settlement] = deque()  # in the order in which they are forgotten
        self._again: list[tuple[float, int, Settlement]] = []  # a heap of those to be read again later: when, number
        self._count = 0  # of these numbers
        self._now = 0.0

    def enter(self, me: int) -> None:
        self._me = me

    def settle(
        self, client_id: str, node: int, epoch: int, user: str | None, clean: bool, will: int, since: float
    ) -> bool:
        """Whether nothing that the client left at ``node`` before ``epoch`` will be published from now on. To be called
        until it returns True. ``user``: the user who connected (None: users share sessions), at the time ``since``.
        ``clean``: the client continues without a session."""
        found = self._settlements.get(will_key(node, client_id))
        if found is not None and found.epoch >= epoch:
            found.will = will
            if found.final and not found.done and self._published(taken_name(node, client_id), found.seen):
                self._conclude(found)  # taken by this node
            if found.done:
                self._forget(found)
            return found.done
        if found is not None:
            self._forget(found)
        found = self._begin(node, client_id, epoch, None if self._connected(node) else found)
        found.user, found.clean, found.will, found.since = user, clean, will, since
        return False

    def _begin(self, node: int, client_id: str, epoch: int, before: Settlement | None = None) -> Settlement:
        """``before``: of an earlier CONNECT. For how long a record has been unchanged counts on: else a node that is
        gone would lock out a client that gives up its CONNECTs early."""
        begun = Settlement(node, client_id, epoch)
        if before is not None and before.revision > 0:
            begun.revision, begun.seen_at = before.revision, before.seen_at
        self._settlements[begun.key] = begun
        self._read(begun)
        return begun

    def are_copies_gone(self, client_id: str) -> bool:
        """Whether no node has a copy of a will of the client that it has taken and may publish. To be called until it
        returns True."""
        found = self._settlements.get(will_key(self._me, client_id)) or self._begin(self._me, client_id, 0)
        if found.done:
            self._forget(found)
        return found.done

    def copies_again(self, client_id: str) -> None:
        """There may be another copy, which an earlier look at copies has missed."""
        found = self._settlements.get(will_key(self._me, client_id))
        if found is not None:
            self._forget(found)
            self._begin(self._me, client_id, 0, found)

    def forget_copies(self, client_id: str) -> None:
        """No CONNECT waits for them."""
        found = self._settlements.get(will_key(self._me, client_id))
        if found is not None:
            self._forget(found)

    def pending(self) -> int:
        """Settlements under way, or done and not forgotten yet."""
        return len(self._settlements)

    def turn(self, now: float) -> None:
        self._now = now
        while self._concluded and now >= self._concluded[0].forget_at:
            self._forget(self._concluded.popleft())
        while self._again and now >= self._again[0][0]:
            self._read(heappop(self._again)[2])

    def _forget(self, settlement: Settlement) -> None:
        settlement.done = True
        if self._settlements.get(settlement.key) is settlement:
            del self._settlements[settlement.key]

    def _conclude(self, settlement: Settlement) -> None:
        if self._unpublished(taken_name(settlement.node, settlement.client_id)):
            self._look_again(settlement)  # a copy that this node took; the other node may have deleted its key since
            return
        if not settlement.done:
            settlement.done = True
            settlement.forget_at = self._now + KEPT_SECONDS
            self._concluded.append(settlement)

    def _look_again(self, settlement: Settlement) -> None:
        unchanged = self._now - settlement.seen_at if settlement.node == self._me else 0.0
        self._count += 1
        again_at = self._now + min(max(AGAIN_SECONDS, AGAIN_SHARE * unchanged), AGAIN_MAX)
        heappush(self._again, (again_at, self._count, settlement))

    # Records

    def _read(self, settlement: Settlement) -> None:
        if not settlement.done:
            self._store.read(settlement.client_id, lambda records: self._found(settlement, records))

    def _found(self, settlement: Settlement, records: list[WillRecord]) -> None:
        if settlement.done:
            return
        copies = [each for each in records if self._is_awaited(settlement, each)]
        if copies:
            self._look_at_copies(settlement, copies)
        elif settlement.node == self._me:
            self._conclude(settlement)
        else:
            found = [each for each in records if each.key == settlement.key]
            self._look_at(settlement, found[0] if found else WillRecord(settlement.key, 0, None))

    def _is_awaited(self, settlement: Settlement, record: WillRecord) -> bool:
        """Whether it is the copy of a will that a node has taken, and may publish; or that the other node has taken and
        published, but etcd does not have yet what it retains."""
        value = record.value
        if not is_taken(record.key):
            return False
        node, name = owner_of(record.key)
        if value is not None and value.state == FIRING and (node != settlement.node or node == self._me):
            return False
        return node != self._me or (value is not None and not self._published(name, value.id))

    def _look_at_copies(self, settlement: Settlement, copies: list[WillRecord]) -> None:
        self._see(settlement, max([each.revision for each in copies]))
        for each in copies if not self._is_patient(settlement) else ():
            node, _ = owner_of(each.key)
            published = each.value is not None and each.value.state == FIRING
            stuck = not published and self._now >= settlement.seen_at + STUCK * self._fire_seconds
            if node != self._me and (stuck or not self._connected(node)):
                self._change(each.key, each.revision, None)
        self._look_again(settlement)

    def _see(self, settlement: Settlement, revision: int) -> None:
        if settlement.revision != revision:
            settlement.revision, settlement.seen_at = revision, self._now

    def _look_at(self, settlement: Settlement, record: WillRecord) -> None:
        value, revision = record.value, record.revision
        self._see(settlement, revision)
        if value is None:
            self._look_at_nothing(settlement, revision)
            return
        settlement.seen = value.id
        if value.state == REGISTERED:
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
        settlement, value = self._settlements.get(changed.update.key), changed.record.value
        if not changed.done:
            if settlement is not None:
                self._read(settlement)  # others may have taken the will
            return
        if changed.update.copy is not None:
            self.published += 1
            if settlement is not None:
                settlement.final = True
                self._look_again(settlement)  # until it is published
        elif value is None:
            self.lost += 1  # a copy
        else:
            self.settled += value.id != 0
            if settlement is not None:
                self._conclude(settlement)
        self._took(changed)

    def wake_at(self) -> float:
        """When ``turn`` has to be called without an event; 0.0: never."""
        return self._again[0][0] if self._again else 0.0
