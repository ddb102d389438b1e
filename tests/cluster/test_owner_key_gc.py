"""Owner keys that a node's earlier incarnations have left are deleted, and no others."""

from __future__ import annotations

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.lone_ownership import lone_ownership

from starlingmq.cluster.etcd.etcd_requests import KeyValue, Put, Txn, TxnAnswer
from starlingmq.cluster.takeover.owner_key_gc import PAGE, PAUSE_SECONDS, OwnerKeyGc
from starlingmq.wire.mqtt import Subscribe, SubscribeRequest
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, Properties


def swept(entries: list[tuple[str, int, int]], here: set[str]) -> list[bytes]:
    """Keys as (client id, node, incarnation); returns those that node 1 asks to delete in its third incarnation."""
    ownership = lone_ownership()
    ownership.enter(1, 3)
    sweep = OwnerKeyGc(ownership, lambda client_id: client_id in here)
    sweep.enter(1, 3, 10.0)
    keys = sorted((ownership.key(client_id, node), b"%d" % life) for client_id, node, life in entries)
    found = [KeyValue(key, value, 5, 5 + place) for place, (key, value) in enumerate(keys)]
    now = 10.0
    while sweep.wake_at():
        (request,) = sweep.take_requests(now)
        get = request.success[0]
        page = [entry for entry in found if entry.key > get.after][: get.limit]  # type: ignore[union-attr]
        sweep.answered(TxnAnswer(request.tag, True, 9, (tuple(page),)), now)
        now += PAUSE_SECONDS
    gone: list[bytes] = []
    while requests := ownership.take_requests(now):
        for txn in requests:
            gone += [operation.key for operation in txn.success]
            ownership.answered(TxnAnswer(txn.tag, True, 9), now)
    return gone


def test_only_keys_of_earlier_incarnations_without_a_session_are_deleted() -> None:
    entries = [("a/b%", 1, 2), ("here", 1, 2), ("others", 2, 2), ("new", 1, 3), ("old", 1, 1)]
    gone = swept(entries, {"here"})
    assert gone == [b"/starlingmq/test/owners/a%2Fb%25/1", b"/starlingmq/test/owners/old/1"]


def test_more_than_a_page() -> None:
    assert len(swept([(f"c{number}", 1, 1) for number in range(2 * PAGE + 7)], set())) == 2 * PAGE + 7


def test_a_first_incarnation_has_no_keys_to_delete() -> None:
    sweep = OwnerKeyGc(lone_ownership(), lambda _: False)
    sweep.enter(1, 1, 10.0)
    assert sweep.take_requests(20.0) == [] and sweep.wake_at() == 0.0


def test_an_unanswered_request_is_repeated() -> None:
    sweep = OwnerKeyGc(lone_ownership(), lambda _: False)
    sweep.enter(1, 2, 10.0)
    (request,) = sweep.take_requests(10.0)
    sweep.answered(TxnAnswer(request.tag, False, 0, (), "no leader"), 10.0)
    assert not sweep.take_requests(10.1)
    assert sweep.take_requests(sweep.wake_at())


def owner_keys(fleet: Fleet) -> list[bytes]:
    prefix = fleet[0].cluster.ownership.prefix
    return [entry.key[len(prefix) :] for entry in fleet.etcd.store.get(prefix, prefix=True)]


def claim_late(fleet: Fleet, number: int) -> None:
    """etcd carries out a claim of that node which it was asked for long ago."""
    put = Put(fleet[0].cluster.ownership.key("c", number), b"1")
    fleet.etcd.store.transact(Txn("late", (), (put,)), 0)


@pytest.mark.parametrize("late", [1, 2])
def test_a_claim_that_etcd_carried_out_late_leaves_no_key(late: int) -> None:
    """Of the former owner, while its session is on its way; or of a node whose client has ended its session since."""
    fleet = Fleet(3)
    client = fleet.connect(0, "c", clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 600})
    client.drop()
    fleet.mute = {(3, 1)}  # the mark that the former owner waits for
    client = fleet.connect(1, "c", clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 600})
    assert client.connack.session_present
    claim_late(fleet, late)
    fleet.speak()
    fleet.advance(1.0)
    if late == 1:
        assert owner_keys(fleet) == [b"c/2"]
    client.disconnect(0, {SESSION_EXPIRY_INTERVAL: 0})
    fleet.advance(1.0)
    assert owner_keys(fleet) == []


def test_the_key_of_a_node_with_a_session_stays_when_another_node_reports_it() -> None:
    fleet = Fleet(2)
    client = fleet.connect(0, "c")
    (entry,) = fleet.etcd.store.get(fleet[0].cluster.ownership.prefix, prefix=True)
    fleet[1].cluster.ownership.rewritten.append(("c", 1, entry.mod_revision))
    fleet.advance(0.5)
    assert owner_keys(fleet) == [b"c/1"]
    assert not client.closed


def test_the_key_stays_while_a_session_may_still_come() -> None:
    """The client ends its session at a node to which an earlier one is still on its way."""
    fleet = Fleet(3)
    properties: Properties = {SESSION_EXPIRY_INTERVAL: 600}
    fleet.connect(0, "c", clean_start=False, properties=properties).drop()
    fleet.parted = {(1, 2), (2, 1), (1, 3), (3, 1)}
    fleet.advance(3.0)
    client = fleet.connect(1, "c", clean_start=False, properties=properties)
    assert not client.connack.session_present
    client.disconnect(0, {SESSION_EXPIRY_INTERVAL: 0})
    fleet.advance(1.0)
    assert owner_keys(fleet) == [b"c/1", b"c/2"]
    fleet.speak()
    fleet.advance(5.0)
    assert owner_keys(fleet) == [
        b"c/%d" % node.cluster.number for node in fleet.nodes if "c" in node.state.ctx.sessions
    ]


def test_a_key_that_a_lost_target_was_to_delete_is_released_by_its_node() -> None:
    """A session is on its way from its first node to a second one, when the client goes on to a third one. The first
    node passes the session on and keeps its key, which the second one would delete. It is lost before it has heard that
    the first node is done."""
    fleet = Fleet(4)
    properties: Properties = {SESSION_EXPIRY_INTERVAL: 600}
    subscriber = fleet.connect(0, "c", clean_start=False, properties=properties)
    subscriber.send(Subscribe(1, [SubscribeRequest(b"t", 1)]))
    fleet.advance(0.2)
    subscriber.drop()
    fleet.mute = {(4, 1)}  # the mark that the first node waits for
    fleet.connect(1, "c", clean_start=False, properties=properties).drop()
    client = fleet.connect(2, "c", clean_start=False, properties=properties)
    assert client.connack.session_present
    fleet.end(1)
    fleet.speak()
    fleet.advance(20.0, 0.1)
    assert not fleet[0].cluster.takeovers.has("c")
    assert owner_keys(fleet) == [b"c/1", b"c/2", b"c/3"]
    assert fleet[0].cluster.forget("n2", True, fleet.now) == ""
    fleet.advance(2.0)
    assert owner_keys(fleet) == [b"c/3"]
    assert not client.closed
