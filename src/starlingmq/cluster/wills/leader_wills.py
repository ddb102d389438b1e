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

from starlingmq.cluster.etcd.etcd_cas import CasUpdate
from starlingmq.cluster.etcd.etcd_requests import Get, KeyValue, Put, Txn, TxnAnswer
from starlingmq.cluster.wills.will_records import (
    REGISTERED,
    SETTLED,
    TAKEN,
    RegisteredWill,
    WillValueError,
    all_wills,
    decode_will,
    encode_will,
    taken_key,
    wills_of,
)

PAGE: Final = 500
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
    def __init__(self, cluster: str, gone: Callable[[int], bool], leading: Callable[[], bool], patience: float) -> None:
        self._cluster = cluster
        self._all = all_wills(cluster)
        self._gone = gone
        self._leading = leading
        self._patience = patience
        self._me = 0
        self._led = False
        self._members: dict[int, None] = {}
        self._gone_since: dict[int, float] = {}  # node with wills, or possibly with wills -> since when it is gone
        self._plans: dict[bytes, Plan] = {}
        self._due: list[tuple[float, bytes]] = []  # a heap of (time, key) of plans; some of these plans are void
        self._loaded: dict[int, None] = {}  # nodes whose wills are among the plans
        self._loads: list[bytes] = []  # prefixes to read
        self._load = ""  # tag of the outstanding read
        self._after = b""
        self._tags = 0
        self._now = 0.0
        self._amendments: list[CasUpdate] = []
        self._notices: list[str] = []

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
                self._plans, self._loaded, self._loads, self._load, self._after = {}, {}, [], "", b""
                self._due = []
                self._gone_since = {}
            return
        if not self._led:
            self._led = True
            self._loads.append(self._all)  # also those of nodes that are no longer known
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
                prefix = wills_of(self._cluster, node)
                for key in [key for key in self._plans if key.startswith(prefix)]:
                    del self._plans[key]
            return
        since = self._gone_since.setdefault(node, now)
        if node not in self._loaded and now >= since + self._patience:
            self._loaded[node] = None
            self._loads.append(wills_of(self._cluster, node))

    def _take(self, plan: Plan) -> None:
        node, client_id = self._owner(plan.key)
        settled = encode_will(RegisteredWill(SETTLED, plan.value.id, taker=self._me))
        copy = Put(taken_key(self._cluster, self._me, node, client_id), encode_will(plan.value))
        self._amendments.append(CasUpdate(plan.key, plan.revision, settled, (copy,)))

    def _owner(self, key: bytes) -> tuple[int, str]:
        node, _, name = key[len(self._all) :].partition(b"/")
        return int(node), name.decode()

    def know(self, key: bytes, data: bytes | None, revision: int) -> None:
        """Takes the record that etcd has of another node's will."""
        self._plans.pop(key, None)
        try:
            value = None if data is None else decode_will(data)
        except WillValueError as error:
            self._notices.append(str(error))
            value = None
        node, name = self._owner(key)
        if value is None or name.startswith(TAKEN):
            return
        if value.state == REGISTERED and node in self._loaded:
            since = self._gone_since.get(node, 0.0)
            plan = self._plans[key] = Plan(key, revision, value, value.due_at or since + value.seconds)
            heappush(self._due, (plan.due_at, key))
        elif node not in self._members:
            self._amendments.append(CasUpdate(key, revision, None))

    def settled(self, key: bytes, revision: int) -> None:
        """This node has settled the will, as of ``revision``."""
        self._plans.pop(key, None)
        node, _ = self._owner(key)
        if node not in self._members and revision:
            self._amendments.append(CasUpdate(key, revision, None))

    # Requests and answers

    def take_amendments(self) -> list[CasUpdate]:
        amendments, self._amendments = self._amendments, []
        return amendments

    def take_requests(self) -> list[Txn]:
        if not self._loads or self._load:
            return []
        self._tags += 1
        self._load = f"wills load {self._tags}"
        return [Txn(self._load, (), (Get(self._loads[0], prefix=True, limit=PAGE, after=self._after),))]

    def answered(self, answer: TxnAnswer, now: float) -> None:
        """Takes the answer to one of this module's requests; ignores others."""
        self._now = now
        if self._load and answer.tag == self._load:
            self._load = ""
            self._took_page(answer.found[0], now)

    def _took_page(self, found: tuple[KeyValue, ...], now: float) -> None:
        whole = self._loads[0] == self._all
        for kv in found:
            node, _ = self._owner(kv.key)
            if node == self._me:
                continue
            if whole:
                if self._gone(node):
                    self._gone_since.setdefault(node, now)
                continue  # it is read again once the node has been gone for long enough
            self.know(kv.key, kv.value, kv.mod_revision)
        self._after = found[-1].key if len(found) == PAGE else b""
        if len(found) < PAGE:
            del self._loads[0]

    def take_notices(self) -> list[str]:
        notices, self._notices = self._notices, []
        return notices

    def wake_at(self) -> float:
        """When ``take_requests`` has to be called without an event; 0.0: never."""
        soonest = self._next_due()
        for node, since in self._gone_since.items():
            if node not in self._loaded:
                soonest = min(soonest, since + self._patience)
        return 0.0 if soonest == inf else soonest
