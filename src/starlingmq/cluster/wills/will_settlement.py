"""Settles wills that a client left at other nodes, or at this one before: none may follow the client's new messages.

A CONNECT that finds other nodes' keys of its client id waits until their wills of earlier epochs are settled. For each
of them, the records of the client id are read, and ``will_states`` says how the own record of the node changes.

Copies, of wills that nodes have taken from others, come first: each is waited for until it is published and gone. If it
has not changed for ``fire_seconds`` and its node is not connected, or for ``STUCK`` times as long and its node is
connected (its disk may be full, or it reaches no leader), it is deleted: that will is lost. The copy that this node has
taken itself counts until this node has published it, also before this node hears of it: the answer to its change may be
lost, and the copy comes with the next reading of its keys. The other node deletes its key as soon as it has seen
SETTLED; so a CONNECT that finds no key is told by the leader that there are copies, and waits for these alone
(``are_copies_gone``).

After a crash at any step, the key has its old or its new value, and the client has no CONNACK: the next CONNECT begins
with the records again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from starlingmq.cluster.takeover.transfer_frames import CANCELLED, UNREPORTED
from starlingmq.cluster.wills.will_records import (
    FIRING,
    SETTLED,
    RegisteredWill,
    is_taken,
    owner_of,
    taken_key,
    taken_name,
    will_key,
)
from starlingmq.cluster.wills.will_states import WILL_TABLE, WillAction, WillEvent, WillState, state_of
from starlingmq.cluster.wills.will_store import WillChanged, WillRecord, WillStore, WillUpdate
from starlingmq.core.session.session_user import BY_USER, is_anothers
from starlingmq.core.session.will_rule import is_cancelled

AGAIN_SECONDS: Final = 0.03  # between two reads of a will that another node is publishing ...
AGAIN_MAX: Final = 1.0  # ... at most, once it has been unchanged for long
AGAIN_SHARE: Final = 0.1  # of the time for which it is unchanged
PATIENCE: Final = 1.1  # clocks of two nodes differ slightly in speed
STUCK: Final = 10.0  # times ``fire_seconds``: for so long a connected node is waited for that publishes a copy
KEPT_SECONDS: Final = 60.0  # how long the result is kept for the CONNECT that asks for it


@dataclass(slots=True, eq=False)
class Settlement:
    """``key``: the record of the node where the client was; if that is this node, only copies are looked at. ``will``:
    the id that the client's former node has reported as due; CANCELLED: it has none; UNREPORTED: it was asked and has
    not answered; 0: it could not be asked, or is of an earlier version."""

    node: int
    client_id: str
    epoch: int
    key: bytes
    user: str | None = None
    clean: bool = False
    since: float = 0.0  # the time of the CONNECT
    will: int = 0
    done: bool = False
    final: bool = False  # this node has taken the will, or the other one publishes it: then the key is deleted
    revision: int = -1  # of the key, or of the newest copy, as first read ...
    seen_at: float = 0.0  # ... and when
    seen: int = 0  # id of the will that the key had

    def cancels(self, value: RegisteredWill) -> bool:
        """Whether the client is back before that will is due, as the record has it."""
        continues = not (self.clean or is_anothers(BY_USER, value.username, self.user))
        return is_cancelled(value.seconds, value.due_at, continues, self.since)


class WillSettlements:
    now: float  # of this turn

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
        self._store = store
        self._fire_seconds = fire_seconds
        self._connected = connected
        self._unpublished = unpublished
        self._published = published
        self._took = took
        self._me = 0
        self._settlements: dict[bytes, Settlement] = {}  # by ``Settlement.key``
        # key -> the epoch of a claim, what its answer has said of the key, and when that is forgotten, in that order
        self._told: dict[bytes, tuple[int, WillRecord, float]] = {}
        self._concluded: deque[tuple[float, Settlement]] = deque()  # and when they are forgotten
        self._again: list[tuple[float, int, Settlement]] = []  # a heap of those to be read again later: when, number
        self._count = 0  # of these numbers
        self.now = 0.0

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
        begun = Settlement(node, client_id, epoch, will_key(node, client_id), user, clean, since, will)
        self._begin(begun, None if self._connected(node) else found)
        return False

    def _begin(self, begun: Settlement, before: Settlement | None = None) -> Settlement:
        """``before``: of an earlier CONNECT. For how long a record has been unchanged counts on: else a node that is
        gone would lock out a client that gives up its CONNECTs early."""
        if before is not None and before.revision > 0:
            begun.revision, begun.seen_at = before.revision, before.seen_at
        self._settlements[begun.key] = begun
        told = self._told.pop(begun.key, None)
        # Of a node that is heard, and was not asked, the record may be about to change: it is read once more.
        if told is not None and told[0] == begun.epoch and (begun.will or not self._connected(begun.node)):
            self._look_at(begun, told[1])
        else:
            self._read(begun)
        return begun

    def told(self, epoch: int, records: list[WillRecord]) -> None:
        """The claim of that epoch was answered with these records, of other nodes. One that is ARMED is settled without
        another read, once its node has answered or is not heard: if it has changed since, the change is not made."""
        for each in records:
            if state_of(each.value) is WillState.ARMED:
                self._told.pop(each.key, None)
                self._told[each.key] = epoch, each, self.now + KEPT_SECONDS

    def are_copies_gone(self, client_id: str) -> bool:
        """Whether no node has a copy of a will of the client that it has taken and may publish. To be called until it
        returns True."""
        key = will_key(self._me, client_id)
        found = self._settlements.get(key) or self._begin(Settlement(self._me, client_id, 0, key))
        if found.done:
            self._forget(found)
        return found.done

    def copies_again(self, client_id: str) -> None:
        """There may be another copy, which an earlier look at copies has missed."""
        found = self._settlements.get(will_key(self._me, client_id))
        if found is not None:
            self._forget(found)
            self._begin(Settlement(self._me, client_id, 0, found.key), found)

    def forget_copies(self, client_id: str) -> None:
        """No CONNECT waits for them."""
        found = self._settlements.get(will_key(self._me, client_id))
        if found is not None:
            self._forget(found)

    def turn(self, now: float) -> None:
        self.now = now
        while self._concluded and now >= self._concluded[0][0]:
            self._forget(self._concluded.popleft()[1])
        while self._told and now >= next(iter(self._told.values()))[2]:
            del self._told[next(iter(self._told))]
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
            self._concluded.append((self.now + KEPT_SECONDS, settlement))

    def _look_again(self, settlement: Settlement) -> None:
        unchanged = self.now - settlement.seen_at if settlement.node == self._me else 0.0
        self._count += 1
        again_at = self.now + min(max(AGAIN_SECONDS, AGAIN_SHARE * unchanged), AGAIN_MAX)
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
            stuck = not published and self.now >= settlement.seen_at + STUCK * self._fire_seconds
            if node != self._me and (stuck or not self._connected(node)):
                self._change(each.key, each.revision, None)
        self._look_again(settlement)

    def _see(self, settlement: Settlement, revision: int) -> None:
        if settlement.revision != revision:
            settlement.revision, settlement.seen_at = revision, self.now

    def _look_at(self, settlement: Settlement, record: WillRecord) -> None:
        value = record.value
        self._see(settlement, record.revision)
        settlement.seen = settlement.seen if value is None else value.id
        settled = RegisteredWill(SETTLED, 0 if value is None else value.id, epoch=settlement.epoch)
        for action in WILL_TABLE.step(state_of(value), self._event(settlement, value)).actions:
            if state_of(value) is WillState.FIRING and action is not WillAction.CONCLUDE:
                settlement.final = True
            if action is WillAction.WAIT:
                self._look_again(settlement)
            elif action is WillAction.CONCLUDE:
                self._conclude(settlement)
            elif action is WillAction.SETTLE:
                self._change(record.key, record.revision, settled)
            elif value is not None:
                settled.taker = self._me
                copy = taken_key(self._me, settlement.node, settlement.client_id)
                self._change(record.key, record.revision, settled, (copy, value))

    def _event(self, settlement: Settlement, value: RegisteredWill | None) -> WillEvent:
        """The event in which this node takes part. A due will that its node has reported, and not written yet,
        is waited for as long as the node is connected; a clean start does not wait for longer than ``fire_seconds``
        for an answer."""
        told, state = settlement.will, state_of(value)
        heard, is_patient = self._connected(settlement.node), self._is_patient(settlement)
        if value is not None and value.epoch >= settlement.epoch + (state is not WillState.SETTLED):
            return WillEvent.LATER
        if state is WillState.FIRING:
            return WillEvent.EXPECTED if heard or is_patient else WillEvent.UNHEARD
        if state is WillState.SETTLED and not heard:
            return WillEvent.UNHEARD
        if told == CANCELLED or (settlement.final and value is None):
            return WillEvent.CANCELLED
        if told and told == settlement.seen:
            return WillEvent.DUE
        if heard and told and (is_patient or (told != UNREPORTED and state is not WillState.ARMED)):
            return WillEvent.EXPECTED  # if there is a record, its will is an earlier one
        if value is not None and state is WillState.ARMED:
            return WillEvent.CANCELLED if settlement.cancels(value) else WillEvent.DUE
        return WillEvent.CANCELLED if state is WillState.SETTLED and not told else WillEvent.UNHEARD

    def _is_patient(self, settlement: Settlement) -> bool:
        return self.now < settlement.seen_at + PATIENCE * self._fire_seconds

    # Changes

    def _change(
        self, key: bytes, revision: int, value: RegisteredWill | None, copy: tuple[bytes, RegisteredWill] | None = None
    ) -> None:
        self._store.change(WillUpdate(key, revision, value, copy), self._changed)

    def _changed(self, changed: WillChanged) -> None:
        settlement, value = self._settlements.get(changed.update.key), changed.record.value
        if not changed.done:
            if settlement is not None:
                self._found(settlement, changed.records)  # others may have taken the will
            return
        if changed.update.copy is not None:
            if settlement is not None:
                settlement.final = True
                self._look_again(settlement)  # until it is published
        elif value is not None and settlement is not None:
            self._conclude(settlement)
        self._took(changed)

    def wake_at(self) -> float:
        """When ``turn`` has to be called without an event; 0.0: never."""
        return self._again[0][0] if self._again else 0.0
