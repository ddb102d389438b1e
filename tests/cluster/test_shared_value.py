"""Nodes that replace one document in an etcd that loses its leader, answers, changes and history."""

from __future__ import annotations

from random import Random

import pytest
from tests.sim.etcd_model import EtcdModel, Session

from starlingmq.cluster.etcd.etcd_requests import EtcdState, KeyValue, Txn, TxnAnswer, Watch
from starlingmq.cluster.etcd.shared_value import AWAY, DONE, OVERTAKEN, PENDING, UNKNOWN, SharedValue

KEY = b"/starlingmq/c/access"
STEP = 0.05


class Nodes:
    """Each proposes documents that continue the one that it knows: ``a1 b2`` is the second change, made by b."""

    def __init__(self, seed: int, names: str = "abc") -> None:
        self.random = Random(seed)
        self.now = 100.0
        self.etcd = EtcdModel(self.random, lease_ttl=3.0, request_timeout=0.5)
        self.sessions: dict[str, Session] = {name: self.etcd.session(name) for name in names}
        self.values = {name: SharedValue(KEY) for name in names}
        self.proposed: dict[str, bytes] = {}
        self.done: list[bytes] = []
        self.seen: dict[str, list[bytes]] = {name: [] for name in names}
        self.changes = 0
        for value in self.values.values():
            value.start(self.now)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = round(self.now + STEP, 6)
            for name, answer in self.etcd.advance(self.now):
                self.values[name].answered(answer, self.now)
                self.look(name)
            for name, value in self.values.items():
                self.sessions[name].keep_alive(self.now)
                if value.wake_at() and value.wake_at() <= self.now:
                    value.tick(self.now)
                for request in value.take_requests():
                    self.sessions[name].request(request, self.now)

    def look(self, name: str) -> None:
        value, seen = self.values[name], self.seen[name]
        if value.known and (not seen or seen[-1] != value.value):
            assert value.value not in seen, "a node went back to an earlier document"
            seen.append(value.value)
        outcome = value.take_outcome()
        if outcome is not None:
            proposed = self.proposed.pop(name)
            if outcome == DONE:
                self.done.append(proposed)

    def change(self) -> None:
        name = self.random.choice([name for name in self.values if name not in self.proposed] or ["a"])
        value = self.values[name]
        self.changes += 1
        document = value.value + f" {name}{self.changes}".encode()
        if name not in self.proposed and not value.propose(document):
            self.proposed[name] = document

    def fault(self) -> None:
        what = self.random.randrange(3)
        if what == 0:
            self.etcd.lose_leader(self.now, self.random.choice([0.2, 2.0]))
        elif what == 1:
            self.etcd.compact()
        else:
            self.etcd.cut(self.random.choice(list(self.values)))


@pytest.mark.parametrize("seed", range(20))
def test_no_change_is_lost_or_overwritten_whatever_etcd_does(seed: int) -> None:
    nodes = Nodes(seed)
    for _ in range(30):
        nodes.run(nodes.random.choice([0.05, 0.3, 1.0]))
        for _ in range(nodes.random.randrange(3)):
            nodes.change()
        if nodes.random.random() < 0.3:
            nodes.fault()
    for name in nodes.values:
        nodes.etcd.heal(name, nodes.now)
    nodes.run(15.0)
    final = nodes.etcd.store.get(KEY)[0].value
    assert {value.value for value in nodes.values.values()} == {final}, "all nodes have the last document"
    assert nodes.done, "no change was done"
    for document in nodes.done:
        assert final.startswith(document), "a confirmed change was overwritten"


def known(value: bytes = b"one", revision: int = 5) -> SharedValue:
    """One that has read this."""
    found = SharedValue(KEY)
    found.start(0.0)
    (read,) = found.take_requests()
    assert isinstance(read, Txn)
    found.answered(TxnAnswer(read.tag, True, revision, ((KeyValue(KEY, value, 1, revision),),)), 0.0)
    assert found.take_requests() == [Watch(KEY, revision + 1)]
    return found


def test_nothing_is_written_before_it_was_read_or_while_etcd_is_away() -> None:
    assert SharedValue(KEY).propose(b"x") == AWAY
    value = known()
    value.answered(EtcdState(False), 1.0)
    assert value.propose(b"x") == AWAY and value.value == b"one", "the last state stays"
    value.answered(EtcdState(True), 2.0)
    assert value.propose(b"x") == ""


def test_a_doubled_answer_and_a_late_one_change_nothing() -> None:
    value = known()
    assert value.propose(b"two") == ""
    (write,) = value.take_requests()
    assert isinstance(write, Txn)
    done = TxnAnswer(write.tag, True, 6, ((), (KeyValue(KEY, b"two", 1, 6),)))
    value.answered(done, 1.0)
    assert value.take_outcome() == DONE and value.value == b"two"
    value.answered(TxnAnswer(write.tag, True, 5, ((), (KeyValue(KEY, b"one", 1, 5),))), 1.0)
    assert value.take_outcome() is None and value.value == b"two"


def test_the_second_of_two_operators_is_told_and_knows_the_first_change() -> None:
    value = known()
    assert value.propose(b"mine") == "" and value.propose(b"again") == PENDING
    (write,) = value.take_requests()
    assert isinstance(write, Txn)
    value.answered(TxnAnswer(write.tag, False, 9, ((KeyValue(KEY, b"theirs", 1, 8),),)), 1.0)
    assert value.take_outcome() == OVERTAKEN and value.value == b"theirs"


def test_after_an_error_the_outcome_is_unknown_and_the_key_is_read_again() -> None:
    value = known()
    assert value.propose(b"two") == ""
    (write,) = value.take_requests()
    assert isinstance(write, Txn)
    value.answered(TxnAnswer(write.tag, False, 0, error="no leader"), 1.0)
    assert value.take_outcome() == UNKNOWN and value.value == b"one"
    value.tick(value.wake_at())
    (read,) = value.take_requests()
    assert isinstance(read, Txn) and not read.compares
