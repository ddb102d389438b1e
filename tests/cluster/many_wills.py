"""How long a node is busy with many wills that are due at once: ``python -m tests.cluster.many_wills --wills 100000``.

Real state machines of a cluster, in virtual time, with an etcd for wills that is a dict and answers after 2 ms. What is
told is the CPU time of single turns: while a node takes one it does nothing else.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.cluster.fleet import Fleet, NodeWorld

from starlingmq.cluster.etcd.etcd_requests import Delete, Get, KeyValue, Operation, Put, Request, Txn, TxnAnswer, Watch
from starlingmq.cluster.wills.will_records import all_wills
from starlingmq.core.message import Message
from starlingmq.core.routing.peer_receivers import link
from starlingmq.core.session.session import Session, Will
from starlingmq.node_process import YOUNG_MAX

ANSWERS_AFTER = 0.002  # seconds
STEP = 0.002
LONG_STEP = 0.02  # while nothing of it matters
DELAY = 5  # seconds until a will is due


class QuickEtcd:
    """Keys of wills, and nothing else."""

    def __init__(self) -> None:
        self.there: dict[bytes, tuple[bytes, int]] = {}
        self.revision = 1000
        self.transactions = 0
        self._ordered: list[bytes] = []  # for who reads pages, since nothing changed
        self._asked: deque[tuple[float, str, Txn]] = deque()

    def ask(self, node: str, txn: Txn, now: float) -> None:
        self._asked.append((now + ANSWERS_AFTER, node, txn))

    def answers(self, now: float) -> list[tuple[str, TxnAnswer]]:
        found: list[tuple[str, TxnAnswer]] = []
        while self._asked and self._asked[0][0] <= now:
            _, node, txn = self._asked.popleft()
            found.append((node, self._do(txn)))
        return found

    def _do(self, txn: Txn) -> TxnAnswer:
        self.transactions += 1
        holds = all(self.there.get(each.key, (b"", 0))[1] == each.operand for each in txn.compares)
        operations = txn.success if holds else txn.failure
        if any(not isinstance(operation, Get) for operation in operations):
            self.revision += 1
            self._ordered = []
        found = [self._take(operation) for operation in operations]
        return TxnAnswer(txn.tag, holds, self.revision, tuple([each for each in found if each is not None]))

    def _take(self, operation: Operation) -> tuple[KeyValue, ...] | None:
        if isinstance(operation, Put):
            self.there[operation.key] = operation.value, self.revision
        elif isinstance(operation, Delete):
            self.there.pop(operation.key, None)
        else:
            return self._get(operation)
        return None

    def _get(self, get: Get) -> tuple[KeyValue, ...]:
        keys = [get.key] if get.key in self.there else []
        if get.prefix:
            if not self._ordered:
                self._ordered = sorted(self.there)
            keys = [key for key in self._ordered if key.startswith(get.key) and key > get.after][: get.limit]
        return tuple([KeyValue(key, *self.there[key], self.there[key][1]) for key in keys])


class Door:
    """A node's way to its etcd."""

    def __init__(self, real: Any, node: str, quick: QuickEtcd) -> None:
        self._real = real
        self._node = node
        self._quick = quick

    def request(self, request: Request, now: float) -> None:
        if isinstance(request, Txn) and request.tag.startswith("wills"):
            self._quick.ask(self._node, request, now)
        elif not request_of_wills(request):
            self._real.request(request, now)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def request_of_wills(request: Request) -> bool:
    return isinstance(request, Watch) and request.prefix.startswith(all_wills("test"))


class Timed(NodeWorld):
    """Each turn of it, and each answer that it takes, is timed."""

    turns: list[float]

    def turn(self) -> bool:
        began = time.thread_time()
        busy = super().turn()
        self.turns.append(time.thread_time() - began)
        return busy

    def answered(self, answer: TxnAnswer) -> None:
        began = time.thread_time()
        self.cluster.answered(answer, self.fleet.now)
        self.turns.append(time.thread_time() - began)


class Crowd:
    """Two nodes, and so many clients of the first one that have left wills, and are not there."""

    def __init__(self, wills: int) -> None:
        self.wills = wills
        self.etcd = QuickEtcd()
        self.fleet = Fleet(0)
        self.turns: list[float] = []
        for _ in range(2):
            self._add()
        self.node = self.fleet[0]
        self.due_at = 0.0

    def _add(self) -> None:
        fleet = self.fleet
        node = Timed(fleet, f"n{len(fleet.nodes) + 1}")
        node.turns = self.turns
        node.etcd = Door(node.etcd, node.name, self.etcd)  # type: ignore[assignment]
        fleet.nodes.append(node)
        node.cluster.start(fleet.now)
        self.until(lambda: all(fleet._whole(other) for other in fleet.nodes), LONG_STEP)

    def pass_time(self, step: float) -> None:
        fleet = self.fleet
        for name, answer in self.etcd.answers(fleet.now):
            for node in fleet.nodes:
                if node.name == name:
                    assert isinstance(node, Timed)
                    node.answered(answer)
        fleet.advance(step, step)

    def until(self, done: Callable[[], bool], step: float = STEP) -> float:
        """How long it takes, in virtual seconds."""
        began = self.fleet.now
        while not done():
            self.pass_time(step)
        return self.fleet.now - began

    def come(self, due_at: float) -> float:
        """Leave the wills: seconds until etcd has them. ``due_at`` 0.0: ``DELAY`` after their node is gone."""
        ctx, now = self.node.state.ctx, self.fleet.now
        client = link("client", None)
        assert ctx.cluster.wills is not None
        for number in range(self.wills):
            session = Session(f"c{number}", ctx.next_number)
            ctx.next_number += 1
            ctx.sequence += 1
            session.expiry = 3600
            message = Message(b"will/%d" % number, b"gone", 1, False, b"", 0.0, "", now)
            session.will = Will(message, DELAY, -1, client, ctx.sequence)
            session.will_at = due_at
            ctx.sessions[session.client_id] = session
            if due_at:
                ctx.arm(session, due_at)
            ctx.cluster.wills.change(session.client_id)
        return self.until(lambda: len(self.etcd.there) == self.wills)

    def fire(self) -> tuple[float, float]:
        """All are due: seconds until they are published, and until etcd has forgotten them."""
        cluster = self.node.cluster
        self.until(lambda: cluster.wills.fired > 0, LONG_STEP)
        published = self.until(lambda: cluster.wills.fired == self.wills)
        return published, published + self.until(lambda: not self.etcd.there)

    def die(self) -> tuple[float, float]:
        """Their node dies: seconds until the first one is published by another, and from then until all are."""
        self._add()
        self.fleet.nodes.remove(self.node)
        self.node.etcd.close(self.fleet.now, revoke=False)
        first = self.until(lambda: self._taken() > 0, LONG_STEP)
        return first, self.until(lambda: self._taken() == self.wills)

    def _taken(self) -> int:
        return sum(node.cluster.wills.taken.published for node in self.fleet.nodes)

    def told(self, what: str) -> str:
        turns, self.turns[:] = sorted(self.turns), []
        longest = ", ".join([f"{1000 * seconds:.1f}" for seconds in turns[-3:]])
        return f"{what}; {sum(turns):.1f} s of CPU in {len(turns)} turns, the longest {longest} ms"


def own(wills: int) -> Crowd:
    crowd = Crowd(wills)
    took = crowd.come(crowd.fleet.now + wills / 5000 + 5)
    print(crowd.told(f"{wills} wills are in etcd after {took:.1f} s"))
    published, forgotten = crowd.fire()
    print(crowd.told(f"all due at once: published within {published:.1f} s, forgotten after {forgotten:.1f} s"))
    return crowd


def of_a_dead_node(wills: int) -> Crowd:
    crowd = Crowd(wills)
    crowd.come(0.0)
    crowd.turns.clear()
    first, rest = crowd.die()
    print(crowd.told(f"their node dies: the first one comes after {first:.1f} s, all within {rest:.1f} s"))
    return crowd


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.many_wills", description=__doc__)
    parser.add_argument("--wills", type=int, default=100_000)
    arguments = parser.parse_args()
    gc.set_threshold(YOUNG_MAX, 1_000_000, 1_000_000)  # as a node does
    own(arguments.wills)
    of_a_dead_node(arguments.wills)
    return 0


if __name__ == "__main__":
    sys.exit(main())
