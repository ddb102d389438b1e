"""Wills of clients of other nodes: the leader publishes those whose node is gone. (The wills of a client that is back
at another node are settled there: ``will_settlement``.)

A node is gone when its lease has expired and no node here has been connected to it for ``patience`` seconds; or when it
is no longer a member. The connections of its clients count as lost from then on. If another node has a copy of its
data, it will serve that data, and publish the wills that are due then.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Final

from starlingmq.cluster.wills.will_records import REGISTERED, SETTLED, TAKEN, RegisteredWill, taken_key, wills_of
from starlingmq.cluster.wills.will_store import ALL, WillChanged, WillRecord, WillStore, WillUpdate

TAKEN_PER_TURN: Final = 200  # wills of nodes that are gone; more in the next turns


class Plan:
    """A will of a node that is gone, due at ``due_at``."""

    __slots__ = ("due_at", "key", "revision", "sent", "value")

    def __init__(self, key: bytes, revision: int, value: RegisteredWill, due_at: float) -> None:
        self.key = key
        self.revision = revision
        self.value = value
        self.due_at = due_at
        self.sent = False


class LeaderWills:
    def __init__(
        self,
        store: WillStore,
        gone: Callable[[int], bool],
        leading: Callable[[], bool],
        patience: float,
        took: Callable[[WillChanged], None],
    ) -> None:
        """``took``: to be called when this node has settled a will, and perhaps taken it."""
        self._store = store
        self._gone = gone
        self._leading = leading
        self._patience = patience
        self._took = took
        self._me = 0
        self._led = False
        self._members: dict[int, None] = {}
        self._gone_since: dict[int, float] = {}  # node with wills, or possibly with wills -> since when it is gone
        self._plans: dict[bytes, Plan] = {}
        self._due: list[tuple[float, bytes]] = []  # a heap of (time, key) of plans; some of these plans are void
        self._loaded: dict[int, None] = {}  # nodes whose wills are among the plans
        self._now = 0.0

    def enter(self, me: int) -> None:
        self._me = me

    def set_members(self, members: dict[int, None]) -> None:
        for node in self._members:
            if node not in members:
                self._loaded.pop(node, None)  # wills settled since then have to be deleted
        self._members = members

    # Leadership

    def turn(self, now: float) -> None:
        self._now = now
        leading = self._leading()
        if not leading:
            if self._led:
                self._led = False
                self._plans, self._loaded, self._due, self._gone_since = {}, {}, [], {}
            return
        if not self._led:
            self._led = True
            self._store.read_node(ALL, self._took_part_of_all)  # also those of nodes that are no longer known
        for node in self._members:
            if node != self._me:
                self._look_at(node, now)
        for node in list(self._gone_since):
            if node not in self._members:
                self._look_at(node, now)
        for _ in range(TAKEN_PER_TURN):
            if self._next_due() > now:
                break
            plan = self._plans[heappop(self._due)[1]]
            plan.sent = True
            self._take(plan)

    def _next_due(self) -> float:
        """When the next plan is due; drops void entries of the heap."""
        while self._due:
            due_at, key = self._due[0]
            plan = self._plans.get(key)
            if plan is not None and not plan.sent and plan.due_at == due_at:
                return due_at
            heappop(self._due)
        return inf

    def _look_at(self, node: int, now: float) -> None:
        if not self._gone(node):
            if self._gone_since.pop(node, None) is not None:
                self._loaded.pop(node, None)
                prefix = wills_of(node)
                for key in [key for key in self._plans if key.startswith(prefix)]:
                    del self._plans[key]
            return
        since = self._gone_since.setdefault(node, now)
        if node not in self._loaded and now >= since + self._patience:
            self._loaded[node] = None
            self._store.read_node(node, self._took_part)

    def _take(self, plan: Plan) -> None:
        node, client_id = _owner(plan.key)
        settled = RegisteredWill(SETTLED, plan.value.id, taker=self._me)
        copy = taken_key(self._me, node, client_id), plan.value
        self._store.change(WillUpdate(plan.key, plan.revision, settled, copy), self._changed)

    def _changed(self, changed: WillChanged) -> None:
        record = changed.record
        if not changed.done:
            self.know(record)
        elif record.value is not None:
            self._plans.pop(record.key, None)
            self._took(changed)
            if _owner(record.key)[0] not in self._members:
                self._delete(record)

    def _delete(self, record: WillRecord) -> None:
        self._store.change(WillUpdate(record.key, record.revision, None), self._changed)

    def know(self, record: WillRecord) -> None:
        """Takes the record of another node's will."""
        self._plans.pop(record.key, None)
        node, name = _owner(record.key)
        value = record.value
        if value is None or name.startswith(TAKEN):
            return
        if value.state == REGISTERED and node in self._loaded:
            since = self._gone_since.get(node, 0.0)
            plan = Plan(record.key, record.revision, value, value.due_at or since + value.seconds)
            self._plans[record.key] = plan
            heappush(self._due, (plan.due_at, record.key))
        elif node not in self._members:
            self._delete(record)

    # Readings

    def _took_part_of_all(self, records: list[WillRecord], is_last: bool) -> None:
        """Which nodes have wills. Those of a node are read again once it has been gone for long enough."""
        if self._led:
            for node in {_owner(record.key)[0]: None for record in records}:
                if node != self._me and self._gone(node):
                    self._gone_since.setdefault(node, self._now)

    def _took_part(self, records: list[WillRecord], is_last: bool) -> None:
        if self._led:
            for record in records:
                self.know(record)

    def wake_at(self) -> float:
        """When ``turn`` has to be called without an event; 0.0: never."""
        soonest = self._next_due()
        for node, since in self._gone_since.items():
            if node not in self._loaded:
                soonest = min(soonest, since + self._patience)
        return 0.0 if soonest == inf else soonest


def _owner(key: bytes) -> tuple[int, str]:
    """The node of a record, and its name there."""
    node, _, name = key.partition(b"/")
    return int(node), name.decode()
