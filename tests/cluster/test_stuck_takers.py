"""No client is locked out by a node that has taken its will and does not publish it; and none overtakes its will."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cluster import test_share_wills as share_wills
from tests.cluster.fleet import Fleet, NodeWorld
from tests.cluster.many_wills import Crowd
from tests.cluster.test_shares import share_fleet
from tests.cluster.test_taken_away import SECONDS, WILL, Settling
from tests.cluster.test_wills import kill, leave_will, published, watch
from tests.harness import FakeClient

from starlingmq.cluster.shares.owner_book import OwnerBook
from starlingmq.cluster.shares.share_messages import Claim
from starlingmq.cluster.view.durable_tokens import DurableTokens
from starlingmq.cluster.wills import cluster_wills, lost_wills, taken_wills
from starlingmq.cluster.wills.taken_away import TakenAway
from starlingmq.cluster.wills.will_records import (
    ARMED,
    FIRING,
    SETTLED,
    RegisteredWill,
    encode_will,
    taken_key,
    taken_name,
)
from starlingmq.cluster.wills.will_store import WillRecord
from starlingmq.core.session.session import Client
from starlingmq.wire.mqtt import Connack, Connect, Disconnect
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL


def take_for(fleet: Fleet, taker: int) -> None:
    """The will of client c of node 1 was taken by node ``taker``, and no key leads to the copy."""
    leave_will(fleet, 0, "c")
    value = fleet.will(b"1/c")
    assert value is not None
    settled = RegisteredWill(SETTLED, value.id, taker=taker)
    fleet.write_wills(2, (b"1/c", settled), (taken_key(taker, 1, "c"), value))
    fleet.advance(0.5)
    assert fleet.will(b"1/c") is None and fleet.owners("c") == []


def come(fleet: Fleet, place: int) -> FakeClient:
    client = fleet[place].open()
    client.send(Connect(5, "c", False, 0, properties={SESSION_EXPIRY_INTERVAL: 600}))
    return client


def test_a_client_that_gives_up_early_is_not_locked_out_by_a_taker_that_is_gone() -> None:
    """It waits for CONNACK for less time than a copy is waited for, and tries again and again."""
    fleet = Fleet(4)
    fleet.keep_owners_at(1, 2)
    fleet.hold_owners(3)
    kill(fleet, 3)
    take_for(fleet, 4)
    for _ in range(8):
        client = come(fleet, 1)
        fleet.advance(2.0)
        if client.output:
            break
        client.drop()
        fleet.advance(0.1)
    assert client.output and client.expect(Connack).reason == 0
    assert fleet.will_keys() == []


@pytest.mark.parametrize("state", [FIRING, ARMED])
def test_a_record_that_a_node_has_left_which_is_gone_counts_as_unchanged_over_several_connects(state: int) -> None:
    world = Settling()
    if state == FIRING:
        world.put(b"2/c", RegisteredWill(FIRING, 7, epoch=4))
    else:
        world.put(b"2/c", RegisteredWill(SETTLED, 7, epoch=5, taker=3))
        world.put(taken_key(3, 2, "c"), WILL)
    for epoch in range(5, 10):
        assert not world.found.settle("c", 2, epoch, None, False, 0, 0.0)
        world.pass_time(SECONDS - 1.0)
        if world.found.settle("c", 2, epoch, None, False, 0, 0.0):
            return
    raise AssertionError("no CONNECT is answered")


def fill_disk(node: NodeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is stored from now on."""
    write = node._write_link

    def write_unless_stored(client: Client) -> None:
        if isinstance(client.transport, DurableTokens):
            client.frames.clear()
        write(client)

    monkeypatch.setattr(node, "_write_link", write_unless_stored)


@pytest.mark.parametrize("disk", [True, False])
def test_a_taker_that_cannot_publish_does_not_lock_out_the_client(disk: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is connected; its disk is full, or it does not reach the leader of the share."""
    fleet = Fleet(4)
    fleet.keep_owners_at(1, 2)
    watcher = watch(fleet, 2)
    if disk:
        fill_disk(fleet[3], monkeypatch)
    else:
        fleet.hold_owners(3)
    take_for(fleet, 4)
    client = come(fleet, 1)
    fleet.advance(5.0)
    assert not client.output and fleet[1].cluster.view.is_connected(4)
    fleet.advance(100.0, 0.05)
    assert client.output and client.expect(Connack).reason == 0
    assert fleet.will_keys() == [] and published(watcher, 5.0) == []


def test_a_client_that_comes_to_a_taker_which_does_not_know_its_copy_yet_does_not_overtake_its_will() -> None:
    """Its change was granted, or it has just restarted. The word of the leader comes late, that of the deputy, which
    answers the claim, does not."""
    fleet = Fleet(4)
    fleet.keep_owners_at(1, 2)
    watcher = watch(fleet, 2)
    fleet.cut(2, 4, both=False)
    take_for(fleet, 4)
    assert fleet[3].cluster.wills.table.get(taken_name(1, "c")) is None
    client = come(fleet, 3)
    fleet.advance(0.5)
    assert fleet.owners("c") == [4] and not client.output, "the client would publish before its will"
    fleet.heal()
    fleet[1].cluster.connected(4, fleet.now)
    assert published(watcher, 2.0) == [b"will/c"]
    assert client.expect(Connack).reason == 0


def test_what_was_taken_is_remembered_for_as_long_as_a_connect_may_wait() -> None:
    """A CONNECT waits for the session first, from a slow node, and for the copy after that."""
    fleet = Fleet(4)
    fleet.keep_owners_at(1, 2)
    fleet.hold_owners(3)
    leave_will(fleet, 0, "c", expiry=600)
    value = fleet.will(b"1/c")
    assert value is not None
    fleet.mute = {(1, 2), (2, 1)}
    client = come(fleet, 1)
    fleet.advance(0.5)
    fleet.write_wills(2, (b"1/c", RegisteredWill(SETTLED, value.id, taker=4)), (taken_key(4, 1, "c"), value))
    fleet.advance(100.0, 0.05)
    assert not client.output
    fleet.speak()
    fleet.advance(3.0)
    assert not client.output, "the client would publish before its will"
    assert fleet.will(taken_key(4, 1, "c")) is not None


def test_connects_that_wait_for_long_do_not_read_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Settling(2)
    taken = TakenAway(world.found, 0.0)
    taken.note("c", world.now)
    world.put(taken_key(2, 1, "c"), WILL)
    count = 0
    read = world.store.read

    def counting(client_id: str, answered: Callable[[list[WillRecord]], None]) -> None:
        nonlocal count
        count += 1
        read(client_id, answered)

    monkeypatch.setattr(world.store, "read", counting)
    for _ in range(5):
        assert taken.is_unpublished("c", world.now)
        world.pass_time(SECONDS)
    assert count < 100, count


def test_a_client_moves_while_etcd_is_away_though_another_node_has_published_a_will_of_it() -> None:
    """etcd has not yet what that will retains, so its copy is still there."""
    fleet = share_fleet(4)
    share_wills.come(fleet, 0)
    fleet.etcd.lose_leader(fleet.now, 200.0)
    second = share_wills.come(fleet, 1)  # this node takes the first will and publishes it
    assert second.expect(Connack).reason == 0
    second.send(Disconnect())
    fleet.advance(0.5)
    third = share_wills.come(fleet, 0)
    assert third.expect(Connack).reason == 0
    fourth = share_wills.come(fleet, 2)
    fleet.advance(20.0, 0.05)
    assert fourth.output and fourth.expect(Connack).reason == 0


def test_a_copy_of_which_a_claim_was_not_told_does_not_come_back() -> None:
    """Leader and deputy were lost while the taker could not say what it has. The client was served elsewhere since."""
    for known, granted in ((False, False), (False, True), (True, True)):
        book = OwnerBook(5, 4, True)
        book.collected = 5
        book.unknown = {4: None}
        copy = (taken_key(4, 1, "c"), 9, encode_will(WILL))
        if known:
            book.wills.add([copy])
        if granted:
            book.claim(2, Claim(1, "c", 1, 0, 0), 5)
        assert bool(book.wills.besides("c", 2)) == known
        book.state_wills(4, (copy,))
        assert bool(book.wills.besides("c", 2)) == (known or not granted)


@pytest.mark.interpreted_only("what is compiled has its numbers built in")
def test_many_wills_that_were_taken_and_not_published_in_time_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node takes two steps in each turn. If it took all late wills again at once, each would be late again when its
    turn comes."""
    crowd = Crowd(600)
    crowd.come(0.0)
    monkeypatch.setattr(cluster_wills, "NAMES_PER_TURN", 2)
    monkeypatch.setattr(lost_wills, "TAKEN_PER_TURN", 2)
    monkeypatch.setattr(taken_wills, "AGAIN_MAX", 2)
    fleet = crowd.fleet
    crowd._add()
    fleet.nodes.remove(crowd.node)
    crowd.node.etcd.close(fleet.now, revoke=False)
    monkeypatch.setattr(fleet, "run", lambda: [node.turn() for node in fleet.nodes])
    fleet.advance(100.0, 0.1)
    assert crowd._taken() == crowd.wills
