"""Wills of clients of other nodes: who leads publishes those whose node is gone, and a client that is back elsewhere
cancels its own.

A node is gone when its lease has run out and nobody here is connected to it, for ``patience`` seconds; or when it is no
member any more. Its clients' connections count as lost since then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Final

from starlingmq.cluster.amendments import Amendment
from starlingmq.cluster.etcd import Get, KeyValue, Put, Txn, TxnAnswer
from starlingmq.cluster.will_values import (
    REGISTERED,
    SETTLED,
    TAKEN,
    RegisteredWill,
    WillValueError,
    all_wills,
    decode_will,
    encode_will,
    wills_of,
)

PAGE: Final = 500
GETS_PER_TXN: Final = 60
RETRY_SECONDS: Final = 0.5
KEPT_SECONDS: Final = 60.0  # a cancellation that is done, for whoever asks whether it is
TAKEN_PER_TURN: Final = 200  # wills of nodes that are gone; the rest in the next ones


class Plan:
    """A will of a node that is gone; it is due at ``due_at``."""

    __slots__ = ("due_at", "key", "revision", "sent", "value")

    def __init__(self, key: bytes, revision: int, value: RegisteredWill, due_at: float) -> None:
        self.key = key
        self.revision = revision
        self.value = value
        self.due_at = due_at
        self.sent = False


class Cancel:
    """A client is back elsewhere since ``epoch``: what it left before is not to be published. What another user than
    ``user`` left is (None: whoever it was): that one has not come back."""

    __slots__ = ("done", "epoch", "forget_at", "key", "user")

    def __init__(self, key: bytes, epoch: int, user: str | None) -> None:
        self.key = key
        self.epoch = epoch
        self.user = user
        self.done = False
        self.forget_at = inf


class ForeignWills:
    cancellations: int  # wills of clients that came back at another node in time

    def __init__(self, cluster: str, gone: Callable[[int], bool], leading: Callable[[], bool], patience: float) -> None:
        self.cancellations = 0
        self._cluster = cluster
        self._all = all_wills(cluster)
        self._gone = gone
        self._leading = leading
        self._patience = patience
        self._me = 0
        self._led = False
        self._members: dict[int, None] = {}
        self._gone_since: dict[int, float] = {}  # of nodes that have, or may have, wills
        self._plans: dict[bytes, Plan] = {}
        self._due: list[tuple[float, bytes]] = []  # a heap: when, key; of plans, and of some that are no more
        self._loaded: dict[int, None] = {}  # nodes whose wills are among the plans
        self._loads: list[bytes] = []  # prefixes to be read
        self._load = ""  # tag of the read under way
        self._after = b""
        self._cancels: dict[bytes, Cancel] = {}
        self._concluded: deque[Cancel] = deque()  # those that are done, in the order in which they are forgotten
        self._asking: dict[str, list[bytes]] = {}  # tag -> keys asked for
        self._to_ask: list[bytes] = []
        self._tags = 0
        self._retry_at = 0.0
        self._now = 0.0
        self._amendments: list[Amendment] = []
        self._notices: list[str] = []

    def enter(self, me: int) -> None:
        self._me = me

    def set_members(self, members: dict[int, None]) -> None:
        self._members = members

    # Who leads

    def turn(self, now: float) -> None:
        self._now = now
        self._forget_cancels(now)
        leading = self._leading()
        if not leading:
            if self._led:
                self._led = False
                self._plans, self._loaded, self._loads, self._load = {}, {}, [], ""
                self._due = []
                self._gone_since = {}
            return
        if not self._led:
            self._led = True
            self._loads.append(self._all)  # also of nodes that nobody remembers
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
        """When the first of those that are planned is due; what is planned no more is left out."""
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
        settled = encode_will(RegisteredWill(SETTLED, plan.value.id))
        taken = wills_of(self._cluster, self._me) + f"{TAKEN}{node}/{client_id}".encode()
        copy = Put(taken, encode_will(plan.value))
        self._amendments.append(Amendment(plan.key, plan.revision, settled, (copy,)))

    def _owner(self, key: bytes) -> tuple[int, str]:
        node, _, name = key[len(self._all) :].partition(b"/")
        return int(node), name.decode()

    def know(self, key: bytes, data: bytes | None, revision: int) -> None:
        """That is what etcd has of a will of another node."""
        self._plans.pop(key, None)
        try:
            value = None if data is None else decode_will(data)
        except WillValueError as error:
            self._notices.append(str(error))
            value = None
        node, name = self._owner(key)
        cancel = self._cancels.get(key)
        if cancel is not None and not cancel.done:
            self._cancel(cancel, key, value, revision)
        if value is None or name.startswith(TAKEN):
            return
        if value.state == REGISTERED and node in self._loaded:
            since = self._gone_since.get(node, 0.0)
            plan = self._plans[key] = Plan(key, revision, value, value.due_at or since + value.seconds)
            heappush(self._due, (plan.due_at, key))
        elif node not in self._members:
            self._amendments.append(Amendment(key, revision, None))

    def settled(self, key: bytes, revision: int) -> None:
        """By us, as of ``revision``."""
        self._plans.pop(key, None)
        cancel = self._cancels.get(key)
        if cancel is not None:
            self._conclude(cancel)
            self.cancellations += 1
        node, _ = self._owner(key)
        if node not in self._members and revision:
            self._amendments.append(Amendment(key, revision, None))

    # A client that is back

    def cancelled(self, client_id: str, node: int, epoch: int, user: str | None = None) -> bool:
        key = wills_of(self._cluster, node) + client_id.encode()
        cancel = self._cancels.get(key)
        if cancel is None or cancel.epoch < epoch:
            self._cancels[key] = Cancel(key, epoch, user)
            self._to_ask.append(key)
            return False
        if cancel.done:
            del self._cancels[key]
        return cancel.done

    def pending(self) -> int:
        """Cancellations that are asked for, or done and not yet forgotten."""
        return len(self._cancels)

    def _forget_cancels(self, now: float) -> None:
        """Those that are done and that nobody asks for: the session came after all, or its client has gone on."""
        while self._concluded and now >= self._concluded[0].forget_at:
            cancel = self._concluded.popleft()
            if self._cancels.get(cancel.key) is cancel:
                del self._cancels[cancel.key]

    def _conclude(self, cancel: Cancel) -> None:
        if not cancel.done:
            cancel.done = True
            cancel.forget_at = self._now + KEPT_SECONDS
            self._concluded.append(cancel)

    def _cancel(self, cancel: Cancel, key: bytes, value: RegisteredWill | None, revision: int) -> None:
        if value is None or value.state != REGISTERED or value.delay == 0:
            self._conclude(cancel)  # there is none, or nobody can take it back
        elif cancel.user is not None and value.username != cancel.user:
            self._conclude(cancel)
        elif value.epoch > cancel.epoch:
            self._conclude(cancel)  # its client has been there again since, and that is the will of this connection
        elif 0.0 < value.due_at <= self._now:
            self._conclude(cancel)  # it was due before
        else:
            settled = encode_will(RegisteredWill(SETTLED, value.id))
            self._amendments.append(Amendment(key, revision, settled))

    # Requests and answers

    def take_amendments(self) -> list[Amendment]:
        amendments, self._amendments = self._amendments, []
        return amendments

    def take_requests(self, now: float) -> list[Txn]:
        requests: list[Txn] = []
        if now < self._retry_at:
            return requests
        if self._loads and not self._load:
            self._tags += 1
            self._load = f"wills load {self._tags}"
            get = Get(self._loads[0], prefix=True, limit=PAGE, after=self._after)
            requests.append(Txn(self._load, (), (get,)))
        if self._to_ask:
            keys, self._to_ask = self._to_ask[:GETS_PER_TXN], self._to_ask[GETS_PER_TXN:]
            self._tags += 1
            tag = f"wills ask {self._tags}"
            self._asking[tag] = keys
            requests.append(Txn(tag, (), tuple([Get(key) for key in keys])))
        return requests

    def answered(self, answer: TxnAnswer, now: float) -> None:
        """Answers to others are not looked at."""
        self._now = now
        keys = self._asking.pop(answer.tag, None)
        if keys is not None:
            if answer.error:
                self._to_ask += keys
                self._retry_at = now + RETRY_SECONDS
                return
            for key, found in zip(keys, answer.found, strict=True):
                self.know(key, found[0].value if found else None, found[0].mod_revision if found else 0)
        elif self._load and answer.tag == self._load:
            self._load = ""
            if answer.error:
                self._retry_at = now + RETRY_SECONDS
            else:
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
                continue  # it is read again when it has been gone for long enough
            self.know(kv.key, kv.value, kv.mod_revision)
        self._after = found[-1].key if len(found) == PAGE else b""
        if len(found) < PAGE:
            del self._loads[0]

    def take_notices(self) -> list[str]:
        notices, self._notices = self._notices, []
        return notices

    def wake_at(self) -> float:
        """0.0: never."""
        soonest = [self._next_due()]
        soonest += [since + self._patience for node, since in self._gone_since.items() if node not in self._loaded]
        if self._to_ask or (self._loads and not self._load):
            soonest.append(self._retry_at)
        when = min([when for when in soonest if when])
        return 0.0 if when == inf else when
