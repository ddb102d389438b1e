"""The model of etcd by itself: what may happen, happens, and what etcd rules out, does not."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.etcd_model import EtcdModel, Session

from starlingmq.cluster.etcd.etcd_requests import (
    Answer,
    Compare,
    Delete,
    EtcdState,
    Get,
    LeaseLost,
    Put,
    Txn,
    TxnAnswer,
    Watch,
    WatchEvent,
    WatchLost,
)

NEW = (Compare(b"/k", "create_revision", "=", 0),)


def put(value: str, key: bytes = b"/k", leased: bool = False) -> Txn:
    return Txn(value, (), (Put(key, value.encode(), leased),))


def told(answers: list[tuple[str, Answer]], kind: type[Answer]) -> list[Answer]:
    return [answer for _, answer in answers if isinstance(answer, kind)]


def values(answers: list[tuple[str, Answer]]) -> list[bytes | None]:
    events = [answer for _, answer in answers if isinstance(answer, WatchEvent)]
    return [change.value for event in events for change in event.changes]


def opened(model: EtcdModel, node: str = "a") -> Session:
    session = model.session(node)
    session.keep_alive(0.0)
    return session


def test_one_of_two_conditional_writes_wins() -> None:
    model = EtcdModel(Random(1))
    for node in "ab":
        opened(model, node).request(Txn(node, NEW, (Put(b"/k", node.encode()),), (Get(b"/k"),)), 0.0)
    answers = [answer for _, answer in model.advance(1.0) if isinstance(answer, TxnAnswer)]
    winner, loser = sorted(answers, key=lambda answer: not answer.succeeded)
    assert (winner.succeeded, winner.revision, winner.found) == (True, 2, ((),))
    assert (loser.succeeded, loser.revision, loser.found[0][0].value) == (False, 2, winner.tag.encode())


def test_a_silent_node_loses_its_lease_and_the_keys_of_it() -> None:
    model = EtcdModel(Random(2), lease_ttl=10)
    silent, other = opened(model, "silent"), opened(model, "other")
    silent.request(put("here", leased=True), 0.0)
    other.request(Watch(b"/", 1), 0.0)
    assert values(model.advance(9.0)) == [b"here"]
    other.keep_alive(9.0)
    answers = model.advance(11.0)
    assert values(answers) == [None] and not told(answers, LeaseLost)
    first = silent.lease
    silent.keep_alive(12.0)
    assert told(model.advance(12.0), LeaseLost) == [LeaseLost(silent.lease)] and silent.lease != first


def test_a_lease_lives_as_long_as_it_is_kept_alive_and_through_the_loss_of_a_leader() -> None:
    model = EtcdModel(Random(3), lease_ttl=10)
    session = opened(model)
    session.request(put("here", leased=True), 0.0)
    session.keep_alive(6.0)
    model.advance(15.0)
    model.lose_leader(15.0, 20.0)
    model.advance(44.0)
    assert model.store.get(b"/k")
    model.advance(46.0)
    assert not model.store.get(b"/k")


def test_a_cut_watch_resumes_where_it_was_and_is_lost_behind_compaction() -> None:
    model = EtcdModel(Random(4))
    reader, writer = opened(model, "reader"), opened(model, "writer")
    reader.request(Watch(b"/", 1), 0.0)
    writer.request(put("1"), 0.0)
    assert values(model.advance(1.0)) == [b"1"]
    model.cut("reader")
    writer.request(put("2"), 1.0)
    assert values(model.advance(2.0)) == []
    model.heal("reader", 2.0)
    assert values(model.advance(3.0)) == [b"2"]
    model.cut("reader")
    for number in range(3):
        writer.request(put(str(number)), 3.0)
    model.advance(4.0)
    model.compact()
    model.heal("reader", 4.0)
    assert told(model.advance(5.0), WatchLost) == [WatchLost(b"/", model.store.revision)]


def test_a_cut_node_gets_errors_and_is_told_when_etcd_is_back() -> None:
    model = EtcdModel(Random(5), request_timeout=3)
    session = opened(model)
    model.advance(0.0)
    model.cut("a")
    session.request(put("lost"), 0.0)
    answers = [answer for _, answer in model.advance(3.0)]
    assert isinstance(answers[0], TxnAnswer) and answers[0].error and isinstance(answers[1], EtcdState)
    assert not answers[1].available and not model.store.get(b"/k")
    model.heal("a", 3.0)
    session.keep_alive(4.0)
    assert told(model.advance(4.0), EtcdState) == [EtcdState(True)]


def test_requests_without_a_leader_may_be_executed_or_not_and_late() -> None:
    outcomes = set()
    for seed in range(100):
        model = EtcdModel(Random(seed), request_timeout=3)
        session = opened(model)
        session.request(put("before"), 0.0)
        early = model.advance(0.003)
        model.lose_leader(0.003, 5.0)
        answers = [a for _, a in early + model.advance(4.0) if isinstance(a, TxnAnswer)]
        assert len(answers) == 1
        before = bool(model.store.get(b"/k"))
        assert not told(model.advance(9.0), TxnAnswer), "answered twice"
        outcomes.add((bool(answers[0].error), before, bool(model.store.get(b"/k"))))
    # (error, done by then, done in the end)
    assert outcomes == {(False, True, True), (True, True, True), (True, False, True), (True, False, False)}


def test_requests_that_etcd_always_refuses_are_errors_of_the_caller() -> None:
    model = EtcdModel(Random(6))
    opened(model).request(Txn("t", (), (Put(b"/k", b""), Delete(b"/", prefix=True))), 0.0)
    with pytest.raises(ValueError, match="twice"):
        model.advance(1.0)


@settings(max_examples=50, deadline=None)
@given(st.integers())
def test_a_watch_tells_every_change_in_order_through_any_faults(seed: int) -> None:
    random = Random(seed)
    model = EtcdModel(random)
    reader, writer = opened(model, "reader"), opened(model, "writer")
    reader.request(Watch(b"/", 1), 0.0)
    answers: list[tuple[str, Answer]] = []
    now = 0.0
    for number in range(60):
        now += random.expovariate(10)
        writer.request(put(str(number)), now)
        if random.random() < 0.2:
            model.cut("reader")
        if random.random() < 0.4:
            model.heal("reader", now)
        if random.random() < 0.05:
            model.lose_leader(now, random.random())
        answers += model.advance(now)
    model.heal("reader", now)
    answers += model.advance(now + 10)
    events = [answer for _, answer in answers if isinstance(answer, WatchEvent)]
    seen = [(change.mod_revision, change.value) for event in events for change in event.changes]
    assert seen == [(c.mod_revision, c.value) for _, changes in model.store.changes_since(b"/", 1) for c in changes]
    assert [event.revision for event in events] == [event.changes[-1].mod_revision for event in events]


def test_a_seed_replays_a_world() -> None:
    def world() -> list[tuple[str, Answer]]:
        model = EtcdModel(Random(7))
        for node in "abc":
            session = opened(model, node)
            session.request(Watch(b"/", 1), 0.0)
            session.request(put(node), 0.0)
        model.lose_leader(0.004, 0.5)
        return model.advance(5.0)

    assert world() == world()
