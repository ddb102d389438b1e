"""Wills of clients of nodes that are gone: the leader of the share of each client id publishes them. (The wills of a
client that is back at another node are settled there: ``will_settlement``.)

A node is gone when its lease has expired and no node here has been connected to it for ``patience`` seconds; or when it
is no longer a member. The connections of its clients count as lost from then on. If another node has a copy of its
data, it will serve that data, and publish the wills that are due then.

::

    a node is gone for long enough, or the members or the table are others --> the records of all shares that this node
    leads are searched, some in each turn --> those of nodes that are gone are planned --due--> settled, and taken here
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Final

from starlingmq.cluster.wills.will_records import SETTLED, TAKEN, RegisteredWill, owner_of, taken_key
from starlingmq.cluster.wills.will_states import WILL_TABLE, WillEvent, state_of
from starlingmq.cluster.wills.will_store import WillChanged, WillRecord, WillStore, WillUpdate

TAKEN_PER_TURN: Final = 200  # wills of nodes that are gone; more in the next turns
RECORDS_PER_TURN: Final = 1000  # to be searched; at least those of a share
SHARES_PER_TURN: Final = 64


@dataclass(slots=True, eq=False)
class Plan:
    """A will of a node that is gone, due at ``due_at``."""

    key: bytes
    revision: int
    value: RegisteredWill
    due_at: float


class LostWills:
    def __init__(
        self,
        store: WillStore,
        gone: Callable[[int], bool],
        connected: Callable[[int], bool],
        patience: float,
        took: Callable[[WillChanged], None],
    ) -> None:
        """``took``: to be called when this node has settled a will, and perhaps taken it."""
        self._store = store
        self._gone = gone
        self._connected = connected
        self._patience = patience
        self._took = took
        self._me = 0
        self._changes = 0  # of the led shares, at the last turn
        self._members: dict[int, None] = {}
        self._gone_since: dict[int, float] = {}  # nodes that are gone -> since when
        self._lost: dict[int, None] = {}  # those of them that have been gone for long enough
        self._unsearched: list[int] = []  # shares
        self._plans: dict[bytes, Plan] = {}
        self._due: list[tuple[float, bytes]] = []  # a heap of (time, key) of plans; some of these plans are void

    def enter(self, me: int) -> None:
        self._me = me

    def set_members(self, members: dict[int, None]) -> None:
        for node in [node for node in self._gone_since if node not in members and node not in self._members]:
            del self._gone_since[node]  # if it still has wills, the search finds it again
            self._lost.pop(node, None)
        self._members = members
        self._begin()

    def _begin(self) -> None:
        self._unsearched = list(self._store.led_shares())

    def turn(self, now: float) -> None:
        if self._store.led_changes != self._changes:
            self._changes = self._store.led_changes
            self._plans, self._due = {}, []
            self._begin()
        for node in self._members:
            if node != self._me and not self._connected(node):
                self._look_at(node, now)
        for node in [node for node in self._gone_since if node not in self._members or self._connected(node)]:
            self._look_at(node, now)
        self._search(now)
        for _ in range(TAKEN_PER_TURN):
            if self._next_due() > now:
                break
            self._take(self._plans.pop(heappop(self._due)[1]))

    def _look_at(self, node: int, now: float) -> None:
        if not self._gone(node):
            if self._gone_since.pop(node, None) is not None:
                self._lost.pop(node, None)
                for key in [key for key in self._plans if owner_of(key)[0] == node]:
                    del self._plans[key]
        elif node not in self._lost and now >= self._gone_since.setdefault(node, now) + self._patience:
            self._lost[node] = None
            self._begin()

    def _search(self, now: float) -> None:
        count = shares = 0
        while self._unsearched and count < RECORDS_PER_TURN and shares < SHARES_PER_TURN:
            found = self._store.led_wills(self._unsearched.pop(), self._lost)
            for record in found.records:
                self._know(record)
            for node in found.others:
                if node not in self._members:
                    self._gone_since.setdefault(node, now)
            count += found.looked_at
            shares += 1

    def _next_due(self) -> float:
        """When the next plan is due; drops void entries of the heap."""
        while self._due:
            due_at, key = self._due[0]
            plan = self._plans.get(key)
            if plan is not None and plan.due_at == due_at:
                return due_at
            heappop(self._due)
        return inf

    def _take(self, plan: Plan) -> None:
        node, client_id = owner_of(plan.key)
        settled = RegisteredWill(SETTLED, plan.value.id, taker=self._me)
        copy = taken_key(self._me, node, client_id), plan.value
        self._store.change(WillUpdate(plan.key, plan.revision, settled, copy), self._changed)

    def _changed(self, changed: WillChanged) -> None:
        record = changed.record
        if not changed.done:
            self._know(record)
        elif record.value is not None:
            self._plans.pop(record.key, None)
            self._took(changed)
            if owner_of(record.key)[0] not in self._members:
                self._delete(record)

    def _delete(self, record: WillRecord) -> None:
        self._store.change(WillUpdate(record.key, record.revision, None), self._changed)

    def _know(self, record: WillRecord) -> None:
        """Takes the record of another node's will."""
        self._plans.pop(record.key, None)
        node, name = owner_of(record.key)
        value = record.value
        if value is None or name.startswith(TAKEN):
            return
        if node in self._lost and not WILL_TABLE.step(state_of(value), WillEvent.LOST).ignored:
            since = self._gone_since.get(node, 0.0)
            plan = Plan(record.key, record.revision, value, value.due_at or since + value.seconds)
            self._plans[record.key] = plan
            heappush(self._due, (plan.due_at, record.key))
        elif node not in self._members:
            self._delete(record)

    def is_pending(self) -> bool:
        return len(self._unsearched) != 0

    def wake_at(self) -> float:
        """When ``turn`` has to be called without an event; 0.0: never."""
        soonest = self._next_due()
        for node, since in self._gone_since.items():
            if node not in self._lost:
                soonest = min(soonest, since + self._patience)
        return 0.0 if soonest == inf else soonest
