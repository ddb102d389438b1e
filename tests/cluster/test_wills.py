"""Wills of a cluster, one thing at a time: published once, by any living node, and not when the client is
back in time.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster import many_wills
from tests.cluster.fleet import Fleet, NodeWorld
from tests.cluster.will_records import WillRecords
from tests.harness import FakeClient

from starlingmq.cluster.etcd.etcd_cas import CasUpdate, EtcdCas
from starlingmq.cluster.etcd.etcd_requests import KeyValue, TxnAnswer
from starlingmq.cluster.shares.share_table import SHARES, share_of
from starlingmq.cluster.wills import cluster_wills, will_registration
from starlingmq.cluster.wills.lost_wills import RECORDS_PER_TURN, SHARES_PER_TURN, TAKEN_PER_TURN, LostWills
from starlingmq.cluster.wills.will_records import (
    ARMED,
    SETTLED,
    RegisteredWill,
    client_of_key,
    will_from,
)
from starlingmq.cluster.wills.will_settlement import KEPT_SECONDS, WillSettlements
from starlingmq.cluster.wills.will_store import WillRecord
from starlingmq.cluster.wills.will_table import DUE
from starlingmq.core.context.ready import FACT_DELETE
from starlingmq.wire.mqtt import Connack, Connect, Disconnect, Publish, Subscribe, SubscribeRequest, Will
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL, Properties


def watch(fleet: Fleet, place: int) -> FakeClient:
    watcher = fleet.connect(place, "watcher", clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 3600})
    watcher.send(Subscribe(1, [SubscribeRequest(b"will/#", 0)]))
    fleet.advance(0.2)
    watcher.receive()
    return watcher


def leave_will(fleet: Fleet, place: int, name: str, delay: int = 0, expiry: int = 0, **more: Any) -> FakeClient:
    properties: Properties = {WILL_DELAY_INTERVAL: delay} if delay else {}
    will = Will(b"will/" + name.encode(), b"gone", 1, False, properties)
    more.setdefault("clean_start", False)
    client = fleet.connect(place, name, will=will, properties={SESSION_EXPIRY_INTERVAL: expiry}, **more)
    fleet.advance(0.1)
    return client


def published(watcher: FakeClient, seconds: float = 0.2) -> list[bytes]:
    watcher.world.fleet.advance(seconds, 0.01 if seconds < 1.0 else 0.1)  # type: ignore[attr-defined]
    return [packet.topic for packet in watcher.receive() if isinstance(packet, Publish)]


def kept(fleet: Fleet) -> list[bytes]:
    return fleet.will_keys()


def kill(fleet: Fleet, place: int) -> NodeWorld:
    """Without a word: its lease runs out by itself."""
    node = fleet.nodes.pop(place)
    node.etcd.close(fleet.now, revoke=False)
    return node


def test_its_own_node_publishes_a_will_and_says_so() -> None:
    fleet = Fleet(2)
    watcher = watch(fleet, 1)
    client = leave_will(fleet, 0, "a")
    assert kept(fleet) == [b"1/a"]
    client.drop()
    assert published(watcher) == [b"will/a"]
    assert kept(fleet) == []


def test_a_will_that_is_taken_back_is_nowhere() -> None:
    fleet = Fleet(2)
    watcher = watch(fleet, 1)
    client = leave_will(fleet, 0, "a")
    client.disconnect()
    assert published(watcher) == []
    assert kept(fleet) == []


def test_a_delayed_will_is_told_when_it_is_due_and_published_then() -> None:
    fleet = Fleet(2)
    watcher = watch(fleet, 1)
    leave_will(fleet, 0, "a", delay=5, expiry=60).drop()
    assert published(watcher, 4.5) == []
    will = fleet.will(b"1/a")
    assert will is not None and fleet.now < will.due_at < fleet.now + 1.0
    assert published(watcher, 1.0) == [b"will/a"]


@pytest.mark.parametrize("clean_start", [False, True])
def test_a_will_that_was_taken_back_is_not_published_by_a_node_that_still_finds_its_record(clean_start: bool) -> None:
    """The node of the DISCONNECT does not reach the leader for a while, so the record of the will is still there."""
    fleet = Fleet(3)
    watcher = watch(fleet, 2)
    client = leave_will(fleet, 0, "a", expiry=60)
    fleet.hold_owners(0)
    client.send(Disconnect())
    fleet.connect(1, "a", clean_start=clean_start)
    assert published(watcher, 1.0) == []
    fleet.give_owners()
    assert published(watcher, 5.0) == []
    assert kept(fleet) == []


def test_a_client_that_is_back_elsewhere_cancels_its_will() -> None:
    fleet = Fleet(2)
    watcher = watch(fleet, 1)
    leave_will(fleet, 0, "a", delay=5, expiry=60).drop()
    fleet.advance(3.0)
    again = fleet.connect(1, "a", clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 60})
    assert again.connack.session_present
    assert published(watcher, 20.0) == []
    assert kept(fleet) == []


@pytest.mark.parametrize(("delay", "clean_start", "wills"), [(0, False, 1), (5, False, 0), (5, True, 1), (0, True, 1)])
def test_a_takeover_elsewhere_is_the_end_of_the_connection(delay: int, clean_start: bool, wills: int) -> None:
    """MQTT 5, 3.1.3.2.2: the will is sent, unless the new connection goes on with the session and it has a delay."""
    fleet = Fleet(2)
    watcher = watch(fleet, 1)
    leave_will(fleet, 0, "a", delay=delay, expiry=60)
    again = fleet.connect(1, "a", clean_start=clean_start, properties={SESSION_EXPIRY_INTERVAL: 60})
    assert again.connack.session_present != clean_start
    assert published(watcher, 20.0) == [b"will/a"] * wills


def test_a_clean_start_ends_a_session_that_is_still_on_its_way() -> None:
    """And though the client comes back to where it is on its way to: its will is due, and what it had is gone."""
    fleet = Fleet(3)
    watcher, publisher = watch(fleet, 2), fleet.connect(2, "p")
    client = leave_will(fleet, 0, "a", delay=60, expiry=3600)
    client.send(Subscribe(1, [SubscribeRequest(b"t", 1)]))
    fleet.advance(0.1)
    fleet.mute = {(2, 3)}  # which is not asked for its mark
    client = leave_will(fleet, 1, "a", delay=60, expiry=3600)
    session = fleet[1].state.ctx.sessions["a"]
    assert client.connack.session_present and session.moving is not None
    client.drop()
    publisher.send(Publish(b"t", b"of before", 1, packet_id=1))
    fleet.connect(0, "a", clean_start=True, properties={SESSION_EXPIRY_INTERVAL: 3600})
    fleet.advance(0.1)
    assert session.ended
    again = fleet.connect(1, "a", clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 3600})
    assert again.connack.session_present, "the one that began with the clean start"
    fleet.speak()
    assert published(watcher, 5.0) == [b"will/a"]
    assert not [packet for packet in again.receive() if isinstance(packet, Publish)]
    names = [name for node in fleet.nodes for name in node.state.ctx.sessions if not name.startswith("$node/")]
    assert sorted(names) == ["a", "p", "watcher"]


def test_a_node_that_missed_a_clean_start_finds_it_in_etcd() -> None:
    """The client is back before the node where it began with nothing could say so, and was there a second time."""
    fleet = Fleet(3)
    watcher, publisher = watch(fleet, 2), fleet.connect(2, "p")
    client = leave_will(fleet, 0, "a", delay=60, expiry=3600)
    client.send(Subscribe(1, [SubscribeRequest(b"t", 1)]))
    fleet.advance(0.1)
    client.drop()
    publisher.send(Publish(b"t", b"of before", 1, packet_id=1))
    fleet.mute = {(2, 1)}
    fleet.connect(1, "a", clean_start=True, properties={SESSION_EXPIRY_INTERVAL: 3600}).drop()
    fleet.connect(1, "a", clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 3600}).drop()
    again = fleet[0].open(5, "a")
    again.send(Connect(5, "a", False, properties={SESSION_EXPIRY_INTERVAL: 3600}))
    fleet.advance(0.2)
    fleet.speak()
    fleet.advance(0.2)
    assert again.expect(Connack).session_present, "the one that began with the clean start"
    assert published(watcher, 5.0) == [b"will/a"]
    assert not [packet for packet in again.receive() if isinstance(packet, Publish)]


@pytest.mark.interpreted_only("what is compiled can not be patched")
def test_more_wills_than_a_turn_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are due while their node reads what etcd has of them again."""
    monkeypatch.setattr(cluster_wills, "NAMES_PER_TURN", 2)
    monkeypatch.setattr(will_registration, "NAMES_PER_CHECK", 2)
    fleet = Fleet(2)
    watcher = watch(fleet, 1)
    clients = [leave_will(fleet, 0, f"w{number}") for number in range(5)]
    store = fleet[0].cluster.shares.wills
    fleet[0].cluster.wills.registration.reading_begins()
    store.follow(1, fleet[0].cluster.wills.registration)
    fleet[0].cluster._has_events = True
    for client in clients:
        client.drop()
    assert len(published(watcher, 1.0)) == 5


def test_the_leader_publishes_the_wills_of_a_dead_node() -> None:
    fleet = Fleet(3)
    watcher = watch(fleet, 2)
    leave_will(fleet, 0, "a")
    leave_will(fleet, 0, "b", delay=20, expiry=60)
    leave_will(fleet, 0, "c", delay=60, expiry=0)
    kill(fleet, 0)
    assert sorted(published(watcher, 16.0)) == [b"will/a", b"will/c"], "c's session ended with its connection"
    assert published(watcher, 20.0) == [b"will/b"]
    assert published(watcher, 20.0) == []
    wills = [fleet.will(key) for key in kept(fleet)]
    assert [will.state for will in wills if will is not None] == [SETTLED] * 3


def test_a_client_that_reconnects_after_its_node_died_cancels_its_will() -> None:
    fleet = Fleet(3)
    watcher = watch(fleet, 2)
    leave_will(fleet, 0, "a", delay=30, expiry=60)
    kill(fleet, 0)
    fleet.advance(16.0, 0.1)
    fleet.connect(1, "a", clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 60})
    assert published(watcher, 60.0) == []


def test_a_client_that_reconnects_before_its_dead_node_is_missed_cancels_its_will() -> None:
    fleet = Fleet(3)
    watcher = watch(fleet, 2)
    leave_will(fleet, 0, "a", delay=30, expiry=60)
    kill(fleet, 0)
    fleet.connect(1, "a", clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 60})
    assert published(watcher, 60.0) == []


def test_a_node_that_was_cut_off_does_not_publish_wills_that_others_have_published() -> None:
    fleet = Fleet(3)
    watcher = watch(fleet, 2)
    client = leave_will(fleet, 0, "a")
    for other in (2, 3):
        fleet.cut(1, other)
    fleet.etcd.cut("n1")
    assert published(watcher, 20.0) == [b"will/a"]
    client.drop()
    fleet.etcd.heal("n1", fleet.now)
    fleet.heal()
    assert published(watcher, 20.0) == []
    assert kept(fleet) == []


def test_a_new_connection_leaves_a_new_will() -> None:
    fleet = Fleet(2)
    watcher = watch(fleet, 1)
    for _ in range(3):
        client = leave_will(fleet, 0, "a", expiry=60)
        client.drop()
        assert published(watcher) == [b"will/a"]
    assert kept(fleet) == []


def test_a_will_waits_while_the_leader_of_its_share_does_not_answer() -> None:
    fleet = Fleet(2)
    watcher = watch(fleet, 1)
    client = leave_will(fleet, 0, "a")
    fleet.hold_owners()
    client.drop()
    assert published(watcher, 4.0) == []
    fleet.give_owners()
    assert published(watcher, 8.0) == [b"will/a"]


def settling(store: WillRecords) -> WillSettlements:
    """The settlements of node 1; node 2 cannot be reached."""
    found = WillSettlements(
        store, 3.0, lambda node: False, lambda name: False, lambda name, will: False, lambda changed: None
    )
    found.enter(1)
    return found


def settle(found: WillSettlements, epoch: int, client_id: str = "c") -> bool:
    return found.settle(client_id, 2, epoch, None, False, 0, 0.0)


def test_a_will_that_its_client_has_left_since_is_not_cancelled() -> None:
    """It was back here, went to where it had been, and the leader was slow."""
    store = WillRecords()
    found = settling(store)
    store.put(b"2/c", RegisteredWill(ARMED, 7, delay=3, seconds=3, epoch=3))
    assert not settle(found, 5)
    store.answer(1)
    (change,) = store.changes
    assert change.revision == store.get(b"2/c").revision and not settle(found, 5)
    store.put(b"2/c", RegisteredWill(ARMED, 8, delay=3, seconds=3, epoch=6))
    store.answer()
    assert store.changes == [change] and settle(found, 5)


def test_the_settlement_of_an_earlier_connection_does_not_count_for_a_later_one() -> None:
    store = WillRecords()
    found = settling(store)
    store.put(b"2/c", RegisteredWill(ARMED, 7, delay=3, seconds=3, epoch=6))
    assert not settle(found, 5)
    store.answer()
    assert store.changes == []  # no connection waits for it any more
    assert not settle(found, 9)
    store.answer()
    assert len(store.changes) == 1


def test_an_unreachable_node_learns_from_its_record_that_its_client_is_back() -> None:
    """It may have a will that is not registered yet."""
    store = WillRecords()
    assert not settle(settling(store), 5)
    store.answer()
    (change,) = store.changes
    assert change.value is not None
    assert (change.key, change.value.state, change.value.epoch) == (b"2/c", SETTLED, 5)


def test_settlements_that_no_connect_asks_for_are_forgotten() -> None:
    """The session of who was back has come after all, or its client is gone again."""
    store = WillRecords()
    found = settling(store)
    for number in range(100):
        assert not settle(found, 5, f"c{number}")
    found.turn(2.0)
    store.answer()
    found.turn(30.0)
    assert len(found._settlements) == 100
    found.turn(2.0 + KEPT_SECONDS)
    assert not found._settlements
    assert not settle(found, 5), "it is looked up again"


def test_a_node_that_was_taken_out_publishes_nothing_of_before() -> None:
    """The will was due when the node restarted; the leader has published it, since the node was no member any more."""
    node = Fleet(1)[0]
    node.state.ctx.recording = True
    found = node.cluster.wills
    found.begin_turn(node.now)
    will = will_from(RegisteredWill(ARMED, 7, delay=3, seconds=3, epoch=3))
    assert node.state.ctx.cluster.wills is not None
    node.state.ctx.cluster.wills.fire("c", will)
    found.begin_turn(node.now)
    assert found.is_busy()
    found.give_up({DUE + b"of an earlier life": b""})
    node.state.ctx.cluster.wills.changed.clear()
    assert not found.is_busy()
    deleted = [write.topic for write in node.state.ctx.ready.writes if write.kind == FACT_DELETE]
    assert len(deleted) == 2 and all(key.startswith(DUE) for key in deleted)


def test_one_of_two_nodes_gets_a_key_and_the_other_is_told() -> None:
    changes = EtcdCas("t")
    changes.add(CasUpdate(b"a", 3, b"ours"))
    changes.add(CasUpdate(b"b", 4, None))
    (asked,) = changes.take_requests(1.0)
    assert [compare.operand for compare in asked.compares] == [3, 4]
    there = (KeyValue(b"a", b"theirs", 1, 9),)
    amended = changes.answered(TxnAnswer(asked.tag, False, 10, (there, (KeyValue(b"b", b"x", 1, 4),))), 1.0)
    assert amended is not None and amended.done == []
    assert [(each.key, revision, value) for each, revision, value in amended.void] == [(b"a", 9, b"theirs")]
    (again,) = changes.take_requests(1.0)
    assert [compare.key for compare in again.compares] == [b"b"], "what holds goes again"
    unanswered = changes.answered(TxnAnswer(again.tag, False, 0, error="no answer"), 1.0)
    assert unanswered is not None and unanswered.done == [] and unanswered.void == []
    assert changes.take_requests(1.0) == [] and changes.wake_at() > 1.0
    assert len(changes.take_requests(2.0)) == 1


def test_the_wills_of_a_large_node_are_taken_over_some_turns_the_first_due_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn's work is proportional to the due wills, not to all: 20,000 wait, most of them for long."""
    store = WillRecords()
    for number in range(20_000):
        store.put(b"2/%05d" % number, RegisteredWill(ARMED, number, due_at=101.0 + number % 100))
    by_share: dict[int, list[WillRecord]] = {}
    for record in store.records.values():
        by_share.setdefault(share_of(client_of_key(record.key)), []).append(record)
    monkeypatch.setattr(store, "_in", lambda share: by_share.get(share, []))
    lost = LostWills(store, lambda node: node == 2, lambda node: False, 1.0, lambda changed: None)
    lost.enter(1)
    lost.set_members({1: None, 2: None})
    lost.turn(100.0)
    while lost.is_pending():
        lost.turn(100.5)
    assert store.changes == [], "it may be back"
    now, turns = 100.0, 0
    while lost.wake_at() or lost.is_pending():
        before = len(store.changes)
        now = now if lost.is_pending() else max(now, lost.wake_at())
        lost.turn(now)
        assert len(store.changes) - before <= TAKEN_PER_TURN
        turns += 1
    searches = SHARES / SHARES_PER_TURN + len(store.records) / RECORDS_PER_TURN
    assert turns <= 2 * searches + len(store.records) / TAKEN_PER_TURN
    due_at = {key: each.value.due_at for key, each in store.records.items() if each.value is not None}
    taken = [change.key for change in store.changes]
    assert sorted(taken) == sorted(due_at), "each once"
    late = taken[2 * TAKEN_PER_TURN :]
    assert [due_at[key] for key in late] == sorted([due_at[key] for key in late])


def test_nodes_that_left_with_nothing_are_forgotten() -> None:
    store = WillRecords()
    lost = LostWills(store, lambda node: node > 1, lambda node: False, 1.0, lambda changed: None)
    lost.enter(1)
    for node in range(2, 50):
        lost.set_members({1: None, node: None})
        lost.turn(float(node))
        while lost.is_pending():
            lost.turn(float(node))
    assert len(lost._gone_since) <= 2


def test_the_time_for_many_wills_can_be_measured() -> None:
    """``python -m tests.cluster.many_wills``, in small."""
    assert many_wills.own(300).node.cluster.wills.fired == 300
    assert not many_wills.of_a_dead_node(300).node.cluster.wills.fired
